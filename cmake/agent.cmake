# The agent enters processes whose libc is older than ours, so it is built by zig cc, which knows the symbol
# versions of old glibcs, and for musl: libprobing-glibc.so and libprobing-musl.so, one of which the injector takes.
# scripts/zig-cc finds zig where setup or pip's build environment put it.
set(PROBING_AGENT_DIR ${CMAKE_BINARY_DIR}/lib/probing)

file(GLOB_RECURSE agent_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/agent/*.c)
file(GLOB_RECURSE agent_headers CONFIGURE_DEPENDS src/agent/*.h)
file(GLOB agent_shared_headers CONFIGURE_DEPENDS include/*.h src/table/*.h src/control/*.h)
list(APPEND agent_headers ${agent_shared_headers})
set(agent_shared src/control/flight.c src/control/frame.c src/control/identity.c src/control/jax_array.c src/control/own_code.c src/control/redact.c src/control/rundir.c src/control/settings.c)
file(GLOB agent_table CONFIGURE_DEPENDS src/table/*.c)
list(FILTER agent_table EXCLUDE REGEX "/(reader|utf8|view)[^/]*$") # by file name: the path before it is the user's
list(TRANSFORM agent_shared PREPEND ${CMAKE_SOURCE_DIR}/)

# The Python part, embedded in the agent: every file of the package.
file(GLOB agent_python CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/python/probing/*.py)
set(agent_embedded ${CMAKE_BINARY_DIR}/embedded/agent_python_part.h)
add_custom_command(OUTPUT ${agent_embedded}
    COMMAND ${CMAKE_COMMAND} -D FROM=${CMAKE_SOURCE_DIR}/python/probing -D ENDING=py -D TO=${agent_embedded} -P ${CMAKE_SOURCE_DIR}/cmake/embed_folder.cmake
    DEPENDS ${agent_python} ${CMAKE_SOURCE_DIR}/cmake/embed_folder.cmake
    COMMENT "Embedding the agent's Python part")
add_custom_target(agent-embedded DEPENDS ${agent_embedded})

# -z nodelete: the code must stay mapped, since Python, a fork handler or a thread may still call it. -z defs: undefined
# symbols must fail here, not when the agent is loaded.
set(agent_flags -std=gnu17 -O2 -g -fPIC -shared -fvisibility=hidden -fno-strict-aliasing -ffunction-sections -fno-sanitize=all
    ${PROBING_WARNINGS} -ffile-prefix-map=${CMAKE_SOURCE_DIR}/= -D_GNU_SOURCE "-DPROBING_VERSION=\"${PROJECT_VERSION}\"" -I${CMAKE_BINARY_DIR}/embedded
    -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/include -include ${CMAKE_SOURCE_DIR}/src/agent/core/direct.h -Wl,-z,nodelete -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack -Wl,--gc-sections -Wl,--build-id=sha1 -Wl,-soname,libprobing.so)

# The hardening flags of options.cmake that every libc since 2.17 supports. Zig's Clang has all of them.
if(NOT PROBING_SANITIZE)
    list(APPEND agent_flags -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
endif()

# The order of locks (lock.h) is checked in debug builds alone.
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    list(APPEND agent_flags -DPB_CHECK_LOCKS)
endif()

# An agent for the harm suite is built by the compiler of the tools, for this machine's glibc: with a sanitizer, whose run
# time is preloaded into the target, or with calls that fail on demand (tests/harm/faults.c).
if(PROBING_SANITIZE AND NOT PROBING_FUZZ)
    # -Wno-tsan: the sanitizer does not know fences, which order what another process reads.
    set(agent_test_flags -fsanitize=${PROBING_SANITIZE} -fno-omit-frame-pointer -Wno-tsan)
elseif(PROBING_FAULTS)
    set(agent_test_sources ${CMAKE_SOURCE_DIR}/tests/harm/faults.c)
    set(agent_test_flags ${agent_test_sources})
    foreach(call accept4 bind dlopen epoll_create1 epoll_ctl eventfd fallocate fcntl fdopendir ftruncate listen madvise mkdir mkdirat
            mmap open openat pthread_atfork pthread_create pwrite recv recvmsg renameat send sendmsg socket socketpair syscall)
        list(APPEND agent_test_flags -Wl,--wrap=${call})
    endforeach()
endif()

function(pb_agent libc target)
    set(output ${PROBING_AGENT_DIR}/libprobing-${libc}.so)
    set(compiler ${CMAKE_SOURCE_DIR}/scripts/zig-cc --target=${target} ${agent_flags})
    set(strip ${CMAKE_OBJCOPY} --strip-debug ${output})
    if(agent_test_flags AND libc STREQUAL glibc)
        set(compiler ${CMAKE_C_COMPILER} ${agent_flags} ${agent_test_flags} -pthread -ldl)
        list(REMOVE_ITEM compiler -fno-sanitize=all)
        set(strip true)
    endif()
    add_custom_command(OUTPUT ${output}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${PROBING_AGENT_DIR}
        COMMAND ${compiler} -o ${output} ${agent_sources} ${agent_table} ${agent_shared}
        COMMAND ${strip}
        DEPENDS ${agent_sources} ${agent_headers} ${agent_table} ${agent_shared} ${agent_embedded} ${agent_test_sources}
        COMMENT "Building the agent for ${target}" VERBATIM)
    add_custom_target(agent-${libc} ALL DEPENDS ${output})
endfunction()

pb_agent(glibc ${PROBING_ARCH}-linux-gnu.2.17)
pb_agent(musl ${PROBING_ARCH}-linux-musl)

# By name: DuckDB's library in that folder is a link to build/duckdb; an installation gets the file itself.
install(FILES ${PROBING_AGENT_DIR}/libprobing-glibc.so ${PROBING_AGENT_DIR}/libprobing-musl.so DESTINATION lib/probing)
