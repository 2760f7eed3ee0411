/* answer: what every answer of the service has in common: the headers that keep other sites out, and the
 * form of an error. Any thread of libmicrohttpd, with the connection that it serves. */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stdio.h>

struct pb_offer;
struct pb_route;

/* Sends the response and gives it up; NULL: out of memory, which ends the connection. type: its Content-Type,
 * or NULL. */
enum MHD_Result pb_answer(struct MHD_Connection *c, unsigned status, struct MHD_Response *response,
                          const char *type);

/* {"error": {"code", "message", "retryable"}}, of an answer, an event or anything else. */
void pb_answer_put_error(FILE *out, const char *code, const char *message, size_t length, bool retryable);

/* The same as an answer. allowed: the methods of a 405, or NULL. */
enum MHD_Result pb_answer_error(struct MHD_Connection *c, unsigned status, const char *message,
                                const char *allowed);

/* The same as an SVG picture, for clients that write the answer into an .svg file. */
enum MHD_Result pb_answer_picture_of_error(struct MHD_Connection *c, unsigned status, const char *message);

/* Whether the request asks for an SVG picture. */
bool pb_answer_is_picture(struct MHD_Connection *c, const struct pb_route *route);

/* An error of a request that the gate refuses; a picture if the request asks for one. */
enum MHD_Result pb_answer_refusal(struct MHD_Connection *c, const struct pb_offer *o, const char *method,
                                  const char *path, unsigned status, const char *why);

/* A response of the text that a function writes. NULL: out of memory. */
struct MHD_Response *pb_answer_written(void (*write_it)(FILE *out, const struct pb_offer *o),
                                       const struct pb_offer *o);
