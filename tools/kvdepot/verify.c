/* kvdepot verify: everything that is stored is read over again, by the daemon or without one. */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "tools/kvdepot/args.h"
#include "tools/kvdepot/ask.h"
#include "tools/kvdepot/command.h"
#include "tools/kvdepot/report.h"
#include "tools/kvdepot/units.h"
#include "tools/kvdepot/verify_offline.h"
#include "tools/kvdepot/verify_view.h"

#define POLL_NS (200 * KVD_NS_PER_MS)
#define SILENCE_NS (10 * KVD_NS_PER_S) /* a daemon that restarts is waited for so long */

static const char help[] =
    "usage: kvdepot verify [--tier TIER] [--rate BYTES] [--socket PATH] [--json]\n"
    "       kvdepot verify --offline DIR [--json]\n\n"
    "Reads over again all that is stored: every record's header, sum, and that it is the record\n"
    "that its segment lists. A bad record is a miss from then on, and stays listed until its\n"
    "segment goes. Real reads and writes go first. Ctrl-C ends the waiting, not the reading.\n\n"
    "  --tier TIER    dram or nvme (default: both)\n"
    "  --rate BYTES   at most so many bytes a second, such as 8MiB (default: no limit)\n"
    "  --socket PATH  the daemon's socket (default " KVD_DEFAULT_SOCKET ")\n"
    "  --offline DIR  without a daemon: the segments in a store's folder; changes nothing\n"
    "  --json         the report as JSON\n\n"
    "What it counts: bad, what is damaged; newer, what a later version wrote, which is left "
    "alone;\n"
    "skipped, what could not be read now, or is no part of this store.\n\n"
    "Exit status: 0 all is good, 1 something is bad (or the reading failed), 2 no daemon answers,\n"
    "3 wrong usage.\n\n"
    "  kvdepot verify\n"
    "  kvdepot verify --tier nvme --rate 50MiB\n"
    "  kvdepot verify --offline /var/lib/kvdepot --json | jq .bad\n";

/* ---- signals: blocked, and looked at between two looks at the daemon ---- */

static void signals_set(sigset_t *set)
{
    (void)sigemptyset(set);
    (void)sigaddset(set, SIGINT);
    (void)sigaddset(set, SIGTERM);
}

static void signals_block(void)
{
    sigset_t set;
    signals_set(&set);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
}

/* Waits; true when a signal ended it. */
static bool interrupted_within(uint64_t ns)
{
    sigset_t set;
    const struct timespec wait = {.tv_sec = (time_t)(ns / KVD_NS_PER_S),
                                  .tv_nsec = (long)(ns % KVD_NS_PER_S)};
    signals_set(&set);
    return sigtimedwait(&set, NULL, &wait) > 0;
}

static bool interrupted(void)
{
    return interrupted_within(0);
}

/* ---- with a daemon ---- */

static void progress(const json_t *report, bool last)
{
    static const char clear[] = "\r\033[K";
    char text[256];
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    kvd_verify_progress(report, text, sizeof(text));
    (void)fprintf(stderr, "%s%s", clear, last ? "" : text);
    (void)fflush(stderr);
}

/* One look. *ret_report stays NULL while the daemon doesn't answer, which may last a while. */
static int look(struct kvd_client *client, uint64_t *silent_since_ns, json_t **ret_report)
{
    char *text = NULL;
    struct kvd_diag diag = {{0}};
    int err = kvd_report(client, "verify", "", "", &text);
    if (err == KVD_UNAVAILABLE || err == KVD_DEADLINE) {
        *silent_since_ns = *silent_since_ns ? *silent_since_ns : kvd_mono_ns();
        if (kvd_mono_ns() - *silent_since_ns < SILENCE_NS) {
            return KVD_EXIT_OK;
        }
    }
    if (err) {
        return kvd_ask_complain(client, "verify", err);
    }
    *silent_since_ns = 0;
    err = kvd_report_parse(text, ret_report, &diag);
    free(text);
    return err ? kvd_complain(KVD_EXIT_FAILED, "verify", diag.text) : KVD_EXIT_OK;
}

/* Whether the round has ended; *ret_status says how. */
static bool is_over(const json_t *report, uint64_t round, int *ret_status)
{
    uint64_t now = 0;
    bool ended = false;
    struct kvd_diag diag = {{0}};
    if (kvd_verify_course(report, &now, &ended, &diag)) {
        *ret_status = kvd_complain(KVD_EXIT_FAILED, "verify", diag.text);
        return true;
    }
    if (now != round) {
        *ret_status =
            kvd_complain(KVD_EXIT_FAILED, "verify",
                         "the round did not come to its end: the daemon was restarted, or "
                         "another round was asked for; try again when that has ended "
                         "(kvdepot status)");
        return true;
    }
    return ended;
}

static int wait_for_end(struct kvd_client *client, uint64_t round, json_t **ret_report)
{
    uint64_t silent_since_ns = 0;
    int status = KVD_EXIT_OK;
    for (;;) {
        json_t *report = NULL;
        status = look(client, &silent_since_ns, &report);
        if (status != KVD_EXIT_OK) {
            return status;
        }
        bool over = report && is_over(report, round, &status);
        if (report) {
            progress(report, over);
        }
        if (over && status == KVD_EXIT_OK) {
            *ret_report = report;
            return status;
        }
        json_decref(report);
        if (over) {
            return status;
        }
        if (interrupted_within(POLL_NS)) {
            return kvd_complain(KVD_EXIT_FAILED, "verify",
                                "interrupted; the daemon goes on reading: kvdepot status shows how "
                                "far it is");
        }
    }
}

static int verify_online(const char *socket_path, const char *tier, uint64_t rate,
                         json_t **ret_report)
{
    struct kvd_client *client = NULL;
    uint64_t round = 0;
    int status = kvd_ask_open(socket_path, "verify", &client);
    if (status != KVD_EXIT_OK) {
        return status;
    }
    int err = kvd_verify(client, tier, rate, &round);
    status =
        err ? kvd_ask_complain(client, "verify", err) : wait_for_end(client, round, ret_report);
    kvd_client_close(&client);
    return status;
}

static int verify_offline(const char *folder, json_t **ret_report)
{
    struct kvd_diag diag = {{0}};
    int err = kvd_verify_offline(folder, interrupted, ret_report, &diag);
    return err ? kvd_complain(KVD_EXIT_FAILED, "verify", diag.text) : KVD_EXIT_OK;
}

/* ---- the command ---- */

static int show(const json_t *report, bool json)
{
    bool good = false;
    struct kvd_diag diag = {{0}};
    int err = json ? kvd_verify_judge(report, &good, &diag)
                   : kvd_verify_view(report, stdout, &good, &diag);
    if (err) {
        return kvd_complain(KVD_EXIT_FAILED, "verify", diag.text);
    }
    if (json) {
        kvd_report_print_json(report, stdout);
    }
    return good ? KVD_EXIT_OK : KVD_EXIT_FAILED;
}

static int verify_run(int argc, char **argv)
{
    const char *socket_path = NULL;
    const char *tier = NULL;
    const char *rate_text = NULL;
    const char *offline = NULL;
    uint64_t rate = 0;
    bool json = false;
    const struct kvd_arg args[] = {
        {"socket", KVD_ARG_STRING, &socket_path},
        {"tier", KVD_ARG_STRING, &tier},
        {"rate", KVD_ARG_STRING, &rate_text},
        {"offline", KVD_ARG_STRING, &offline},
        {"json", KVD_ARG_FLAG, &json},
    };
    struct kvd_diag diag = {{0}};
    if (kvd_args_parse(argc, argv, args, 5, &diag)) {
        return kvd_complain(KVD_EXIT_USAGE, "verify", diag.text);
    }
    if (offline && (socket_path || tier || rate_text)) {
        return kvd_complain(KVD_EXIT_USAGE, "verify",
                            "--socket, --tier and --rate are a daemon's; none goes with --offline");
    }
    if (tier && strcmp(tier, "dram") != 0 && strcmp(tier, "nvme") != 0) {
        return kvd_complain(KVD_EXIT_USAGE, "verify", "--tier is dram or nvme");
    }
    if (rate_text && kvd_units_parse_bytes(rate_text, &rate)) {
        return kvd_complain(KVD_EXIT_USAGE, "verify", "--rate takes bytes a second, such as 8MiB");
    }
    signals_block();
    json_t *report = NULL;
    int status = offline ? verify_offline(offline, &report)
                         : verify_online(socket_path ? socket_path : KVD_DEFAULT_SOCKET, tier, rate,
                                         &report);
    if (status == KVD_EXIT_OK) {
        status = show(report, json);
    }
    json_decref(report);
    return status;
}

const struct kvd_command kvd_command_verify = {
    .name = "verify",
    .summary = "reads over again all that is stored",
    .help = help,
    .run = verify_run,
};
