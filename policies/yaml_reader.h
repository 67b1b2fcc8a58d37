/*
 * Strict reading of the YAML that people write for kvdepot (scenarios, configuration), on top of
 * libyaml's events. One document; no anchors, aliases or tags. Every refusal says
 * "name:line:column: what; what is allowed". Pure: reads from memory.
 *
 * One owner; not thread-safe.
 */
#ifndef POLICIES_YAML_READER_H
#define POLICIES_YAML_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <yaml.h>

#include "proto/base/error.h"

struct kvd_yaml {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; zeroed when there is none */
    const char *name;   /* borrowed: of the file, for messages */
    struct kvd_diag *diag;
};

/* Reads to the first event of the document. text, name and diag (may be NULL) are borrowed until
 * kvd_yaml_close, which must be called after success and does no harm after failure. -KVD_E_CONFIG
 * (bad YAML, or nothing in it), -ENOMEM. */
int kvd_yaml_open(struct kvd_yaml *y, const char *text, size_t bytes, const char *name,
                  struct kvd_diag *diag);
void kvd_yaml_close(struct kvd_yaml *y);

/* Goes on to the next event. -KVD_E_CONFIG, -ENOMEM. */
int kvd_yaml_next(struct kvd_yaml *y);

/* After the document's last event: checks that nothing follows. */
int kvd_yaml_end(struct kvd_yaml *y);

/* Text of the current event, which must be a scalar; NULL when it is not one. A value that is left
 * out (`key:`) is a plain scalar of no characters: kvd_yaml_is_null. Valid until the next event. */
const char *kvd_yaml_scalar(const struct kvd_yaml *y);
bool kvd_yaml_is_null(const struct kvd_yaml *y);

/* Refuses at the place of the current event. Returns -KVD_E_CONFIG. */
int kvd_yaml_fail(const struct kvd_yaml *y, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Where the current event begins, from 1. */
uint32_t kvd_yaml_line(const struct kvd_yaml *y);
uint32_t kvd_yaml_column(const struct kvd_yaml *y);

/* A whole decimal number: digits only, no sign, no leading zero. False when it is none or does not
 * fit. Shared by everything that reads numbers from people. *ret_end is where it stopped, so that a
 * unit can follow. */
bool kvd_number_read(const char *text, const char **ret_end, uint64_t *ret);

#endif
