# shellcheck shell=bash
# The demo: a real model answers real prompts through a real daemon, and every answer is compared with that of an engine
# without a cache. All of it lives in one temporary folder, and goes away with it, also on failure and on Ctrl-C.

readonly DEMO_MODEL_NAME=SmolLM2-135M-Instruct
readonly DEMO_ANSWER_TOKENS=24
readonly DEMO_WAIT_S=30
readonly DEMO_FLIPPED_BLOCK=5

DEMO_DIR=
DEMO_POOL=
DEMO_KEEP=0
DEMO_DAEMON_PID=
DEMO_ENGINE_PID=
DEMO_HTTP_PID=

# ---- coming and going

demo_folder() {
    local parent=${TMPDIR:-/tmp} filesystem
    filesystem=$(stat -f -c %T "$parent") || die "there is no folder $parent: set TMPDIR to one"
    # The nvme tier reads past the page cache, which tmpfs has no way of.
    if [[ $filesystem == tmpfs ]]; then
        parent=/var/tmp
    fi
    DEMO_DIR=$(mktemp -d "$parent/kvdepot-demo.XXXXXX") || die "no folder can be made in $parent: set TMPDIR to another"
    # Containers often have a /dev/shm of 64 MB.
    if (($(df --output=avail -B 1M /dev/shm 2>/dev/null | tail -n 1 || echo 0) > 300)); then
        DEMO_POOL=/dev/shm/${DEMO_DIR##*/}.pool
    else
        DEMO_POOL=$DEMO_DIR/pool
    fi
}

# Ends a child: SIGTERM, and SIGKILL when it is still there after DEMO_WAIT_S.
demo_end_process() {
    local pid=$1 tries=$((DEMO_WAIT_S * 20))
    kill -TERM "$pid" 2>/dev/null || return 0
    while kill -0 "$pid" 2>/dev/null && ((tries-- > 0)); do
        sleep 0.05
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}

demo_cleanup() {
    local rc=$?
    trap - EXIT INT TERM
    if ((rc != 0 && rc < 128)) && [[ -n $DEMO_DIR && -s $DEMO_DIR/daemon.log ]]; then
        say "the daemon's last words:"
        tail -n 5 "$DEMO_DIR/daemon.log" >&2
    fi
    if ((rc == 0 && DEMO_KEEP)); then
        exit 0
    fi
    [[ -z $DEMO_ENGINE_PID ]] || demo_end_process "$DEMO_ENGINE_PID"
    [[ -z $DEMO_HTTP_PID ]] || demo_end_process "$DEMO_HTTP_PID"
    [[ -z $DEMO_DAEMON_PID ]] || demo_end_process "$DEMO_DAEMON_PID"
    [[ -z $DEMO_DIR ]] || rm -rf "$DEMO_DIR" "$DEMO_POOL"
    exit "$rc"
}

# ---- programs

demo_kvdepot() {
    "$ROOT/build/tools/kvdepot" "$1" --socket "$DEMO_DIR/s" "${@:2}"
}

# demo_daemon_start [--drop-dram]: returns when it answers.
demo_daemon_start() {
    local tries=$((DEMO_WAIT_S * 20)) rc
    "$ROOT/build/cachesvc/kvdepotd" --dir "$DEMO_DIR/store" --socket "$DEMO_DIR/s" --dram.path "$DEMO_POOL" \
        --dram.cap 192MiB --nvme.cap 1GiB "$@" >>"$DEMO_DIR/daemon.log" 2>&1 &
    DEMO_DAEMON_PID=$!
    while ((tries-- > 0)); do
        rc=0
        demo_kvdepot status >"$DEMO_DIR/status.txt" 2>&1 || rc=$?
        if ((rc < 2)); then
            return
        fi
        kill -0 "$DEMO_DAEMON_PID" 2>/dev/null || die "kvdepotd ended at once"
        sleep 0.05
    done
    die "kvdepotd does not answer after $DEMO_WAIT_S s"
}

demo_daemon_stop() {
    local pid=$DEMO_DAEMON_PID
    DEMO_DAEMON_PID=
    demo_end_process "$pid"
}

# demo_engine REPORT PROMPT-FILE… -- OPTION…: one engine process answers the prompts one after the other; REPORT gets a
# line of JSON for each.
demo_engine() {
    local report=$1
    shift
    : >"$DEMO_DIR/prompts"
    while [[ $1 != -- ]]; do
        printf '%s\n' "$1" >>"$DEMO_DIR/prompts"
        shift
    done
    shift
    # A generous look-up: the demo shows what is stored, not how a busy machine meets a deadline.
    timeout 120 "$ROOT/build/engine/kvdepot-engine" --model-name "$DEMO_MODEL_NAME" --match-ms 2000 \
        --max-tokens "$DEMO_ANSWER_TOKENS" --prompt-list "$DEMO_DIR/prompts" --report "$DEMO_DIR/report.json" "$@" \
        >"$DEMO_DIR/engine.out" 2>"$DEMO_DIR/engine.log" &
    # Waiting for a job, not for a command: a signal's trap runs at once.
    DEMO_ENGINE_PID=$!
    wait "$DEMO_ENGINE_PID" || {
        tail -n 20 "$DEMO_DIR/engine.log" >&2
        die "kvdepot-engine failed"
    }
    DEMO_ENGINE_PID=
    jq -c . "$DEMO_DIR/report.json" >"$report"
}

# ---- material

demo_prompts() {
    local n
    for n in 1 2 3; do
        cat "$ROOT/tools/demo/text.txt" - "$ROOT/tools/demo/question$n.txt" <<<"" >"$DEMO_DIR/prompt$n.txt"
    done
}

# demo_flip FILE OFFSET: turns the lowest bit of one byte, on the medium.
demo_flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1") || die "$1 cannot be read"
    [[ -n $byte ]] || die "$1 has no byte $2"
    byte=$(printf '\\x%02x' $((byte ^ 1))) || die "byte $2 of $1 is not a number"
    printf '%b' "$byte" |
        dd of="$1" bs=1 seek="$2" conv=notrunc,fsync status=none
}

# The same model with one byte in the middle of its weights changed, under the same name.
demo_other_weights() {
    local size
    size=$(stat -c %s "$DEMO_MODEL") || die "there is no model $DEMO_MODEL"
    cp "$DEMO_MODEL" "$DEMO_DIR/other.gguf"
    demo_flip "$DEMO_DIR/other.gguf" $((size / 2))
}

# Damages the stored payload of the first tenant's block DEMO_FLIPPED_BLOCK: the first record in the oldest segment that
# has this index in its chain (proto/format/FORMAT.md: magic, index at 72, payload from 4096).
demo_damage_segment() {
    local segment at index
    segment=$(find "$DEMO_DIR/store/nvme" -name '*.seg' -printf '%T@ %p\n' | sort -n | sed -n '1s/^[^ ]* //p') ||
        die "the segments in $DEMO_DIR/store/nvme cannot be listed"
    [[ -n $segment ]] || die "the daemon wrote no segment"
    while IFS=: read -r at _; do
        if ((at % 4096 != 0)); then
            continue
        fi
        index=$(od -An -tu4 -j $((at + 72)) -N 4 "$segment") || die "$segment cannot be read"
        if ((index == DEMO_FLIPPED_BLOCK)); then
            demo_flip "$segment" $((at + 4096 + 1000))
            return
        fi
    done < <(LC_ALL=C grep -abo KVDRECRD "$segment")
    die "block $DEMO_FLIPPED_BLOCK is not in $segment"
}

# ---- steps

# demo_add NAME TEXT REFERENCE: NAME's report line (standard input) and that of its reference become a step.
demo_add() {
    jq -c --arg name "$1" --arg text "$2" --slurpfile reference "$3" '
        {name: $name, text: $text, prompt_tokens, hit_tokens, computed_tokens, hit_by_tier, ttft_ms,
         text_sha256, reference_sha256: $reference[0].text_sha256,
         logits_sha256, reference_logits_sha256: $reference[0].logits_sha256,
         reference_ttft_ms: $reference[0].ttft_ms}' >>"$DEMO_DIR/steps.jsonl"
}

demo_references() {
    local n
    say "reference: an engine without a cache answers all prompts"
    demo_engine "$DEMO_DIR/references.jsonl" "$DEMO_DIR"/prompt{1,2,3}.txt -- --model "$DEMO_MODEL" --no-cache
    for n in 1 2 3; do
        sed -n "${n}p" "$DEMO_DIR/references.jsonl" >"$DEMO_DIR/reference$n.json"
    done
    demo_engine "$DEMO_DIR/reference-other.json" "$DEMO_DIR/prompt1.txt" -- --model "$DEMO_DIR/other.gguf" --no-cache
}

# demo_ask NAME TEXT PROMPT-NUMBER REFERENCE ENGINE-OPTION…: a new engine process answers one prompt.
demo_ask() {
    local name=$1 text=$2 prompt=$3 reference=$4
    shift 4
    say "step: $text"
    demo_engine "$DEMO_DIR/answer.json" "$DEMO_DIR/prompt$prompt.txt" -- --socket "$DEMO_DIR/s" "$@"
    demo_add "$name" "$text" "$reference" <"$DEMO_DIR/answer.json"
}

demo_steps() {
    local model=(--model "$DEMO_MODEL")
    demo_daemon_start
    say "step: cold, and a new question after the same beginning"
    demo_engine "$DEMO_DIR/first.jsonl" "$DEMO_DIR"/prompt{1,2}.txt -- --socket "$DEMO_DIR/s" "${model[@]}"
    sed -n 1p "$DEMO_DIR/first.jsonl" | demo_add cold "cold" "$DEMO_DIR/reference1.json"
    sed -n 2p "$DEMO_DIR/first.jsonl" | demo_add same_beginning "new question, same beginning" \
        "$DEMO_DIR/reference2.json"
    demo_ask engine_restarted "engine restarted, third question" 3 "$DEMO_DIR/reference3.json" "${model[@]}"
    demo_daemon_stop
    demo_daemon_start --drop-dram
    demo_ask daemon_restarted "daemon restarted, dram dropped" 1 "$DEMO_DIR/reference1.json" "${model[@]}"
    demo_ask other_user "another user_id" 1 "$DEMO_DIR/reference1.json" "${model[@]}" --user-id somebody-else
    demo_ask other_weights "other weights, same model name" 1 "$DEMO_DIR/reference-other.json" \
        --model "$DEMO_DIR/other.gguf"
    demo_daemon_stop
    demo_damage_segment
    demo_daemon_start --drop-dram
    demo_ask byte_flipped "one byte flipped in a segment" 1 "$DEMO_DIR/reference1.json" "${model[@]}"
}

# What has to be true of the steps and of the hit rate that the daemon reports; prints what is not. A number that is
# not there counts as wrong, too.
# shellcheck disable=SC2016 # jq's variables
readonly DEMO_CHECKS='
def sum(f): map(f) | add;
["cold", "same_beginning", "engine_restarted", "daemon_restarted", "other_user", "other_weights",
 "byte_flipped"] as $names
| map(.name) as $there
| . as $list
| (map({key: .name, value: .}) | from_entries) as $s
| if ($there | sort) != ($names | sort) then
      (($names - $there)[] | "\(.): the step is missing"),
      (($there - $names)[] | "\(.): a step that nobody checks"),
      (select(($there | length) != ($there | unique | length))
       | "a step is there twice: \($there)")
  else
      ($list[] | select(.text_sha256 != .reference_sha256 or .logits_sha256 != .reference_logits_sha256)
       | "\(.name): the answer is not that of an engine without a cache"),
      ($list[] | select(.hit_tokens + .computed_tokens != .prompt_tokens) | "\(.name): hit and computed do not add up"),
      ($list[] | select(.hit_tokens != (.hit_by_tier | add)) | "\(.name): the tiers do not add up to the hit"),
      (("cold", "other_user", "other_weights") | select($s[.].hit_tokens != 0) | "\(.): there must be no hit"),
      (("same_beginning", "engine_restarted") | select($s[.].hit_by_tier.dram > 0 | not) | "\(.): no hit in dram"),
      (("daemon_restarted", "byte_flipped")
       | select($s[.].hit_by_tier.dram != 0 or $s[.].hit_by_tier.nvme != $s[.].hit_tokens)
       | "\(.): the hit is not all from nvme"),
      ($s.daemon_restarted | select(.hit_tokens != ((.prompt_tokens - 1) / 64 | floor) * 64)
       | "daemon_restarted: the hit is not all whole blocks of the prompt"),
      (("same_beginning", "engine_restarted") | select($s[.].hit_tokens < $s.daemon_restarted.hit_tokens - 64)
       | "\(.): the hit is shorter than the beginning"),
      ($s.byte_flipped | select(.hit_tokens != $flipped * 64) | "byte_flipped: the hit does not end at the damage"),
      ($hitrate[0].rows[0] as $row
       | ($list | sum(.prompt_tokens) | select(. != $row.asked.tokens)
          | "hitrate: \($row.asked.tokens) tokens asked, the steps say \(.)"),
         (("dram", "nvme") as $tier
          | $list | sum(.hit_by_tier[$tier]) | select(. != $row.hit[$tier].tokens)
          | "hitrate: \($row.hit[$tier].tokens) tokens hit in \($tier), the steps say \(.)"))
  end'

# How many damaged records the daemon has met.
demo_corrupt() {
    demo_kvdepot status --json >"$DEMO_DIR/status.json" || (($? == 1)) || die "kvdepot status failed"
    jq .corrupt "$DEMO_DIR/status.json"
}

demo_check() {
    local wrong corrupt
    demo_kvdepot hitrate --json >"$DEMO_DIR/hitrate.json" || die "kvdepot hitrate failed"
    wrong=$(jq -rs --argjson flipped "$DEMO_FLIPPED_BLOCK" --slurpfile hitrate "$DEMO_DIR/hitrate.json" \
        "$DEMO_CHECKS" "$DEMO_DIR/steps.jsonl") || die "jq could not check the steps"
    corrupt=$(demo_corrupt) || die "the daemon's status cannot be read"
    if [[ $corrupt != 1 ]]; then
        wrong+=$'\n'"byte_flipped: the daemon counts $corrupt corrupt records, not 1"
    fi
    if [[ -n ${wrong//$'\n'/} ]]; then
        printf '%s\n' "$wrong" >&2
        die "the demo did not show what it should"
    fi
}

# ---- showing

demo_table() {
    jq -r '
        def tiers: .hit_by_tier | to_entries | map(select(.value > 0) | .key) | join("+") | if . == "" then "-" else . end;
        def same: if .text_sha256 == .reference_sha256 and .logits_sha256 == .reference_logits_sha256
                  then "yes" else "NO" end;
        [.text, .prompt_tokens, .hit_tokens, .computed_tokens, tiers, (.ttft_ms | round), same] | @tsv' \
        "$DEMO_DIR/steps.jsonl" |
        awk -F '\t' '
            BEGIN { printf "%-34s %7s %6s %9s  %-10s %9s  %s\n", "step", "prompt", "hit", "computed", "from", "TTFT",
                    "same as without a cache" }
            { printf "%-34s %7d %6d %9d  %-10s %6d ms  %s\n", $1, $2, $3, $4, $5, $6, $7 }'
}

demo_saved() {
    jq -rs '
        def sum(f): map(f) | add;
        map(select(.hit_tokens > 0)) as $hits
        | (($hits | sum(.reference_ttft_ms)) - ($hits | sum(.ttft_ms))) as $ms
        | "Saved: \($hits | sum(.hit_tokens)) of \(sum(.prompt_tokens)) prompt tokens were not computed again; "
          + "the first tokens of \($hits | length) answers came \($ms / 100 | round / 10) s earlier, all together."' "$DEMO_DIR/steps.jsonl"
}

demo_json() {
    jq -s --slurpfile hitrate "$DEMO_DIR/hitrate.json" '
        {steps: map({name, prompt_tokens, hit_tokens, computed_tokens, hit_by_tier, ttft_ms, text_sha256,
                     reference_sha256, logits_sha256, reference_logits_sha256}),
         hitrate: $hitrate[0]}' "$DEMO_DIR/steps.jsonl"
}

# A request that begins like the steps did, so that even the first answer shows a hit. demo_curl URL
demo_curl() {
    cat <<TEXT
  jq -n --rawfile text tools/demo/text.txt '{model: "$DEMO_MODEL_NAME", max_tokens: 24, temperature: 0,
     messages: [{role: "user", content: (\$text + "\nWhat does the ferry carry?")}]}' |
  curl -s $1/v1/chat/completions -H 'Content-Type: application/json' -d @- | jq '.choices[0].message, .usage'
TEXT
}

# An engine that answers over HTTP on a free port: sets DEMO_URL.
demo_http_start() {
    local tries=$((DEMO_WAIT_S * 20))
    "$ROOT/build/engine/kvdepot-engine" --model "$DEMO_MODEL" --model-name "$DEMO_MODEL_NAME" --socket "$DEMO_DIR/s" \
        --http 0 >"$DEMO_DIR/http.out" 2>"$DEMO_DIR/http.log" &
    DEMO_HTTP_PID=$!
    while ((tries-- > 0)); do
        DEMO_URL=$(grep -ho 'http://127\.0\.0\.1:[0-9]*' "$DEMO_DIR/http.out" "$DEMO_DIR/http.log" | head -n 1) || true
        if [[ -n $DEMO_URL ]]; then
            return
        fi
        kill -0 "$DEMO_HTTP_PID" 2>/dev/null || die "kvdepot-engine --http ended: $(tail -n 3 "$DEMO_DIR/http.log")"
        sleep 0.05
    done
    die "kvdepot-engine --http does not answer"
}

demo_how_to_stop() {
    printf 'To stop it all: kill %d %d; rm -r %s %s\n' "$DEMO_HTTP_PID" "$DEMO_DAEMON_PID" "$DEMO_DIR" "$DEMO_POOL"
}

demo_show() {
    local corrupt
    corrupt=$(demo_corrupt) || die "the daemon's status cannot be read"
    printf '\n'
    demo_table
    printf '\nkvdepot hitrate\n'
    demo_kvdepot hitrate
    printf '\n'
    printf 'Corrupt: %d record, read from the flipped segment, found out by its sum, and served as a miss.\n' \
        "$corrupt"
    demo_saved
    printf '\n'
    if ((DEMO_KEEP)); then
        printf 'Daemon and engine go on. Ask the engine over HTTP; its answer names hit and missed tokens under usage:\n'
        demo_curl "$DEMO_URL"
        printf 'How it is:      %s status --socket %s/s\n' "build/tools/kvdepot" "$DEMO_DIR"
        demo_how_to_stop
    else
        printf 'To ask it over HTTP: tools/dev demo --keep, then with the port that it names:\n'
        demo_curl http://127.0.0.1:PORT
    fi
}

dev_demo() {
    local json=0 argument
    for argument in "$@"; do
        case $argument in
            --keep) DEMO_KEEP=1 ;;
            --json) json=1 ;;
            *) die "unknown option '$argument' of demo; tools/dev help" ;;
        esac
    done
    setup_packages build
    setup_model
    # The programs only: the tests take longer to compile than the demo to run.
    setup_release cachesvc/kvdepotd engine/kvdepot-engine tools/kvdepot
    DEMO_MODEL=$(cache_dir)/$MODEL_FILE
    trap demo_cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    demo_folder
    demo_prompts
    demo_other_weights
    demo_references
    demo_steps
    demo_check
    if ((DEMO_KEEP)); then
        demo_http_start
    fi
    if ((json)); then
        demo_json
        ((!DEMO_KEEP)) || demo_how_to_stop >&2
    else
        demo_show
    fi
}
