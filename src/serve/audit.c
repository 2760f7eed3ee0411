/* audit: logs changes made through the service: when, from where, what, and the outcome. See service.h.
 *
 * Lines of JSON in the service's folder, which probing.audit reads (engine/caller/live_audit.c). The begin
 * of a change is one line and its end another with the same id, so the first is there also if the service
 * is killed in between. A full file is renamed to `audit.1`: two files at most. */
#include "base/cleanup.h"
#include "base/json_write.h"
#include "serve/service.h"

#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FILE_MAX = 4 << 20, BODY_MAX = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the file and its rotation */

static void write_line(struct pb_service *s, const char *line, size_t size)
{
    char from[PB_SERVE_PATH + 16], to[PB_SERVE_PATH + 16];
    struct stat st;

    pthread_mutex_lock(&lock);
    if (fstat(s->audit, &st) == 0 && st.st_size > FILE_MAX) {
        snprintf(from, sizeof(from), "%s/audit", s->folder);
        snprintf(to, sizeof(to), "%s/audit.1", s->folder);
        int fd = rename(from, to) < 0
                     ? -1
                     : open(from, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0) {
            close(s->audit);
            s->audit = fd;
        }
    }
    (void)!write(s->audit, line, size);
    pthread_mutex_unlock(&lock);
}

/* The members that each line has. */
static bool begin_line(struct pb_json_writer *w, char **ret, size_t *ret_size, uint64_t id)
{
    struct timespec now;
    struct tm tm;
    char when[32];

    *w = (struct pb_json_writer){.out = open_memstream(ret, ret_size), .tight = true};
    if (!w->out)
        return false;
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &tm));
    pb_json_open(w, NULL, '{');
    pb_json_put_format(w, "id", "%016" PRIx64, id);
    pb_json_put_format(w, "time", "%s.%03ldZ", when, now.tv_nsec / 1000000);
    return true;
}

static void end_line(struct pb_json_writer *w)
{
    pb_json_close(w);
    putc('\n', w->out);
    fclose(w->out);
}

uint64_t pb_audit_begin(struct pb_service *s, const struct pb_audited *a)
{
    _cleanup_free_ char *line = NULL;
    size_t size = 0;
    uint64_t id = 0;
    struct pb_json_writer w;

    if (syscall(SYS_getrandom, &id, sizeof(id), 0) != sizeof(id))
        id = (uint64_t)time(NULL);
    if (!begin_line(&w, &line, &size, id))
        return 0;
    pb_json_put_text(&w, "peer", a->peer);
    pb_json_put_text(&w, "target", a->target);
    pb_json_put_text(&w, "what", a->what);
    pb_json_put_bytes(&w, "body", a->body ? a->body : "", a->length < BODY_MAX ? a->length : BODY_MAX);
    end_line(&w);
    write_line(s, line, size);
    return id;
}

void pb_audit_end(struct pb_service *s, uint64_t id, const char *outcome)
{
    _cleanup_free_ char *line = NULL;
    size_t size = 0;
    struct pb_json_writer w;

    if (!id || !begin_line(&w, &line, &size, id))
        return;
    pb_json_put_text(&w, "outcome", outcome);
    end_line(&w);
    write_line(s, line, size);
}

void pb_audit_peer(struct MHD_Connection *c, char ret[PB_AUDIT_PEER])
{
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof(at), size = sizeof(struct ucred);
    char host[64] = "", port[16] = "";
    struct ucred peer;

    ret[0] = '\0';
    if (!fd || getpeername(fd->connect_fd, (struct sockaddr *)&at, &n) < 0)
        return;
    if (at.ss_family == AF_UNIX) {
        if (getsockopt(fd->connect_fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0)
            snprintf(ret, PB_AUDIT_PEER, "process %d of user %u", (int)peer.pid, (unsigned)peer.uid);
    } else if (getnameinfo((struct sockaddr *)&at, n, host, sizeof(host), port, sizeof(port),
                           NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
        snprintf(ret, PB_AUDIT_PEER, at.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    }
}
