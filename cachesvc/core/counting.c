/*
 * Counting. A row holds what was counted for everything, one scenario, one space or one tenant:
 * `ever`, and for each window a ring of time slots. A look-up is added to one slot of each ring, so
 * every slot, and every sum of slots, is a sum of whole look-ups.
 *
 * A table of rows is bounded. When it is full, a row that no window shows any more is folded into
 * the row "(other)", and a new one takes its place; without such a row, the new one counts in
 * "(other)" itself. Nothing is ever lost from the sums: every look-up is in one row of each table,
 * a failure is moved in the rows that its look-up was counted in, and each report asserts it.
 */
#include "cachesvc/core/counting.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/core/counting_private.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

static const char name_other[] = "(other)";
static const char name_default_tenant[] = "(default)";

/* ---- reasons and windows ---- */

static const struct {
    const char *key;
    const char *text;
} reasons[] = {
#define X(name, key, text) {(key), (text)},
    KVD_MISS_REASONS(X)
#undef X
};

const char *kvd_miss_reason_key(enum kvd_miss_reason reason)
{
    KVD_ASSERT((unsigned)reason < KVD_MISS_COUNT);
    return reasons[reason].key;
}

const char *kvd_miss_reason_text(enum kvd_miss_reason reason)
{
    KVD_ASSERT((unsigned)reason < KVD_MISS_COUNT);
    return reasons[reason].text;
}

/* Each ring has at least one slot more than its window: the current one is partial. So a window
 * shows what came in its length, and at most one slot's length before that. */
static const struct {
    const char *name;
    uint32_t length_s;
    uint32_t slot_s;
    uint32_t slots;
    uint32_t first; /* in row.cells */
} windows[KVD_WINDOW_COUNT] = {
    [KVD_WINDOW_10S] = {"10s", 10, 1, 11, 0},
    [KVD_WINDOW_1M] = {"1m", 60, 5, 13, 11},
    [KVD_WINDOW_5M] = {"5m", 300, 20, 16, 11 + 13},
    [KVD_WINDOW_1H] = {"1h", 3600, 240, 16, 11 + 13 + 16},
    [KVD_WINDOW_24H] = {"24h", 86400, 5400, 17, 11 + 13 + 16 + 16},
    [KVD_WINDOW_EVER] = {"ever", 0, 0, 0, RING_SLOTS},
};
enum { FORGOTTEN_S = 5400 * 17 }; /* no window shows what is older */

const char *kvd_window_name(enum kvd_window w)
{
    KVD_ASSERT((unsigned)w < KVD_WINDOW_COUNT);
    return windows[w].name;
}

int kvd_window_parse(const char *name)
{
    for (int w = 0; w < KVD_WINDOW_COUNT; w++) {
        if (strcmp(windows[w].name, name) == 0) {
            return w;
        }
    }
    return -KVD_E_BAD_REQUEST;
}

uint64_t kvd_window_s(enum kvd_window w)
{
    KVD_ASSERT((unsigned)w < KVD_WINDOW_COUNT);
    return windows[w].length_s;
}

static struct cell *row_cell(struct row *row, unsigned w, uint64_t number)
{
    return &row->cells[windows[w].first + number % windows[w].slots];
}

static void row_add(struct row *row, uint64_t now_s, const struct kvd_tally *tally)
{
    tally_add(&row->ever, tally);
    row->last_s = now_s;
    for (unsigned w = 0; w < KVD_WINDOW_EVER; w++) {
        const uint64_t number = 1 + now_s / windows[w].slot_s;
        struct cell *cell = row_cell(row, w, number);
        if (cell->number != number) {
            memset(&cell->tally, 0, sizeof(cell->tally));
            cell->number = number;
        }
        tally_add(&cell->tally, tally);
    }
}

static void tally_move(struct kvd_tally *t, enum kvd_tier_id tier, const struct kvd_amount *amount)
{
    KVD_ASSERT(!KVD_PROTECT(COUNT_NEVER_NEGATIVE) || amount_holds(&t->hit[tier], amount));
    amount_subtract(&t->hit[tier], amount);
    amount_add(&t->missed[KVD_MISS_FAILED], amount);
}

/* A slot of time that has left its ring, or that went with the row it was in, is shown by no window
 * any more. One that nobody has overwritten since may be another row's: it is left alone too. */
static void row_move(struct row *row, uint64_t now_s, uint64_t at_s, enum kvd_tier_id tier,
                     const struct kvd_amount *amount)
{
    tally_move(&row->ever, tier, amount);
    for (unsigned w = 0; w < KVD_WINDOW_EVER; w++) {
        const uint64_t number = 1 + at_s / windows[w].slot_s;
        const uint64_t newest = 1 + now_s / windows[w].slot_s;
        struct cell *cell = row_cell(row, w, number);
        if (cell->number == number && number + windows[w].slots > newest) {
            tally_move(&cell->tally, tier, amount);
        }
    }
}

static void row_sum(const struct row *row, uint64_t now_s, unsigned w, struct kvd_tally *ret)
{
    if (w == KVD_WINDOW_EVER) {
        *ret = row->ever;
        return;
    }
    const uint64_t newest = 1 + now_s / windows[w].slot_s;
    memset(ret, 0, sizeof(*ret));
    for (uint32_t i = 0; i < windows[w].slots; i++) {
        const struct cell *cell = &row->cells[windows[w].first + i];
        if (cell->number > 0 &&
            (cell->number + windows[w].slots > newest || !KVD_PROTECT(COUNT_WINDOW_ENDS))) {
            tally_add(ret, &cell->tally);
        }
    }
}

/* ---- names: for people, and for JSON: UTF-8 without control characters ---- */

/* Bytes of the character at s, or 0 when it is none that may be shown. */
static size_t utf8_shown(const unsigned char *s, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (n <= 1) {
        return n == 1 && s[0] >= 0x20 && s[0] != 0x7f ? 1 : 0;
    }
    if (n > left || s[0] > 0xf4) {
        return 0;
    }
    uint32_t code = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (s[i] & 0x3fu);
    }
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    return code >= least[n] && code <= 0x10ffff && code >= 0xa0 && !surrogate ? n : 0;
}

static void name_set(struct row *row, const char *text, size_t bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t at = 0;
    for (size_t i = 0; i < bytes;) {
        const size_t n = utf8_shown(s + i, bytes - i);
        if (at + (n ? n : 1) >= sizeof(row->name)) {
            break;
        }
        if (n) {
            memcpy(row->name + at, s + i, n);
        } else {
            row->name[at] = '?';
        }
        at += n ? n : 1;
        i += n ? n : 1;
    }
    row->name[at] = 0;
}

/* ---- tables ---- */

static int table_init(struct table *t, uint32_t max, const char *other)
{
    t->max = max;
    t->keys = calloc(max + 1, sizeof(*t->keys));
    t->rows = calloc(max + 1, sizeof(void *));
    t->other = calloc(1, sizeof(*t->other));
    if (!t->keys || !t->rows || !t->other) {
        return -ENOMEM;
    }
    name_set(t->other, other, strlen(other));
    return 0;
}

static void table_fini(struct table *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        free(t->rows[i]);
    }
    free(t->rows);
    free(t->keys);
    free(t->other);
}

static struct row *table_find(const struct table *t, const struct kvd_digest *key)
{
    for (uint32_t i = 0; i < t->n; i++) {
        if (kvd_digest_equal(&t->keys[i], key)) {
            return t->rows[i];
        }
    }
    return NULL;
}

/* Folds a row that no window shows into "(other)" and gives up its place. */
static struct row *table_recycle(struct table *t, uint64_t now_s, const struct kvd_digest *key)
{
    for (uint32_t i = 0; i < t->n; i++) {
        struct row *row = t->rows[i];
        if (row->last_s + FORGOTTEN_S < now_s) {
            tally_add(&t->other->ever, &row->ever);
            memset(row, 0, sizeof(*row));
            t->keys[i] = *key;
            return row;
        }
    }
    return NULL;
}

struct row *counting_table_row(struct kvd_counting *c, enum kvd_count_by by,
                               const struct kvd_digest *key, const char *name, size_t name_bytes)
{
    struct table *t = &c->tables[by];
    struct row *row = table_find(t, key);
    if (row) {
        return row;
    }
    if (t->n < t->max) {
        row = calloc(1, sizeof(*row));
        if (row) {
            t->keys[t->n] = *key;
            t->rows[t->n++] = row;
        }
    } else {
        row = table_recycle(t, c->now_s, key);
    }
    if (!row) {
        return t->other;
    }
    row->last_s = c->now_s;
    row->first_nth = c->lookups;
    name_set(row, name, name_bytes);
    return row;
}

int kvd_counting_create(uint64_t now_s, struct kvd_counting **ret)
{
    struct kvd_counting *c = calloc(1, sizeof(*c));
    if (!c) {
        return -ENOMEM;
    }
    int err = -pthread_mutex_init(&c->mtx, NULL);
    if (err) {
        free(c);
        return err;
    }
    KVD_MAGIC_SET(c, COUNTING_MAGIC);
    c->now_s = now_s;
    err = table_init(&c->tables[KVD_BY_ALL], 0, "all");
    err = err ? err : table_init(&c->tables[KVD_BY_SCENARIO], SCENARIOS_MAX, name_other);
    err = err ? err : table_init(&c->tables[KVD_BY_SPACE], SPACES_MAX, name_other);
    err = err ? err : table_init(&c->tables[KVD_BY_TENANT], TENANTS_MAX, name_other);
    if (err) {
        kvd_counting_destroy(&c);
        return err;
    }
    *ret = c;
    return 0;
}

void kvd_counting_destroy(struct kvd_counting **counting)
{
    struct kvd_counting *c = *counting;
    if (!c) {
        return;
    }
    KVD_MAGIC_CHECK(c, COUNTING_MAGIC);
    for (int by = 0; by <= KVD_BY_TENANT; by++) {
        table_fini(&c->tables[by]);
    }
    (void)pthread_mutex_destroy(&c->mtx);
    KVD_MAGIC_CLEAR(c);
    free(c);
    *counting = NULL;
}

void counting_lock(struct kvd_counting *c)
{
    KVD_MAGIC_CHECK(c, COUNTING_MAGIC);
    (void)pthread_mutex_lock(&c->mtx);
}

void counting_unlock(struct kvd_counting *c)
{
    (void)pthread_mutex_unlock(&c->mtx);
}

/* ---- counting ---- */

/* A scenario's key is its name. */
static struct kvd_digest scenario_key(const char *name)
{
    struct kvd_digest key = {{0}};
    memcpy(key.b, name, strnlen(name, sizeof(key.b)));
    return key;
}

/* Two spaces may have one model's name: a piece of the digest tells them apart. */
static void space_name(const struct kvd_count_who *who, char *ret, size_t bytes)
{
    char hex[9];
    kvd_hex(who->space.b, 4, hex);
    (void)snprintf(ret, bytes, "%.*s@%s", KVD_MODEL_NAME_MAX, who->space_name, hex);
}

/* The rows that a look-up counts in, one of each table. */
static void rows_of(struct kvd_counting *c, const struct kvd_count_who *who,
                    struct row *ret[KVD_BY_TENANT + 1])
{
    const struct kvd_digest scenario = scenario_key(who->scenario);
    const char *tenant = who->tenant_name[0] ? who->tenant_name : name_default_tenant;
    char space[KVD_MODEL_NAME_MAX + 16];
    space_name(who, space, sizeof(space));
    ret[KVD_BY_ALL] = c->tables[KVD_BY_ALL].other;
    ret[KVD_BY_SCENARIO] =
        counting_table_row(c, KVD_BY_SCENARIO, &scenario, who->scenario, strlen(who->scenario));
    ret[KVD_BY_SPACE] = counting_table_row(c, KVD_BY_SPACE, &who->space, space, strlen(space));
    ret[KVD_BY_TENANT] = counting_table_row(c, KVD_BY_TENANT, &who->tenant, tenant, strlen(tenant));
}

/* Threads don't come in the order of their clocks. */
static void hear_time(struct kvd_counting *c, uint64_t now_s)
{
    c->now_s = now_s > c->now_s ? now_s : c->now_s;
}

void kvd_counting_lookup(struct kvd_counting *c, uint64_t now_s, const struct kvd_count_who *who,
                         const struct kvd_tally *tally, struct kvd_count_slot *ret_slot)
{
    struct row *rows[KVD_BY_TENANT + 1];
    KVD_ASSERT(!KVD_PROTECT(COUNT_ADDS_UP) || tally_adds_up(tally));
    counting_lock(c);
    hear_time(c, now_s);
    c->lookups++;
    rows_of(c, who, rows);
    for (int by = 0; by <= KVD_BY_TENANT; by++) {
        row_add(rows[by], c->now_s, tally);
    }
    *ret_slot = (struct kvd_count_slot){.at_s = c->now_s, .nth = c->lookups};
    counting_unlock(c);
}

/* The row that a look-up was counted in, or folded into: that of its name, unless that was made
 * afterwards. */
static struct row *row_counted(const struct table *t, const struct kvd_digest *key, uint64_t nth)
{
    struct row *row = table_find(t, key);
    return row && (row->first_nth <= nth || !KVD_PROTECT(COUNT_FAILED_IN_ITS_ROW)) ? row : t->other;
}

void kvd_counting_failed(struct kvd_counting *c, const struct kvd_count_slot *slot,
                         const struct kvd_count_who *who, enum kvd_tier_id tier,
                         const struct kvd_amount *amount)
{
    const struct kvd_digest scenario = scenario_key(who->scenario);
    const struct kvd_digest *const keys[] = {NULL, &scenario, &who->space, &who->tenant};
    KVD_ASSERT(tier > KVD_TIER_NONE && tier < KVD_TIER_COUNT);
    counting_lock(c);
    KVD_ASSERT(slot->nth >= 1 && slot->nth <= c->lookups && slot->at_s <= c->now_s);
    for (int by = 0; by <= KVD_BY_TENANT; by++) {
        const struct table *t = &c->tables[by];
        struct row *row = by == KVD_BY_ALL ? t->other : row_counted(t, keys[by], slot->nth);
        row_move(row, c->now_s, KVD_PROTECT(COUNT_FAILED_IN_ITS_WINDOW) ? slot->at_s : c->now_s,
                 tier, amount);
    }
    counting_unlock(c);
}

/* ---- what always holds ---- */

static void assert_adds_up(struct kvd_tally *sum, const struct kvd_tally *row)
{
    KVD_ASSERT(tally_adds_up(row));
    tally_add(sum, row);
}

void counting_assert_ever_adds_up(const struct kvd_counting *c)
{
    for (int by = 0; by <= KVD_BY_TENANT; by++) {
        const struct table *t = &c->tables[by];
        struct kvd_tally sum = {0};
        for (uint32_t i = 0; i < t->n; i++) {
            assert_adds_up(&sum, &t->rows[i]->ever);
        }
        assert_adds_up(&sum, &t->other->ever);
        KVD_ASSERT(tally_equal(&sum, &c->tables[KVD_BY_ALL].other->ever));
    }
}

/* ---- reports ---- */

struct report_row {
    char name[NAME_BYTES];
    struct kvd_tally tally;
};

static void report_add(struct report_row *rows, uint32_t *n, const struct row *row, uint64_t now_s,
                       enum kvd_window window, bool always, struct kvd_tally *sum)
{
    struct report_row *to = &rows[*n];
    row_sum(row, now_s, window, &to->tally);
    assert_adds_up(sum, &to->tally);
    if (always || to->tally.lookups > 0) {
        memcpy(to->name, row->name, sizeof(to->name));
        (*n)++;
    }
}

int kvd_counting_report(struct kvd_counting *c, uint64_t now_s, enum kvd_count_by by,
                        enum kvd_window window,
                        void (*fn)(const char *name, const struct kvd_tally *tally, void *user),
                        void *user)
{
    KVD_MAGIC_CHECK(c, COUNTING_MAGIC);
    const struct table *t = &c->tables[by];
    uint32_t n = 0;
    struct kvd_tally sum = {0};
    struct kvd_tally all;
    /* copied, so that look-ups don't wait for what fn does */
    KVD_AUTOFREE struct report_row *rows = malloc((t->max + 1) * sizeof(*rows));
    if (!rows) {
        return -ENOMEM;
    }
    counting_lock(c);
    hear_time(c, now_s);
    for (uint32_t i = 0; i < t->n; i++) {
        report_add(rows, &n, t->rows[i], c->now_s, window, false, &sum);
    }
    report_add(rows, &n, t->other, c->now_s, window, by == KVD_BY_ALL, &sum);
    row_sum(c->tables[KVD_BY_ALL].other, c->now_s, window, &all);
    KVD_ASSERT(!KVD_PROTECT(COUNT_ROWS_ADD_UP) || tally_equal(&sum, &all));
    counting_unlock(c);
    for (uint32_t i = 0; i < n; i++) {
        fn(rows[i].name, &rows[i].tally, user);
    }
    return 0;
}

void kvd_counting_spaces(struct kvd_counting *c,
                         void (*fn)(const struct kvd_digest *space, void *user), void *user)
{
    const struct table *t = &c->tables[KVD_BY_SPACE];
    counting_lock(c);
    for (uint32_t i = 0; i < t->n; i++) {
        fn(&t->keys[i], user);
    }
    counting_unlock(c);
}
