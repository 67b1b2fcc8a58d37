#!/usr/bin/env bash
# The kvdepot command against a real daemon that a client has used: status and hitrate in all their forms.
# usage: test_kvdepot.sh KVDEPOT KVDEPOTD HELLO
set -euo pipefail

kvdepot=$1
kvdepotd=$2
hello=$3
work=$(mktemp -d "${TMPDIR:-/var/tmp}/kvdepot-test.XXXXXX")
socket=$work/s
passed=0
failed=0
daemon=

cleanup() {
    [[ -z $daemon ]] || kill -KILL "$daemon" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# same NAME WANTED GOT
same() {
    if [[ $2 == "$3" ]]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'failed: %s\n  wanted: %s\n  got:    %s\n' "$1" "$2" "$3"
    fi
}

# has NAME TEXT REGEX
has() {
    same "$1" yes "$(grep -qE -- "$3" <<<"$2" && echo yes || echo "$2")"
}

ask() {
    "$kvdepot" "$1" --socket "$socket" "${@:2}" 2>&1 || printf 'exit status %d\n' $?
}

if ! command -v jq >/dev/null; then
    printf 'skipped: jq is not installed\n0 passed, 0 failed, 1 skipped\n'
    exit 77
fi

# daemon_start FOLDER: on a store there, and waits until it answers.
daemon_start() {
    "$kvdepotd" --dir "$1" --socket "$socket" --dram.path "$1.pool" --dram.cap 64MiB --nvme.cap 64MiB \
        >"$work/log" 2>&1 &
    daemon=$!
    for ((try = 0; try < 600; try++)); do
        "$kvdepot" status --socket "$socket" >/dev/null 2>&1 && return
        if ! kill -0 "$daemon" 2>/dev/null; then
            break
        fi
        sleep 0.05
    done
    printf 'failed: kvdepotd does not answer\n'
    cat "$work/log"
    printf '%d passed, %d failed, 0 skipped\n' "$passed" "$((failed + 1))"
    exit 1
}

daemon_start "$work/store"

has "an empty store is healthy" "$(ask status)" '^health: ok$'
has "nothing was asked yet" "$(ask hitrate)" '^hit 0 \+ missed 0 = asked 0 tokens$'
has "no tenants yet" "$(ask hitrate --by tenant)" '^tenant +look-ups'

"$hello" "$socket" >"$work/hello"
same "a client found its blocks again" "0 of 4 blocks were stored 4 of 4 blocks were stored" "$(xargs <"$work/hello")"

status=$(ask status)
has "health first" "$(head -n 1 <<<"$status")" '^health: ok$'
has "dram holds the blocks" "$status" '^dram +ok .* 64\.0 MiB .* 4( |$)'
has "nvme is shown" "$status" '^nvme +ok .* 64\.0 MiB '
has "puts are counted" "$status" '^puts +4 blocks stored, 0 refused'
has "scenarios are shown" "$status" '^chat +7 d '
same "status as JSON" '"ok" 4 0' "$(ask status --json | jq -r '"\"\(.health)\" \(.puts.committed_blocks) \(.corrupt)"')"

has "tiers and reasons add up" "$(ask hitrate)" '^hit 256 \+ missed [0-9]+ = asked [0-9]+ tokens$'
has "from dram" "$(ask hitrate --by tier)" '^hit +dram +256 '
has "by scenario" "$(ask hitrate --by scenario)" '^chat +2 '
has "by space" "$(ask hitrate --by space)" '^hello.* +2 '
has "by tenant" "$(ask hitrate --by tenant)" '^[^ ]+ +2 +[0-9]+ '
same "hits as JSON" "2 256" "$(ask hitrate --json | jq -r '.rows[0] | "\(.lookups) \(.hit.dram.tokens)"')"
same "tiers as JSON" 256 "$(ask hitrate --json --by tier | jq '.rows[] | select(.name == "dram") | .tokens')"
for window in 10s 1m 5m 1h 24h ever; do
    has "window $window" "$(ask hitrate --window "$window")" "^look-ups: [0-9]+ \(window: $window\)$"
done

has "the scrub has not read yet" "$status" '^scrub +no whole round yet'
verify=$(ask verify)
has "verify reads what is below" "$verify" '^nvme +4 .* 0 +0 +0$'
has "verify reads dram" "$verify" '^dram +4 .* 0 +0 +0$'
same "verify as JSON" "false 4 0" "$(ask verify --tier nvme --json |
    jq -r '"\(.running) \(.now.tiers[0].records) \(.quarantined)"')"
has "status tells of it" "$(ask status)" '^scrub +8 records .* read over again, 0 bad; '
has "the folder is in use" "$("$kvdepot" verify --offline "$work/store" 2>&1 || echo "exit status $?")" \
    'is in use: a daemon has it'

# A reading at a byte a second never ends: an interrupt ends the waiting, and the daemon goes on.
"$kvdepot" verify --rate 1 --socket "$socket" >"$work/slow" 2>&1 &
slow=$!
for ((try = 0; try < 600; try++)); do
    [[ $(ask status --json | jq -r '.scrub.now.rate') == 1 ]] && break
    sleep 0.05
done
kill -TERM "$slow"
rc=0
wait "$slow" || rc=$?
same "an interrupt is no success" 1 "$rc"
has "and the daemon goes on" "$(cat "$work/slow")" 'interrupted; the daemon goes on reading'
same "as it said" true "$(ask status --json | jq '.scrub.running')"

kill -TERM "$daemon"
rc=0
wait "$daemon" || rc=$?
daemon=
same "the daemon ends well" 0 "$rc"
has "then there is none" "$(ask status)" '^exit status 2$'

offline() {
    "$kvdepot" verify --offline "$1" "${@:2}" 2>&1 || printf 'exit status %d\n' $?
}

has "without a daemon" "$(offline "$work/store")" '^nvme +4 .* 0 +0 +0$'
has "the segments' folder does too" "$(offline "$work/store/nvme")" '^nvme +4 .* 0 +0 +0$'
mv "$work/store/nvme" "$work/elsewhere"
has "nothing read is not called good" "$(offline "$work/store")" 'nvme.path says; name that folder'
has "and told" "$(offline "$work/store")" '^exit status 1$'
has "the folder that was named" "$(offline "$work/elsewhere")" '^nvme +4 .* 0 +0 +0$'
mv "$work/elsewhere" "$work/store/nvme"
segment=$(find "$work/store/nvme" -name '*.seg')
printf 'X' | dd of="$segment" bs=1 seek=9000 conv=notrunc status=none
before=$(sha256sum "$segment")
has "a bad record is found without a daemon" "$(offline "$work/store")" '^nvme +4 .* 1 +0 +0$'
has "and that is told" "$(offline "$work/store")" '^exit status 1$'
same "where, and why" "4096 the payload doesn't match its sum" \
    "$(offline "$work/store" --json | sed '/^exit/d' | jq -r '.bad[0] | "\(.offset) \(.reason)"')"
same "nothing was changed" yes "$([[ $(sha256sum "$segment") == "$before" ]] && echo yes || echo no)"

# ---- purge: on a store of its own

stored() { # how many blocks the example finds; it puts what is missing
    "$hello" "$socket" | head -n 1
}

# killed, and started again without what survives in memory and in the index
start_anew() {
    kill -KILL "$daemon"
    wait "$daemon" 2>/dev/null || true
    rm -rf "$work/purged.pool" "$work/purged/index"
    daemon_start "$work/purged"
}

daemon_start "$work/purged"
has "nothing to purge is no fault" "$(ask purge --all --yes)" '^purged everything that is stored: 0 blocks \(0 B\)'
stored >/dev/null
same "stored" "4 of 4 blocks were stored" "$(stored)"
has "somebody must agree" "$(ask purge --tenant '' </dev/null)" 'no terminal: give --yes'
has "and say what" "$(ask purge --yes)" '^exit status 3$'
has "not all and some" "$(ask purge --all --tenant x --yes)" '^exit status 3$'
has "an unknown space" "$(ask purge --space 00000000 --yes)" 'is not known here'
same "all of that purged nothing" "4 of 4 blocks were stored" "$(stored)"
has "another tenant's" "$(ask purge --tenant alice --yes)" 'of tenant alice: 0 blocks'
long=$(printf 'a%.0s' {1..300})
has "a name is shown whole" "$(ask purge --tenant "$long" --yes)" "of tenant $long: 0 blocks"
same "is not this one's" "4 of 4 blocks were stored" "$(stored)"
space=$(ask hitrate --by space | sed -n 's/^\(hello@[0-9a-f]*\) .*/\1/p')
has "a space" "$(ask purge --space "$space" --yes)" "^purged all that is stored in space $space: 4 blocks \(256\.0 KiB\)"
has "its miss has a reason" "$(stored >/dev/null && ask hitrate)" '^missed  purged +256 .* somebody asked for it$'
same "what is put again stays" "4 of 4 blocks were stored" "$(stored)"
start_anew
same "also when the index is lost" "4 of 4 blocks were stored" "$(stored)"
same "the default tenant's, as JSON" 4 "$(ask purge --tenant '' --yes --json | jq .dram_blocks)"
start_anew
same "purged is purged, also when the index is lost" "0 of 4 blocks were stored" "$(stored)"
kill -TERM "$daemon"
wait "$daemon" || true
daemon=
has "without a daemon" "$(ask purge --all --yes)" '^exit status 2$'

printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[[ $failed == 0 ]]
