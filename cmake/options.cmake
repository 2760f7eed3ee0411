# Warnings, hardening and the sanitizer or fuzzer a preset asks for.
set(PROBING_SANITIZE "" CACHE STRING "sanitizers for tools and tests: address,undefined or thread")
option(PROBING_FUZZ "build the libFuzzer targets (needs Clang)" OFF)
option(PROBING_FAULTS "an agent whose calls fail on demand, for the harm suite" OFF)
set(PROBING_ARCH ${CMAKE_SYSTEM_PROCESSOR} CACHE STRING "x86_64 or aarch64")

add_compile_definitions(_GNU_SOURCE PROBING_VERSION="${PROJECT_VERSION}")
set(PROBING_WARNINGS -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Wno-unused-parameter -Werror)
# Text for people is cut to its buffer on purpose, everywhere.
if(CMAKE_C_COMPILER_ID STREQUAL GNU)
    list(APPEND PROBING_WARNINGS -Wno-format-truncation)
endif()
add_compile_options(${PROBING_WARNINGS} -fno-strict-aliasing -fno-common)
# Neither assertions nor debug information name the folder it was built in.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)

include(CheckSymbolExists)
set(CMAKE_REQUIRED_DEFINITIONS -D_GNU_SOURCE)
check_symbol_exists(reallocarray stdlib.h PROBING_HAS_REALLOCARRAY)
if(NOT PROBING_HAS_REALLOCARRAY)
    add_compile_options(-include ${CMAKE_SOURCE_DIR}/src/base/compat.h)
endif()

if(PROBING_SANITIZE)
    add_compile_options(-fsanitize=${PROBING_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${PROBING_SANITIZE})
endif()
if(PROBING_FUZZ)
    # Coverage in the libraries too; the fuzzer's main comes with the link of each target.
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# The stub (src/inject/stub.c) is copied into other processes: no constant, no relocation, no call of the compiler's own.
set_source_files_properties(src/inject/stub.c PROPERTIES COMPILE_OPTIONS
    "-O2;-fno-stack-protector;-fno-jump-tables;-fno-builtin;-fno-sanitize=all;-mgeneral-regs-only")
