/* kvdepot hitrate: what was asked, hit by tier, missed by reason. */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/error.h"
#include "tools/kvdepot/args.h"
#include "tools/kvdepot/ask.h"
#include "tools/kvdepot/command.h"
#include "tools/kvdepot/hitrate_view.h"
#include "tools/kvdepot/report.h"

static const char help[] =
    "usage: kvdepot hitrate [--by KIND] [--window TIME] [--socket PATH] [--json]\n\n"
    "How much of what was asked came from the cache, and why the rest did not, in tokens. Tiers\n"
    "and reasons always add up to what was asked.\n\n"
    "  --by KIND      tier (default), scenario, space or tenant\n"
    "  --window TIME  10s, 1m, 5m, 1h, 24h or ever (default)\n"
    "  --socket PATH  the daemon's socket (default " KVD_DEFAULT_SOCKET ")\n"
    "  --json         as JSON; without --by: the one row of all look-ups with every amount\n\n"
    "Exit status: 0 fine, 1 the report is wrong, 2 no daemon answers, 3 wrong usage.\n\n"
    "  kvdepot hitrate\n"
    "  kvdepot hitrate --by scenario --window 1h\n"
    "  kvdepot hitrate --json | jq '.rows[0].missed'\n";

static const char *const kinds[] = {"tier", "scenario", "space", "tenant"};
static const char *const windows[] = {"10s", "1m", "5m", "1h", "24h", "ever"};

static bool is_one_of(const char *text, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static int arguments_check(const char *by, const char *window)
{
    if (by && !is_one_of(by, kinds, sizeof(kinds) / sizeof(kinds[0]))) {
        return kvd_complain(KVD_EXIT_USAGE, "hitrate",
                            "--by is one of tier, scenario, space, tenant");
    }
    if (!is_one_of(window, windows, sizeof(windows) / sizeof(windows[0]))) {
        return kvd_complain(KVD_EXIT_USAGE, "hitrate",
                            "--window is one of 10s, 1m, 5m, 1h, 24h, ever");
    }
    return KVD_EXIT_OK;
}

static int show_json(const json_t *report, bool by_tier)
{
    if (!by_tier) {
        kvd_report_print_json(report, stdout);
        return KVD_EXIT_OK;
    }
    json_t *tiers = kvd_hitrate_by_tier(report);
    if (!tiers) {
        return kvd_complain(KVD_EXIT_FAILED, "hitrate", "out of memory");
    }
    kvd_report_print_json(tiers, stdout);
    json_decref(tiers);
    return KVD_EXIT_OK;
}

static int show_text(const json_t *report, bool by_tier)
{
    int err =
        by_tier ? kvd_hitrate_view_tiers(report, stdout) : kvd_hitrate_view_rows(report, stdout);
    return err ? kvd_complain(KVD_EXIT_FAILED, "hitrate", kvd_strerror(err)) : KVD_EXIT_OK;
}

static int hitrate_run(int argc, char **argv)
{
    const char *socket_path = KVD_DEFAULT_SOCKET;
    const char *by = NULL;
    const char *window = "ever";
    bool json = false;
    const struct kvd_arg args[] = {
        {"socket", KVD_ARG_STRING, &socket_path},
        {"by", KVD_ARG_STRING, &by},
        {"window", KVD_ARG_STRING, &window},
        {"json", KVD_ARG_FLAG, &json},
    };
    struct kvd_diag diag = {0};
    if (kvd_args_parse(argc, argv, args, 4, &diag)) {
        return kvd_complain(KVD_EXIT_USAGE, "hitrate", diag.text);
    }
    int status = arguments_check(by, window);
    if (status != KVD_EXIT_OK) {
        return status;
    }
    bool by_tier = by && strcmp(by, "tier") == 0;
    json_t *report = NULL;
    status = kvd_ask(socket_path, "hitrate", !by || by_tier ? "all" : by, window, &report);
    if (status != KVD_EXIT_OK) {
        return status;
    }
    if (kvd_hitrate_check(report, &diag)) {
        status = kvd_complain(KVD_EXIT_FAILED, "hitrate", diag.text);
    } else {
        status = json ? show_json(report, by_tier) : show_text(report, !by || by_tier);
    }
    json_decref(report);
    return status;
}

const struct kvd_command kvd_command_hitrate = {
    .name = "hitrate",
    .summary = "asked, hit by tier, missed by reason, in tokens",
    .help = help,
    .run = hitrate_run,
};
