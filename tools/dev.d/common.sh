# shellcheck shell=bash
# What all subcommands of tools/dev share. Progress goes to standard error, so that --json output stays clean.

say() {
    printf '%s\n' "$*" >&2
}

die() {
    printf 'tools/dev: %s\n' "$*" >&2
    exit 1
}

# Runs a command quietly: its output is kept in a log, and shown when it fails.
# quietly LOG COMMAND…
quietly() {
    local log=$1 rc=0
    shift
    "$@" >"$log" 2>&1 || rc=$?
    if ((rc != 0)); then
        tail -n 60 "$log" >&2
        say "tools/dev: '$*' failed (exit status $rc); all of its output is in $log"
    fi
    return "$rc"
}

# Seconds since the script started, as 12.3.
since_start() {
    local now=${EPOCHREALTIME/,/.}
    awk -v a="$KVD_DEV_STARTED" -v b="$now" 'BEGIN { printf "%.1f", b - a }'
}

KVD_DEV_STARTED=${EPOCHREALTIME/,/.}
readonly KVD_DEV_STARTED
