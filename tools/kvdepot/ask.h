/*
 * Asking the daemon for a report: what status and hitrate have in common.
 */
#ifndef TOOLS_KVDEPOT_ASK_H
#define TOOLS_KVDEPOT_ASK_H

#include <jansson.h>

#include "kvdepot/kvdepot.h"

/* Asks the daemon at `socket_path` for a report and parses it. On failure, says why on standard
 * error and returns an enum kvd_exit other than KVD_EXIT_OK. The caller owns *ret_report:
 * json_decref. Waits at most as long as libkvdepot's deadlines for connecting and answering. */
int kvd_ask(const char *socket_path, const char *what, const char *by, const char *window,
            json_t **ret_report);

/* The same in two steps, for more than one question. name: the subcommand's, for what is said. A
 * client is opened without a daemon too; the caller closes it. */
int kvd_ask_open(const char *socket_path, const char *name, struct kvd_client **ret_client);
int kvd_ask_report(struct kvd_client *client, const char *name, const char *what, const char *by,
                   const char *window, json_t **ret_report);
/* Says why a call of the client failed; returns the exit status that goes with it. */
int kvd_ask_complain(struct kvd_client *client, const char *name, int err);

/* "kvdepot NAME: TEXT" on standard error; returns `exit_status`. */
int kvd_complain(int exit_status, const char *name, const char *text);

#endif
