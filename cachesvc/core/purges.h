/*
 * What was purged: a table in memory, and the log of purges (proto/format/purge_log.h) in the
 * store's folder. A row hides what is its scope's and has its cut as put id, or a smaller one.
 *
 * The table is the truth for everybody who serves, indexes or writes down; what purging does beside
 * it (slots removed, entries marked) only gives room back and explains misses.
 *
 * Threads: any. Adding and forgetting exclude each other and wait for the device; asking never
 * waits for them.
 */
#ifndef CACHESVC_CORE_PURGES_H
#define CACHESVC_CORE_PURGES_H

#include <stdbool.h>
#include <stdint.h>

#include "cachesvc/io/io.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/format/purge_log.h"

struct kvd_purges;

struct kvd_purges_options {
    const char *folder; /* of the store; there, and locked */
    struct kvd_store_id store;
    uint64_t first_put_id; /* of this start: all that is stored has smaller ones */
    struct kvd_io *io;     /* borrowed, outlives the table */
    struct kvd_log *log;
};

/* Reads the log, where there is one. Rows that a crash left unfinished are dropped: nobody was told
 * that they hold. Where rows are damaged that did hold, all that they can have meant is purged: in
 * the whole store, what was put before them. -KVD_E_NEWER, -KVD_E_FORMAT, -KVD_E_WRONG_STORE,
 * -KVD_E_TOO_LONG, errno; diag says what to do. */
int kvd_purges_open(const struct kvd_purges_options *options, struct kvd_diag *diag,
                    struct kvd_purges **ret);
void kvd_purges_close(struct kvd_purges **purges);

/* Purges n scopes with one cut, drawn by next_put_id while no other purge can draw one. On return
 * the rows are durable, and every question asked from now on sees them. On failure nothing is
 * hidden; -KVD_E_FULL (too many rows), errno of the device. */
int kvd_purges_add(struct kvd_purges *purges, const struct kvd_purge_what *what, uint32_t n,
                   uint64_t when_s, uint64_t (*next_put_id)(void *user), void *user,
                   struct kvd_diag *diag, uint64_t *ret_cut);

/* Drops rows with a cut below this: nothing that they hide is stored any more. */
int kvd_purges_forget(struct kvd_purges *purges, uint64_t cut);

/* What the rows say of one tenant in one space, for the blocks of a prompt. */
struct kvd_purge_view {
    uint64_t cut;       /* put ids up to this are purged; 0: none */
    uint64_t block_cut; /* of those up to this single blocks may be: ask kvd_purges_hides_block */
};
void kvd_purges_view(struct kvd_purges *purges, const struct kvd_digest *space,
                     const struct kvd_digest *tenant, struct kvd_purge_view *ret);

/* Whether a stored block is purged. The first looks at everything, the second at rows of single
 * blocks only. Both are quick for put ids that are newer than all purges. */
bool kvd_purges_hides(struct kvd_purges *purges, const struct kvd_digest *space,
                      const struct kvd_digest *tenant, const struct kvd_key *key, uint16_t rank,
                      uint64_t put_id);
bool kvd_purges_hides_block(struct kvd_purges *purges, const struct kvd_digest *space,
                            const struct kvd_digest *tenant, const struct kvd_key *key,
                            uint16_t rank, uint64_t put_id);

/* The largest cut of any row, 0 without rows: what has a larger put id is not purged, whosever it
 * is. And the cut of the whole store. */
uint64_t kvd_purges_newest(const struct kvd_purges *purges);
uint64_t kvd_purges_all(struct kvd_purges *purges);

struct kvd_purges_stat {
    uint32_t rows;
    uint32_t damaged; /* rows that this start couldn't read */
};
void kvd_purges_stat(struct kvd_purges *purges, struct kvd_purges_stat *ret);

#endif
