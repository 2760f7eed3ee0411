# Writes the files of a folder as one C header, an array a file and a table of them:
#   cmake -D FROM=folder -D ENDING=py -D TO=header -P embed_folder.cmake
# A header and not .incbin: zig's cache follows what is included, not what the assembler reads.
file(GLOB files ${FROM}/*.${ENDING})
list(SORT files)
set(arrays "")
set(table "")
foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} hex HEX)
    string(REGEX REPLACE "(................................)" "\\1\n    " hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1, " hex "${hex}")
    string(APPEND arrays "static const unsigned char embedded_${name}[] = {\n    ${hex}0x00,\n};\n")
    string(APPEND table "    {\"${name}\", embedded_${name}},\n")
endforeach()
file(WRITE ${TO} "${arrays}static const struct {\n    const char *name;\n    const unsigned char *text;\n} embedded_files[] = {\n${table}};\n")
