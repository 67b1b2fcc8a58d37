/*
 * Reports of the daemon: asking for one, and checking what came. A daemon may be of another
 * version, so nothing of its answer is taken for granted.
 */
#ifndef TOOLS_KVDEPOT_REPORT_H
#define TOOLS_KVDEPOT_REPORT_H

#include <jansson.h>

#include "proto/base/error.h"

/* Parses a report: a JSON object with "schema": 1. The caller owns *ret_report: json_decref.
 * -KVD_E_FORMAT, -KVD_E_NEWER. */
int kvd_report_parse(const char *text, json_t **ret_report, struct kvd_diag *diag);

/* Error of json_unpack_ex in words: -KVD_E_FORMAT. */
int kvd_report_misses(const json_error_t *error, const char *what, struct kvd_diag *diag);

/* Prints JSON in the order it has, with a newline. */
void kvd_report_print_json(const json_t *report, FILE *out);

#endif
