# Warnings, hardening and the sanitizer or fuzzer a preset asks for.
set(PROBING_SANITIZE "" CACHE STRING "sanitizers for tools and tests: address,undefined or thread")
option(PROBING_FUZZ "build the libFuzzer targets (needs Clang)" OFF)
option(PROBING_FAULTS "an agent whose calls fail on demand, for the harm suite" OFF)
set(PROBING_ARCH ${CMAKE_SYSTEM_PROCESSOR} CACHE STRING "x86_64 or aarch64")

add_compile_definitions(_GNU_SOURCE PROBING_VERSION="${PROJECT_VERSION}")
set(PROBING_WARNINGS -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Wno-unused-parameter -Werror)
# Messages are truncated to their buffers on purpose.
if(CMAKE_C_COMPILER_ID STREQUAL GNU)
    list(APPEND PROBING_WARNINGS -Wno-format-truncation)
endif()
add_compile_options(${PROBING_WARNINGS} -fno-strict-aliasing -fno-common)
# Assertions and debug information must not name the build folder.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)

include(CheckSymbolExists)
set(CMAKE_REQUIRED_DEFINITIONS -D_GNU_SOURCE)
check_symbol_exists(reallocarray stdlib.h PROBING_HAS_REALLOCARRAY)
check_symbol_exists(malloc_trim malloc.h PROBING_HAS_MALLOC_TRIM)
check_symbol_exists(__GLIBC__ features.h PROBING_HAS_GLIBC)
if(NOT PROBING_HAS_REALLOCARRAY)
    add_compile_definitions(PB_NO_REALLOCARRAY)
endif()
if(NOT PROBING_HAS_MALLOC_TRIM)
    add_compile_definitions(PB_NO_MALLOC_TRIM)
endif()
if(NOT PROBING_HAS_GLIBC)
    # musl: stdout is a constant, and CMSG_NXTHDR compares a size with a difference. -dynamic: zig links statically for musl
    # when not asked, and a static program cannot load DuckDB or NVIDIA's library.
    add_compile_definitions(PB_OWN_STREAMS)
    add_compile_options(-Wno-sign-compare)
    add_link_options(-dynamic)
endif()
if(NOT PROBING_HAS_REALLOCARRAY OR NOT PROBING_HAS_MALLOC_TRIM OR NOT PROBING_HAS_GLIBC)
    add_compile_options(-include ${CMAKE_SOURCE_DIR}/src/base/compat.h)
endif()

# Hardening: tools read memory that a hostile process may have prepared. Each flag is used where the compiler supports it;
# tests/lint/test_hardening.py reads the built files. Not with a sanitizer, which finds the same errors earlier.
include(CheckCCompilerFlag)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)
set(PROBING_HARDENING)
if(NOT PROBING_SANITIZE)
    # -U first: some compilers define it themselves, and would warn.
    set(PROBING_HARDENING -fstack-protector-strong $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
    # By processor, not by trying both: Clang accepts the other one's flag with a warning, which is an error here.
    set(branches -fcf-protection=full)
    if(PROBING_ARCH STREQUAL aarch64)
        set(branches -mbranch-protection=standard)
    endif()
    check_c_compiler_flag(${branches} PROBING_HAS_BRANCHES)
    if(PROBING_HAS_BRANCHES)
        list(APPEND PROBING_HARDENING ${branches})
    endif()
    check_c_compiler_flag(-ftrivial-auto-var-init=zero PROBING_HAS_AUTO_INIT)
    add_compile_options(${PROBING_HARDENING})
    add_link_options(-Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endif()

if(PROBING_SANITIZE)
    add_compile_options(-fsanitize=${PROBING_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${PROBING_SANITIZE})
endif()
if(PROBING_FUZZ)
    # Coverage in the libraries too; the fuzzer's main comes with the link of each target.
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# The stub (src/inject/stub.c) is copied into other processes: it must have no constants, relocations or calls that the
# compiler inserts.
set(stub_flags -O2 -fno-stack-protector -U_FORTIFY_SOURCE -fno-jump-tables -fno-builtin -fno-sanitize=all -mgeneral-regs-only)
if(PROBING_HAS_AUTO_INIT)
    list(APPEND stub_flags -ftrivial-auto-var-init=uninitialized) # it would call memset
endif()
set_source_files_properties(src/inject/stub.c PROPERTIES COMPILE_OPTIONS "${stub_flags}")
