# Writes a file as a C array: cmake -D FROM=file -D TO=header -D NAME=array -P embed.cmake
# A header, not .incbin: zig's cache tracks included files, not files that the assembler reads.
file(READ ${FROM} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n    " hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1, " hex "${hex}")
file(WRITE ${TO} "static const unsigned char ${NAME}[] = {\n    ${hex}0x00,\n};\n")
