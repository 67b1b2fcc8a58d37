/*
 * Inside of counting, shared by counting*.c only: tallies, rows, tables. Everything is covered by
 * kvd_counting.mtx.
 */
#ifndef CACHESVC_CORE_COUNTING_PRIVATE_H
#define CACHESVC_CORE_COUNTING_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>

#include "cachesvc/core/counting.h"

enum {
    COUNTING_MAGIC = 0x434f554e,
    SCENARIOS_MAX = 32,
    SPACES_MAX = 256,
    TENANTS_MAX = 256,
    NAME_BYTES = KVD_TENANT_NAME_MAX + 16,
};
/* of all windows' rings; counting.c divides them */
enum { RING_SLOTS = 11 + 13 + 16 + 16 + 17 };

/* ---- tallies: a tally's amounts as one array ---- */

enum { AMOUNTS = 1 + KVD_TIER_COUNT + KVD_MISS_COUNT };

static inline struct kvd_amount *tally_amount(struct kvd_tally *t, unsigned i)
{
    return i == 0                ? &t->asked
           : i <= KVD_TIER_COUNT ? &t->hit[i - 1]
                                 : &t->missed[i - 1 - KVD_TIER_COUNT];
}

static inline const struct kvd_amount *tally_amount_const(const struct kvd_tally *t, unsigned i)
{
    return tally_amount((struct kvd_tally *)(uintptr_t)t, i);
}

static inline void amount_add(struct kvd_amount *to, const struct kvd_amount *a)
{
    to->tokens += a->tokens;
    to->blocks += a->blocks;
    to->bytes += a->bytes;
}

static inline void amount_subtract(struct kvd_amount *from, const struct kvd_amount *a)
{
    from->tokens -= a->tokens;
    from->blocks -= a->blocks;
    from->bytes -= a->bytes;
}

static inline bool amount_holds(const struct kvd_amount *have, const struct kvd_amount *a)
{
    return have->tokens >= a->tokens && have->blocks >= a->blocks && have->bytes >= a->bytes;
}

static inline bool amount_is_zero(const struct kvd_amount *a)
{
    return a->tokens == 0 && a->blocks == 0 && a->bytes == 0;
}

static inline void tally_add(struct kvd_tally *to, const struct kvd_tally *t)
{
    to->lookups += t->lookups;
    for (unsigned i = 0; i < AMOUNTS; i++) {
        amount_add(tally_amount(to, i), tally_amount_const(t, i));
    }
}

static inline bool amount_equal(const struct kvd_amount *a, const struct kvd_amount *b)
{
    return a->tokens == b->tokens && a->blocks == b->blocks && a->bytes == b->bytes;
}

static inline bool tally_equal(const struct kvd_tally *a, const struct kvd_tally *b)
{
    bool equal = a->lookups == b->lookups;
    for (unsigned i = 0; i < AMOUNTS; i++) {
        equal = equal && amount_equal(tally_amount_const(a, i), tally_amount_const(b, i));
    }
    return equal;
}

/* Tiers and reasons add up to what was asked, and none of them is more than that (which is what a
 * negative one, or a sum that overflowed, would be). */
static inline bool tally_adds_up(const struct kvd_tally *t)
{
    struct kvd_amount sum = {0};
    for (unsigned i = 1; i < AMOUNTS; i++) {
        const struct kvd_amount *a = tally_amount_const(t, i);
        amount_add(&sum, a);
        if (!amount_holds(&t->asked, a) || !amount_holds(&t->asked, &sum)) {
            return false;
        }
    }
    return amount_equal(&sum, &t->asked) && amount_is_zero(&t->hit[KVD_TIER_NONE]);
}

/* ---- rows ---- */

struct cell {
    uint64_t number; /* 1 + time / slot_s; 0: never used */
    struct kvd_tally tally;
};

struct row {
    char name[NAME_BYTES];
    uint64_t last_s;    /* of its latest look-up */
    uint64_t first_nth; /* the look-up that it was made for; 0: it was read back */
    struct kvd_tally ever;
    struct cell cells[RING_SLOTS];
};

/* Keys lie together, apart from the rows: they are what every look-up searches. */
struct table {
    uint32_t max;
    uint32_t n;
    struct kvd_digest *keys;
    struct row **rows;
    struct row *other;
};

struct kvd_counting {
    uint32_t magic;
    pthread_mutex_t mtx;
    uint64_t now_s;                         /* the latest time that a caller gave */
    uint64_t lookups;                       /* counted by this process */
    struct table tables[KVD_BY_TENANT + 1]; /* by enum kvd_count_by; that of "all" has only other */
};

void counting_lock(struct kvd_counting *c);
void counting_unlock(struct kvd_counting *c);

/* The row of a key, made when it is new; "(other)" when there is no place for it. */
struct row *counting_table_row(struct kvd_counting *c, enum kvd_count_by by,
                               const struct kvd_digest *key, const char *name, size_t name_bytes);

/* Asserts, for ever's sums, that each table's rows add up to "all". */
void counting_assert_ever_adds_up(const struct kvd_counting *c);

#endif
