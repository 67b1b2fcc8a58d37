/*
 * `kvdepot status` without the asking: the daemon's report as text.
 *
 * {"schema":1, "health":"ok"|"degraded", "problems":[…], "version", "store", "uptime_s", "io",
 *  "clients", "leases", "tiers":[{"name","cap_bytes","used_bytes","blocks","state", …}],
 *  "index":{…}, "puts":{…}, "corrupt", "scenarios":[…], "rates":{…}}
 */
#ifndef TOOLS_KVDEPOT_STATUS_VIEW_H
#define TOOLS_KVDEPOT_STATUS_VIEW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "proto/base/error.h"

/* Writes the report to `out`, health first. Whether the daemon is healthy goes to *ret_healthy.
 * -KVD_E_FORMAT when the report lacks something (part of it may have been written then). */
int kvd_status_view(const json_t *report, FILE *out, bool *ret_healthy, struct kvd_diag *diag);

#endif
