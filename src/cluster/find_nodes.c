/* find_nodes: see find_nodes.h. */
#include "cluster/find_nodes.h"

#include "ask/processes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/host_port.h"
#include "base/procfs.h"
#include "cluster/link/run_program.h"
#include "cluster/members.h"
#include "cluster/select.h"
#include "remote/named.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TEXT_MAX = 4 << 20, PATIENCE_MS = 10000 };

static void set(char *to, const char *text)
{
    snprintf(to, PB_CLUSTER_TEXT, "%s", text);
}

static void set_name(struct pb_cluster *c, const char *name)
{
    if (!c->name[0] && pb_cluster_is_name(name))
        snprintf(c->name, sizeof(c->name), "%s", name);
}

static int add_node(void *arg, const char *name)
{
    int r = pb_cluster_add_node(arg, name, name);

    return r == -EEXIST ? 0 : r;
}

static int no_nodes(int r, const char *text, struct pb_err *err)
{
    return pb_fail(err, r, "'%.200s' is no list of nodes such as n[01-16],m3", text);
}

/* --- services --- */

/* Resolve the name once, now: a question must not wait for a name server. */
static int add_service(struct pb_cluster *c, const char *service, struct pb_err *err)
{
    const char *given;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char host[256], number[128], port[16], address[PB_CLUSTER_TEXT];

    if (pb_host_port_split(service, host, sizeof(host), &given) < 0 || !host[0] || !given || !given[0])
        return pb_fail(err, -EINVAL, "--services takes HOST:PORT,.., not '%s'", service);
    int e = getaddrinfo(host, given, &hints, &found);
    if (e != 0)
        return pb_fail(err, -EHOSTUNREACH, "%s is not known: %s", service, gai_strerror(e));
    e = getnameinfo(found->ai_addr, found->ai_addrlen, number, sizeof(number), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV);
    freeaddrinfo(found);
    if (e != 0)
        return pb_fail(err, -EHOSTUNREACH, "%s is not known: %s", service, gai_strerror(e));
    snprintf(address, sizeof(address), strchr(number, ':') ? "[%s]:%s" : "%s:%s", number, port);
    int r = pb_cluster_add_node(c, service, address);
    return r < 0 ? pb_fail(err, r, r == -EEXIST ? "%s is named twice" : "'%s' is no node", service) : 0;
}

static int find_services(struct pb_cluster *c, const char *list, struct pb_err *err)
{
    _cleanup_free_ char *text = strdup(list);
    char *save = NULL;
    int r = text ? 0 : -ENOMEM;

    c->way = PB_WAY_SERVICES;
    set(c->job, "services");
    set_name(c, "services");
    for (char *word = r == 0 ? strtok_r(text, ", \n", &save) : NULL; word && r == 0;
         word = strtok_r(NULL, ", \n", &save))
        r = add_service(c, word, err);
    return r;
}

/* --- ssh, MPI --- */

/* A line is a host, as of mpirun too: "n01 slots=8"; "#" begins a comment. */
static int read_hosts(struct pb_cluster *c, FILE *in, const char *path, struct pb_err *err)
{
    char line[1024];
    int r = 0;

    if (!in)
        return pb_fail(err, -errno, "%s cannot be read: %s", path, strerror(errno));
    while (r == 0 && fgets(line, sizeof(line), in)) {
        line[strcspn(line, "#\r\n")] = '\0';
        char *word = line + strspn(line, " \t");
        word[strcspn(word, " \t")] = '\0';
        if (*word && (r = pb_hostlist_each(word, add_node, c)) < 0)
            no_nodes(r, word, err);
    }
    fclose(in);
    if (r == 0 && c->nnodes == 0)
        return pb_fail(err, -ENOENT, "%s names no host", path);
    return r;
}

static int find_hosts(struct pb_cluster *c, const char *path, struct pb_err *err)
{
    const char *slash = strrchr(path, '/');

    c->way = PB_WAY_SSH;
    snprintf(c->job, sizeof(c->job), "hosts of %.200s", path);
    set_name(c, slash ? slash + 1 : path);
    set_name(c, "hosts");
    return read_hosts(c, fopen(path, "re"), path, err);
}

static bool is_mpirun(const char *command)
{
    static const char *const names[] = {"mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra"};
    size_t n = strcspn(command, " ");
    const char *slash = memrchr(command, '/', n), *name = slash ? slash + 1 : command;

    n -= (size_t)(name - command);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0)
            return true;
    return false;
}

/* From a file that its command line names. */
static int read_hosts_of(struct pb_cluster *c, pid_t pid, const char *name, struct pb_err *err)
{
    struct pb_named_root view;

    int r = pb_named_root_open(pid, &view);
    int fd = r < 0 ? r : pb_named_root_file(&view, name);
    pb_named_root_close(&view);
    if (fd < 0)
        return pb_fail(err, fd, "%s of mpirun %d cannot be read: %s", name, (int)pid, strerror(-fd));
    return read_hosts(c, fdopen(fd, "re"), name, err);
}

/* The hosts of an mpirun, from its arguments: -H or --host a,b:2; -hostfile or --hostfile or -machinefile
 * FILE. Without any: this machine. */
static int read_mpirun(struct pb_cluster *c, pid_t pid, struct pb_err *err)
{
    _cleanup_free_ char *words = NULL;
    size_t n = 0;

    if (pb_proc_slurp(pid, "cmdline", &words, &n) < 0)
        return pb_fail(err, -ESRCH, "mpirun %d cannot be read", (int)pid);
    for (size_t at = 0; at < n; at += strlen(words + at) + 1) {
        const char *word = words + at;
        size_t next = at + strlen(word) + 1;
        while (word[0] == '-' && word[1] == '-')
            word++;
        if (next >= n)
            break;
        if (strcmp(word, "-hostfile") == 0 || strcmp(word, "-machinefile") == 0 || strcmp(word, "-f") == 0)
            return read_hosts_of(c, pid, words + next, err);
        if (strcmp(word, "-H") == 0 || strcmp(word, "-host") == 0 || strcmp(word, "-hosts") == 0) {
            char *save = NULL;
            int r = 0;
            for (char *host = strtok_r(words + next, ",", &save); host && r == 0;
                 host = strtok_r(NULL, ",", &save)) {
                host[strcspn(host, ":")] = '\0';
                r = pb_hostlist_each(host, add_node, c);
            }
            return r < 0 ? no_nodes(r, "mpirun's hosts", err) : 0;
        }
    }
    c->way = PB_WAY_LOCAL;
    return pb_cluster_add_node(c, "localhost", "localhost");
}

static int find_mpi(const struct pb_ask *ask, struct pb_cluster *c, struct pb_err *err)
{
    _cleanup_(pb_processes_done) struct pb_processes all = {0};
    pid_t found = 0;

    int r = pb_processes_read(ask, &all, err);
    for (size_t i = 0; r == 0 && i < all.n; i++) {
        char path[32];
        snprintf(path, sizeof(path), "/proc/%d/fd", (int)all.at[i].pid);
        if (!is_mpirun(all.at[i].command) || access(path, R_OK) < 0)
            continue;
        if (found)
            return pb_fail(err, -EINVAL, "there are several mpiruns here, %d and %d (use --hosts FILE)",
                           (int)found, (int)all.at[i].pid);
        found = all.at[i].pid;
    }
    if (r == 0 && !found)
        return pb_fail(err, -ESRCH, "no mpirun of yours runs here (use --hosts FILE)");
    c->way = PB_WAY_SSH; /* mpirun itself goes by ssh */
    snprintf(c->job, sizeof(c->job), "mpirun %d", (int)found);
    set_name(c, "mpi");
    return r < 0 ? r : read_mpirun(c, found, err);
}

/* --- SLURM, Kubernetes, Ray: their own programs know --- */

static int run_text(const char *const *words, char **ret, struct pb_err *err)
{
    size_t n;
    return pb_run_program(words, TEXT_MAX, PATIENCE_MS, ret, &n, err);
}

static int find_slurm(struct pb_cluster *c, const char *job, struct pb_err *err)
{
    const char *const words[] = {"squeue",           "--noheader",  "--jobs", job,
                                 "--states=RUNNING", "--format=%N", NULL};
    _cleanup_free_ char *text = NULL;
    char name[PB_CLUSTER_NAME];

    if (strspn(job, "0123456789_+") != strlen(job) || !*job)
        return pb_fail(err, -EINVAL, "--slurm takes the number of a job, not '%s'", job);
    int r = run_text(words, &text, err);
    if (r < 0)
        return r;
    text[strcspn(text, "\r\n")] = '\0';
    if (!text[0])
        return pb_fail(err, -ESRCH, "SLURM knows no running job %s", job);
    c->way = PB_WAY_SLURM;
    set(c->job, job);
    snprintf(c->match, sizeof(c->match), "SLURM_JOB_ID=%.200s", job);
    snprintf(name, sizeof(name), "slurm-%.50s", job);
    set_name(c, name);
    r = pb_hostlist_each(text, add_node, c);
    return r < 0 ? no_nodes(r, text, err) : 0;
}

/* NAMESPACE/POD/CONTAINER of each pod that runs; the first container is the job's. */
static int find_kubernetes(struct pb_cluster *c, const char *labels, struct pb_err *err)
{
    char launcher[PB_CLUSTER_TEXT];
    const char *words[24];
    size_t n = 0;
    char *save = NULL;
    _cleanup_free_ char *text = NULL;

    snprintf(launcher, sizeof(launcher), "%s", c->launcher[0] ? c->launcher : "kubectl");
    for (char *word = strtok_r(launcher, " ", &save); word && n < 16; word = strtok_r(NULL, " ", &save))
        words[n++] = word;
    words[n++] = "get";
    words[n++] = "pods";
    words[n++] = "--selector";
    words[n++] = labels;
    words[n++] = "--field-selector=status.phase=Running";
    words[n++] = "--output=jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}/"
                 "{.spec.containers[0].name}{\"\\n\"}{end}";
    words[n] = NULL;
    int r = run_text(words, &text, err);
    if (r < 0)
        return r;
    c->way = PB_WAY_KUBERNETES;
    set(c->job, labels);
    set_name(c, "kubernetes");
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char pod[PB_CLUSTER_TEXT];
        const char *first = strchr(line, '/'), *last = strrchr(line, '/');
        if (!first || first == last)
            continue;
        snprintf(pod, sizeof(pod), "%.*s", (int)(last - first - 1), first + 1);
        r = pb_cluster_add_node(c, pod, line);
        if (r < 0)
            return pb_fail(err, r, "kubectl names a pod '%.100s' that cannot be", line);
    }
    return c->nnodes ? 0 : pb_fail(err, -ENOENT, "no pod that runs has the labels %s", labels);
}

static int find_ray(struct pb_cluster *c, struct pb_err *err)
{
    static const char script[] = "import ray\n"
                                 "ray.init(address='auto', log_to_driver=False, logging_level='error')\n"
                                 "for node in ray.nodes():\n"
                                 "    if node['Alive']: print(node['NodeID'])\n";
    const char *const words[] = {c->launcher[0] ? c->launcher : "python3", "-c", script, NULL};
    _cleanup_free_ char *text = NULL;
    char *save = NULL;

    int r = run_text(words, &text, err);
    if (r < 0)
        return r;
    c->way = PB_WAY_RAY;
    set(c->job, "ray");
    set_name(c, "ray");
    for (char *line = strtok_r(text, "\n", &save); line && r == 0; line = strtok_r(NULL, "\n", &save))
        r = add_node(c, line);
    return r < 0 || !c->nnodes ? pb_fail(err, -ENOENT, "Ray names no node that is alive") : 0;
}

/* --- ranks of this machine --- */

static int find_local(struct pb_cluster *c, struct pb_err *err)
{
    c->way = PB_WAY_LOCAL;
    set(c->job, "ranks of this machine");
    set_name(c, "local");
    return pb_cluster_add_node(c, "localhost", "localhost") < 0 ? pb_fail(err, -ENOMEM, "out of memory") : 0;
}

int pb_cluster_find(const struct pb_ask *ask, const struct pb_cluster_find *given, struct pb_cluster *c,
                    struct pb_err *err)
{
    const char *slurm = given->slurm;

    if (given->services)
        return find_services(c, given->services, err);
    if (given->hosts)
        return find_hosts(c, given->hosts, err);
    if (given->kubernetes)
        return find_kubernetes(c, given->kubernetes, err);
    if (given->mpi)
        return find_mpi(ask, c, err);
    if (slurm || (!given->ray && !given->local && getenv("SLURM_JOB_ID")))
        return find_slurm(c, slurm ? slurm : getenv("SLURM_JOB_ID"), err);
    if (given->ray || (!given->local && getenv("RAY_ADDRESS")))
        return find_ray(c, err);
    return find_local(c, err);
}

int pb_cluster_find_again(struct pb_cluster *c, struct pb_err *err)
{
    struct pb_cluster again = *c;

    again.nodes = NULL;
    again.ranks = NULL;
    again.nnodes = again.nranks = 0;
    int r = c->way == PB_WAY_SLURM        ? find_slurm(&again, c->job, err)
            : c->way == PB_WAY_KUBERNETES ? find_kubernetes(&again, c->job, err)
            : c->way == PB_WAY_RAY        ? find_ray(&again, err)
                                          : 1;
    if (r == 0) {
        pb_cluster_done(c);
        *c = again;
        return 0;
    }
    pb_cluster_done(&again);
    return r < 0 ? r : 0;
}
