/*
 * Rows of purges in memory, found by what they cover. Made once and then only read: whoever adds a
 * row makes a new table. One row for each thing that was purged, the one with the largest cut; none
 * that a row of a wider scope covers; cuts ascend.
 */
#ifndef CACHESVC_CORE_PURGE_TABLE_H
#define CACHESVC_CORE_PURGE_TABLE_H

#include "proto/format/purge_log.h"

enum { PURGE_OWNERS = 1024 };

struct purge_table {
    struct kvd_purge_row *rows;
    uint32_t n;
    uint32_t mask;   /* of slots */
    uint32_t *slots; /* index of a row + 1, or 0 */
    uint64_t newest; /* the largest cut */
    /* the largest cut of rows of single blocks, by a hash of whose they are: a tenant whose blocks
       were never dropped mostly finds 0 there, and a look-up need not ask for each block */
    uint64_t block_cuts[PURGE_OWNERS];
};

/* Of the rows in two arrays. 0 or -ENOMEM. */
int purge_table_make(const struct kvd_purge_row *a, uint32_t n_a, const struct kvd_purge_row *b,
                     uint32_t n_b, struct purge_table *ret);
void purge_table_fini(struct purge_table *t);

/* The cut for exactly this, or 0. */
uint64_t purge_table_cut(const struct purge_table *t, const struct kvd_purge_what *what);
/* The largest cut of scopes that cover a tenant in a space. */
uint64_t purge_table_tenant_cut(const struct purge_table *t, const struct kvd_digest *space,
                                const struct kvd_digest *tenant);
/* No single block of a tenant in a space has a larger cut than this; 0: none has one. */
uint64_t purge_table_block_cut(const struct purge_table *t, const struct kvd_digest *space,
                               const struct kvd_digest *tenant);

#endif
