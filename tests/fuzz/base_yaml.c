/* Any bytes as YAML: JSON that our own reader takes, or an error with a sentence. */
#include <stdint.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/json.h"
#include "base/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_err err = {0};
    struct pb_json j;
    char *json = NULL;
    size_t n = 0;

    if (pb_yaml_to_json((const char *)data, size, &json, &n, &err) < 0) {
        if (!err.text[0])
            abort();
        return 0;
    }
    if (pb_json_parse(json, n, &j) < 0)
        abort();
    pb_json_done(&j);
    free(json);
    return 0;
}
