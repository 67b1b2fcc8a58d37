/*
 * Numbers as people read them. Each writes into `text`, which holds KVD_TEXT_BYTES, and returns it.
 */
#ifndef TOOLS_KVDEPOT_UNITS_H
#define TOOLS_KVDEPOT_UNITS_H

#include <stdint.h>

enum { KVD_TEXT_BYTES = 40 };

/* "1,234,567" */
const char *kvd_units_count(char *text, uint64_t n);

/* "0 B", "1,023 B", "1.4 MiB" */
const char *kvd_units_bytes(char *text, uint64_t n);

/* "12.3 %" of whole; "-" where whole is 0. Never rounds up to 100.0 nor down to 0.0. */
const char *kvd_units_share(char *text, uint64_t part, uint64_t whole);

/* "59 s", "3 min 20 s", "2 h 5 min", "7 d", "7 d 3 h" */
const char *kvd_units_duration(char *text, uint64_t seconds);

/* "8MiB", "1.5GiB", "4096" -> bytes. -KVD_E_BAD_REQUEST. */
int kvd_units_parse_bytes(const char *text, uint64_t *ret);

#endif
