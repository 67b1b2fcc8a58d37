/* kvdepot purge: what a tenant, a space or everybody has stored is not served any more. */
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/error.h"
#include "tools/kvdepot/args.h"
#include "tools/kvdepot/ask.h"
#include "tools/kvdepot/command.h"
#include "tools/kvdepot/report.h"
#include "tools/kvdepot/units.h"

static const char help[] =
    "usage: kvdepot purge --tenant NAME [--space ID] [--yes] [--socket PATH] [--json]\n"
    "       kvdepot purge --space ID [--yes] [--socket PATH] [--json]\n"
    "       kvdepot purge --all [--yes] [--socket PATH] [--json]\n\n"
    "Throws away what is stored. When it has ended, no look-up finds any of it again, also after "
    "a\n"
    "crash or a lost index. What is put afterwards stays. Room in dram comes back at once; on "
    "nvme\n"
    "the bytes stay, unreachable, until the segments that hold them go.\n\n"
    "  --tenant NAME  what the user NAME has; --tenant '' is who gives no user id\n"
    "  --space ID     what belongs to a space: the 8 digits or more that kvdepot hitrate --by "
    "space\n"
    "                 shows behind the @; MODEL@DIGITS is taken too\n"
    "  --all          everything\n"
    "  --yes          don't ask; needed where standard input is no terminal\n"
    "  --socket PATH  the daemon's socket (default " KVD_DEFAULT_SOCKET ")\n"
    "  --json         what was freed, as JSON\n\n"
    "Exit status: 0 purged, 1 not purged, 2 no daemon answers (it may have been purged: do it\n"
    "again), 3 wrong usage.\n\n"
    "  kvdepot purge --tenant alice\n"
    "  kvdepot purge --tenant alice --space 0a1b2c3d --yes\n"
    "  kvdepot purge --all --yes --json | jq .dram_bytes\n";

enum { NAME_BYTES = 513, WHAT_BYTES = 2 * NAME_BYTES + 64 }; /* no name is longer */

/* Prints a name without what would move a terminal's cursor; whole, because people decide by it. */
static void name_show(const char *name, char *ret, size_t bytes)
{
    size_t i = 0;
    for (; name[i] && i + 1 < bytes; i++) {
        ret[i] = (unsigned char)name[i] < 0x20 || name[i] == 0x7f ? '?' : name[i];
    }
    ret[i] = 0;
}

static void what_say(const struct kvd_purge_scope *scope, char *ret, size_t bytes)
{
    char tenant[NAME_BYTES] = "";
    char space[NAME_BYTES] = "";
    if (scope->everything) {
        (void)snprintf(ret, bytes, "everything that is stored");
        return;
    }
    if (scope->tenant) {
        name_show(scope->tenant[0] ? scope->tenant : "(default)", tenant, sizeof(tenant));
    }
    if (scope->space) {
        name_show(scope->space, space, sizeof(space));
    }
    (void)snprintf(ret, bytes, "all that is stored%s%s%s%s", scope->tenant ? " of tenant " : "",
                   tenant, scope->space ? " in space " : "", space);
}

/* Asks on the terminal. Anything but a y is a no. */
static bool confirmed(const char *what)
{
    char answer[16];
    (void)fprintf(stderr, "Purge %s? It can't be undone. [y/N] ", what);
    (void)fflush(stderr);
    return fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

static int may_go(const char *what, bool yes)
{
    if (yes) {
        return KVD_EXIT_OK;
    }
    if (!isatty(STDIN_FILENO)) {
        return kvd_complain(KVD_EXIT_USAGE, "purge",
                            "nobody can be asked here, since standard input is no terminal: give "
                            "--yes");
    }
    return confirmed(what) ? KVD_EXIT_OK
                           : kvd_complain(KVD_EXIT_FAILED, "purge", "nothing was purged");
}

static int show(const char *what, const struct kvd_purge_result *result, bool json)
{
    char blocks[KVD_TEXT_BYTES];
    char bytes[KVD_TEXT_BYTES];
    if (json) {
        json_t *report =
            json_pack("{s:i,s:I,s:I}", "schema", 1, "dram_blocks", (json_int_t)result->dram_blocks,
                      "dram_bytes", (json_int_t)result->dram_bytes);
        if (!report) {
            return kvd_complain(KVD_EXIT_FAILED, "purge", "purged, but out of memory to say more");
        }
        kvd_report_print_json(report, stdout);
        json_decref(report);
        return KVD_EXIT_OK;
    }
    (void)printf("purged %s: %s blocks (%s) removed from dram; what lies on nvme is not found any "
                 "more\n",
                 what, kvd_units_count(blocks, result->dram_blocks),
                 kvd_units_bytes(bytes, result->dram_bytes));
    return KVD_EXIT_OK;
}

static int purge_run(int argc, char **argv)
{
    const char *socket_path = KVD_DEFAULT_SOCKET;
    struct kvd_purge_scope scope = {0};
    struct kvd_purge_result result = {0};
    bool yes = false;
    bool json = false;
    const struct kvd_arg args[] = {
        {"socket", KVD_ARG_STRING, &socket_path},
        {"tenant", KVD_ARG_STRING, &scope.tenant},
        {"space", KVD_ARG_STRING, &scope.space},
        {"all", KVD_ARG_FLAG, &scope.everything},
        {"yes", KVD_ARG_FLAG, &yes},
        {"json", KVD_ARG_FLAG, &json},
    };
    struct kvd_diag diag = {0};
    char what[WHAT_BYTES];
    if (kvd_args_parse(argc, argv, args, sizeof(args) / sizeof(args[0]), &diag)) {
        return kvd_complain(KVD_EXIT_USAGE, "purge", diag.text);
    }
    if (scope.everything == (scope.tenant || scope.space)) {
        return kvd_complain(KVD_EXIT_USAGE, "purge",
                            "say what: --all, or --tenant NAME, --space ID, or both of these");
    }
    what_say(&scope, what, sizeof(what));
    int status = may_go(what, yes);
    if (status != KVD_EXIT_OK) {
        return status;
    }
    struct kvd_client *client = NULL;
    status = kvd_ask_open(socket_path, "purge", &client);
    if (status != KVD_EXIT_OK) {
        return status;
    }
    int err = kvd_purge(client, &scope, &result);
    status = err ? kvd_ask_complain(client, "purge", err) : show(what, &result, json);
    kvd_client_close(&client);
    return status;
}

const struct kvd_command kvd_command_purge = {
    .name = "purge",
    .summary = "what a tenant, a space or everybody has stored is not served any more",
    .help = help,
    .run = purge_run,
};
