#!/usr/bin/env bash
# The table of protections is true: each row stands in the code, its test exists, rows are in the order of their kinds,
# and every kind of fault that one node must keep out has a row. That a test fails without its protection is shown by
# `tools/dev long protections`.
# usage: test_protections.sh BUILD-ROOT SOURCE-ROOT
set -euo pipefail

build=$1
root=$2
table=$root/proto/base/protections.def
# what can go wrong on one node; the other kinds belong to several nodes or to parts of their own
readonly KINDS='1 2 3 4 5 6 7 9 10 12 14 15 16 18 20 21 22'
passed=0
failed=0

# expect NAME COMMAND…
expect() {
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'failed: %s\n' "$name"
    fi
}

rows() {
    sed -nE 's/^KVD_PROTECTION\(([A-Z0-9_]+), ([0-9]+), "([^"]+)", "([^"]+)",.*/\1 \2 \3 \4/p' "$table"
}

every_row_is_read() {
    [[ $(rows | wc -l) == $(grep -c '^KVD_PROTECTION(' "$table") ]]
}

in_the_code() {
    grep -rqE "KVD_PROTECT\($1\)" --include='*.[ch]' "$root"/{proto,client,policies,cachesvc,engine,tools}
}

test_exists() {
    grep -qxF "$1" <<<"$tests"
}

# by name: some are made by a macro for each field
function_exists() {
    grep -rqw "$1" --include='*.c' "$root/tests"
}

kind_has_a_row() {
    rows | awk -v kind="$1" '$2 == kind { found = 1 } END { exit !found }'
}

# kind 0, which is none of these, comes last
kinds_ascend() {
    rows | awk '{ kind = $2 == 0 ? 99 : $2; if (kind < last) { exit 1 } last = kind }'
}

names_differ() {
    [[ -z $(rows | cut -d ' ' -f 1 | sort | uniq -d) ]]
}

tests=$(jq -r '.[].name' "$build/meson-info/intro-tests.json")
expect "every row of $table has the usual form, on one line" every_row_is_read
expect "no name twice" names_differ
expect "rows are in the order of their kinds" kinds_ascend
while read -r name _ test function; do
    expect "KVD_PROTECT($name) stands in the code" in_the_code "$name"
    expect "$name: there is a test $test" test_exists "$test"
    expect "$name: there is a function $function" function_exists "$function"
done < <(rows)
for kind in $KINDS; do
    expect "kind $kind has a protection" kind_has_a_row "$kind"
done
printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[[ $failed == 0 ]]
