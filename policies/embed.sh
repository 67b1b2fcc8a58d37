#!/bin/sh
# Makes a C file that holds a text file's bytes: embed.sh INPUT OUTPUT NAME. Only sh, od and sed, so that a build needs
# nothing more.
set -eu
{
    printf '#include <stddef.h>\n\nextern const unsigned char %s[];\nextern const size_t %s_bytes;\n' "$3" "$3"
    printf 'const unsigned char %s[] = {\n' "$3"
    od -An -v -tx1 "$1" | sed 's/ *\([0-9a-f][0-9a-f]\)/0x\1,/g'
    printf '};\nconst size_t %s_bytes = sizeof(%s);\n' "$3" "$3"
} > "$2"
