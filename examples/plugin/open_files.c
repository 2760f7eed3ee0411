/* A library with a live table: `reader.open_files`, whose rows come from a function at the time of a query.
 * Nothing is recorded, and there is no cost without a query.
 *
 *   cc -shared -fPIC -I include examples/plugin/open_files.c -o libreader.so
 *   python3 -c "import ctypes, time; r = ctypes.CDLL('./libreader.so'); r.reader_open(b'/etc/hostname');
 * time.sleep(600)" & probing -t $! inject && probing -t $! query "SELECT * FROM reader.open_files" */
#include <probing.h>
#include <pthread.h>
#include <stdio.h>

#define FILES 64

static struct {
    FILE *file;
    char path[256];
    long reads;
} files[FILES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const struct probing_column columns[] = {
    {"slot", PROBING_INT32, NULL, "what reader_read takes"},
    {"path", PROBING_STRING, NULL, "what is read"},
    {"reads", PROBING_INT64, NULL, "how often it was read from"},
    {"megabytes", PROBING_FLOAT64, "MB", "how far the reading is"},
};

/* Called by the agent, in a thread of its own. Holds the lock while it copies one row, and returns when the
 * query has ended. */
static int list_files(struct probing_rows *to, void *arg)
{
    (void)arg;
    for (int i = 0; i < FILES; i++) {
        char path[256];
        pthread_mutex_lock(&lock);
        int is_open = files[i].file != NULL;
        long reads = files[i].reads, at = is_open ? ftell(files[i].file) : 0;
        memcpy(path, files[i].path, sizeof(path));
        pthread_mutex_unlock(&lock);
        if (is_open && at < 0)
            return probing_fail(to, "a file that has no position is open");
        if (is_open &&
            probing_row(to, (struct probing_value[]){PROBING_INT(i), PROBING_TEXT(path), PROBING_INT(reads),
                                                     PROBING_FLOAT((double)at / 1e6)}) < 0)
            return 0;
    }
    return 0;
}

static struct probing_live open_files = PROBING_LIVE("reader.open_files", columns, list_files, NULL);

/* When the library is loaded: the agent may already be in the process, or come later. */
__attribute__((constructor)) static void register_tables(void)
{
    probing_register(&open_files);
}

int reader_open(const char *path);
long reader_read(int slot, char *to, long size);

int reader_open(const char *path)
{
    int i = 0;

    pthread_mutex_lock(&lock);
    while (i < FILES && files[i].file)
        i++;
    if (i < FILES) {
        files[i].file = fopen(path, "r");
        files[i].reads = 0;
        snprintf(files[i].path, sizeof(files[i].path), "%s", path);
    }
    pthread_mutex_unlock(&lock);
    return i < FILES && files[i].file ? i : -1;
}

long reader_read(int slot, char *to, long size)
{
    pthread_mutex_lock(&lock);
    long n = files[slot].file ? (long)fread(to, 1, (size_t)size, files[slot].file) : -1;
    files[slot].reads++;
    pthread_mutex_unlock(&lock);
    return n;
}
