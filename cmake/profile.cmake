# The script and styles of a flame graph as C arrays: kept as ordinary files in the source.
foreach(asset flame.js flame.css lines.css page.css)
    string(REPLACE "." "_" name ${asset})
    set(from ${CMAKE_SOURCE_DIR}/src/profile/${asset})
    set(to ${CMAKE_BINARY_DIR}/embedded/profile_${name}.h)
    add_custom_command(OUTPUT ${to}
        COMMAND ${CMAKE_COMMAND} -D FROM=${from} -D TO=${to} -D NAME=profile_${name} -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
        DEPENDS ${from} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
        COMMENT "Embedding ${asset}")
    target_sources(pb_profile PRIVATE ${to})
endforeach()
target_include_directories(pb_profile PRIVATE ${CMAKE_BINARY_DIR}/embedded)
