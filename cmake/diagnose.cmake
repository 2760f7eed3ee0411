# The rules of src/diagnose/rules/, embedded: ordinary files in the source.
file(GLOB diagnose_rules CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/diagnose/rules/*.sql)
set(diagnose_header ${CMAKE_BINARY_DIR}/embedded/diagnose_rules.h)
add_custom_command(OUTPUT ${diagnose_header}
    COMMAND ${CMAKE_COMMAND} -D FROM=${CMAKE_SOURCE_DIR}/src/diagnose/rules -D ENDING=sql -D TO=${diagnose_header} -P ${CMAKE_SOURCE_DIR}/cmake/embed_folder.cmake
    DEPENDS ${diagnose_rules} ${CMAKE_SOURCE_DIR}/cmake/embed_folder.cmake
    COMMENT "Embedding the rules of diagnosis")
target_sources(pb_diagnose PRIVATE ${diagnose_header})
target_include_directories(pb_diagnose PRIVATE ${CMAKE_BINARY_DIR}/embedded)
