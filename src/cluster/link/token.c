/* token: see token.h. */
#include "cluster/link/token.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pb_service_token(const char *given, char ret[PB_SERVICE_TOKEN], struct pb_err *err)
{
    const char *token = getenv("PROBING_TOKEN"), *path = getenv("PROBING_TOKEN_FILE");

    ret[0] = '\0';
    if (given && given[0]) {
        path = given;
    } else if (token) {
        snprintf(ret, PB_SERVICE_TOKEN, "%s", token);
        return 0;
    }
    if (!path)
        return 0;
    FILE *file = fopen(path, "re");
    int e = file ? 0 : -errno;
    if (file && !fgets(ret, PB_SERVICE_TOKEN, file))
        ret[0] = '\0';
    if (file)
        fclose(file);
    ret[strcspn(ret, "\r\n")] = '\0';
    return e < 0 ? pb_fail(err, e, "%s cannot be read: %s", path, strerror(-e)) : 0;
}
