#!/usr/bin/env bash
# The parts of tools/dev that decide something: sums of the tests' counts, missing packages, a damaged model, and what a
# person without root is told.
# usage: test_dev.sh SOURCE-ROOT
set -euo pipefail

ROOT=$1
export ROOT
for tool in jq dpkg-query; do
    if ! command -v "$tool" >/dev/null; then
        printf 'skipped: %s is not installed\n0 passed, 0 failed, 1 skipped\n' "$tool"
        exit 77
    fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tools/dev.d/common.sh
source "$ROOT/tools/dev.d/common.sh"
# shellcheck source=tools/dev.d/setup.sh
source "$ROOT/tools/dev.d/setup.sh"
# shellcheck source=tools/dev.d/test.sh
source "$ROOT/tools/dev.d/test.sh"

passed=0
failed=0

# same NAME WANTED GOT
same() {
    if [[ $2 == "$3" ]]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'failed: %s\n  wanted: %s\n  got:    %s\n' "$1" "$2" "$3"
    fi
}

# log_line NAME RESULT STDOUT: one line of meson's testlog.json
log_line() {
    jq -cn --arg name "kvdepot:unit / $1" --arg result "$2" --arg stdout "$3" \
        '{name: $name, result: $result, stdout: $stdout, returncode: 0}'
}

sum_of() {
    log_line "$@" >"$work/testlog.json"
    test_sum "$work/testlog.json"
}

same "counts of a program" "3 0 1" "$(sum_of a OK $'[ OK ]\n3 passed, 0 failed, 1 skipped\n')"
same "only the last counts line counts" "1 0 0" "$(sum_of a OK $'9 passed, 0 failed, 0 skipped\n1 passed, 0 failed, 0 skipped\n')"
same "counts inside a line are no counts" "1 0 0" "$(sum_of a OK $'saw 9 passed, 0 failed, 0 skipped\n')"
same "a crash without counts is one failure" "0 1 0" "$(sum_of a FAIL 'boom')"
same "a time-out is one failure" "0 1 0" "$(sum_of a TIMEOUT '')"
same "a failure after good counts is one failure" "2 1 0" "$(sum_of a FAIL $'2 passed, 0 failed, 0 skipped\n')"
same "a failure keeps its own counts" "2 3 0" "$(sum_of a FAIL $'2 passed, 3 failed, 0 skipped\n')"
same "all skipped" "0 0 4" "$(sum_of a SKIP $'0 passed, 0 failed, 4 skipped\n')"
same "skipped without counts" "0 0 1" "$(sum_of a SKIP '')"

same "closing line" "4 passed, 0 failed, 3 skipped" "$(test_close "1 0 2" "3 0 1")"
same "a failure fails" 1 "$(test_close "1 1 0" >/dev/null && echo 0 || echo 1)"
same "nothing that passed fails" 1 "$(test_close "0 0 9" >/dev/null && echo 0 || echo 1)"

same "missing packages are named" "kvd-no-such-package" "$(packages_missing dpkg kvd-no-such-package)"
same "every package has a set and a reason" "" \
    "$(awk '!/^#/ && NF && (NF < 3 || $1 !~ /^(build|check|bench)$/)' "$ROOT/tools/packages.txt")"
packages_missing() { printf 'kvd-no-such-package\n'; }
if ((EUID == 0)) && command -v setpriv >/dev/null; then
    as_user=(setpriv --reuid 65534 --clear-groups)
else
    as_user=()
fi
export -f packages_missing packages_of setup_packages say die
told=$("${as_user[@]}" bash -c 'setup_packages build' 2>&1) || true
same "without root the command is told" \
    "  sudo apt-get update && sudo apt-get install -y --no-install-recommends kvd-no-such-package" \
    "$(tail -n 1 <<<"$told")"

printf 'not a model\n' >"$work/model.gguf"
same "a damaged model is seen" 1 "$(model_is_good "$work/model.gguf" && echo 0 || echo 1)"
same "a missing model is seen" 1 "$(model_is_good "$work/none.gguf" && echo 0 || echo 1)"
same "the cache folder follows XDG" "/x/kvdepot" "$(XDG_CACHE_HOME=/x cache_dir)"
same "the cache folder without XDG" "/h/.cache/kvdepot" "$(XDG_CACHE_HOME='' HOME=/h cache_dir)"
for command in setup test bench lint check long demo; do
    same "$command refuses what it does not know" 1 \
        "$("$ROOT/tools/dev" "$command" --nonsense 2>&1 >/dev/null | grep -c -e nonsense -e arguments || true)"
done
same "an unknown command is refused" 1 "$("$ROOT/tools/dev" nonsense 2>/dev/null && echo 0 || echo 1)"

printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[[ $failed == 0 ]]
