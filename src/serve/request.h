/* request: a request from its headers to its answer. http.c takes it in and finds its route, run.c makes a
 * command of it and starts that, reply.c sends what the command gave. */
#pragma once

#include "serve/credentials.h"
#include "serve/mcp.h"
#include "serve/routes.h"
#include "serve/service.h"
#include "serve/words.h"

struct pb_serve_job;
struct pb_subscriber;

/* One request; made when its headers have come, freed when libmicrohttpd is through with it. */
struct pb_request {
    struct pb_service *s;
    struct MHD_Connection *connection;
    struct pb_credentials credentials; /* another user, whom a service of root's answers */
    struct pb_offer offer;             /* what of the service there is for that user */
    const struct pb_route *route;
    const struct pb_form *form;
    struct pb_serve_job *job;
    struct pb_mcp_reply mcp;
    struct MHD_Response *streaming; /* libmicrohttpd's, which keeps it until the request is over */
    struct pb_subscriber *events;
    char id[PB_ROUTE_VARIABLE];
    char *body, *printed; /* printed: for a route that converts it */
    size_t length, printed_length;
    uint64_t came;  /* of the body, with what is too long to be kept */
    uint64_t audit; /* of a change; 0: it is none */
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

/* For what gives its answer later: its connection waits, and goes on. arg: the request. */
void pb_request_suspend(void *arg);
void pb_request_resume(void *arg);

/* --- run.c --- */
/* Adds the options that the query string asks for. -EINVAL: the route has none such. */
int pb_request_arguments(struct pb_request *q, struct pb_words *w, struct pb_err *err);
/* Of a route without a command: true where form or arguments are none of its, and that was answered. */
bool pb_request_check(struct pb_request *q, enum MHD_Result *ret);
/* Starts the command of its route; a message of the Model Context Protocol may need none. */
enum MHD_Result pb_request_run(struct pb_request *q);
enum MHD_Result pb_request_run_mcp(struct pb_request *q);
/* Writes down how a change has ended. */
void pb_request_end_audit(const struct pb_request *q);

/* --- reply.c --- */
/* An error, as the route's clients expect it. */
enum MHD_Result pb_request_fail(struct pb_request *q, unsigned status, const char *message);
/* Sends what the command gave, as far as it has; called again when there is more. */
enum MHD_Result pb_request_answer(struct pb_request *q);
