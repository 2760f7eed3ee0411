/* token: what a service elsewhere is shown, found as docs/service.md says. */
#pragma once

struct pb_err;

enum { PB_SERVICE_TOKEN = 128 };

/* Of the file that is given (NULL or "": none); else PROBING_TOKEN, the file that PROBING_TOKEN_FILE names,
 * or that of the user's own service on this machine. "" where there is none. */
int pb_service_token(const char *given, char ret[PB_SERVICE_TOKEN], struct pb_err *err);
