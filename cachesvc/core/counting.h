/*
 * Counting: at look-up, in tokens, blocks and bytes: asked; hit by tier; missed by reason. Tiers
 * and reasons add up to asked, always: whoever takes a snapshot at any moment sees whole look-ups
 * only. A failed load moves its tokens from hit to failed in its look-up's window. By scenario,
 * space, tenant (bounded to 32, 256, 256 names; the rest as "(other)"), and overall. Windows: 10 s,
 * 1 m, 5 m, 1 h, 24 h, ever. `ever` survives restarts: see encode/decode.
 *
 * Windows are made of time slots of 1 s, 5 s, 20 s, 4 m, 90 m. A window shows all that came in its
 * length before the report, and up to one slot's length more. A name that had no look-up for 25.5
 * hours may be folded into "(other)", with its totals, when a new one needs its place.
 *
 * Asserted at every look-up, failure and report, and each time the totals are written down or
 * read back: every row adds up; nothing is negative; the rows of each table add up to "all".
 *
 * Threads: any; one lock inside. Takes the time (monotonic seconds) as a parameter; a caller whose
 * time lies behind another's counts at that other's.
 */
#ifndef CACHESVC_CORE_COUNTING_H
#define CACHESVC_CORE_COUNTING_H

#include <stdint.h>

#include "proto/base/error.h"
#include "proto/keys/keys.h"
#include "proto/wire/wire.h"

/* Reasons of a miss: name, text. Order is persisted: add at the end only. */
#define KVD_MISS_REASONS(X)                                                                        \
    X(NEVER_SEEN, "never_seen", "never stored")                                                    \
    X(EXPIRED, "expired", "its retention had ended")                                               \
    X(EVICTED, "evicted", "thrown away for room")                                                  \
    X(OTHER_OWNER, "other_owner", "stored, but for another tenant or space")                       \
    X(DIVERGED, "diverged", "the stored chain goes on with other tokens")                          \
    X(PENDING, "pending", "being put at that moment")                                              \
    X(FAILED, "failed", "found, but could not be read or verified")                                \
    X(SHORT, "short", "shorter than a block, or the last token")                                   \
    X(PURGED, "purged", "thrown away because somebody asked for it")

enum kvd_miss_reason {
#define X(name, key, text) KVD_MISS_##name,
    KVD_MISS_REASONS(X)
#undef X
        KVD_MISS_COUNT
};

const char *kvd_miss_reason_key(enum kvd_miss_reason reason);
const char *kvd_miss_reason_text(enum kvd_miss_reason reason);

enum kvd_window {
    KVD_WINDOW_10S,
    KVD_WINDOW_1M,
    KVD_WINDOW_5M,
    KVD_WINDOW_1H,
    KVD_WINDOW_24H,
    KVD_WINDOW_EVER,
    KVD_WINDOW_COUNT
};
const char *kvd_window_name(enum kvd_window w); /* "10s", … "ever" */
int kvd_window_parse(const char *name);         /* or -KVD_E_BAD_REQUEST */
uint64_t kvd_window_s(enum kvd_window w);       /* its length; 0: ever */

struct kvd_amount {
    uint64_t tokens;
    uint64_t blocks;
    uint64_t bytes;
};

/* One look-up, or the sum of many. */
struct kvd_tally {
    uint64_t lookups;
    struct kvd_amount asked;
    struct kvd_amount hit[KVD_TIER_COUNT]; /* [KVD_TIER_NONE] stays zero */
    struct kvd_amount missed[KVD_MISS_COUNT];
};

enum kvd_count_by { KVD_BY_ALL, KVD_BY_SCENARIO, KVD_BY_SPACE, KVD_BY_TENANT };

/* Whose look-up. Names are copied when first seen. */
struct kvd_count_who {
    const char *scenario;
    struct kvd_digest space;
    const char *space_name; /* model's name; shown as name@first 8 hex digits of the digest */
    struct kvd_digest tenant;
    const char *tenant_name; /* "" for the default tenant, shown as "(default)" */
};

/* Which look-up it was: for a later failure. */
struct kvd_count_slot {
    uint64_t at_s; /* in which window */
    uint64_t nth;  /* of this process's look-ups, from 1: whose row it was then */
};

struct kvd_counting;
int kvd_counting_create(uint64_t now_s, struct kvd_counting **ret);
void kvd_counting_destroy(struct kvd_counting **counting);

/* Counts one look-up; asserts that tiers and reasons add up to asked. */
void kvd_counting_lookup(struct kvd_counting *c, uint64_t now_s, const struct kvd_count_who *who,
                         const struct kvd_tally *tally, struct kvd_count_slot *ret_slot);

/* Moves amounts from hit in `tier` to FAILED, in the window of the look-up that `slot` names (and
 * in ever). Never more than that look-up hit there: that is the caller's promise. */
void kvd_counting_failed(struct kvd_counting *c, const struct kvd_count_slot *slot,
                         const struct kvd_count_who *who, enum kvd_tier_id tier,
                         const struct kvd_amount *amount);

/* One row per scenario, space or tenant with look-ups in the window; for KVD_BY_ALL always one,
 * named "all". Names are UTF-8 without control characters. All rows are of one moment; fn runs
 * without the lock. 0, or -ENOMEM (fn wasn't called). */
int kvd_counting_report(struct kvd_counting *c, uint64_t now_s, enum kvd_count_by by,
                        enum kvd_window window,
                        void (*fn)(const char *name, const struct kvd_tally *tally, void *user),
                        void *user);

/* Spaces that look-ups were counted for. fn runs under the lock. */
void kvd_counting_spaces(struct kvd_counting *c,
                         void (*fn)(const struct kvd_digest *space, void *user), void *user);

/* Totals as bytes to persist (caller frees), and back, before anything was counted: all or nothing.
 * Reasons or tiers of a later version: -KVD_E_NEWER; -KVD_E_FORMAT, -KVD_E_CORRUPT (damaged, or not
 * adding up). */
int kvd_counting_encode(struct kvd_counting *c, void **ret_bytes, uint32_t *ret_n);
int kvd_counting_decode(struct kvd_counting *c, const void *bytes, uint32_t n,
                        struct kvd_diag *diag);

#endif
