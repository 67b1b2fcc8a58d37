#!/usr/bin/env bash
# kvdepot key without a daemon: the fields of a model, and of a space as JSON; seeds; what is refused; and vectors, which
# another implementation must reproduce.
# usage: test_key.sh KVDEPOT TINY-GGUF CHECKER
set -euo pipefail

kvdepot=$1
tiny_gguf=$2
checker=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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

# differs NAME A B
differs() {
    same "$1" differs "$([[ $2 != "$3" ]] && echo differs || echo "$2")"
}

# refused STATUS TEXT ARGUMENT…
refused() {
    local wanted=$1 text=$2 rc=0 said=yes
    shift 2
    "$kvdepot" key "$@" >"$work/out" 2>&1 || rc=$?
    grep -qF -- "$text" "$work/out" || said=$(cat "$work/out")
    same "refused: $*" "$wanted yes" "$rc $said"
}

key() {
    "$kvdepot" key --seed 2a "$@"
}

if ! command -v jq >/dev/null; then
    printf 'skipped: jq is not installed\n0 passed, 0 failed, 1 skipped\n'
    exit 77
fi

model=$work/tiny.gguf
"$tiny_gguf" "$model"
printf '%s ' $(seq 1 200) >"$work/ids"
text=$(printf 'line %d of a long text, ' $(seq 40))

# A model: what the engine registers.
all=$(key --model "$model" --tokens-file "$work/ids" --json)
same "schema" 1 "$(jq .schema <<<"$all")"
same "fields are all there" 15 "$(jq '.fields | length' <<<"$all")"
same "a number as it is hashed" "4000000000000000" "$(jq -r '.fields[] | select(.name == "block_tokens") | .bytes' <<<"$all")"
same "blocks of 64" "3 200" "$(jq -r '"\(.blocks | length) \(.tokens | length)"' <<<"$all")"
same "the group is the first key's beginning" "$(jq -r '.blocks[0].key[0:24]' <<<"$all")" "$(jq -r '.blocks[2].group' <<<"$all")"
same "the seed" 000000000000002a "$(jq -r .seed <<<"$all")"
same "an address" "$(jq -r '.blocks[2] | "\(.key)/0/2/\(.group)"' <<<"$all")" "$(jq -r '.blocks[2].address' <<<"$all")"
same "nobody was asked what is stored" null "$(jq '.blocks[0].stored' <<<"$all")"
same "a name given" "other" "$(key --model "$model" --model-name other --json | jq -r .space.model)"

# The space as JSON gives the same keys, and each field counts.
jq .space <<<"$all" >"$work/space.json"
printf '%s' "$all" >"$work/all.json"
keys() {
    key --tokens-file "$work/ids" --json "$@" | jq -c '[.space_digest, .root, .blocks[].key]'
}
same "a space as JSON" "$(keys --model "$model")" "$(keys --space "$work/space.json")"
same "a whole answer as a space" "$(keys --model "$model")" "$(keys --space "$work/all.json")"
mine=$(keys --space "$work/space.json")
while read -r change; do
    jq "$change" "$work/space.json" >"$work/changed.json"
    differs "$change" "$mine" "$(keys --space "$work/changed.json")"
done <<'END'
.model = "tinier"
.weights |= "00" + .[2:]
.kv_dtype = "bf16"
.layout = "latent" | .kv_heads = 0 | .head_dim = 0 | .latent_dim = 32
.layers = 3
.kv_heads = 1
.head_dim = 32
.block_tokens = 32
.rope_base = 10000.000000000002
.rope_scale = 0.5
.adapter |= "01" + .[2:]
.numerics = "another"
.ranks = 2
END
differs "another tenant" "$mine" "$(keys --space "$work/space.json" --tenant alice)"
differs "extra content" "$mine" "$(keys --space "$work/space.json" --extra "$(printf 'ab%.0s' {1..32})")"
printf '%s ' $(seq 1 191) 7 >"$work/last"
same "a chain diverges where its tokens do" "true true false" "$(jq -rn --argjson a "$mine" --argjson b "$(
    key --space "$work/space.json" --tokens-file "$work/last" --json | jq -c '[.space_digest, .root, .blocks[].key]'
)" '"\($a[2] == $b[2]) \($a[3] == $b[3]) \($a[4] == $b[4])"')"

# Prompts as text.
same "a template has its tokens" yes "$(key --model "$model" --prompt "$text" --json | jq -r 'if (.tokens | length) > 100 then "yes" else "no" end')"
differs "raw is another prompt" "$(key --model "$model" --prompt "$text" --json | jq -c .tokens)" \
    "$(key --model "$model" --prompt "$text" --raw --json | jq -c .tokens)"
printf '%s' "$text" >"$work/text"
same "text from a file" "$(key --model "$model" --prompt "$text" --json)" "$(key --model "$model" --prompt-file "$work/text" --json)"
same "for people" 1 "$(key --model "$model" --prompt "$text" | grep -c '^root ')"
printf '%s ' $(seq 1 128) >"$work/two"
same "the last block is not asked for" "A look-up asks for 1: the last token is always computed." \
    "$(key --space "$work/space.json" --tokens-file "$work/two" | grep '^A look-up')"
jq '.ranks = 4' "$work/space.json" >"$work/ranks.json"
same "the rank is in the address, not in the key" "3 true" "$(jq -rn --argjson a "$(key --space "$work/ranks.json" --tokens-file "$work/ids" --json)" \
    --argjson b "$(key --space "$work/ranks.json" --tokens-file "$work/ids" --rank 3 --json)" \
    '"\($b.blocks[0].address | split("/")[1]) \($a.blocks[0].key == $b.blocks[0].key)"')"

# A store's folder.
mkdir "$work/store"
refused 1 "IDENTITY can't be read" --space "$work/space.json" --store "$work/store"
printf 'kvdepot-identity 1\nstore 00\n' >"$work/store/IDENTITY"
refused 1 "is damaged" --space "$work/space.json" --store "$work/store"

# Wrong use.
refused 3 "--model FILE and --space FILE" --prompt x
refused 3 "--model FILE and --space FILE" --model a --space b
refused 3 "has no tokenizer" --space "$work/space.json" --prompt x
refused 3 "--model-name goes with --model" --space "$work/space.json" --model-name x
refused 3 "one of --prompt" --model "$model" --prompt x --tokens-file y
refused 3 "go with --prompt" --model "$model" --raw
refused 3 "0 to 0" --space "$work/space.json" --rank 1
refused 3 "0 to 0" --space "$work/space.json" --rank -1
refused 3 "32 bytes in hex" --space "$work/space.json" --extra ab
refused 3 "digits in hex" --space "$work/space.json" --seed xyz
refused 3 "digits in hex" --space "$work/space.json" --seed 12345678901234567
refused 3 "--store and --seed" --space "$work/space.json" --seed 1 --store /
refused 3 "--json and --vectors" --space "$work/space.json" --seed 1 --json --vectors
refused 3 "at most 512" --space "$work/space.json" --seed 1 --tenant "$(printf 'x%.0s' {1..513})"
refused 1 "none.gguf" --model "$work/none.gguf" --seed 1
refused 1 "none.json" --space "$work/none.json" --seed 1
refused 2 "--socket PATH" --space "$work/space.json" --socket "$work/none"
refuses_space() {
    jq "$1" "$work/space.json" >"$work/changed.json"
    refused 3 "$2" --space "$work/changed.json" --seed 1
}
refuses_space '.colour = "red"' "no field 'colour'"
refuses_space 'del(.model)' "model must be"
refuses_space 'del(.weights)' "weights must be 32 bytes"
refuses_space '.kv_dtype = "f64"' "kv_dtype must be"
refuses_space '.layers = 0' "layers is 0"
refuses_space '.layers = -1' "layers must be a whole number"
refuses_space '.ranks = 1.5' "ranks must be a whole number"
refuses_space '.latent_dim = 8' "latent_dim is 8"
refuses_space '[.]' "a JSON object"

# Vectors, which a checker of its own reproduces; none where it can't run.
if command -v python3 >/dev/null; then
    {
        key --model "$model" --tokens-file "$work/ids" --vectors
        key --space "$work/ranks.json" --tokens-file "$work/two" --tenant "$(printf 'Zo\xc3\xab \xff')" --vectors
        key --model "$model" --prompt "$text" --extra "$(printf 'ab%.0s' {1..32})" --vectors
        printf '%s ' $(seq 1 3000) >"$work/long"
        jq '.block_tokens = 40' "$work/space.json" >"$work/forty.json"
        key --space "$work/forty.json" --tokens-file "$work/long" --vectors
    } >"$work/vectors"
    same "vectors are what the page of keys says" "20 passed, 0 failed, 0 skipped" "$(python3 "$checker" "$work/vectors")"
    sed 's/^\(block .*out=.\)./\1g/' "$work/vectors" >"$work/spoiled"
    found=$(python3 "$checker" "$work/spoiled" || true)
    same "the checker finds what is wrong" "16 passed, 4 failed, 0 skipped" "$(tail -n 1 <<<"$found")"
fi

printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[[ $failed == 0 ]]
