/*
 * `kvdepot hitrate` without the asking: the daemon's report as text. Tiers and reasons add up to
 * what was asked; a report in which they do not is refused.
 *
 * {"schema":1, "window":"ever", "by":"all", "rows":[{"name", "lookups", "asked":A,
 *  "hit":{TIER:A, …}, "missed":{REASON:A, …}}]} with A = {"tokens", "blocks", "bytes"}.
 * Names of tiers and reasons come from the daemon, in its order.
 */
#ifndef TOOLS_KVDEPOT_HITRATE_VIEW_H
#define TOOLS_KVDEPOT_HITRATE_VIEW_H

#include <jansson.h>
#include <stdio.h>

#include "proto/base/error.h"

/* Checks shape and sums. -KVD_E_FORMAT (shape), -KVD_E_CORRUPT (sums). */
int kvd_hitrate_check(const json_t *report, struct kvd_diag *diag);

/* Both take a checked report. By tier: the one row of by=all, a line for each tier and reason. */
int kvd_hitrate_view_tiers(const json_t *report, FILE *out);
/* A line for each row: shares of what was asked. Tiers and reasons that are 0 everywhere are left
 * out. */
int kvd_hitrate_view_rows(const json_t *report, FILE *out);

/* The one row of by=all as JSON with a row for each tier, and one for what was missed. The caller
 * owns it; NULL when memory is short. */
json_t *kvd_hitrate_by_tier(const json_t *report);

#endif
