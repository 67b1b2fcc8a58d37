/*
 * The service's inside, shared by the files of core/ only.
 *
 * Locks, in order: service.mtx -> the pool's, the index's, the tier's, counting's own (each a leaf
 * of its own room). No lock is held while a device or a callback is waited for.
 */
#ifndef CACHESVC_CORE_SERVICE_PRIVATE_H
#define CACHESVC_CORE_SERVICE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "cachesvc/config/config.h"
#include "cachesvc/core/counting.h"
#include "cachesvc/core/identity.h"
#include "cachesvc/core/owners.h"
#include "cachesvc/core/pins.h"
#include "cachesvc/core/purges.h"
#include "cachesvc/core/quarantine.h"
#include "cachesvc/core/service.h"
#include "cachesvc/core/wall.h"
#include "cachesvc/core/watch.h"
#include "cachesvc/core/workers.h"
#include "cachesvc/index/index.h"
#include "cachesvc/tier/pool.h"
#include "cachesvc/tier/tier.h"
#include "policies/policy.h"
#include "proto/base/list.h"

enum {
    SERVICE_MAGIC = 0x4b565331,
    SESSION_MAGIC = 0x4b565332,
    SPACES_MAX = 256, /* a daemon */
    SESSION_SPACES_MAX = 16,
    SESSION_LEASES_MAX = 1024,
    SESSION_PUTS_MAX = 64,
    SESSION_NAME_MAX = 96,
    WORKER_THREADS = 2,
    POOL_PAGES_MAX = 1 << 16,
    PAGE_UNREGISTERED = -1, /* the I/O engine didn't take it */
    PAGE_UNSEEN = -2,
    ALL_PIN_PERCENT = 80, /* of the pool, by leases of all clients */
    STAGING_SHARE = 8,    /* staging gets at most one part in so many of dram.cap */
    GHOST_S = 14 * KVD_DAY_S,
    PUT_ID_BOOT_SHIFT = 40, /* a put id is the boot number, and a counter below it */
    RECORD_TOKENS_MAX = KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX,
    SKEW_FREEZE_S = 600, /* the clocks disagree by more: nothing expires until they agree */
};

/* A space that some client registered; lives as long as the service. */
struct service_space {
    struct kvd_digest digest;
    struct kvd_space_desc desc; /* its names point below */
    char model[KVD_MODEL_NAME_MAX + 1];
    char numerics[KVD_MODEL_NAME_MAX + 1];
    uint32_t header_bytes; /* of a record with one block */
    uint64_t extent_bytes;
};

struct session_space {
    struct service_space *space;
    int staging_fd;
    uint8_t *staging; /* mapped */
    uint64_t staging_bytes;
    uint32_t slots;
    uint64_t slot_bytes;
    uint32_t used; /* lock: service.mtx. A bit a slot */
};

struct service_counts {
    atomic_uint_fast64_t committed_blocks;
    atomic_uint_fast64_t refused_blocks;
    atomic_uint_fast64_t not_written_down;
    atomic_uint_fast64_t not_written_ns; /* the last time */
    atomic_uint_fast64_t write_failures;
    atomic_uint_fast64_t corrupt;
    atomic_uint_fast64_t unreadable;
    atomic_uint_fast64_t newer_records; /* asked for, and left alone */
    atomic_uint_fast64_t newer_rows;    /* of segments; met at start */
};

struct scrub;

struct kvd_service {
    uint32_t magic;
    const struct kvd_config *config; /* borrowed */
    struct kvd_log *log;             /* borrowed */
    struct kvd_identity identity;
    int lock_fd;
    int nvme_lock_fd;
    struct kvd_wall wall;
    uint64_t started_mono_ns;
    struct kvd_io *io;
    struct kvd_index *index;
    struct kvd_pool *pool;
    struct kvd_tier *nvme; /* NULL: not configured */
    struct kvd_counting *counting;
    uint64_t counted_since_s;     /* UTC; of "ever". 0: nobody knows */
    const char *counters_damaged; /* why counting began anew, or NULL */
    struct kvd_owners *owners;
    struct kvd_purges *purges;
    struct kvd_workers *workers;
    struct kvd_watch *watch;
    struct quarantine *quarantine;
    struct scrub *scrub; /* see scrub.h */
    struct service_counts counts;
    atomic_uint_fast64_t next_id; /* of leases and puts */
    uint64_t newest_boot;         /* that anything stored speaks of; owner: the start */
    uint64_t put_id_base;         /* boot number in the high bits: never two puts with one id */

    pthread_mutex_t mtx;
    pthread_cond_t idle;                      /* a session lost its last reference */
    struct service_space *spaces[SPACES_MAX]; /* lock: mtx; only appended to */
    uint32_t n_spaces;                        /* lock: mtx */
    struct kvd_list sessions;                 /* lock: mtx */
    uint32_t n_clients;                       /* lock: mtx. Sessions that have not ended */
    uint32_t n_sessions;    /* lock: mtx. Sessions that were opened and not freed: work of theirs
                               may be under way after their end */
    uint64_t staging_bytes; /* lock: mtx */
    uint64_t staging_cap;
    uint64_t pinned_bytes; /* lock: mtx. By leases, each slot once; and what loads will pin */
    uint64_t pin_cap;      /* of all clients */
    uint64_t pin_cap_client;
    uint32_t n_leases; /* lock: mtx */
    uint32_t n_puts;   /* lock: mtx. Begun and not ended */

    pthread_t closer; /* runs what closing waits for */
    bool closing;     /* owner: who closes */
    bool closed;      /* lock: mtx */
    pthread_cond_t closed_cond;

    pthread_t keeper; /* housekeeping, see keeper.c */
    bool keeper_runs;
    pthread_cond_t keeper_wake;
    bool stopping;                          /* lock: mtx */
    atomic_uint_fast64_t keeper_beat_ns;    /* when it last began a turn */
    atomic_int page_buffer[POOL_PAGES_MAX]; /* registered buffer of a pool page, or PAGE_… */
};

struct kvd_session {
    uint32_t magic;
    struct kvd_service *service;
    char name[SESSION_NAME_MAX]; /* lock: service.mtx. For people */
    struct kvd_list link;        /* in service.sessions */
    uint32_t refs;               /* lock: service.mtx. One of the door, one a job */
    struct session_space
        spaces[SESSION_SPACES_MAX]; /* owner: the door; rows are constant once made */
    uint32_t n_spaces;
    struct kvd_list leases; /* lock: service.mtx */
    struct kvd_list puts;   /* lock: service.mtx */
    uint32_t n_leases;      /* lock: service.mtx */
    uint32_t n_puts;        /* lock: service.mtx */
    struct pin_table pins;  /* lock: service.mtx. By its leases */
    uint64_t pinned_bytes;  /* lock: service.mtx. Of these slots, and what its loads will pin */
};

/* Last use and class of a block, as last seen. */
struct use_seen {
    uint32_t last_use_day;
    uint16_t scenario;
};

/* Where one block of a lease is. */
struct lease_block {
    struct kvd_slot *slot;  /* pinned by the lease, or NULL */
    struct kvd_place place; /* of the copy below, when it was looked up; segment 0 otherwise */
    struct use_seen seen;
    uint8_t tier; /* enum kvd_tier_id it was counted in */
    bool placed;  /* the client uses it where it lies: its pin has no deadline */
};

/* A prompt as the service keeps it while a lease or a put lives. */
struct kept_prompt {
    struct service_space *space;
    const struct kvd_scenario *scenario;
    struct kvd_digest tenant;
    char tenant_name[KVD_TENANT_NAME_MAX + 1];
    struct kvd_key root;
    uint16_t rank;
    uint32_t n_blocks;
    struct kvd_purge_view purged; /* as of when the request came */
    struct kvd_key *keys;         /* n_blocks; keys[0] is the chain's first block */
    uint32_t *tokens;             /* n_blocks * block_tokens */
};

struct lease {
    struct kvd_list link; /* in session.leases */
    uint64_t id;
    struct kvd_session *session;
    struct kept_prompt prompt;
    struct lease_block *blocks; /* owner: the load under way, else service.mtx */
    uint32_t counted_blocks;    /* hits that still stand in the counters: a failure lowers it */
    struct kvd_count_slot count_slot;
    uint64_t deadline_ns; /* lock: service.mtx */
    bool busy;            /* lock: service.mtx. Claimed: by a load, or to take its pins away */
    bool released;        /* lock: service.mtx. Free it when it is no longer claimed */
    bool expired;         /* owner: the claim. Its pins are gone; a load says stale */
    bool swept;           /* lock: service.mtx. Its deadline has been seen to since the last load */
    uint64_t placed_ns;   /* lock: service.mtx. When the first block was placed; 0: none is */
    bool alarmed;         /* owner: the claim. The log says that it is held too long */
    uint32_t stale_from;  /* lock: service.mtx. Said with the release; UINT32_MAX: nothing */
    struct kvd_list overdue; /* owner: the claim */
};

/* ---- spaces and sessions (session.c) ---- */

/* lock: none. NULL for a handle that isn't there. */
struct session_space *session_space_of(struct kvd_session *session, uint32_t handle);
void session_ref_locked(struct kvd_session *session);
void session_unref(struct kvd_session *session);

/* ---- prompts (prompt.c) ---- */

/* Checks a prompt and derives its keys for n_blocks blocks. */
int prompt_keep(struct kvd_session *session, const struct kvd_prompt_ref *ref, uint32_t n_blocks,
                struct kvd_diag *diag, struct kept_prompt *ret);
void prompt_fini(struct kept_prompt *prompt);
struct kvd_addr prompt_addr(const struct kept_prompt *prompt, uint32_t index);
void prompt_index_id(const struct kept_prompt *prompt, uint32_t index, struct kvd_index_id *ret);
void prompt_who(const struct kept_prompt *prompt, struct kvd_count_who *ret);
struct kvd_record_expect prompt_expect(const struct kept_prompt *prompt, uint32_t index);

/* ---- whether a stored block still counts (lookup.c) ---- */

/* The time that expiry goes by, read once for a whole chain. frozen: one of the clocks is wrong. */
struct expiry_clock {
    uint64_t now_s;
    bool frozen;
};
struct expiry_clock expiry_clock(struct kvd_service *service);

/* Entry of the index for block `index` of a prompt: usable now? If not, ret_reason says why. */
bool entry_usable(struct kvd_service *service, struct expiry_clock clock,
                  const struct kept_prompt *prompt, uint32_t index,
                  const struct kvd_index_entry *entry, enum kvd_miss_reason *ret_reason);
bool class_expired(struct kvd_service *service, struct expiry_clock clock, uint16_t scenario,
                   uint32_t last_use_day, uint32_t created_day);
/* The longer of what a block has and what now uses it. */
uint16_t class_longer(struct kvd_service *service, uint16_t had, const struct kvd_scenario *user);

/* ---- what was purged (purge.c) ---- */

/* Brings a prompt's view up to date. */
void purge_look(struct kvd_service *service, struct kept_prompt *prompt);
/* Whether a stored block of a prompt is purged, as of the prompt's view. */
bool purge_hides(struct kvd_service *service, const struct kept_prompt *prompt, uint32_t index,
                 uint64_t put_id);
/* Whether a resident block is, whosever it is: reads its record's header where that must be known.
 */
bool purge_hides_slot(struct kvd_service *service, const struct kvd_slot *slot);
/* A block that was just published for a prompt: removes it again where it was purged since its put
 * id was drawn. Either this sees the purge's row, or the purge's walk over the pool sees the slot.
 */
bool purge_took(struct kvd_service *service, const struct kept_prompt *prompt, uint32_t index,
                struct kvd_slot *slot);
/* A pinned slot that is purged: no longer findable, and its next miss explained. */
void purge_slot(struct kvd_service *service, struct kvd_slot *slot);
/* Drops the rows that nothing stored needs any more; after a walk over the pool that removed what
 * is purged. oldest_epoch: of the segments that are live. */
void purge_forget(struct kvd_service *service, uint64_t oldest_epoch);

/* ---- leases (lease.c) ---- */

/* The limits count distinct slots: for a client what its leases pin, for all what anybody's pin. */

/* Takes slots that the caller has pinned for blocks first, first + 1, … of a lease, in order, as
 * far as the limits allow. Returns how many; the pins of the others stay the caller's. */
uint32_t lease_take_slots(struct lease *lease, uint32_t first, struct kvd_slot *const *slots,
                          uint32_t n);
/* Room within the limits for a block that is about to be read, or false. */
bool lease_reserve(struct lease *lease);
void lease_unreserve(struct lease *lease);
/* The slot of such a block, pinned: takes the place of the reservation. false: no memory; the pin
 * stays the caller's. */
bool lease_take_reserved(struct lease *lease, uint32_t index, struct kvd_slot *slot);
void lease_drop_slot(struct lease *lease, uint32_t index);
/* Of all blocks before `end`, but for those that are placed. */
void lease_drop_slots(struct lease *lease, uint32_t end);
/* A load has ended: blocks [first, first + n) are in use where they lie. */
void lease_place(struct lease *lease, uint32_t first, uint32_t n);
struct lease *lease_create(struct kvd_session *session, struct kept_prompt *prompt_taken,
                           uint32_t n_blocks);
void lease_publish(struct lease *lease); /* findable by id */
struct lease *lease_find_locked(struct kvd_session *session, uint64_t id);
void lease_destroy(struct lease *lease); /* unlinked already; not busy */
/* Hits from block `from` on become failures in the counters; each is moved once. */
void lease_count_failed(struct lease *lease, uint32_t from);
void lease_unclaim(
    struct lease *lease);       /* the end of a claim; frees it where it was released meanwhile */
void lease_tick(void *service); /* ends what is overdue; for the watch */
/* Leases with placed blocks, for reports. */
struct lease_places {
    uint32_t leases;
    uint32_t overdue;   /* held for longer than client.copy-lease */
    uint64_t oldest_ns; /* how long the oldest is held */
};
void lease_places(struct kvd_service *service, uint64_t now_ns, struct lease_places *ret);
void lease_end_session(struct kvd_session *session);

/* ---- puts (store.c, writedown.c) ---- */
bool put_pending_locked(struct kvd_service *service, const struct kvd_addr *addr, uint64_t now_ns);
void put_end_session(struct kvd_session *session);
/* Queues a resident block to be written below dram, and takes a pin of its own for that. false: it
 * was not queued. */
bool writedown_submit(struct kvd_service *service, struct kvd_slot *slot);
/* The same for a block that was used again, where its class wants a copy below and there is none.
 */
void writedown_if_missing(struct kvd_service *service, struct kvd_slot *slot);

/* ---- last use (touch.c) ---- */

/* A block was used today under the prompt's scenario. seen is brought up to date.
 * slot: pinned, or NULL where it isn't resident. */
void touch_block(struct kvd_service *service, const struct kept_prompt *prompt, uint32_t index,
                 struct use_seen *seen, struct kvd_slot *slot);

/* ---- checking records (verify.c) ---- */

/* Decodes the record at base and compares identity (expect may be NULL); checks the payload's sum
 * too where sums is set. -KVD_E_CORRUPT; -KVD_E_NEWER. token_buf: RECORD_TOKENS_MAX. */
int record_verify(const uint8_t *base, uint64_t extent_bytes,
                  const struct kvd_record_expect *expect, bool sums, uint32_t *token_buf,
                  struct kvd_record *ret_rec, uint32_t *ret_header_bytes, struct kvd_diag *diag);
/* A resident record by itself: header, sum, and that it is the block that its slot names. The slot
 * is pinned. diag may be NULL. */
int slot_verify(const struct kvd_slot *slot, uint32_t *token_buf, struct kvd_diag *diag);

struct bad_record {
    struct kvd_slot *slot;  /* in dram: pinned by the caller. NULL: below */
    struct kvd_place place; /* below; offset 0 stands for the segment's own header or footer */
    struct kvd_index_id id; /* whose it should be */
    uint64_t put_id;        /* 0: not known */
    uint8_t gone;           /* KVD_GONE_CORRUPT, or KVD_GONE_LOST: it can't be read */
};
/* What becomes of a bad record, whoever found it. In dram it is removed. Below, its entry becomes a
 * ghost, its place is quarantined, and a good copy in dram is written down anew. Counted and
 * alarmed once a record. Waits for the index; not from its callbacks. */
void record_bad(struct kvd_service *service, const struct bad_record *bad, const char *text);
/* A record of a later version, where a look-up led: a miss from there on, or its load would fail
 * for ever; the record stays as it is. */
void record_newer(struct kvd_service *service, const struct bad_record *newer);

/* Buffer index of a pool page for the I/O engine, or -1. */
int page_buffer(struct kvd_service *service, const struct kvd_slot *slot);

/* ---- start-up (recover.c) ---- */
int recover_open_tiers(struct kvd_service *service, struct kvd_diag *diag);
/* Put ids must only grow, or a purge would pass over what an earlier start put, and hide what a
 * later one does. An IDENTITY that was restored from an older copy, or from another folder, counts
 * too few starts: raised above all that is stored. After the pool and the purges; and once more
 * after the tiers, which may have found records that no row told of. */
int recover_boot(struct kvd_service *service, struct kvd_diag *diag);

/* ---- ghosts (service.c): a block that had no copy below is gone from dram; its entry explains the
 * next miss ---- */
void ghost_submit(struct kvd_service *service, const struct kvd_slot_meta *meta, uint8_t gone);

#endif
