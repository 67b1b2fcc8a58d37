/*
 * Asking the daemon for a report: what status and hitrate have in common.
 */
#ifndef TOOLS_KVDEPOT_ASK_H
#define TOOLS_KVDEPOT_ASK_H

#include <jansson.h>

/* Asks the daemon at `socket_path` for a report and parses it. On failure, says why on standard
 * error and returns an enum kvd_exit other than KVD_EXIT_OK. The caller owns *ret_report:
 * json_decref. Waits at most as long as libkvdepot's deadlines for connecting and answering. */
int kvd_ask(const char *socket_path, const char *what, const char *by, const char *window,
            json_t **ret_report);

/* "kvdepot NAME: TEXT" on standard error; returns `exit_status`. */
int kvd_complain(int exit_status, const char *name, const char *text);

#endif
