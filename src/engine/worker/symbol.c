/* symbol: see symbol.h.
 *
 * Names of kernels come from the program as the linker has them. The library of C++, which DuckDB has
 * loaded, reads them. A name that it cannot read stays as it is; one that makes it fail ends this process,
 * which can only compute. */
#include "engine/worker/symbol.h"

#include "engine/worker/duck.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { KNOWN = 256, LONGEST = 8192 };

static char *(*demangle)(const char *name, char *buffer, size_t *size, int *status);

/* Of one call of the function: a column of kernels has few names. */
struct known_symbol {
    char *name, *text;
};

static const char *readable(struct known_symbol *known, const char *name, size_t length)
{
    unsigned hash = 5381;
    int status;

    for (size_t i = 0; i < length; i++)
        hash = hash * 33 + (unsigned char)name[i];
    struct known_symbol *k = &known[hash % KNOWN];
    if (k->name && strncmp(k->name, name, length) == 0 && !k->name[length])
        return k->text;
    free(k->name);
    free(k->text);
    k->text = NULL;
    k->name = strndup(name, length);
    if (k->name)
        k->text = demangle(k->name, NULL, NULL, &status);
    return k->text;
}

static void symbol(duckdb_function_info info, duckdb_data_chunk input, duckdb_vector output)
{
    idx_t n = duck.data_chunk_get_size(input);
    duckdb_vector column = duck.data_chunk_get_vector(input, 0);
    uint64_t *validity = duck.vector_get_validity(column);
    duckdb_string_t *texts = duck.vector_get_data(column);
    struct known_symbol known[KNOWN] = {{NULL, NULL}};
    (void)info;

    for (idx_t i = 0; i < n; i++) {
        if (validity && !(validity[i / 64] >> i % 64 & 1)) /* NULL: DuckDB makes NULL of it */
            continue;
        size_t length = texts[i].value.inlined.length;
        const char *text = length <= 12 ? texts[i].value.inlined.inlined : texts[i].value.pointer.ptr;
        const char *better = NULL;
        if (demangle && length > 2 && length < LONGEST && text[0] == '_' && text[1] == 'Z')
            better = readable(known, text, length);
        duck.vector_assign_string_element_len(output, i, better ? better : text,
                                              better ? strlen(better) : length);
    }
    for (int i = 0; i < KNOWN; i++) {
        free(known[i].name);
        free(known[i].text);
    }
}

void pb_symbol_register(duckdb_connection connection)
{
    duckdb_scalar_function f = duck.create_scalar_function();
    duckdb_logical_type text = duck.create_logical_type(DUCKDB_TYPE_VARCHAR);
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    void *found = library ? dlsym(library, "__cxa_demangle") : NULL;

    memcpy(&demangle, &found, sizeof(found));
    duck.scalar_function_set_name(f, "pb_symbol");
    duck.scalar_function_add_parameter(f, text);
    duck.scalar_function_set_return_type(f, text);
    duck.scalar_function_set_function(f, symbol);
    duck.register_scalar_function(connection, f);
    duck.destroy_logical_type(&text);
    duck.destroy_scalar_function(&f);
}
