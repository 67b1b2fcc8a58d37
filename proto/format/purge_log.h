/*
 * The log of purges: what of a store must not be served any more, kept outside the index, so that
 * an index that is made anew from segments doesn't bring it back. FORMAT.md beside this file
 * specifies every byte.
 *
 *   header (4 KiB) | row | row | …
 *
 * A row says whose blocks, and a put id, the cut: all that is theirs with this put id or a smaller
 * one is purged. Put ids only grow, so what is put again later is not. The header counts the rows
 * that the file was written with, as a whole; those behind them were appended, each call's rows
 * durable before the next call's were written. So a reader can tell what a crash leaves at the end
 * from damage.
 *
 * Pure functions; safe from any thread. Input to the decoder is not trusted.
 */
#ifndef PROTO_FORMAT_PURGE_LOG_H
#define PROTO_FORMAT_PURGE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"
#include "proto/format/segment.h"
#include "proto/keys/keys.h"

enum {
    KVD_PURGE_LOG_VERSION = 1,
    KVD_PURGE_LOG_HEADER_BYTES = KVD_ALIGN_BYTES,
    KVD_PURGE_ROW_BYTES = 128,
    KVD_PURGE_ROWS_MAX = 65536, /* in a file, and so in memory */
};

enum kvd_purge_scope {
    KVD_PURGE_ALL = 1,
    KVD_PURGE_SPACE = 2,
    KVD_PURGE_TENANT = 3,
    KVD_PURGE_TENANT_IN_SPACE = 4,
    KVD_PURGE_BLOCK = 5, /* one block of a tenant in a space */
};

/* Whose blocks. Fields that the scope doesn't use are zero, so that the whole can be compared. */
struct kvd_purge_what {
    struct kvd_digest space;
    struct kvd_digest tenant; /* zero is the default tenant, where the scope uses it */
    struct kvd_key key;
    uint16_t rank;
    uint16_t scope; /* enum kvd_purge_scope */
};
_Static_assert(sizeof(struct kvd_purge_what) == 84, "no padding: compared and hashed as bytes");

struct kvd_purge_row {
    struct kvd_purge_what what;
    uint32_t nth; /* of its call's rows */
    uint64_t cut; /* put id; all rows of one call have the same, later calls have larger ones */
    uint64_t when_s;
};

/* What a scope leaves of whose blocks they are: the fields it doesn't use become zero. */
struct kvd_purge_what kvd_purge_what_of(enum kvd_purge_scope scope, const struct kvd_digest *space,
                                        const struct kvd_digest *tenant, const struct kvd_key *key,
                                        uint16_t rank);

void kvd_purge_row_encode(const struct kvd_purge_row *row, void *buf /* KVD_PURGE_ROW_BYTES */);
/* 0 or -KVD_E_CORRUPT. buf has KVD_PURGE_ROW_BYTES. */
int kvd_purge_row_decode(const void *buf, struct kvd_purge_row *ret);

/* Bytes of a file with n rows. */
uint64_t kvd_purge_log_bytes(uint32_t n);
/* A whole file. Cuts ascend from row to row; buf has kvd_purge_log_bytes(n). */
void kvd_purge_log_encode(const struct kvd_store_id *store, const struct kvd_purge_row *rows,
                          uint32_t n, void *buf);

/* What a file holds. */
struct kvd_purge_log {
    bool known_store; /* the header could be read: */
    struct kvd_store_id store;
    struct kvd_purge_row *rows; /* those that are whole, in their order; free() */
    uint32_t n_rows;
    bool appended; /* there are rows, or pieces, behind those that the header counts */
    /* Rows that were durable once and can't be read now, a header that can't counting as one. Their
     * cuts were at most damaged_cut; UINT64_MAX: nothing in the file bounds them. */
    uint32_t damaged;
    uint64_t damaged_cut;
};

/* 0, also where there is damage; -KVD_E_FORMAT (another magic), -KVD_E_NEWER, -KVD_E_TOO_LONG (more
 * rows than KVD_PURGE_ROWS_MAX), -ENOMEM. */
int kvd_purge_log_decode(const void *bytes, uint64_t n, struct kvd_purge_log *ret);

#endif
