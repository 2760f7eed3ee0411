# Unit tests (cmocka, one program a file in tests/unit, linked with every tool library), fuzzers (one a
# file in tests/fuzz), and benchmarks in C (one a file in bench). None is part of `all`: a user who builds the
# program needs no cmocka and waits for no test. The targets unit-tests, fuzzers and benchmarks build them.
add_custom_target(unit-tests)
add_custom_target(fuzzers)
add_custom_target(benchmarks)

# The prompt's line editor (part of the program) built as a library for tests.
file(GLOB line_sources CONFIGURE_DEPENDS src/cli/line/*.c src/cli/print/terminal.c)
add_library(pb_line STATIC EXCLUDE_FROM_ALL ${line_sources})
target_link_libraries(pb_line PUBLIC pb_print)

# What diff calls noise, built as a library for tests.
add_library(pb_diff STATIC EXCLUDE_FROM_ALL src/cli/diff/diff_series.c src/cli/diff/diff_noise.c)
target_link_libraries(pb_diff PUBLIC pb_base)

function(pb_test_program name source group folder)
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${name} PRIVATE pb_line pb_diff pb_serve pb_agent pb_cluster pb_diagnose pb_ask pb_engine pb_profile pb_inject pb_remote pb_table pb_control pb_base -pthread ${ARGN})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${folder})
    add_dependencies(${group} ${name})
endfunction()

# By its plain name, for the linker to find when a test is built: a path looked up here would be kept as "not found" by
# a folder that was configured (make, make demo) before setup installed the library (make test).
file(GLOB unit_tests CONFIGURE_DEPENDS tests/unit/*.c)
if(NOT PROBING_FUZZ)
    foreach(source ${unit_tests})
        get_filename_component(name ${source} NAME_WE)
        pb_test_program(unit-${name} ${source} unit-tests unit cmocka)
    endforeach()
endif()

if(PROBING_FUZZ)
    file(GLOB fuzzers CONFIGURE_DEPENDS tests/fuzz/*.c)
    foreach(source ${fuzzers})
        get_filename_component(name ${source} NAME_WE)
        pb_test_program(fuzz-${name} ${source} fuzzers fuzz)
        target_link_options(fuzz-${name} PRIVATE -fsanitize=fuzzer)
    endforeach()
endif()

file(GLOB benchmarks CONFIGURE_DEPENDS bench/*.c)
foreach(source ${benchmarks})
    get_filename_component(name ${source} NAME_WE)
    pb_test_program(bench-${name} ${source} benchmarks bench)
endforeach()

# The engine's tests start the worker, and the one with a deliberate security hole.
if(TARGET probing-sql)
    add_dependencies(unit-tests probing-sql probing-sql-escape)
endif()
