# Writes a file as a C array: cmake -D FROM=file -D TO=header -D NAME=array -P embed.cmake
# A header and not .incbin: zig's cache follows what is included, not what the assembler reads.
file(READ ${FROM} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n    " hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1, " hex "${hex}")
file(WRITE ${TO} "static const unsigned char ${NAME}[] = {\n    ${hex}0x00,\n};\n")
