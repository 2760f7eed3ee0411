/* A seccomp filter of any bytes, asked for one call: the interpreter ends, within its bounds, with an answer
 * or with -EINVAL. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "inject/seccomp.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct seccomp_data data = {0};
    uint32_t ret = 0;
    if (size < sizeof(data))
        return 0;
    memcpy(&data, bytes, sizeof(data));
    size_t n = (size - sizeof(data)) / sizeof(struct sock_filter);
    struct sock_filter *code = malloc(n * sizeof(*code) + 1); /* of its exact size, for the sanitizer */
    if (!code)
        return 0;
    memcpy(code, bytes + sizeof(data), n * sizeof(*code));
    int r = pb_seccomp_run(code, n, &data, &ret);
    if (r != 0 && r != -EINVAL)
        abort();
    if (r == 0)
        (void)pb_seccomp_judge(&ret, 1);
    free(code);
    return 0;
}
