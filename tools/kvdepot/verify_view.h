/*
 * `kvdepot verify` without the asking: the report as text. The same shape comes from the daemon and
 * from reading a folder without one:
 *
 * {"schema":1, "running", "now":{"round", "ended_s", "seconds", "tiers":[{"name", "records",
 *  "expected", "bytes", "bad", "newer", "skipped"}]}, "quarantined":N,
 *  "bad":[{"tier", "segment", "offset", "key", "rank", "put_id", "when_s", "reason"}]}
 */
#ifndef TOOLS_KVDEPOT_VERIFY_VIEW_H
#define TOOLS_KVDEPOT_VERIFY_VIEW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/base/error.h"

/* Where a round is. -KVD_E_FORMAT. */
int kvd_verify_course(const json_t *report, uint64_t *ret_round, bool *ret_ended,
                      struct kvd_diag *diag);

/* "nvme 12 of 400 records, 17.3 MiB; dram …" into text. */
void kvd_verify_progress(const json_t *report, char *text, size_t size);

/* A table by tier, then each bad record. *ret_good: nothing is bad. -KVD_E_FORMAT. */
int kvd_verify_view(const json_t *report, FILE *out, bool *ret_good, struct kvd_diag *diag);
/* The same judgement without printing. */
int kvd_verify_judge(const json_t *report, bool *ret_good, struct kvd_diag *diag);

#endif
