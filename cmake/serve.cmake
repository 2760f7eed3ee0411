# The service: a program of its own, since it links an HTTP library and probing links libc only. Where the library's header
# is not there (a build for another machine, a system without the package) it is not built, and `probing serve` says so.
# A pattern, not EXISTS, so that a later build notices files that setup has added.
file(GLOB microhttpd_there CONFIGURE_DEPENDS /usr/include/microhttpd.h)

# The parts without the HTTP library (access rules, answers), also for unit tests.
set(serve_rules src/serve/gate.c src/serve/serve_options.c src/serve/routes.c src/serve/describe.c src/serve/fixed.c src/serve/command_words.c src/serve/mcp.c)
add_library(pb_serve STATIC ${serve_rules})
target_link_libraries(pb_serve PUBLIC pb_print pb_cluster pb_base)

if(microhttpd_there AND NOT CMAKE_CROSSCOMPILING)
    file(GLOB serve_sources RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS src/serve/*.c)
    list(REMOVE_ITEM serve_sources ${serve_rules})
    include(cmake/page.cmake)
    add_executable(probing-serve ${serve_sources} ${page_header})
    target_include_directories(probing-serve PRIVATE ${CMAKE_BINARY_DIR}/page)
    if(CMAKE_C_COMPILER MATCHES zig)
        # For packages (scripts/packages.sh), which depend on the library: zig looks in no folder of the system, and the
        # library itself needs a newer libc than this program does. A wheel must not need system libraries.
        find_library(microhttpd_library microhttpd PATHS /usr/lib/${PROBING_ARCH}-linux-gnu /usr/lib64)
        file(COPY ${microhttpd_there} DESTINATION ${CMAKE_BINARY_DIR}/system)
        set_target_properties(probing-serve PROPERTIES EXCLUDE_FROM_ALL TRUE SKIP_BUILD_RPATH TRUE)
        target_include_directories(probing-serve SYSTEM PRIVATE ${CMAKE_BINARY_DIR}/system)
        target_link_options(probing-serve PRIVATE -Wl,--allow-shlib-undefined)
        if(microhttpd_library)
            target_link_libraries(probing-serve PRIVATE pb_serve pb_control ${microhttpd_library} -pthread)
        endif()
    else()
        target_link_libraries(probing-serve PRIVATE pb_serve pb_control microhttpd -pthread)
        if(NOT SKBUILD)
            install(TARGETS probing-serve RUNTIME DESTINATION bin)
        endif()
    endif()
else()
    message(STATUS "no libmicrohttpd: probing-serve is not built, and probing serve will say so")
endif()
