#!/bin/sh
# kvdepot.h compiles alone, as strict C and as C++ (where there is a C++ compiler), without a warning.
# test_header.sh INCLUDE-FOLDER CC...
inc=$1
shift
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0
skipped=0
try() {
    if "$@" -I"$inc" -Wall -Wextra -Wpedantic -Werror -fsyntax-only "$dir/$file"; then
        passed=$((passed + 1))
    else
        echo "failed: $*"
        failed=$((failed + 1))
    fi
}
for file in alone.c alone.cc; do
    echo '#include <kvdepot/kvdepot.h>' >"$dir/$file"
    echo 'int main(void) { return kvd_status_text(KVD_OK) == 0; }' >>"$dir/$file"
done
file=alone.c
for std in c99 gnu11 c17; do
    try "$@" -std=$std
done
file=alone.cc
if command -v c++ >/dev/null; then
    for std in c++11 c++17; do
        try c++ -std=$std
    done
else
    echo "skipped: no C++ compiler"
    skipped=2
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
