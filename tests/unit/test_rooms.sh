#!/usr/bin/env bash
# The rooms of the house: README's table is the build's, and no file includes from a room that its own may not see. The
# compiler enforces the second already by its include paths; this also sees headers that nothing compiles.
# usage: test_rooms.sh ROOMS.TXT SOURCE-ROOT
set -euo pipefail

rooms=$1
root=$2
passed=0
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

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

readme_rooms() {
    awk '/<!-- rooms: end -->/ { on = 0 } on && !/^```/ { print } /<!-- rooms: begin -->/ { on = 1 }' "$root/README.md"
}

readme_agrees() {
    diff --ignore-trailing-space <(readme_rooms) "$rooms"
}

# Prints each include that is not allowed under the tree $1, and fails when there is one.
includes_allowed() {
    local tree=$1
    (cd "$tree" && find . -name '*.[ch]' -not -path './build*' -not -path './tests/*' -printf '%P\n' |
        sort | xargs grep -Hn '^#include "' /dev/null) |
        awk -v rooms="$rooms" '
            # The longest room that a path lies in, or "".
            function room_of(path) {
                while (sub(/\/[^\/]*$/, "", path)) {
                    if (path in room) {
                        return path
                    }
                }
                return ""
            }
            BEGIN {
                while ((getline line < rooms) > 0) {
                    split(line, part, ": *")
                    room[part[1]] = 1
                    n = split(part[2], seen, " ")
                    for (i = 1; i <= n; i++) {
                        may[part[1], seen[i]] = 1
                    }
                }
            }
            {
                split($0, field, "\"")
                file = $0
                sub(/:.*/, "", file)
                from = room_of(file)
                to = field[2] ~ /^kvdepot\// ? "libkvdepot" : room_of(field[2])
                # Programs and examples lie in no room; generated headers have no folder.
                if (from == "" || field[2] !~ /\// || from == to || file ~ /\/examples\//) {
                    next
                }
                if (from == "client" && to == "libkvdepot") {
                    next
                }
                if (!((from, to) in may)) {
                    print "not allowed: " $0
                    bad = 1
                }
            }
            END { exit bad }'
}

# The check itself: it must find what is wrong in a tree made for that.
finds_bad_include() {
    mkdir -p "$work/tree/proto/base" "$work/tree/engine/model"
    printf '#include "cachesvc/core/service.h"\n' >"$work/tree/proto/base/wrong.h"
    printf '#include "proto/base/error.h"\n#include "kvdepot/kvdepot.h"\n' >"$work/tree/engine/model/wrong.c"
    ! includes_allowed "$work/tree" >"$work/found" &&
        [[ $(wc -l <"$work/found") == 2 ]] &&
        grep -q '^not allowed: proto/base/wrong.h:1:' "$work/found" &&
        grep -q '^not allowed: engine/model/wrong.c:2:' "$work/found"
}

# Every room is a folder, so that a table that has grown old is noticed.
rooms_are_folders() {
    local room
    while IFS=: read -r room _; do
        [[ -d $root/$room ]] || return 1
    done <"$rooms"
}

expect "README's table of rooms is the build's" readme_agrees
expect "no include crosses into a room that its file may not see" includes_allowed "$root"
expect "the check of includes finds bad ones" finds_bad_include
expect "every room is a folder" rooms_are_folders

printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[[ $failed == 0 ]]
