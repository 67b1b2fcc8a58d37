# shellcheck shell=bash
# Style that a machine can check. Prints what is wrong; changes nothing.

lint_sources() {
    find "$ROOT"/{proto,client,policies,kernels,cachesvc,engine,tools,tests} -name '*.[ch]' -print | sort
}

lint_scripts() {
    printf '%s\n' "$ROOT/tools/dev" "$ROOT/.ci/run"
    find "$ROOT"/{tools,tests,deploy} -name '*.sh' -print 2>/dev/null | sort
}

# Both checks always run, so that one call shows everything.
lint_run() {
    local sources scripts rc=0
    mapfile -t sources < <(lint_sources)
    mapfile -t scripts < <(lint_scripts)
    say "lint: clang-format of ${#sources[@]} files"
    (cd "$ROOT" && clang-format --dry-run --Werror "${sources[@]}") >&2 || rc=1
    say "lint: shellcheck of ${#scripts[@]} scripts"
    shellcheck --external-sources --source-path "$ROOT" "${scripts[@]}" >&2 || rc=1
    return "$rc"
}

dev_lint() {
    if (($# > 0)); then
        die "lint takes no arguments"
    fi
    setup_packages build check
    lint_run || die "lint found something (clang-format -i FILE puts a file right)"
    say "lint: nothing to say"
}
