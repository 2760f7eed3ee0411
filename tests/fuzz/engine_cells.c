/* A batch of rows from a hostile worker: whatever is in it, reading it stays within the message, and every
 * cell has a text. */
#include "engine/shared/cells.h"

#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 8, MAX_SCALE = 38 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pb_cells columns[COLUMNS];
    struct pb_row_text row = {0};
    struct pb_wire m = {0};
    uint32_t nrows;

    if (size < 2 * COLUMNS)
        return 0;
    for (unsigned i = 0; i < COLUMNS; i++)
        columns[i] = (struct pb_cells){.type = (enum pb_cell_type)(data[2 * i] % PB_CELL_TYPES),
                                       .scale = data[2 * i + 1] % (MAX_SCALE + 1u)};
    pb_wire_begin(&m, PB_SQL_BATCH);
    pb_wire_put(&m, data + 2 * COLUMNS, size - 2 * COLUMNS);
    unsigned n = 1 + data[0] % COLUMNS;
    if (m.data && pb_batch_read(&m, columns, n, &nrows) == 0) {
        const struct pb_batch batch = {nrows, n, columns};
        for (uint32_t i = 0; i < nrows && i < 1000; i++)
            if (pb_row_text_take(&row, &batch, i) < 0)
                break;
    }
    pb_row_text_done(&row);
    pb_wire_done(&m);
    return 0;
}
