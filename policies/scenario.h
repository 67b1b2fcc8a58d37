/*
 * Scenarios: named retention classes, from scenarios.yaml (read by the caller; this parses the
 * text). Pure: no I/O, no clock. A parsed table is immutable; safe from any thread.
 */
#ifndef POLICIES_SCENARIO_H
#define POLICIES_SCENARIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/error.h"

enum { KVD_SCENARIO_NAME_MAX = 31, KVD_SCENARIOS_MAX = 32 };

struct kvd_scenario {
    uint16_t id; /* stored in records and index entries: never changes, never used again */
    char name[KVD_SCENARIO_NAME_MAX + 1]; /* [a-z][a-z0-9_-]* */
    bool sliding;                         /* retention counts from last use; if not, from the put */
    bool nvme;                            /* written down to nvme */
    uint64_t retention_s;
    uint64_t slice_s; /* length of a segment's time slice */
};

struct kvd_scenarios;

/* Parses YAML text. Errors (-KVD_E_CONFIG) say line and column in diag. `name` is the file's name
 * for messages. */
int kvd_scenarios_parse(const char *text, size_t bytes, const char *name, struct kvd_diag *diag,
                        struct kvd_scenarios **ret);
void kvd_scenarios_destroy(struct kvd_scenarios **scenarios);

/* The table that is built in: the text of policies/scenarios.yaml. */
const char *kvd_scenarios_builtin(size_t *ret_bytes);

/* NULL when there is none. */
const struct kvd_scenario *kvd_scenario_by_name(const struct kvd_scenarios *s, const char *name,
                                                size_t name_bytes);
const struct kvd_scenario *kvd_scenario_by_id(const struct kvd_scenarios *s, uint16_t id);
uint32_t kvd_scenarios_count(const struct kvd_scenarios *s);
const struct kvd_scenario *kvd_scenario_at(const struct kvd_scenarios *s, uint32_t nth);

#endif
