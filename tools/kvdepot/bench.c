/* kvdepot bench local: the cache against the limits of this machine. */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/error.h"
#include "tools/kvdepot/args.h"
#include "tools/kvdepot/ask.h"
#include "tools/kvdepot/bench_daemon.h"
#include "tools/kvdepot/bench_local.h"
#include "tools/kvdepot/command.h"
#include "tools/kvdepot/report.h"
#include "tools/kvdepot/table.h"

static const char help[] =
    "usage: kvdepot bench local [--rounds N] [--daemon PATH] [--dir DIR] [--json]\n\n"
    "Starts a daemon of its own on a store of its own, and measures it beside the limits of this\n"
    "machine, in turns. Shown is the median of the pairs. It takes about a minute, and needs\n"
    "0.6 GB in /dev/shm and 4.5 GB in DIR, which it gives back.\n\n"
    "  --rounds N     pairs of each measurement (default 7, at most 21)\n"
    "  --daemon PATH  kvdepotd (default: beside this program)\n"
    "  --dir DIR      where the store goes: a disk, not tmpfs (default /var/tmp)\n"
    "  --json         the figures as JSON\n\n"
    "  kvdepot bench local\n"
    "  kvdepot bench local --dir /mnt/nvme0 --json | jq '.results[] | {path, ratio}'\n";

/* kvdepotd lies beside this program when installed, and in the folder cachesvc in a build. */
static int daemon_find(char *ret_path, size_t size)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length <= 0) {
        return -ENOENT;
    }
    self[length] = '\0';
    char *slash = strrchr(self, '/');
    *slash = '\0';
    static const char *const places[] = {"kvdepotd", "../cachesvc/kvdepotd"};
    for (int i = 0; i < 2; i++) {
        char path[PATH_MAX + 32];
        (void)snprintf(path, sizeof(path), "%s/%s", self, places[i]);
        if (access(path, X_OK) == 0 && strlen(path) < size) {
            memcpy(ret_path, path, strlen(path) + 1);
            return 0;
        }
    }
    return -ENOENT;
}

static double result_value(const struct kvd_bench_result *result)
{
    return result->kind == KVD_BENCH_RATIO ? kvd_bench_ratio(&result->pairs)
                                           : kvd_bench_difference(&result->pairs);
}

static bool result_reached(const struct kvd_bench_result *result)
{
    double value = result_value(result);
    return result->kind == KVD_BENCH_RATIO ? value >= result->goal : value <= result->goal;
}

static void result_row(struct kvd_table *table, const struct kvd_bench_result *result)
{
    double ours = kvd_bench_median(result->pairs.ours, result->pairs.n);
    double limit = kvd_bench_median(result->pairs.limit, result->pairs.n);
    (void)kvd_table_cell(table, "%s", result->path);
    (void)kvd_table_cell(table, "%.3f ms", ours * 1e3);
    (void)kvd_table_cell(table, "%s", result->against);
    (void)kvd_table_cell(table, "%.3f ms", limit * 1e3);
    if (result->kind == KVD_BENCH_RATIO) {
        (void)kvd_table_cell(table, "%.2f", result_value(result));
        (void)kvd_table_cell(table, result->goal > 0 ? ">= %.1f" : "-", result->goal);
    } else {
        (void)kvd_table_cell(table, "+%.0f us", result_value(result) * 1e6);
        (void)kvd_table_cell(table, "<= %.0f us", result->goal * 1e6);
    }
    (void)kvd_table_cell(table, "%s",
                         result->goal <= 0        ? ""
                         : result_reached(result) ? "reached"
                                                  : "not reached");
}

static int show_text(const struct kvd_bench_report *report)
{
    static const char *const heads[] = {"path", "time", "against", "time", "ratio", "goal", ""};
    struct kvd_table *table = NULL;
    if (kvd_table_create("lrlrrrl", &table)) {
        return -ENOMEM;
    }
    for (int i = 0; i < 7; i++) {
        (void)kvd_table_cell(table, "%s", heads[i]);
    }
    for (int i = 0; i < report->n; i++) {
        result_row(table, &report->results[i]);
    }
    int err = kvd_table_print(table, 0, stdout);
    kvd_table_destroy(&table);
    return err;
}

static int show_json(const struct kvd_bench_report *report)
{
    json_t *results = json_array();
    for (int i = 0; i < report->n && results; i++) {
        const struct kvd_bench_result *result = &report->results[i];
        const char *unit = result->kind == KVD_BENCH_RATIO ? "ratio" : "difference_s";
        (void)json_array_append_new(
            results, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:i, s:b}", "path", result->path,
                               "against", result->against, "ours_s",
                               kvd_bench_median(result->pairs.ours, result->pairs.n), "limit_s",
                               kvd_bench_median(result->pairs.limit, result->pairs.n), unit,
                               result_value(result), "goal", result->goal, "pairs", result->pairs.n,
                               "reached", result_reached(result)));
    }
    json_t *root = json_pack("{s:i, s:o}", "schema", 1, "results", results);
    if (!root) {
        return -ENOMEM;
    }
    kvd_report_print_json(root, stdout);
    json_decref(root);
    return 0;
}

/* Signals wait until a pair is done, so that the daemon and its store always go away. */
static void signals_block(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
}

static int bench_local(const char *daemon_path, const char *dir, int rounds, bool json)
{
    struct kvd_diag diag = {0};
    struct kvd_bench_daemon *daemon = NULL;
    struct kvd_bench_report report = {0};
    signals_block();
    int err = kvd_bench_daemon_create(daemon_path, dir, &daemon, &diag);
    err = err ? err : kvd_bench_local(daemon, rounds, &report, &diag);
    kvd_bench_daemon_destroy(&daemon);
    if (err == -EINTR) {
        return kvd_complain(KVD_EXIT_FAILED, "bench", "interrupted");
    }
    if (err) {
        return kvd_complain(KVD_EXIT_FAILED, "bench", diag.text);
    }
    err = json ? show_json(&report) : show_text(&report);
    return err ? kvd_complain(KVD_EXIT_FAILED, "bench", kvd_strerror(err)) : KVD_EXIT_OK;
}

static int bench_run(int argc, char **argv)
{
    char found[PATH_MAX];
    const char *daemon_path = NULL;
    const char *dir = "/var/tmp";
    unsigned rounds = 7;
    bool json = false;
    const struct kvd_arg args[] = {
        {"rounds", KVD_ARG_UINT, &rounds},
        {"daemon", KVD_ARG_STRING, &daemon_path},
        {"dir", KVD_ARG_STRING, &dir},
        {"json", KVD_ARG_FLAG, &json},
    };
    struct kvd_diag diag = {0};
    if (argc < 2 || strcmp(argv[1], "local") != 0) {
        return kvd_complain(KVD_EXIT_USAGE, "bench",
                            "name what to measure: kvdepot bench local (see --help)");
    }
    if (kvd_args_parse(argc - 1, argv + 1, args, 4, &diag)) {
        return kvd_complain(KVD_EXIT_USAGE, "bench", diag.text);
    }
    if (rounds > 21) {
        return kvd_complain(KVD_EXIT_USAGE, "bench", "--rounds is at most 21");
    }
    if (!daemon_path) {
        if (daemon_find(found, sizeof(found))) {
            return kvd_complain(KVD_EXIT_USAGE, "bench",
                                "kvdepotd is not beside this program: name it with --daemon PATH");
        }
        daemon_path = found;
    }
    return bench_local(daemon_path, dir, (int)rounds, json);
}

const struct kvd_command kvd_command_bench = {
    .name = "bench",
    .summary = "the cache against the limits of this machine",
    .help = help,
    .run = bench_run,
};
