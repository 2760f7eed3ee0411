/* request: a request from its headers to its answer. http.c receives it and finds its route, run.c starts the
 * command, reply.c sends the output. */
#pragma once

#include "serve/command_words.h"
#include "serve/credentials.h"
#include "serve/mcp.h"
#include "serve/routes.h"
#include "serve/service.h"

struct pb_serve_job;
struct pb_subscriber;

/* One request; made when its headers are complete, freed when libmicrohttpd has ended it. */
struct pb_request {
    struct pb_service *s;
    struct MHD_Connection *connection;
    struct pb_credentials credentials; /* of another user, if this is root's service */
    struct pb_offer offer;             /* what that user may use */
    const struct pb_route *route;
    const struct pb_form *form;
    struct pb_serve_job *job;
    struct pb_mcp_reply mcp;
    struct MHD_Response *streaming; /* libmicrohttpd's, which keeps it until the request is over */
    struct pb_subscriber *events;
    char id[PB_ROUTE_VARIABLE];
    char *body, *printed; /* printed: for a route that converts it */
    size_t length, printed_length;
    uint64_t received; /* bytes of the body, also those beyond the limit */
    uint64_t audit;    /* of a change; 0: it is none */
    bool too_long;
};

static inline const char *pb_request_argument(const struct pb_request *q, const char *name)
{
    return MHD_lookup_connection_value(q->connection, MHD_GET_ARGUMENT_KIND, name);
}

static inline const char *pb_request_header(const struct pb_request *q, const char *name)
{
    return MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, name);
}

/* Suspend and resume the connection of a request whose answer comes later. arg: the request. */
void pb_request_suspend(void *arg);
void pb_request_resume(void *arg);

/* --- run.c --- */
/* Adds the options of the query string. -EINVAL: the route does not have one of them. */
int pb_request_arguments(struct pb_request *q, struct pb_words *w, struct pb_err *err);
/* Checks form and arguments of a route without a command. True: they are wrong, and *ret is the answer. */
bool pb_request_check(struct pb_request *q, enum MHD_Result *ret);
/* Starts the command of its route; a message of the Model Context Protocol may need none. */
enum MHD_Result pb_request_run(struct pb_request *q);
enum MHD_Result pb_request_run_mcp(struct pb_request *q);
/* Logs the outcome of a change. */
void pb_request_end_audit(const struct pb_request *q);

/* --- reply.c --- */
/* Answers with an error, as JSON or as a picture. */
enum MHD_Result pb_request_fail(struct pb_request *q, unsigned status, const char *message);
/* Sends the output of the command so far; called again when there is more. */
enum MHD_Result pb_request_answer(struct pb_request *q);
