/*
 * The index: RocksDB, one instance a daemon. Says where each block's record lies below dram, when
 * the block was last used, and what became of blocks that are gone. No payload.
 *
 * Key of a block: group (12 B) | index in chain (u32 big-endian) | key (16 B) | rank (u16
 * big-endian), so one group is one short scan. Column families: blocks, spaces, segments, meta.
 *
 * Threads: reads from any thread. All writes go through one writer thread, which applies queued
 * changes in order, many to a batch; that order is what makes compare-and-set work. Submitting
 * returns at once. WAL: unsynced, but for kvd_index_sync.
 *
 * When writing fails, all changes fail until RocksDB could be opened anew, which is tried every
 * second while there is something to write; reads go on, or fail with -KVD_E_IO.
 */
#ifndef CACHESVC_INDEX_INDEX_H
#define CACHESVC_INDEX_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/keys/keys.h"

struct kvd_index;

struct kvd_index_options {
    const char *path;     /* folder of the RocksDB instance; made if missing */
    uint64_t cache_bytes; /* block cache */
    struct kvd_log *log;
};

int kvd_index_open(const struct kvd_index_options *options, struct kvd_diag *diag,
                   struct kvd_index **ret);
void kvd_index_close(struct kvd_index **index); /* applies what is queued, flushes */

/* Where a block is named in the index. */
struct kvd_index_id {
    struct kvd_group_id group;
    uint32_t index; /* in the chain */
    struct kvd_key key;
    uint16_t rank;
};

/* The value of a block's entry. */
struct kvd_index_entry {
    uint64_t segment; /* 0: no copy below dram; then `gone` says what became of the block */
    uint64_t offset;
    uint32_t extent_bytes;
    uint16_t block_in_record;
    uint16_t scenario; /* the longest class that used the block */
    uint32_t last_use_day;
    uint32_t created_day;
    uint64_t put_id;
    uint8_t gone; /* enum kvd_gone_reason of cachesvc/tier, as a number */
    uint64_t gone_s;
};

enum kvd_index_found {
    KVD_INDEX_ABSENT = 0,
    KVD_INDEX_FOUND = 1,
    KVD_INDEX_SIBLING = 2 /* absent, but another block stands at its place */
};

/* Looks up blocks first .. first + n - 1 of a chain; keys[0] is the chain's first block (so keys
 * has first + n rows). Fills n rows. One seek and one short scan a group. 0 or -KVD_E_IO. */
int kvd_index_lookup(struct kvd_index *index, const struct kvd_key *keys, uint32_t first,
                     uint32_t n, uint16_t rank, struct kvd_index_entry *ret_entries,
                     uint8_t *ret_found);

/* One block by its full name, away from any chain. *ret_found as above. 0 or -KVD_E_IO. */
int kvd_index_lookup_id(struct kvd_index *index, const struct kvd_index_id *id,
                        struct kvd_index_entry *ret_entry, uint8_t *ret_found);

/* ---- changes (queued) ---- */

typedef void kvd_index_done_fn(int result, void *user); /* on the writer thread; must be short */

enum kvd_index_change_kind {
    KVD_INDEX_PUT,   /* writes entry whatever was there; keeps the later last_use_day of both, and
                        class and created_day where the place is the same */
    KVD_INDEX_MOVE,  /* writes entry's place only where (segment, offset) equal expect_* */
    KVD_INDEX_TOUCH, /* raises last_use_day and sets scenario, where the entry exists and the day or
                        class differs */
    KVD_INDEX_GONE,  /* sets segment 0 and gone/gone_s where (segment, offset) equal expect_*;
                        creates the entry  where there is none and expect_segment is 0 */
};

struct kvd_index_change {
    enum kvd_index_change_kind kind;
    struct kvd_index_id id;
    struct kvd_index_entry entry;
    uint64_t expect_segment;
    uint64_t expect_offset;
};

/* Copies the changes and queues them as one batch. done may be NULL; its result is 0, also where a
 * compare found something else, or -KVD_E_IO. -ENOMEM, -KVD_E_BUSY (more than 65,536 would be
 * waiting), -KVD_E_TOO_LONG (n is more than that by itself). */
int kvd_index_submit(struct kvd_index *index, const struct kvd_index_change *changes, uint32_t n,
                     kvd_index_done_fn *done, void *user);

/* False after a failed write, until the index could be opened anew: every change would fail. */
bool kvd_index_writable(struct kvd_index *index);

/* Returns when all that was queued before is written; with sync, durable. -KVD_E_IO: a write since
 * the last call failed, or none is possible now. Never from a callback of the index. */
int kvd_index_sync(struct kvd_index *index, bool sync);

/* ---- small rows: spaces, segments, meta. Values are bytes; the caller encodes. ---- */

enum kvd_index_table { KVD_INDEX_SPACES, KVD_INDEX_SEGMENTS, KVD_INDEX_META };

/* Waits until written; durable with sync. A NULL value deletes. Never from a callback of the
 * index. */
int kvd_index_row_put(struct kvd_index *index, enum kvd_index_table table, const void *key,
                      uint32_t key_bytes, const void *value, uint32_t value_bytes, bool sync);
/* *ret_value is the caller's to free. -KVD_E_NOT_FOUND. */
int kvd_index_row_get(struct kvd_index *index, enum kvd_index_table table, const void *key,
                      uint32_t key_bytes, void **ret_value, uint32_t *ret_value_bytes);
/* In key order; stops when fn returns non-zero and returns that. */
int kvd_index_row_walk(struct kvd_index *index, enum kvd_index_table table,
                       int (*fn)(const void *key, uint32_t key_bytes, const void *value,
                                 uint32_t value_bytes, void *user),
                       void *user);

/* All entries of blocks, in key order. */
int kvd_index_walk(struct kvd_index *index,
                   int (*fn)(const struct kvd_index_id *id, const struct kvd_index_entry *entry,
                             void *user),
                   void *user);

/* Whether an entry may be forgotten (a ghost older than its time): asked by the compaction filter,
 * on RocksDB's threads. NULL forgets nothing. When kvd_index_on_compaction returns, the function
 * that was set before runs no more; so don't hold a lock that it takes. */
typedef bool kvd_index_forget_fn(const struct kvd_index_entry *entry, void *user);
void kvd_index_on_compaction(struct kvd_index *index, kvd_index_forget_fn *fn, void *user);

struct kvd_index_stat {
    uint64_t entries_estimate;
    uint64_t queued;
    uint64_t disk_bytes;
    uint64_t undecodable;   /* entries met that this version can't read; they count as absent */
    uint64_t read_errors;   /* since open */
    uint64_t failed_writes; /* batches, since open */
    uint64_t mended;        /* times that it was opened anew after a failed write */
    bool readable;
    bool writable; /* not after a failed write, until it could be opened anew */
};
void kvd_index_stat(struct kvd_index *index, struct kvd_index_stat *ret);

#endif
