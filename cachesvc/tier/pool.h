/*
 * The pool file of the dram tier: pages of slots in size classes, and who lies where (residency). A
 * record lies in its slot whole and raw: padded header, then payload, as on media. Clients map the
 * file read-only.
 *
 * Slot states: FREE -> FILLING (being written; nobody finds it) -> READY (found by lookups; may be
 * pinned)
 *              -> FREE (evicted or removed, when no pin is left).
 * A slot's generation is a u32 in the file, in the page's slot header. It is raised *before* a
 * slot's bytes may change, so a reader that copied and then sees the generation it was given has
 * copied the right bytes.
 *
 * Warm start: page and slot headers lie in the file; kvd_pool_open finds the READY slots of an
 * earlier run again and marks them unverified: whoever uses one first must check sums and identity
 * (kvd_slot.verified).
 *
 * Threads: all functions take the pool's own lock. A pinned slot's bytes don't change and it isn't
 * reused.
 */
#ifndef CACHESVC_TIER_POOL_H
#define CACHESVC_TIER_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "policies/policy.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/format/segment.h"
#include "proto/keys/keys.h"

struct kvd_pool;

struct kvd_pool_options {
    const char *path;   /* the pool file; its folder should be tmpfs. Created 0600 */
    uint64_t cap_bytes; /* hard: pages and slot headers together never exceed it */
    struct kvd_store_id
        store; /* a pool file of another store, or of another size, is replaced by an empty one */
    bool drop; /* start empty */
    const struct kvd_evict_ops *eviction;
    struct kvd_log *log;
};

/* Address of a block in a tier. */
struct kvd_addr {
    struct kvd_key key;
    uint16_t rank;
};

/* What the pool remembers of a slot's block without reading its record; kept in the slot header
 * too. */
struct kvd_slot_meta {
    struct kvd_addr addr; /* of the record's only block (the dram tier keeps one block a slot) */
    struct kvd_group_id group;
    uint16_t scenario;     /* the longest class that used it */
    uint32_t index;        /* in the chain */
    uint32_t nvme_segment; /* where an indexed copy lies below: evicting loses nothing while that
                              segment is live. 0: none */
    uint32_t last_use_day;
    uint32_t created_day;
    uint64_t put_id;
    uint32_t header_bytes;  /* padded record header */
    uint32_t payload_bytes; /* raw payload, unpadded */
};

/* A segment's number as a slot remembers it, in half the bytes; beyond that the copy isn't
 * remembered, and a block is written down again. */
static inline uint32_t kvd_slot_segment(uint64_t segment)
{
    return segment <= UINT32_MAX ? (uint32_t)segment : 0;
}

/* Constant while the slot is pinned or FILLING by the caller, but for meta.scenario, .last_use_day,
 * .nvme_segment and `verified`, which another holder of a pin may change: kvd_pool_meta reads them
 * under the lock. */
struct kvd_slot {
    struct kvd_slot_meta meta;
    uint8_t *base;              /* of the record: header, then payload; 4 KiB aligned */
    uint64_t file_offset;       /* of base in the pool file */
    uint64_t generation_offset; /* of the generation in the pool file */
    uint32_t generation;
    uint32_t slot_bytes;
    int page;        /* index of the 64 MiB page, for registered buffers */
    bool verified;   /* false only after a warm start, until kvd_pool_set_verified */
    bool queued;     /* atomic; the user's, false in a slot nobody pins: being written below */
    uint16_t leased; /* the user's, under its own lock, 0 in a slot nobody pins: clients that do */
};

/* Called with the pool's lock held when a READY slot is evicted for room. Must not call the pool.
 */
typedef void kvd_pool_evicted_fn(const struct kvd_slot_meta *meta, void *user);

int kvd_pool_open(const struct kvd_pool_options *options, struct kvd_diag *diag,
                  struct kvd_pool **ret);
void kvd_pool_close(
    struct kvd_pool **pool); /* leaves the file; asserts that nothing is FILLING or pinned */
void kvd_pool_on_evicted(struct kvd_pool *pool, kvd_pool_evicted_fn *fn,
                         void *user); /* before first use */

int kvd_pool_fd_readonly(
    struct kvd_pool *pool); /* a descriptor to hand to clients: O_RDONLY; the pool's */
uint64_t kvd_pool_map_bytes(struct kvd_pool *pool); /* how much of the file to map; constant */

/* Memory of page `page` (for registering with the io engine), or false where the page isn't
 * allocated. */
bool kvd_pool_page(struct kvd_pool *pool, int page, void **ret_base, uint64_t *ret_bytes);

/* A FILLING slot for a record of extent_bytes, evicting by policy where needed. -KVD_E_FULL when
 * everything that could go is pinned; -KVD_E_TOO_LONG when a slot can't be that large. */
int kvd_pool_alloc(struct kvd_pool *pool, uint64_t extent_bytes, uint16_t scenario,
                   struct kvd_slot **ret);

/* FILLING -> READY and findable; the slot stays pinned once for the caller. meta is copied.
 * -KVD_E_EXISTS when the address is resident already: the slot stays FILLING (cancel it). */
int kvd_pool_publish(struct kvd_pool *pool, struct kvd_slot *slot,
                     const struct kvd_slot_meta *meta);
void kvd_pool_cancel(struct kvd_pool *pool, struct kvd_slot *slot); /* FILLING -> FREE */

/* Finds addrs[0..n) in order and stops at the first that is absent; returns how many were found and
 * pins each. */
uint32_t kvd_pool_pin_chain(struct kvd_pool *pool, const struct kvd_addr *addrs, uint32_t n,
                            struct kvd_slot **ret);
/* One; NULL when absent. */
struct kvd_slot *kvd_pool_pin(struct kvd_pool *pool, const struct kvd_addr *addr);
bool kvd_pool_contains(struct kvd_pool *pool, const struct kvd_addr *addr);
void kvd_pool_pin_again(struct kvd_pool *pool,
                        struct kvd_slot *slot); /* caller holds a pin already */
void kvd_pool_unpin(struct kvd_pool *pool, struct kvd_slot *slot);

/* Of a pinned slot: */
void kvd_pool_meta(struct kvd_pool *pool, const struct kvd_slot *slot, struct kvd_slot_meta *ret);
/* What a look-up needs of many pinned slots, read under the lock once. */
struct kvd_slot_use {
    uint32_t last_use_day;
    uint32_t created_day;
    uint64_t put_id;
    uint16_t scenario;
};
void kvd_pool_uses(struct kvd_pool *pool, struct kvd_slot *const *slots, uint32_t n,
                   struct kvd_slot_use *ret_uses);
void kvd_pool_set_verified(struct kvd_pool *pool, struct kvd_slot *slot);
void kvd_pool_set_nvme_segment(struct kvd_pool *pool, struct kvd_slot *slot, uint64_t segment);
void kvd_pool_touch(struct kvd_pool *pool, struct kvd_slot *slot, uint16_t scenario, uint32_t day);

/* No longer findable, whoever pins it; freed with its last pin. `slot` is pinned by the caller, who
 * still unpins. False: somebody removed it before. */
bool kvd_pool_remove(struct kvd_pool *pool, struct kvd_slot *slot);

/* The next READY slot, pinned for the caller, or NULL at the end. *cursor is 0 at the beginning;
 * what comes and goes meanwhile may be met or not. For a walk that takes its time. */
struct kvd_slot *kvd_pool_next(struct kvd_pool *pool, uint64_t *cursor);

/* Calls fn for every READY slot (pinned while it runs, without the lock). For start-up, expiry and
 * verify. */
void kvd_pool_walk(struct kvd_pool *pool, void (*fn)(struct kvd_slot *slot, void *user),
                   void *user);

struct kvd_pool_stat {
    uint64_t cap_bytes;
    uint64_t used_bytes; /* extents of READY and FILLING slots */
    uint64_t page_bytes; /* allocated from the file system */
    uint64_t blocks;
    uint64_t pinned_bytes;
    uint64_t evicted_blocks; /* since start */
    uint64_t warm_blocks;    /* found again at start */
    uint64_t warm_put_id;    /* the largest of theirs */
};
void kvd_pool_stat(struct kvd_pool *pool, struct kvd_pool_stat *ret);

/* Bytes of READY slots by scenario id, added into per[0..n). */
void kvd_pool_scenario_bytes(struct kvd_pool *pool, uint64_t *per, uint32_t n);

#endif
