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

int kvd_ask_open(const char *socket_path, const char *name, struct kvd_client **ret_client)
{
    if (strlen(socket_path) > SOCKET_PATH_MAX) {
        return kvd_complain(KVD_EXIT_USAGE, name,
                            "the path of a Unix socket has at most 107 bytes: name a shorter one "
                            "with --socket");
    }
    struct kvd_client_options options;
    kvd_client_options_init(&options);
    options.socket_path = socket_path;
    options.program = "kvdepot";
    options.connect_ms = 2000; /* a daemon that is busy is not one that is gone */
    int err = kvd_client_open(&options, ret_client);
    if (err) {
        struct kvd_diag diag = {0};
        (void)kvd_fail(&diag, err, "%s: %s", socket_path, kvd_status_text(err));
        return kvd_complain(KVD_EXIT_USAGE, name, diag.text);
    }
    return KVD_EXIT_OK;
}

int kvd_ask_complain(struct kvd_client *client, const char *what, int err)
{
    if (err == KVD_UNAVAILABLE || err == KVD_DEADLINE) {
        return complain_unreachable(what, kvd_client_message(client));
    }
    return kvd_complain(err == KVD_BAD_REQUEST ? KVD_EXIT_USAGE : KVD_EXIT_FAILED, what,
                        kvd_client_message(client));
}

int kvd_ask_report(struct kvd_client *client, const char *name, const char *what, const char *by,
                   const char *window, json_t **ret_report)
{
    KVD_AUTOFREE char *text = NULL;
    int err = kvd_report(client, what, by, window, &text);
    if (err) {
        return kvd_ask_complain(client, name, err);
    }
    struct kvd_diag diag = {0};
    return kvd_report_parse(text, ret_report, &diag)
               ? kvd_complain(KVD_EXIT_FAILED, name, diag.text)
               : KVD_EXIT_OK;
}

int kvd_ask(const char *socket_path, const char *what, const char *by, const char *window,
            json_t **ret_report)
{
    struct kvd_client *client = NULL;
    int status = kvd_ask_open(socket_path, what, &client);
    if (status == KVD_EXIT_OK) {
        status = kvd_ask_report(client, what, what, by, window, ret_report);
    }
    kvd_client_close(&client);
    return status;
}
