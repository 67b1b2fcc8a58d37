/* Asking the daemon for a report: see ask.h. */
#include "tools/kvdepot/ask.h"

#include <stdio.h>
#include <string.h>

#include "kvdepot/kvdepot.h"
#include "proto/base/cleanup.h"
#include "proto/base/error.h"
#include "tools/kvdepot/command.h"
#include "tools/kvdepot/report.h"

enum { SOCKET_PATH_MAX = 107 };

int kvd_complain(int exit_status, const char *name, const char *text)
{
    (void)fprintf(stderr, "kvdepot %s: %s\n", name, text);
    return exit_status;
}

static int complain_unreachable(const char *what, const char *detail)
{
    (void)fprintf(stderr,
                  "kvdepot %s: %s\n"
                  "Another socket is named with --socket PATH; a daemon is started with: kvdepotd "
                  "--dir DIR --socket PATH\n",
                  what, detail);
    return KVD_EXIT_UNREACHABLE;
}

int kvd_ask(const char *socket_path, const char *what, const char *by, const char *window,
            json_t **ret_report)
{
    if (strlen(socket_path) > SOCKET_PATH_MAX) {
        return kvd_complain(KVD_EXIT_USAGE, what,
                            "the path of a Unix socket has at most 107 bytes: name a shorter one "
                            "with --socket");
    }
    struct kvd_client_options options;
    kvd_client_options_init(&options);
    options.socket_path = socket_path;
    options.program = "kvdepot";
    struct kvd_client *client = NULL;
    int err = kvd_client_open(&options, &client);
    if (err) {
        struct kvd_diag diag = {0};
        (void)kvd_fail(&diag, err, "%s: %s", socket_path, kvd_status_text(err));
        return kvd_complain(KVD_EXIT_USAGE, what, diag.text);
    }
    KVD_AUTOFREE char *text = NULL;
    err = kvd_report(client, what, by, window, &text);
    int status = KVD_EXIT_OK;
    if (err == KVD_UNAVAILABLE || err == KVD_DEADLINE) {
        status = complain_unreachable(what, kvd_client_message(client));
    } else if (err) {
        status = kvd_complain(err == KVD_BAD_REQUEST ? KVD_EXIT_USAGE : KVD_EXIT_FAILED, what,
                              kvd_client_message(client));
    }
    kvd_client_close(&client);
    struct kvd_diag diag = {0};
    if (status == KVD_EXIT_OK && kvd_report_parse(text, ret_report, &diag)) {
        status = kvd_complain(KVD_EXIT_FAILED, what, diag.text);
    }
    return status;
}
