/* Runs a command to which the kernel refuses some calls, as an older kernel or a container would.
 *
 *     refuse RULE... -- COMMAND ARGUMENT...
 *
 * A rule: CALL=ERROR (openat2=ENOSYS); file:END=ERROR, every openat of a path that ends so; memlock, where
 * bpf says EPERM as long as less than 1 MB may be locked, as before Linux 5.11. Refusals are made by a
 * seccomp filter; those that depend on more than the call are decided by this process. */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define RULES_MAX 16

static const struct {
    const char *name;
    int number;
} calls[] = {{"openat2", SYS_openat2}, {"bpf", SYS_bpf}, {"ptrace", SYS_ptrace}, {"pidfd_open", 434}},
  errors[] = {{"ENOSYS", ENOSYS}, {"EPERM", EPERM}, {"ENOENT", ENOENT}, {"EACCES", EACCES}};

static int number_of(const void *table, size_t n, const char *name, size_t len)
{
    const typeof(calls[0]) *at = table;

    for (size_t i = 0; i < n; i++)
        if (strlen(at[i].name) == len && memcmp(at[i].name, name, len) == 0)
            return at[i].number;
    fprintf(stderr, "refuse: what is %.*s?\n", (int)len, name);
    exit(2);
}

#define CALL_OF(name, len) number_of(calls, sizeof(calls) / sizeof(calls[0]), name, len)
#define ERROR_OF(name)     number_of(errors, sizeof(errors) / sizeof(errors[0]), name, strlen(name))

static struct {
    const char *end;
    size_t len;
    int error;
} files[RULES_MAX];
static size_t nfiles;
static int memlock;

static struct sock_filter code[8 + 2 * RULES_MAX] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
};
static unsigned short ncode = 1;

static void answer(int number, uint32_t what)
{
    code[ncode++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1);
    code[ncode++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, what);
}

static void add_rule(const char *rule)
{
    const char *equals = strchr(rule, '=');

    if (strcmp(rule, "memlock") == 0) {
        memlock = 1;
        answer(SYS_bpf, SECCOMP_RET_USER_NOTIF);
    } else if (equals && strncmp(rule, "file:", 5) == 0 && nfiles < RULES_MAX) {
        files[nfiles].end = rule + 5;
        files[nfiles].len = (size_t)(equals - rule) - 5;
        files[nfiles++].error = ERROR_OF(equals + 1);
    } else if (equals) {
        answer(CALL_OF(rule, (size_t)(equals - rule)), SECCOMP_RET_ERRNO | (uint32_t)ERROR_OF(equals + 1));
    } else {
        fprintf(stderr, "refuse: what is %s?\n", rule);
        exit(2);
    }
}

static int send_fd(int to, int fd)
{
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = {&byte, 1};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    return sendmsg(to, &m, 0) == 1 ? 0 : -1;
}

static int receive_fd(int from)
{
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec io = {&byte, 1};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    int fd = -1;

    if (recvmsg(from, &m, 0) == 1 && CMSG_FIRSTHDR(&m))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
    return fd;
}

static int judge_file(pid_t pid, uint64_t path)
{
    char name[64], text[4096] = "";

    snprintf(name, sizeof(name), "/proc/%d/mem", (int)pid);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    for (size_t n = 0; fd >= 0 && n < sizeof(text) - 1; n++)
        if (pread(fd, text + n, 1, (off_t)(path + n)) != 1 || !text[n])
            break;
    if (fd >= 0)
        close(fd);
    size_t len = strlen(text);
    for (size_t i = 0; i < nfiles; i++)
        if (len >= files[i].len && memcmp(text + len - files[i].len, files[i].end, files[i].len) == 0)
            return files[i].error;
    return 0;
}

static int judge(const struct seccomp_notif *n)
{
    struct rlimit limit;

    if (n->data.nr == SYS_openat)
        return judge_file((pid_t)n->pid, n->data.args[1]);
    return memlock && prlimit((pid_t)n->pid, RLIMIT_MEMLOCK, NULL, &limit) == 0 && limit.rlim_cur < 1 << 20
               ? EPERM
               : 0;
}

static void serve(int listener)
{
    for (;;) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        struct seccomp_notif n = {0};
        if (poll(&p, 1, -1) < 0 && errno == EINTR)
            continue;
        if (!(p.revents & POLLIN))
            return; /* the last that has the filter is gone */
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &n) < 0)
            continue;
        int error = judge(&n);
        struct seccomp_notif_resp r = {
            .id = n.id, .error = -error, .flags = error ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &r);
    }
}

int main(int argc, char **argv)
{
    int i = 1, pair[2], status;

    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        add_rule(argv[i]);
    if (i + 1 >= argc || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return 2;
    if (nfiles)
        answer(SYS_openat, SECCOMP_RET_USER_NOTIF);
    code[ncode++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {ncode, code};
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        int fd =
            (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
        if (fd < 0 || send_fd(pair[1], fd) < 0) {
            perror("refuse: seccomp");
            _exit(2);
        }
        close(fd);
        execvp(argv[i + 1], argv + i + 1);
        perror(argv[i + 1]);
        _exit(127);
    }
    close(pair[1]);
    int listener = receive_fd(pair[0]);
    if (listener >= 0)
        serve(listener);
    if (waitpid(child, &status, 0) < 0)
        return 2;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
