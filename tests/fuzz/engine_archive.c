/* Names of files and descriptions of columns, which anyone can put into an archive: everything read stays in
 * bounds, and a name of ours is written as it was read. */
#include "engine/shared/archive.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct pb_archive_columns columns;
    struct pb_archive_name name, again;
    struct pb_archive_span spans[PB_ARCHIVE_BATCH];
    char written[256];

    char *text = strndup((const char *)data, size);
    if (!text)
        return 0;
    if (pb_archive_name_read(text, &name) == 0) {
        pb_archive_name_write(&name, written, sizeof(written));
        if (pb_archive_name_read(written, &again) < 0 || strcmp(name.serials, again.serials) != 0 ||
            name.first != again.first || name.last != again.last || name.total != again.total)
            abort();
    }
    int n = pb_archive_serials_unpack(text, spans);
    for (int i = 1; i < n; i++)
        if (spans[i].first <= spans[i - 1].last)
            abort();
    pb_archive_columns_read(text, strlen(text), &columns);
    for (unsigned i = 0; i < columns.n; i++)
        pb_archive_column_ns(&columns, i, written);
    pb_archive_unescape(text);
    free(text);
    return 0;
}
