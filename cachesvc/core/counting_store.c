/*
 * The counters' totals as bytes to persist, and back.
 *
 * Little-endian: magic, version, tiers, reasons, rows (u32 each); then each row: table, 1 for
 * "(other)" and 0 else (u32 each), key (32 bytes), length of the name (u32), name, look-ups (u64),
 * a mask (u64) of the amounts that are not zero (bit 0 asked, then hit by tier, then missed by
 * reason), and for each of its bits tokens, blocks, bytes (u64 each).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/core/counting_private.h"
#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/protect.h"

enum { ENCODED_MAGIC = 0x54434b4b, ENCODED_VERSION = 1, ENCODED_HEAD = 20 };
enum { ENCODED_ROW_MAX = 8 + KVD_DIGEST_BYTES + 4 + NAME_BYTES + 16 + AMOUNTS * 24 };

static uint8_t *put_u32(uint8_t *at, uint32_t v)
{
    kvd_put_le32(at, v);
    return at + 4;
}

static uint8_t *put_u64(uint8_t *at, uint64_t v)
{
    kvd_put_le64(at, v);
    return at + 8;
}

static uint8_t *encode_tally(uint8_t *at, const struct kvd_tally *t)
{
    uint64_t mask = 0;
    at = put_u64(at, t->lookups);
    uint8_t *mask_at = at;
    at += 8;
    for (unsigned i = 0; i < AMOUNTS; i++) {
        const struct kvd_amount *a = tally_amount_const(t, i);
        if (!amount_is_zero(a)) {
            mask |= UINT64_C(1) << i;
            at = put_u64(put_u64(put_u64(at, a->tokens), a->blocks), a->bytes);
        }
    }
    kvd_put_le64(mask_at, mask);
    return at;
}

static uint8_t *encode_row(uint8_t *at, uint32_t by, bool other, const struct kvd_digest *key,
                           const struct row *row)
{
    const size_t name_bytes = strlen(row->name);
    at = put_u32(put_u32(at, by), other);
    memcpy(at, key->b, KVD_DIGEST_BYTES);
    at = put_u32(at + KVD_DIGEST_BYTES, (uint32_t)name_bytes);
    memcpy(at, row->name, name_bytes);
    return encode_tally(at + name_bytes, &row->ever);
}

static uint32_t rows_count(const struct kvd_counting *c)
{
    uint32_t n = 0;
    for (int by = 0; by <= KVD_BY_TENANT; by++) {
        n += c->tables[by].n + 1;
    }
    return n;
}

int kvd_counting_encode(struct kvd_counting *c, void **ret_bytes, uint32_t *ret_n)
{
    static const struct kvd_digest no_key;
    counting_lock(c);
    counting_assert_ever_adds_up(c); /* what is written down is always right */
    const uint32_t n = rows_count(c);
    uint8_t *bytes = malloc(ENCODED_HEAD + (size_t)n * ENCODED_ROW_MAX);
    if (!bytes) {
        counting_unlock(c);
        return -ENOMEM;
    }
    uint8_t *at = put_u32(put_u32(bytes, ENCODED_MAGIC), ENCODED_VERSION);
    at = put_u32(put_u32(put_u32(at, KVD_TIER_COUNT), KVD_MISS_COUNT), n);
    for (uint32_t by = 0; by <= KVD_BY_TENANT; by++) {
        const struct table *t = &c->tables[by];
        for (uint32_t i = 0; i < t->n; i++) {
            at = encode_row(at, by, false, &t->keys[i], t->rows[i]);
        }
        at = encode_row(at, by, true, &no_key, t->other);
    }
    counting_unlock(c);
    *ret_bytes = bytes;
    *ret_n = (uint32_t)(at - bytes);
    return 0;
}

struct encoded_row {
    uint32_t by;
    uint32_t other;
    struct kvd_digest key;
    const char *name;
    uint32_t name_bytes;
    struct kvd_tally tally;
};

/* Which of our amounts is bit i of a version with that many tiers. */
static unsigned amount_of_bit(unsigned i, uint32_t tiers)
{
    return i <= tiers ? i : 1 + KVD_TIER_COUNT + (i - 1 - tiers);
}

static void decode_tally(struct kvd_cursor *cur, uint32_t tiers, uint32_t n_reasons,
                         struct kvd_tally *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->lookups = kvd_cursor_le64(cur);
    const uint64_t mask = kvd_cursor_le64(cur);
    cur->bad |= mask >> (1 + tiers + n_reasons) != 0;
    for (unsigned i = 0; i < 1 + tiers + n_reasons; i++) {
        if (mask >> i & 1) {
            struct kvd_amount *a = tally_amount(ret, amount_of_bit(i, tiers));
            a->tokens = kvd_cursor_le64(cur);
            a->blocks = kvd_cursor_le64(cur);
            a->bytes = kvd_cursor_le64(cur);
        }
    }
    cur->bad |= !tally_adds_up(ret);
}

static bool decode_row(struct kvd_cursor *cur, uint32_t tiers, uint32_t n_reasons,
                       struct encoded_row *ret)
{
    ret->by = kvd_cursor_le32(cur);
    ret->other = kvd_cursor_le32(cur);
    const uint8_t *key = kvd_cursor_take(cur, KVD_DIGEST_BYTES);
    ret->name_bytes = kvd_cursor_le32(cur);
    ret->name = (const char *)kvd_cursor_take(cur, ret->name_bytes);
    if (cur->bad || ret->by > KVD_BY_TENANT || ret->other > 1 || ret->name_bytes >= NAME_BYTES ||
        (ret->by == KVD_BY_ALL && !ret->other)) {
        return false;
    }
    memcpy(ret->key.b, key, KVD_DIGEST_BYTES);
    decode_tally(cur, tiers, n_reasons, &ret->tally);
    return !cur->bad;
}

static int decode_head(struct kvd_cursor *cur, struct kvd_diag *diag, uint32_t *ret_tiers,
                       uint32_t *ret_reasons, uint32_t *ret_rows)
{
    const uint32_t magic = kvd_cursor_le32(cur);
    const uint32_t version = kvd_cursor_le32(cur);
    *ret_tiers = kvd_cursor_le32(cur);
    *ret_reasons = kvd_cursor_le32(cur);
    *ret_rows = kvd_cursor_le32(cur);
    if (cur->bad || magic != ENCODED_MAGIC || version == 0) {
        return kvd_fail(diag, -KVD_E_FORMAT, "the stored counters are not counters");
    }
    if (version > ENCODED_VERSION || *ret_tiers > KVD_TIER_COUNT || *ret_reasons > KVD_MISS_COUNT) {
        return kvd_fail(diag, -KVD_E_NEWER,
                        "the stored counters are of a newer version: start that version, or lose "
                        "the totals");
    }
    return 0;
}

static void row_restore(struct kvd_counting *c, const struct encoded_row *e)
{
    struct table *t = &c->tables[e->by];
    struct row *row =
        e->other ? t->other
                 : counting_table_row(c, (enum kvd_count_by)e->by, &e->key, e->name, e->name_bytes);
    tally_add(&row->ever, &e->tally);
}

/* Adds a row to its table's sum; false where that is more than can be counted. */
static bool sum_add(struct kvd_tally sums[KVD_BY_TENANT + 1], const struct encoded_row *e)
{
    struct kvd_tally *sum = &sums[e->by];
    tally_add(sum, &e->tally);
    /* half of the numbers: two that fit never overflow together */
    return ((sum->lookups | sum->asked.tokens | sum->asked.blocks | sum->asked.bytes) >> 63) == 0;
}

/* Whether each table divides the same look-ups. */
static bool sums_equal(const struct kvd_tally sums[KVD_BY_TENANT + 1])
{
    bool equal = true;
    for (int by = KVD_BY_SCENARIO; by <= KVD_BY_TENANT; by++) {
        equal = equal && tally_equal(&sums[by], &sums[KVD_BY_ALL]);
    }
    return equal;
}

/* All rows, checked; with c, added to it too. */
static int decode_rows(struct kvd_cursor cur, struct kvd_diag *diag, struct kvd_counting *c)
{
    struct encoded_row e;
    struct kvd_tally sums[KVD_BY_TENANT + 1] = {{0}};
    uint32_t tiers;
    uint32_t n_reasons;
    uint32_t n;
    const int err = decode_head(&cur, diag, &tiers, &n_reasons, &n);
    if (err) {
        return err;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!decode_row(&cur, tiers, n_reasons, &e) || !sum_add(sums, &e)) {
            return kvd_fail(diag, -KVD_E_CORRUPT, "the stored counters are damaged (row %u)", i);
        }
        if (c) {
            row_restore(c, &e);
        }
    }
    if (KVD_PROTECT(STORED_COUNTERS_ADD_UP) && !sums_equal(sums)) {
        return kvd_fail(diag, -KVD_E_CORRUPT, "the stored counters do not add up");
    }
    return cur.left == 0 ? 0 : kvd_fail(diag, -KVD_E_CORRUPT, "the stored counters are too long");
}

int kvd_counting_decode(struct kvd_counting *c, const void *bytes, uint32_t n,
                        struct kvd_diag *diag)
{
    const struct kvd_cursor cur = {.at = bytes, .left = n};
    const int err = decode_rows(cur, diag, NULL); /* all or nothing */
    if (err) {
        return err;
    }
    counting_lock(c);
    KVD_ASSERT(c->lookups == 0);
    (void)decode_rows(cur, NULL, c);
    counting_assert_ever_adds_up(c);
    counting_unlock(c);
    return 0;
}
