/*
 * Policies: what is kept, for how long, and what goes first. No I/O and no clock of their own: the
 * daemon and the simulator run the same objects and pass the time in. Not thread-safe: the caller's
 * lock covers a policy object.
 */
#ifndef POLICIES_POLICY_H
#define POLICIES_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "policies/scenario.h"
#include "proto/base/list.h"

enum { KVD_DAY_S = 86400 };

static inline uint32_t kvd_day_of(uint64_t utc_s)
{
    return (uint32_t)(utc_s / KVD_DAY_S);
}

/* ---- retention ---- */

/* UTC second from which on a block counts as expired: the end of (day of last use + retention), so
 * never early and at most a day late. created_day counts instead of last_use_day where the class is
 * fixed. */
uint64_t kvd_retention_expiry_s(const struct kvd_scenario *scenario, uint32_t last_use_day,
                                uint32_t created_day);

static inline bool kvd_retention_expired(const struct kvd_scenario *scenario, uint32_t last_use_day,
                                         uint32_t created_day, uint64_t now_s)
{
    return now_s >= kvd_retention_expiry_s(scenario, last_use_day, created_day);
}

/* Of two classes that used a block, the one that keeps it longer; a on a tie. */
const struct kvd_scenario *kvd_retention_longer(const struct kvd_scenario *a,
                                                const struct kvd_scenario *b);

/* ---- eviction ---- */

/* What an eviction policy knows of one object; embedded in the object. */
struct kvd_evict_node {
    struct kvd_list link; /* owner: the policy, between insert and remove */
    uint64_t bytes;
    uint32_t depth_blocks; /* index in its chain: deeper goes first among equals */
    uint16_t scenario;
    uint16_t policy_bits; /* owner: the policy */
    uint64_t policy_word; /* owner: the policy */
};

struct kvd_evict; /* one instance of a policy */

/* Whether the caller could give this object up now (it is not pinned, not being written). */
typedef bool kvd_evictable_fn(const struct kvd_evict_node *node, void *user);

struct kvd_evict_ops {
    const char *name;
    const char *text; /* one line for people */
    int (*create)(struct kvd_evict **ret);
    void (*destroy)(struct kvd_evict **e);
    void (*insert)(struct kvd_evict *e, struct kvd_evict_node *node);
    void (*touch)(struct kvd_evict *e, struct kvd_evict_node *node);
    void (*remove)(struct kvd_evict *e, struct kvd_evict_node *node);
    /* The node that should go next among those that may, or NULL. Does not remove it. */
    struct kvd_evict_node *(*victim)(struct kvd_evict *e, kvd_evictable_fn *may, void *user);
};

extern const struct kvd_evict_ops kvd_evict_lru;

/* All policies, ended by NULL. */
extern const struct kvd_evict_ops *const kvd_evict_all[];
const struct kvd_evict_ops *kvd_evict_by_name(const char *name);

#endif
