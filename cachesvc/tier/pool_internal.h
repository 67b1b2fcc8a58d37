/*
 * Inside of the pool, shared by pool*.c only.
 *
 * The file: a header of one unit, then pages of equal size. A page in use:
 *
 *   page header | generations (u32 each, as many as the smallest class has slots) | slot headers |
 *   slots, each a multiple of the unit and aligned to it
 *
 * The generations have one place whatever the page's class: who holds the offset of a generation
 * may look there after the page changed its class, and finds it raised, never payload. Structs are
 * in the machine's own byte order: the file never leaves the machine (its header says which).
 *
 * Lock: pool.mtx covers everything here but the file system calls that make or find the file.
 */
#ifndef CACHESVC_TIER_POOL_INTERNAL_H
#define CACHESVC_TIER_POOL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "cachesvc/tier/pool.h"
#include "proto/base/assert.h"
#include "proto/base/list.h"

enum {
    POOL_UNIT_BYTES = 4096,
    POOL_PAGE_MAX_BYTES = 64 << 20,
    POOL_PAGES_MIN = 8,
    POOL_CLASSES_MAX = 96,
    POOL_FILE_VERSION = 2,
};
#define POOL_CAP_MIN_BYTES (UINT64_C(16) << 20)
#define POOL_SLOT_NONE UINT32_MAX

/* ---- pool_layout.c: sizes, from the cap alone ---- */

struct pool_shape {
    uint32_t slot_bytes;
    uint32_t slots;       /* in a page */
    uint32_t data_offset; /* of slot 0 in the page */
};

struct pool_layout {
    uint64_t file_bytes;
    uint32_t page_bytes;
    uint32_t pages;
    uint32_t max_slots; /* of any class: so many generations has every page */
    uint32_t id_shift;  /* slot id = page << id_shift | slot */
    uint32_t classes;
    struct pool_shape shape[POOL_CLASSES_MAX]; /* ascending */
};

void pool_layout_init(struct pool_layout *l, uint64_t cap_bytes);
/* The smallest class that holds extent_bytes, or -1. */
int pool_layout_class(const struct pool_layout *l, uint64_t extent_bytes);

static inline uint64_t pool_layout_page_offset(const struct pool_layout *l, uint32_t page)
{
    return POOL_UNIT_BYTES + (uint64_t)page * l->page_bytes;
}

/* ---- what lies in the file ---- */

struct pool_file_header {
    uint64_t magic;
    uint32_t version;
    uint32_t byte_order;
    uint64_t file_bytes;
    uint32_t page_bytes;
    uint32_t slot_header_bytes;
    struct kvd_store_id store;
    uint64_t sum; /* XXH3-64 of what is before it */
};
_Static_assert(sizeof(struct pool_file_header) == 56, "layout of the file");

enum pool_page_state { POOL_PAGE_FREE = 0, POOL_PAGE_USED = 1 };

struct pool_page_header {
    uint64_t magic;
    uint32_t version;
    uint32_t state; /* enum pool_page_state */
    uint32_t page;
    uint32_t slots;
    uint32_t slot_bytes;
    uint32_t reserved;
    uint64_t sum; /* XXH3-64 of what is before it */
};
_Static_assert(sizeof(struct pool_page_header) == 40, "layout of the file");
enum { POOL_GENERATIONS_OFFSET = 64 };

enum pool_slot_state {
    POOL_SLOT_FREE = 0,
    POOL_SLOT_FILLING = 1,
    POOL_SLOT_READY = 2,
    POOL_SLOT_REMOVED = 3, /* in memory only: not findable, waits for its last unpin */
};

struct pool_slot_header {
    uint32_t state; /* enum pool_slot_state; not in the sum */
    uint32_t index;
    struct kvd_key key;
    struct kvd_group_id group;
    uint16_t rank;
    uint16_t scenario;
    uint32_t last_use_day;
    uint32_t created_day;
    uint64_t put_id;
    uint32_t header_bytes;
    uint32_t payload_bytes;
    uint64_t used_tick; /* order of last use, so that a restart keeps the order of eviction */
    uint64_t nvme_segment;
    uint64_t sum; /* XXH3-64 of index to nvme_segment, seeded with the slot's offset in the file */
};
_Static_assert(sizeof(struct pool_slot_header) == 88, "layout of the file");

/* ---- in memory ---- */

struct pool_slot {
    struct kvd_slot pub; /* first: the user's view */
    struct kvd_evict_node node;
    uint64_t used_tick;
    uint32_t next; /* id: of the bucket's next while READY; in the page the next free while FREE */
    uint32_t pins : 30;
    uint32_t state : 2; /* enum pool_slot_state */
};

struct pool_page {
    struct kvd_list by_use;    /* in pool_class.pages, or in kvd_pool.fresh */
    struct kvd_list with_free; /* in pool_class.with_free, when a slot is free */
    struct kvd_list empty;     /* in kvd_pool.empty, when it has a class and no slot in use */
    struct pool_slot *slots;
    uint64_t used_tick;  /* latest of its slots, those that went since included */
    uint32_t first_free; /* index in the page, or POOL_SLOT_NONE */
    uint32_t used;       /* slots that are not FREE */
    uint32_t busy;       /* slots that are pinned or FILLING */
    int class;           /* or -1 */
    bool allocated;      /* the file system has given its room */
};

struct pool_class {
    struct kvd_evict *evict; /* its READY slots; NULL until the class is used */
    struct kvd_list pages;   /* coldest first */
    struct kvd_list with_free;
};

/* Residency: (key, rank) -> slot id; chained by pool_slot.next. */
struct pool_table {
    uint32_t *buckets;
    uint32_t mask;
    uint32_t count;
};

struct kvd_pool {
    uint32_t magic;
    pthread_mutex_t mtx;
    pthread_cond_t grown; /* growing became false */
    struct pool_layout layout;
    int fd;
    int fd_readonly;
    uint8_t *map;
    struct pool_page *pages;
    struct pool_class classes[POOL_CLASSES_MAX];
    struct kvd_list fresh; /* pages without a class, the allocated first */
    struct kvd_list empty;
    struct pool_table table;
    bool growing;           /* a thread is in fallocate, without the lock */
    bool growth_refused;    /* the file system had no room: said in the log once */
    uint64_t grow_again_ns; /* not before this time */
    uint64_t tick;
    struct kvd_pool_stat stat;
    uint64_t *by_scenario; /* bytes of READY slots, for each possible id */
    const struct kvd_evict_ops *eviction;
    kvd_pool_evicted_fn *evicted;
    void *evicted_user;
    struct kvd_log *log;
};

static inline struct pool_slot *pool_slot_of_id(const struct kvd_pool *pool, uint32_t id)
{
    const uint32_t shift = pool->layout.id_shift;
    return &pool->pages[id >> shift].slots[id & ((1u << shift) - 1)];
}

static inline uint32_t pool_slot_index(const struct kvd_pool *pool, const struct pool_slot *slot)
{
    return (uint32_t)(slot - pool->pages[slot->pub.page].slots);
}

static inline uint32_t pool_slot_id(const struct kvd_pool *pool, const struct pool_slot *slot)
{
    return (uint32_t)slot->pub.page << pool->layout.id_shift | pool_slot_index(pool, slot);
}

/* ---- pool_file.c: the file, and headers in it ---- */

/* Opens or makes the file, sets pool->fd, fd_readonly and map. *ret_fresh: nothing to read back. */
int pool_file_open(struct kvd_pool *pool, const struct kvd_pool_options *options,
                   struct kvd_diag *diag, bool *ret_fresh);
void pool_file_close(struct kvd_pool *pool);
int pool_file_allocate_page(const struct kvd_pool *pool, uint32_t page);

_Atomic uint32_t *pool_file_generation(const struct kvd_pool *pool, uint32_t page, uint32_t slot);
/* Reads a page's header without touching a hole. Its class, -KVD_E_NOT_FOUND (no page there) or
 * -KVD_E_CORRUPT. */
int pool_file_page_class(const struct kvd_pool *pool, uint32_t page);
/* Makes the page one of `class` with free slots only. All its generations are raised first. */
void pool_file_page_format(const struct kvd_pool *pool, uint32_t page, int class);
/* Raises the generation before a byte of the slot may change. Returns the new one. */
uint32_t pool_file_slot_begin(const struct kvd_pool *pool, const struct pool_slot *slot);
void pool_file_slot_state(const struct kvd_pool *pool, const struct pool_slot *slot,
                          enum pool_slot_state state);
void pool_file_slot_meta(const struct kvd_pool *pool, const struct pool_slot *slot);
/* Takes over a READY slot's header into slot, if it is whole and sensible. */
bool pool_file_slot_read(const struct kvd_pool *pool, struct pool_slot *slot);

/* ---- pool_table.c ---- */

int pool_table_init(struct pool_table *t);
void pool_table_fini(struct pool_table *t);
/* Of an empty table: room for so many at once, if there is memory. */
void pool_table_reserve(struct pool_table *t, size_t entries);
struct pool_slot *pool_table_find(const struct kvd_pool *pool, const struct kvd_addr *addr);
void pool_table_insert(struct kvd_pool *pool, struct pool_slot *slot);
void pool_table_remove(struct kvd_pool *pool, struct pool_slot *slot);

/* ---- pool_slots.c: pages and slots changing hands ---- */

/* Gives a page that has no class to `class`; without format: as it lies in the file. 0, -ENOMEM. */
int pool_page_carve(struct kvd_pool *pool, struct pool_page *page, int class, bool format);
void pool_page_add_fresh(struct kvd_pool *pool, struct pool_page *page);
/* A slot of `class` out of its page's free list, its generation raised, FILLING; or NULL. */
struct pool_slot *pool_slot_take_free(struct kvd_pool *pool, int class);
/* Any other state -> FREE, its bytes no longer counted; no policy and no table know it any more. */
void pool_slot_free(struct kvd_pool *pool, struct pool_slot *slot);
/* FILLING (or read back) -> READY and findable. */
void pool_slot_ready(struct kvd_pool *pool, struct pool_slot *slot);
/* READY -> neither findable nor evictable; the file says FREE. */
void pool_slot_forget(struct kvd_pool *pool, struct pool_slot *slot);
/* A use: the slot and its page are the youngest. */
void pool_slot_used(struct kvd_pool *pool, struct pool_slot *slot, uint64_t tick);
/* Makes room for one slot of `class`. 0 (look again), -KVD_E_FULL, -ENOMEM. May release the lock
 * for a while. */
int pool_make_room_locked(struct kvd_pool *pool, int class);

/* ---- pool_warm.c ---- */

/* Reads back what an earlier run left. 0, -ENOMEM. */
int pool_warm_start(struct kvd_pool *pool);

#endif
