/* service: what the parts of the service share. */
#pragma once

#include "serve/credentials.h"
#include "serve/gate.h"
#include "serve/routes.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct pb_err;
struct pb_serve_jobs;
struct pb_events;

enum {
    PB_SERVE_PATH = 512,
    PB_SERVE_BODY_MAX = 1 << 20,
    PB_SERVE_JOBS = 32,
    PB_SERVE_COMMANDS = 16, /* commands of `probing -t HOST:PORT`, besides */
    PB_SERVE_CONNECTIONS = 1024,
    PB_SERVE_WAITING = 1024, /* backlog: the kernel retries more connections after a second */
    PB_SERVE_HEADERS = 16384
};

struct pb_service {
    struct pb_gate gate, unix_gate; /* by TCP, and by the unix socket */
    struct pb_serve_jobs *jobs, *commands;
    struct pb_events *events;
    char program[PB_SERVE_PATH]; /* `probing`, beside this one */
    char folder[PB_SERVE_PATH];  /* of the user's own: token, address, lock, socket, audit */
    struct pb_offer offer;
    bool mcp_changes; /* an assistant may change processes */
    int audit;        /* file of one line for each change */
};

/* --- http.c: connections to answers --- */
struct pb_listen {
    int fd; /* a listening socket; owned by the daemon */
    bool is_unix;
    const char *cert, *key; /* PEM; NULL: no TLS */
};
int pb_http_start(struct pb_service *s, const struct pb_listen *at, void **ret_daemon, struct pb_err *err);
/* Call it each second: closes connections whose headers are late. */
void pb_http_sweep(void *daemon);
void pb_http_stop(void *daemon);

/* --- login.c: a browser that opens the link with the token --- */
enum MHD_Result pb_login(struct MHD_Connection *c, const struct pb_gate *gate, const char *path,
                         const char *host, bool tls);

/* --- page.c: the files of the page --- */
/* 1: answered, in *ret; 0: not a path of the page. For GET and HEAD only. */
int pb_page_answer(struct MHD_Connection *c, const char *path, enum MHD_Result *ret);
/* Whether the page was built. */
bool pb_page_is_built(void);

/* --- home.c: one service a user and node --- */
/* Opens the folder and becomes the user's service. -EEXIST: there is one; err says where. */
int pb_home_take(struct pb_service *s, struct pb_err *err);
void pb_home_set_address(const struct pb_service *s, const char *address);
void pb_home_leave(const struct pb_service *s);
/* Removes the folder of a command, with its files. */
void pb_home_remove(const char *folder);
/* Reads the token from the file, else from the service's folder; generates it if neither has one. */
int pb_home_token(const struct pb_service *s, const char *file, char ret[PB_GATE_TOKEN_SIZE],
                  struct pb_err *err);
/* The text of a file with a certificate or a key, on the heap; NULL for none. */
int pb_home_read_pem(const char *path, char **ret, struct pb_err *err);

/* --- audit.c: what was changed through the service --- */
enum { PB_AUDIT_PEER = 96 };

struct pb_audited {
    const char *peer, *target, *what;
    const char *body; /* the code, the setting; its first 4 KB are logged */
    size_t length;
};
/* Before the change is made; the result is for pb_audit_end. Any thread. */
uint64_t pb_audit_begin(struct pb_service *s, const struct pb_audited *a);
void pb_audit_end(struct pb_service *s, uint64_t id, const char *outcome);
/* The peer: an address, or a process and its user. */
void pb_audit_peer(struct MHD_Connection *c, char ret[PB_AUDIT_PEER]);

/* --- command.c: command lines of `probing -t HOST:PORT` --- */
struct MHD_Response *pb_command_response(struct pb_service *s);
/* Closes all connections, and waits some seconds until their threads have cleaned up. */
void pb_commands_end(void);
