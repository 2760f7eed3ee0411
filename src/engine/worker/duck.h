/* duck: DuckDB's C functions, loaded at run time.
 *
 * The library is 60 MB of other people's code, so only the worker loads it, from lib/probing of this
 * installation or else from the system. Its version is checked: the functions are called through pointers of
 * the types in its header. */
#pragma once

#include <duckdb.h>

/* One per line: clang-format would rearrange them. */
#define PB_DUCK_FUNCTIONS(F)                                                                                 \
    F(library_version)                                                                                       \
    F(create_config)                                                                                         \
    F(set_config)                                                                                            \
    F(destroy_config)                                                                                        \
    F(open_ext)                                                                                              \
    F(connect)                                                                                               \
    F(interrupt)                                                                                             \
    F(query)                                                                                                 \
    F(destroy_result)                                                                                        \
    F(result_error)                                                                                          \
    F(column_count)                                                                                          \
    F(column_name)                                                                                           \
    F(column_logical_type)                                                                                   \
    F(fetch_chunk)                                                                                           \
    F(destroy_data_chunk)                                                                                    \
    F(data_chunk_get_size)                                                                                   \
    F(data_chunk_get_vector)                                                                                 \
    F(data_chunk_set_size)                                                                                   \
    F(data_chunk_get_column_count)                                                                           \
    F(vector_get_data)                                                                                       \
    F(vector_get_validity)                                                                                   \
    F(vector_ensure_validity_writable)                                                                       \
    F(vector_assign_string_element_len)                                                                      \
    F(list_vector_get_child)                                                                                 \
    F(struct_vector_get_child)                                                                               \
    F(array_vector_get_child)                                                                                \
    F(create_logical_type)                                                                                   \
    F(create_enum_type)                                                                                      \
    F(destroy_logical_type)                                                                                  \
    F(get_type_id)                                                                                           \
    F(decimal_scale)                                                                                         \
    F(decimal_width)                                                                                         \
    F(decimal_internal_type)                                                                                 \
    F(enum_internal_type)                                                                                    \
    F(enum_dictionary_value)                                                                                 \
    F(enum_dictionary_size)                                                                                  \
    F(list_type_child_type)                                                                                  \
    F(map_type_key_type)                                                                                     \
    F(map_type_value_type)                                                                                   \
    F(struct_type_child_count)                                                                               \
    F(struct_type_child_name)                                                                                \
    F(struct_type_child_type)                                                                                \
    F(array_type_child_type)                                                                                 \
    F(array_type_array_size)                                                                                 \
    F(union_type_member_count)                                                                               \
    F(union_type_member_name)                                                                                \
    F(union_type_member_type)                                                                                \
    F(extract_statements)                                                                                    \
    F(prepare_extracted_statement)                                                                           \
    F(extract_statements_error)                                                                              \
    F(destroy_extracted)                                                                                     \
    F(prepare)                                                                                               \
    F(prepare_error)                                                                                         \
    F(destroy_prepare)                                                                                       \
    F(prepared_statement_type)                                                                               \
    F(execute_prepared)                                                                                      \
    F(execute_prepared_streaming)                                                                            \
    F(bind_varchar_length)                                                                                   \
    F(free)                                                                                                  \
    F(create_table_function)                                                                                 \
    F(destroy_table_function)                                                                                \
    F(table_function_set_name)                                                                               \
    F(table_function_add_parameter)                                                                          \
    F(table_function_set_bind)                                                                               \
    F(table_function_set_init)                                                                               \
    F(table_function_set_local_init)                                                                         \
    F(table_function_set_function)                                                                           \
    F(table_function_supports_projection_pushdown)                                                           \
    F(register_table_function)                                                                               \
    F(bind_get_parameter)                                                                                    \
    F(bind_add_result_column)                                                                                \
    F(bind_set_bind_data)                                                                                    \
    F(bind_set_cardinality)                                                                                  \
    F(bind_set_error)                                                                                        \
    F(init_get_bind_data)                                                                                    \
    F(init_get_column_count)                                                                                 \
    F(init_get_column_index)                                                                                 \
    F(init_set_init_data)                                                                                    \
    F(init_set_max_threads)                                                                                  \
    F(init_set_error)                                                                                        \
    F(function_get_bind_data)                                                                                \
    F(function_get_init_data)                                                                                \
    F(function_get_local_init_data)                                                                          \
    F(function_set_error)                                                                                    \
    F(create_scalar_function)                                                                                \
    F(destroy_scalar_function)                                                                               \
    F(scalar_function_set_name)                                                                              \
    F(scalar_function_add_parameter)                                                                         \
    F(scalar_function_set_return_type)                                                                       \
    F(scalar_function_set_function)                                                                          \
    F(register_scalar_function)                                                                              \
    F(get_varchar)                                                                                           \
    F(destroy_value)                                                                                         \
    F(append_varchar_length)                                                                                 \
    F(append_null)                                                                                           \
    F(appender_create)                                                                                       \
    F(appender_end_row)                                                                                      \
    F(appender_destroy)                                                                                      \
    F(appender_error)                                                                                        \
    F(appender_create_ext)                                                                                   \
    F(append_data_chunk)                                                                                     \
    F(create_data_chunk)                                                                                     \
    F(create_decimal_type)                                                                                   \
    F(create_varchar)                                                                                        \
    F(add_replacement_scan)                                                                                  \
    F(replacement_scan_set_function_name)                                                                    \
    F(replacement_scan_add_parameter)                                                                        \
    F(replacement_scan_set_error)

#define PB_DUCK_FIELD(name) __typeof__(duckdb_##name) *name;
struct pb_duck {
    PB_DUCK_FUNCTIONS(PB_DUCK_FIELD)
};

/* Valid once pb_duck_load has succeeded. */
extern struct pb_duck duck;

struct pb_err;

/* Loads the library from lib/probing, or the system's libduckdb.so. -ENOENT: there is none; -EPROTONOSUPPORT:
 * another version. */
int pb_duck_load(struct pb_err *err);
