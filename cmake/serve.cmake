# The service: a program of its own, since it links an HTTP library and probing links libc only. Where the library's header
# is not there (a build for another machine, a system without the package) it is not built, and `probing serve` says so.
# A pattern, not EXISTS, so that a later build notices files that setup has added.
file(GLOB microhttpd_there CONFIGURE_DEPENDS /usr/include/microhttpd.h)

# The parts without the HTTP library (access rules, answers), also for unit tests.
set(serve_rules src/serve/gate.c src/serve/options.c src/serve/routes.c src/serve/describe.c src/serve/fixed.c src/serve/words.c src/serve/mcp.c)
add_library(pb_serve STATIC ${serve_rules})
target_link_libraries(pb_serve PUBLIC pb_print pb_cluster pb_base)

if(microhttpd_there AND NOT CMAKE_CROSSCOMPILING AND NOT CMAKE_C_COMPILER MATCHES zig)
    file(GLOB serve_sources RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS src/serve/*.c)
    list(REMOVE_ITEM serve_sources ${serve_rules})
    include(cmake/page.cmake)
    add_executable(probing-serve ${serve_sources} ${page_header})
    target_include_directories(probing-serve PRIVATE ${CMAKE_BINARY_DIR}/page)
    target_link_libraries(probing-serve PRIVATE pb_serve pb_control microhttpd -pthread)
    # A wheel must not include system libraries.
    if(NOT SKBUILD)
        install(TARGETS probing-serve RUNTIME DESTINATION bin)
    endif()
else()
    message(STATUS "no libmicrohttpd: probing-serve is not built, and probing serve will say so")
endif()
