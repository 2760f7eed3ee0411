/* link: one way to one node or, for launchers that start all at once, to all of them: a child with pipes, or
 * a socket with HTTP on it. ask_nodes.c has the loop. */
#pragma once

#include "cluster/link/ask_nodes.h"

#include <sys/types.h>

struct pb_link_plan {
    const struct pb_cluster *c;
    const struct pb_selection *selection;
    const char *question; /* a line of base64 */
    size_t length;
    unsigned deadline_ms;
    const char *token;     /* of services */
    const char *own_token; /* of the user's own service on this machine, "" where there is none */
    bool keep;             /* the link stays for the next question */
    bool holds;            /* what is started stays (pb_link_hold) */
};

/* Starts the launcher for one node, or (node -1) for all that are selected. Its children and it are a process
 * group. Both descriptors are nonblocking; out is a socket that is also its standard input. */
struct pb_launched {
    pid_t pid;
    int out, errors;
};
int pb_link_launch(const struct pb_link_plan *plan, ssize_t node, struct pb_launched *ret,
                   struct pb_err *err);
/* Starts the launcher of all selected nodes so that it outlives this process, for a launcher (srun) that
 * kills what it started when it exits. Its stderr goes to the descriptor. */
int pb_link_hold(const struct pb_link_plan *plan, int errors, struct pb_err *err);
/* Whether the way's launcher ends what is left on a node when its question is answered. */
bool pb_way_must_hold(enum pb_cluster_way way);
/* Whether the launcher takes the question by its environment; else it is sent to its standard input. */
bool pb_link_asks_by_environment(const struct pb_link_plan *plan);
/* Any command line, which ends with NULL; environment NULL: this process's. */
int pb_launch_words(const char *const *words, char *const *environment, struct pb_launched *ret);
/* Waits for it: its exit status, 128 + n for a signal. When the patience is used up (it is counted down, for
 * the next one), its group is killed. */
int pb_link_end(pid_t pid, unsigned *patience_ms);

/* Whether the way has one launcher for all nodes, whose output has "LABEL: " before each piece. */
bool pb_way_is_labelled(enum pb_cluster_way way);
/* Whether a node is reached by a socket. */
bool pb_way_is_socket(enum pb_cluster_way way);

/* --- http_client.c --- */
/* A nonblocking socket, connecting. -EHOSTUNREACH and others. */
int pb_link_connect(const char *address, int *ret_fd);
/* What is sent: the head and the question, on the heap. */
int pb_link_request(const struct pb_link_plan *plan, size_t node, char **ret, size_t *ret_length);

struct pb_http_in {
    enum { PB_HTTP_HEAD, PB_HTTP_BODY, PB_HTTP_CHUNK, PB_HTTP_CHUNK_END, PB_HTTP_TRAILER } state;
    int status;
    bool chunked, measured; /* measured: its head says how long the body is */
    bool closes;            /* the connection ends with the answer */
    char line[1024];        /* of the head, up to now */
    size_t n, total;
    uint64_t left; /* of the chunk, or of the body */
    bool ended;
};
/* Takes bytes; those of the body go to body(). -EBADMSG: that is no HTTP; else what body returned, where that
 * was not 0. */
int pb_http_take(struct pb_http_in *h, const char *bytes, size_t n,
                 int (*body)(void *arg, const char *bytes, size_t n), void *arg);

/* --- links.c: links that stay for the next question (ask_nodes.h) --- */
struct pb_idle_link {
    pid_t pid; /* 0: a socket of a service */
    int out, errors;
    struct pb_http_in http; /* of its last answer: the end of that may still come */
};
/* node -1: the one of all nodes. False: there is none that can be used. */
bool pb_links_take(struct pb_links *l, ssize_t node, struct pb_idle_link *ret);
/* Whether an idle launcher child exists for that node. */
bool pb_links_has_child(const struct pb_links *l, size_t node);
void pb_links_put(struct pb_links *l, ssize_t node, const struct pb_idle_link *idle);

struct rlimit;
/* Allows more descriptors, three a node at most, and returns for how many nodes at once; the caller gives the
 * limit back afterwards. */
size_t pb_links_raise_limit(struct rlimit *ret_before);
