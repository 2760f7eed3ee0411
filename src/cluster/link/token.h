/* token: the token that is shown to a service (docs/service.md).
 *
 * A token goes where the user sends it. That of the user's own service on this machine is never sent
 * (own_service.h). */
#pragma once

struct pb_err;

enum { PB_SERVICE_TOKEN = 128 };

/* Of the file that is given (NULL or "": none); else PROBING_TOKEN, or the file that PROBING_TOKEN_FILE
 * names. "" where there is none. */
int pb_service_token(const char *given, char ret[PB_SERVICE_TOKEN], struct pb_err *err);
