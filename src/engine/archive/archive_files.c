/* archive_files: the files of a table in an archive, from their names (see archive_list.h).
 *
 * A folder may hold hundreds of thousands of names: files are listed, never opened; folders of days outside
 * the range are not even listed. */
#include "engine/archive/archive_list.h"

#include "base/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DAY_US (86400 * INT64_C(1000000))

/* Identity and change time of a folder before it was listed. */
struct stamp {
    char name[PB_ARCHIVE_DATE];
    dev_t dev;
    ino_t ino;
    struct timespec changed;
};

struct pb_archive_listing {
    char table[PB_ARCHIVE_PATH], partition[PB_ARCHIVE_PATH];
    struct pb_archive_days days;
    struct pb_archive_files files;
    bool earlier;
    struct timespec began;
    struct stamp *stamps; /* the partition's first, then its days */
    size_t nstamps;
};

struct listing {
    struct pb_archive_files *files;
    struct pb_archive_files *left; /* files replaced by a merge, to be removed; NULL: not wanted */
    const char *run;               /* NULL: of all runs */
    const char *prefix;            /* TABLE/PARTITION */
    const char *date;
    unsigned day;
    char from[PB_ARCHIVE_DATE], until[PB_ARCHIVE_DATE], undated[PB_ARCHIVE_DATE]; /* "": no limit */
    bool earlier;
    char (*dates)[PB_ARCHIVE_DATE];
    size_t ndates;
    struct stamp *stamps;
    size_t nstamps;
};

/* --- listing --- */

static void set_days(struct listing *l, const struct pb_archive_days *days)
{
    int64_t limit = INT64_C(253402300800) * 1000000; /* the year 10000 */

    if (days->from > -limit / 4 && days->from < limit)
        pb_archive_date(days->from / DAY_US - (days->from % DAY_US < 0), l->from);
    if (days->until > -limit / 4 && days->until < limit)
        pb_archive_date(days->until / DAY_US - (days->until % DAY_US < 0), l->until);
    if (days->undated)
        pb_archive_date(PB_ARCHIVE_UNDATED, l->undated);
}

static int add_date(void *arg, int dir, const char *name, unsigned char type)
{
    struct listing *l = arg;
    char undated[PB_ARCHIVE_DATE];

    if (strncmp(name, "date=", 5) != 0 || strlen(name) >= sizeof(*l->dates))
        return 0;
    pb_archive_date(PB_ARCHIVE_UNDATED, undated);
    if (strcmp(name, undated) == 0) {
        if (!l->undated[0])
            return 0;
    } else if (l->from[0] && strcmp(name, l->from) < 0) {
        l->earlier = true;
        return 0;
    } else if (l->until[0] && strcmp(name, l->until) > 0)
        return 0;
    void *more = realloc(l->dates, (l->ndates + 1) * sizeof(*l->dates));
    if (!more)
        return -ENOMEM;
    l->dates = more;
    memcpy(l->dates[l->ndates++], name, strlen(name) + 1);
    return 0;
}

/* Makes room for one more; NULL: out of memory. Grows by half, so that few copies are made. */
static struct pb_archive_file *make_room(struct pb_archive_files *files)
{
    if (files->n == files->room) {
        size_t room = files->room + files->room / 2 + 8;
        struct pb_archive_file *more = realloc(files->at, room * sizeof(*more));
        if (!more)
            return NULL;
        files->at = more;
        files->room = room;
    }
    return &files->at[files->n];
}

static int add_file(void *arg, int dir, const char *name, unsigned char type)
{
    struct listing *l = arg;
    struct pb_archive_file *file = make_room(l->files);
    struct stat st;

    if (!file)
        return -ENOMEM;
    if (pb_archive_name_read(name, &file->name) < 0 || (l->run && strcmp(file->name.run, l->run) != 0))
        return 0;
    /* Some file systems do not tell the type in readdir. */
    if (type == DT_UNKNOWN && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
        type = DT_REG;
    if (type != DT_REG || snprintf(file->path, sizeof(file->path), "%s/%s/%s", l->prefix, l->date, name) >=
                              (int)sizeof(file->path))
        return 0;
    file->day = l->day;
    l->files->n++;
    return 0;
}

static int newest_date(const void *a, const void *b)
{
    return strcmp(b, a);
}

/* By run, oldest first. */
static int oldest_first(const void *a, const void *b)
{
    const struct pb_archive_name *x = &((const struct pb_archive_file *)a)->name,
                                 *y = &((const struct pb_archive_file *)b)->name;
    int run = strcmp(x->run, y->run);
    return run ? run : x->first != y->first ? (x->first < y->first ? -1 : 1) : strcmp(x->serials, y->serials);
}

/* By batch, the last part first. */
static int by_batch(const void *a, const void *b)
{
    const struct pb_archive_name *x = &((const struct pb_archive_file *)a)->name,
                                 *y = &((const struct pb_archive_file *)b)->name;
    int run = strcmp(x->run, y->run), serials = strcmp(x->serials, y->serials);
    return run                    ? run
           : serials              ? serials
           : x->parts != y->parts ? (x->parts < y->parts ? -1 : 1)
                                  : (int)y->part - (int)x->part;
}

static bool is_same_batch(const struct pb_archive_name *a, const struct pb_archive_name *b)
{
    return a->parts == b->parts && strcmp(a->run, b->run) == 0 && strcmp(a->serials, b->serials) == 0;
}

/* Whether a .commit file of that batch exists. */
static int is_waiting(void *arg, int dir, const char *name, unsigned char type)
{
    const struct pb_archive_name *wanted = arg;
    struct pb_archive_name found;

    /* .commit.date=YYYY-MM-DD.NAME */
    const char *rest = strncmp(name, ".commit.", 8) == 0 ? strchr(name + 8, '.') : NULL;
    return rest && pb_archive_name_read(rest + 1, &found) == 0 && strcmp(found.run, wanted->run) == 0 &&
           strcmp(found.serials, wanted->serials) == 0;
}

/* Renames go from a batch's first day to its last, and days were listed from the last to the first: where the
 * last part was seen, all others were. *ret_again: a batch may have been finished during the listing. */
static int leave_out_half_batches(struct pb_archive_files *files, int partition, bool *ret_again)
{
    size_t kept = 0;

    if (files->n)
        qsort(files->at, files->n, sizeof(*files->at), by_batch);
    for (size_t i = 0, next; i < files->n; i = next) {
        struct pb_archive_name *name = &files->at[i].name;
        for (next = i + 1; next < files->n && is_same_batch(name, &files->at[next].name);)
            next++;
        if (name->part != name->parts) {
            int r = pb_archive_each_name(partition, is_waiting, name);
            if (r < 0)
                return r;
            if (r > 0)
                continue;
            /* Or its last day was removed: the other parts stay. */
            *ret_again = true;
        }
        memmove(&files->at[kept], &files->at[i], (next - i) * sizeof(*files->at));
        kept += next - i;
    }
    files->n = kept;
    return 0;
}

/* A merged file before the files that it was made of. */
static int by_serials(const void *a, const void *b)
{
    const struct pb_archive_file *x = a, *y = b;
    int run = strcmp(x->name.run, y->name.run);

    if (run || x->day != y->day)
        return run ? run : x->day < y->day ? -1 : 1;
    if (x->name.first_serial != y->name.first_serial)
        return x->name.first_serial < y->name.first_serial ? -1 : 1;
    if (x->name.last_serial != y->name.last_serial)
        return x->name.last_serial > y->name.last_serial ? -1 : 1;
    return (int)pb_archive_is_merged(&y->name) - (int)pb_archive_is_merged(&x->name);
}

static bool is_made_of(const struct pb_archive_file *merged, const struct pb_archive_file *f)
{
    return f->day == merged->day && f->name.parts == 1 && f->name.ncolumns == merged->name.ncolumns &&
           f->name.first_serial >= merged->name.first_serial &&
           f->name.last_serial <= merged->name.last_serial && strcmp(f->name.run, merged->name.run) == 0;
}

/* Removes from the list the files that were merged into another; they are moved to left, if not NULL. */
static int leave_out_merged(struct pb_archive_files *files, struct pb_archive_files *left)
{
    size_t kept = 0, merged = SIZE_MAX;
    bool any = false;
    int r = 0;

    for (size_t i = 0; i < files->n && !any; i++)
        any = pb_archive_is_merged(&files->at[i].name);
    if (!any)
        return 0;
    qsort(files->at, files->n, sizeof(*files->at), by_serials);
    for (size_t i = 0; i < files->n && r == 0; i++) {
        if (merged != SIZE_MAX && is_made_of(&files->at[merged], &files->at[i])) {
            struct pb_archive_file *to = left ? make_room(left) : NULL;
            if (to) {
                *to = files->at[i];
                left->n++;
            }
            r = left && !to ? -ENOMEM : 0;
            continue;
        }
        if (pb_archive_is_merged(&files->at[i].name))
            merged = kept;
        if (kept != i)
            files->at[kept] = files->at[i];
        kept++;
    }
    files->n = kept;
    return r;
}

static void add_stamp(struct listing *l, int dir, const char *name)
{
    struct stat st;

    if (!l->stamps || fstat(dir, &st) < 0)
        return;
    struct stamp *s = &l->stamps[l->nstamps++];
    *s = (struct stamp){.dev = st.st_dev, .ino = st.st_ino, .changed = st.st_mtim};
    snprintf(s->name, sizeof(s->name), "%s", name);
}

static int list_once(int partition, struct listing *l)
{
    l->ndates = l->nstamps = 0;
    l->files->n = 0;
    l->earlier = false;
    struct stat before;
    bool stamped = fstat(partition, &before) == 0;
    int r = pb_archive_each_name(partition, add_date, l);
    if (r == 0 && l->ndates)
        qsort(l->dates, l->ndates, sizeof(*l->dates), newest_date);
    free(l->stamps);
    l->stamps = stamped ? calloc(l->ndates + 1, sizeof(*l->stamps)) : NULL;
    if (l->stamps)
        l->stamps[l->nstamps++] = (struct stamp){
            .name = ".", .dev = before.st_dev, .ino = before.st_ino, .changed = before.st_mtim};
    for (size_t i = 0; r == 0 && i < l->ndates; i++) {
        _cleanup_close_ int dir = pb_archive_open_folder_at(partition, l->dates[i]);
        l->date = l->dates[i];
        l->day = (unsigned)i;
        if (dir < 0)
            continue;
        add_stamp(l, dir, l->date);
        r = pb_archive_each_name(dir, add_file, l);
    }
    return r;
}

static int list_files(const char *folder, const char *table, const char *in, struct listing *l)
{
    char prefix[PB_ARCHIVE_PATH];

    l->prefix = prefix;
    l->files->n = 0;
    if (snprintf(prefix, sizeof(prefix), "%s/%s", table, in) >= (int)sizeof(prefix))
        return -ENAMETOOLONG;
    _cleanup_close_ int top = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int partition = top < 0 ? -errno : pb_archive_open_folder_at(top, prefix);
    if (partition < 0)
        return partition == -ENOENT ? 0 : partition;
    bool again = true;
    int r = 0;
    for (int tries = 0; r == 0 && again && tries < 2; tries++) {
        again = false;
        r = list_once(partition, l);
        if (r == 0)
            r = leave_out_half_batches(l->files, partition, &again);
    }
    free(l->dates);
    if (r < 0)
        return r;
    r = leave_out_merged(l->files, l->left);
    if (l->files->n)
        qsort(l->files->at, l->files->n, sizeof(*l->files->at), oldest_first);
    return r;
}

int pb_archive_files_read(const char *folder, const struct pb_archive_run *run, const char *table,
                          struct pb_archive_files *ret, struct pb_archive_files *ret_left)
{
    struct listing l = {.files = ret, .left = ret_left, .run = run->id};

    *ret = (struct pb_archive_files){0};
    if (ret_left)
        *ret_left = (struct pb_archive_files){0};
    set_days(&l, &PB_ARCHIVE_ALL_DAYS);
    int r = list_files(folder, table, run->partition, &l);
    free(l.stamps);
    if (r < 0) {
        pb_archive_files_done(ret);
        if (ret_left)
            pb_archive_files_done(ret_left);
    }
    return r;
}

int pb_archive_day_read(int dir, const char *date, const char *run, struct pb_archive_files *ret)
{
    struct listing l = {.files = ret, .run = run, .prefix = ".", .date = date};

    *ret = (struct pb_archive_files){0};
    int r = pb_archive_each_name(dir, add_file, &l);
    if (r == 0)
        r = leave_out_merged(ret, NULL);
    if (r == 0 && ret->n)
        qsort(ret->at, ret->n, sizeof(*ret->at), by_serials);
    if (r < 0)
        pb_archive_files_done(ret);
    return r;
}

/* --- cached listings --- */

/* A change within the granularity of the file system's clock (some ms, at worst a second) would be missed:
 * folders that changed shortly before they were listed are listed again. */
static bool has_changed(const struct stamp *s, const struct stat *st, const struct timespec *listed)
{
    return st->st_dev != s->dev || st->st_ino != s->ino || st->st_mtim.tv_sec != s->changed.tv_sec ||
           st->st_mtim.tv_nsec != s->changed.tv_nsec || s->changed.tv_sec >= listed->tv_sec - 2;
}

static bool is_current(const struct pb_archive_listing *l, const char *folder)
{
    char path[2 * PB_ARCHIVE_PATH + 2];
    struct stat st;

    snprintf(path, sizeof(path), "%s/%s", l->table, l->partition);
    _cleanup_close_ int top = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int partition = top < 0 ? -errno : pb_archive_open_folder_at(top, path);
    if (partition < 0 || l->nstamps == 0)
        return false;
    for (size_t i = 0; i < l->nstamps; i++)
        if (fstatat(partition, l->stamps[i].name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            has_changed(&l->stamps[i], &st, &l->began))
            return false;
    return true;
}

static int compare_listing(const struct pb_archive_listing *l, const char *table, const char *partition,
                           const struct pb_archive_days *days)
{
    int order = strcmp(l->table, table);

    if (order == 0)
        order = strcmp(l->partition, partition);
    if (order == 0 && l->days.from != days->from)
        order = l->days.from < days->from ? -1 : 1;
    if (order == 0 && l->days.until != days->until)
        order = l->days.until < days->until ? -1 : 1;
    return order ? order : (int)l->days.undated - (int)days->undated;
}

/* Thousands of ranks have a partition each: listings are sorted, and searched for in that order. */
static struct pb_archive_listing *find_listing(struct pb_archive_lists *lists, const char *table,
                                               const char *partition, const struct pb_archive_days *days)
{
    size_t low = 0, high = lists->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_listing(lists->at[middle], table, partition, days);
        if (order == 0)
            return lists->at[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    struct pb_archive_listing **more =
        realloc(lists->at, (lists->n + 1) * sizeof(struct pb_archive_listing *));
    struct pb_archive_listing *l = more ? calloc(1, sizeof(*l)) : NULL;
    if (more)
        lists->at = more;
    if (!l)
        return NULL;
    l->days = *days;
    snprintf(l->table, sizeof(l->table), "%s", table);
    snprintf(l->partition, sizeof(l->partition), "%s", partition);
    memmove(&more[low + 1], &more[low], (lists->n++ - low) * sizeof(struct pb_archive_listing *));
    more[low] = l;
    return l;
}

int pb_archive_partition_read(struct pb_archive_lists *lists, const char *folder, const char *partition,
                              const char *table, const struct pb_archive_days *days,
                              const struct pb_archive_files **ret, bool *ret_earlier)
{
    struct pb_archive_listing *known = find_listing(lists, table, partition, days);
    int r = known ? 0 : -ENOMEM;

    if (known && !is_current(known, folder)) {
        struct listing l = {.files = &known->files, .stamps = known->stamps};
        clock_gettime(CLOCK_REALTIME, &known->began);
        set_days(&l, days);
        r = list_files(folder, table, partition, &l);
        known->stamps = l.stamps;
        known->nstamps = r == 0 ? l.nstamps : 0;
        known->earlier = l.earlier;
    }
    if (r < 0)
        return r;
    *ret = &known->files;
    *ret_earlier = known->earlier;
    return 0;
}

void pb_archive_lists_done(struct pb_archive_lists *lists)
{
    for (size_t i = 0; i < lists->n; i++) {
        free(lists->at[i]->stamps);
        pb_archive_files_done(&lists->at[i]->files);
        free(lists->at[i]);
    }
    free(lists->at);
    *lists = (struct pb_archive_lists){0};
}

size_t pb_archive_files_of(const struct pb_archive_files *files, const char *run, size_t *ret_n)
{
    size_t low = 0, high = files->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(files->at[middle].name.run, run) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (*ret_n = 0; low + *ret_n < files->n && strcmp(files->at[low + *ret_n].name.run, run) == 0;)
        ++*ret_n;
    return low;
}

void pb_archive_files_done(struct pb_archive_files *files)
{
    free(files->at);
    *files = (struct pb_archive_files){0};
}
