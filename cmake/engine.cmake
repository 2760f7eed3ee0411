# SQL: pb_engine is the caller's half (broker, live tables), linked into probing; probing-sql is the worker, which loads
# DuckDB when it starts. scripts/setup.sh puts DuckDB's library and header under build/duckdb.
set(PROBING_DUCKDB_DIR ${CMAKE_SOURCE_DIR}/build/duckdb CACHE PATH "folder of duckdb.h and MACHINE/libduckdb.so")
set(duckdb_machine ${PROBING_ARCH})
if(NOT PROBING_HAS_GLIBC)
    set(duckdb_machine ${PROBING_ARCH}-musl) # scripts/musl.sh: with the libraries of GCC that it needs
endif()
set(duckdb_library ${PROBING_DUCKDB_DIR}/${duckdb_machine}/libduckdb.so)

# A pattern, not EXISTS, so that a later build notices files that setup has added.
file(GLOB duckdb_there CONFIGURE_DEPENDS ${PROBING_DUCKDB_DIR}/duckdb.h ${duckdb_library})

# The folder tells where code runs: caller and archive in probing itself, with its rights; worker in the sandbox of
# probing-sql; writer in the processes of probing-sql that write files; shared in all of them, and in unit tests.
file(GLOB engine_caller CONFIGURE_DEPENDS src/engine/caller/*.c src/engine/archive/*.c src/engine/shared/*.c)
file(GLOB engine_worker CONFIGURE_DEPENDS src/engine/main.c src/engine/worker/*.c src/engine/writer/*.c)

add_library(pb_engine STATIC ${engine_caller})
target_include_directories(pb_engine PUBLIC src)
target_link_libraries(pb_engine PUBLIC pb_remote)
target_link_libraries(pb_ask PUBLIC pb_engine)

# Loops over millions of cells, written for vectorization.
set_source_files_properties(src/table/view.c src/engine/worker/scan.c PROPERTIES COMPILE_OPTIONS
    "$<$<CONFIG:RelWithDebInfo>:-O3>")

if(${PROBING_DUCKDB_DIR}/duckdb.h IN_LIST duckdb_there)
    function(pb_sql_worker name)
        add_executable(${name} ${engine_worker})
        target_include_directories(${name} PRIVATE src)
        target_include_directories(${name} SYSTEM PRIVATE ${PROBING_DUCKDB_DIR})
        target_link_libraries(${name} PRIVATE pb_engine -pthread m ${CMAKE_DL_LIBS})
        # sandbox_files.c replaces libc's stat, access and the like for DuckDB.
        set_target_properties(${name} PROPERTIES ENABLE_EXPORTS TRUE)
        if(PROBING_SANITIZE)
            target_sources(${name} PRIVATE tests/sanitizers/worker.c)
            set_source_files_properties(tests/sanitizers/worker.c PROPERTIES COMPILE_OPTIONS -fno-sanitize=all)
        endif()
    endfunction()
    pb_sql_worker(probing-sql)
    # A worker with a deliberate security hole, to test that the kernel's sandbox holds.
    pb_sql_worker(probing-sql-escape)
    target_compile_definitions(probing-sql-escape PRIVATE PROBING_TEST_ESCAPE)
    set_target_properties(probing-sql-escape PROPERTIES EXCLUDE_FROM_ALL TRUE)
    install(TARGETS probing-sql RUNTIME DESTINATION bin)
    # Setup fetches DuckDB for this machine; a build for another machine uses that system's library.
    if(${duckdb_library} IN_LIST duckdb_there)
        add_custom_command(TARGET probing-sql POST_BUILD
            COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/lib/probing
            COMMAND ${CMAKE_COMMAND} -E create_symlink ${duckdb_library} ${CMAKE_BINARY_DIR}/lib/probing/libduckdb.so)
        install(FILES ${duckdb_library} DESTINATION lib/probing)
        if(NOT CMAKE_CROSSCOMPILING)
            # A sixth of the library is a table of symbols for debuggers.
            install(CODE "if(CMAKE_INSTALL_DO_STRIP)
                execute_process(COMMAND ${CMAKE_STRIP} \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/probing/libduckdb.so COMMAND_ERROR_IS_FATAL ANY)
            endif()")
        endif()
        if(NOT PROBING_HAS_GLIBC)
            foreach(library libstdc++.so.6 libgcc_s.so.1)
                add_custom_command(TARGET probing-sql POST_BUILD COMMAND ${CMAKE_COMMAND} -E create_symlink
                    ${PROBING_DUCKDB_DIR}/${duckdb_machine}/${library} ${CMAKE_BINARY_DIR}/lib/probing/${library})
                install(FILES ${PROBING_DUCKDB_DIR}/${duckdb_machine}/${library} DESTINATION lib/probing)
            endforeach()
        endif()
    endif()
else()
    message(STATUS "no DuckDB in ${PROBING_DUCKDB_DIR}: probing-sql is not built, and queries will say so")
endif()
