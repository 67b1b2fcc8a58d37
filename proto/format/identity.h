/*
 * IDENTITY: who a folder of a store belongs to, as text:
 *
 *     kvdepot-identity 1
 *     store 0123…            16 bytes in hex, drawn at first start
 *     seed 0123…             of the keys, 8 bytes in hex, drawn at first start
 *     boot 7                 number of starts; the epoch in segment names (only in the store's own
 *                            folder)
 *     sum 0123…              XXH3-64 of the lines above
 *
 * Pure functions; safe from any thread.
 */
#ifndef PROTO_FORMAT_IDENTITY_H
#define PROTO_FORMAT_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/error.h"
#include "proto/format/segment.h"

enum { KVD_IDENTITY_TEXT_MAX = 512 };

struct kvd_identity {
    struct kvd_store_id store;
    uint64_t seed;
    uint64_t boot;
};

/* Reads n bytes of untrusted text, which has a terminator behind them. folder is for people.
 * -KVD_E_CORRUPT, -KVD_E_NEWER; diag says what to do. */
int kvd_identity_parse(const char *text, size_t n, const char *folder, struct kvd_diag *diag,
                       struct kvd_identity *ret);

/* Writes the text; returns its length. */
size_t kvd_identity_print(const struct kvd_identity *id, char ret_text[KVD_IDENTITY_TEXT_MAX]);

#endif
