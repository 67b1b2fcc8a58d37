/* kvdepot status: health first, then tiers, scenarios, counts and rates. */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "proto/base/error.h"
#include "tools/kvdepot/args.h"
#include "tools/kvdepot/ask.h"
#include "tools/kvdepot/command.h"
#include "tools/kvdepot/report.h"
#include "tools/kvdepot/status_view.h"

static const char help[] =
    "usage: kvdepot status [--socket PATH] [--json]\n\n"
    "How the daemon is: its health, what its tiers hold against their caps, the index, clients,\n"
    "and what it served in the last 10 seconds.\n\n"
    "  --socket PATH  the daemon's socket (default " KVD_DEFAULT_SOCKET ")\n"
    "  --json         the daemon's report as it is\n\n"
    "Exit status: 0 healthy, 1 degraded, 2 no daemon answers, 3 wrong usage.\n\n"
    "  kvdepot status\n"
    "  kvdepot status --socket /tmp/d.sock --json | jq .tiers\n"
    "  kvdepot status >/dev/null || echo 'something is wrong'\n";

static int status_run(int argc, char **argv)
{
    const char *socket_path = KVD_DEFAULT_SOCKET;
    bool json = false;
    const struct kvd_arg args[] = {
        {"socket", KVD_ARG_STRING, &socket_path},
        {"json", KVD_ARG_FLAG, &json},
    };
    struct kvd_diag diag = {0};
    if (kvd_args_parse(argc, argv, args, 2, &diag)) {
        return kvd_complain(KVD_EXIT_USAGE, "status", diag.text);
    }
    json_t *report = NULL;
    int status = kvd_ask(socket_path, "status", "", "", &report);
    if (status != KVD_EXIT_OK) {
        return status;
    }
    bool healthy = false;
    FILE *out = stdout;
    if (json) {
        kvd_report_print_json(report, out);
        const char *health = json_string_value(json_object_get(report, "health"));
        healthy = health && health[0] == 'o' && health[1] == 'k' && health[2] == '\0';
    } else if (kvd_status_view(report, out, &healthy, &diag)) {
        json_decref(report);
        return kvd_complain(KVD_EXIT_FAILED, "status", diag.text);
    }
    json_decref(report);
    return healthy ? KVD_EXIT_OK : KVD_EXIT_FAILED;
}

const struct kvd_command kvd_command_status = {
    .name = "status",
    .summary = "health, tiers, blocks, rates",
    .help = help,
    .run = status_run,
};
