/* Counting: tiers and reasons add up to asked, in every window, row and moment. */
#include "kvd_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cachesvc/core/counting_private.h"
#include "proto/base/bytes.h"

enum { T0 = 1000000 };

static struct kvd_count_who who_of(const char *scenario, const char *model, uint8_t space,
                                   const char *tenant)
{
    struct kvd_count_who who = {
        .scenario = scenario, .space = {{space}}, .space_name = model, .tenant_name = tenant};
    kvd_tenant_digest(tenant, strlen(tenant), &who.tenant);
    return who;
}

static struct kvd_amount amount_of(uint64_t blocks)
{
    return (struct kvd_amount){.tokens = 64 * blocks, .blocks = blocks, .bytes = 1000 * blocks};
}

/* A look-up that hit in dram and missed for one reason. */
static struct kvd_tally tally_of(uint64_t hit, uint64_t missed, enum kvd_miss_reason why)
{
    struct kvd_tally t = {.lookups = 1, .asked = amount_of(hit + missed)};
    t.hit[KVD_TIER_DRAM] = amount_of(hit);
    t.missed[why] = amount_of(missed);
    return t;
}

static struct kvd_count_slot count(struct kvd_counting *c, uint64_t now_s,
                                   const struct kvd_count_who *who, uint64_t hit, uint64_t missed)
{
    const struct kvd_tally t = tally_of(hit, missed, KVD_MISS_NEVER_SEEN);
    struct kvd_count_slot slot = {0};
    kvd_counting_lookup(c, now_s, who, &t, &slot);
    return slot;
}

/* ---- what reports say ---- */

enum { ROWS_MAX = 300 };

struct rows {
    unsigned n;
    unsigned wrong; /* rows that don't add up */
    char name[ROWS_MAX][600];
    struct kvd_tally tally[ROWS_MAX];
    struct kvd_tally sum;
};

static void add_amount(struct kvd_amount *to, const struct kvd_amount *a)
{
    to->tokens += a->tokens;
    to->blocks += a->blocks;
    to->bytes += a->bytes;
}

static bool adds_up(const struct kvd_tally *t)
{
    struct kvd_amount sum = {0};
    for (int i = 0; i < KVD_TIER_COUNT; i++) {
        add_amount(&sum, &t->hit[i]);
    }
    for (int i = 0; i < KVD_MISS_COUNT; i++) {
        add_amount(&sum, &t->missed[i]);
    }
    return memcmp(&sum, &t->asked, sizeof(sum)) == 0;
}

static void take_row(const char *name, const struct kvd_tally *tally, void *user)
{
    struct rows *rows = user;
    assert_true(rows->n < ROWS_MAX);
    (void)snprintf(rows->name[rows->n], sizeof(rows->name[0]), "%s", name);
    rows->tally[rows->n++] = *tally;
    rows->wrong += !adds_up(tally);
    rows->sum.lookups += tally->lookups;
    add_amount(&rows->sum.asked, &tally->asked);
    for (int i = 0; i < KVD_TIER_COUNT; i++) {
        add_amount(&rows->sum.hit[i], &tally->hit[i]);
    }
    for (int i = 0; i < KVD_MISS_COUNT; i++) {
        add_amount(&rows->sum.missed[i], &tally->missed[i]);
    }
}

static struct rows *report(struct kvd_counting *c, uint64_t now_s, enum kvd_count_by by,
                           enum kvd_window w)
{
    static struct rows rows;
    memset(&rows, 0, sizeof(rows));
    assert_int_equal(kvd_counting_report(c, now_s, by, w, take_row, &rows), 0);
    assert_int_equal(rows.wrong, 0);
    return &rows;
}

static uint64_t asked_blocks(struct kvd_counting *c, uint64_t now_s, enum kvd_window w)
{
    struct rows *rows = report(c, now_s, KVD_BY_ALL, w);
    assert_int_equal(rows->n, 1);
    assert_string_equal(rows->name[0], "all");
    return rows->tally[0].asked.blocks;
}

static const struct kvd_tally *row_named(struct rows *rows, const char *name)
{
    for (unsigned i = 0; i < rows->n; i++) {
        if (strcmp(rows->name[i], name) == 0) {
            return &rows->tally[i];
        }
    }
    fail_msg("no row named %s", name);
    return NULL;
}

/* ---- names ---- */

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(kvd_miss_reason_key(KVD_MISS_NEVER_SEEN), "never_seen");
    assert_string_equal(kvd_miss_reason_key(KVD_MISS_SHORT), "short");
    assert_string_equal(kvd_miss_reason_text(KVD_MISS_EVICTED), "thrown away for room");
    for (int w = 0; w < KVD_WINDOW_COUNT; w++) {
        assert_int_equal(kvd_window_parse(kvd_window_name((enum kvd_window)w)), w);
    }
    assert_int_equal(kvd_window_s(KVD_WINDOW_1H), 3600);
    assert_int_equal(kvd_window_s(KVD_WINDOW_EVER), 0);
    assert_int_equal(kvd_window_parse("1 m"), -KVD_E_BAD_REQUEST);
    assert_int_equal(kvd_window_parse(""), -KVD_E_BAD_REQUEST);
}

/* ---- windows ---- */

/* At least the window's length is shown, and at most a time slot more. */
static void test_window_lengths(void **state)
{
    (void)state;
    static const struct {
        enum kvd_window w;
        uint64_t length_s;
        uint64_t slot_s;
    } rows[] = {{KVD_WINDOW_10S, 10, 1},
                {KVD_WINDOW_1M, 60, 5},
                {KVD_WINDOW_5M, 300, 20},
                {KVD_WINDOW_1H, 3600, 240},
                {KVD_WINDOW_24H, 86400, 5400}};
    const struct kvd_count_who who = who_of("chat", "m", 1, "");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (uint64_t start = T0; start < T0 + 3 * rows[i].slot_s;
             start += 1 + rows[i].slot_s / 7) {
            struct kvd_counting *c = NULL;
            assert_int_equal(kvd_counting_create(start, &c), 0);
            (void)count(c, start, &who, 3, 4);
            assert_int_equal(asked_blocks(c, start, rows[i].w), 7);
            assert_int_equal(asked_blocks(c, start + rows[i].length_s, rows[i].w), 7);
            const uint64_t past = start + rows[i].length_s + rows[i].slot_s;
            assert_int_equal(asked_blocks(c, past, rows[i].w), 0);
            assert_int_equal(asked_blocks(c, past, KVD_WINDOW_EVER), 7);
            kvd_counting_destroy(&c);
        }
    }
}

/* One look-up a second for two days: every window holds as many as it has seconds, or a few more.
 */
static void test_windows_over_days(void **state)
{
    (void)state;
    static const uint64_t length[] = {10, 60, 300, 3600, 86400};
    static const uint64_t most[] = {11, 65, 320, 3840, 91800};
    struct kvd_counting *c = NULL;
    const struct kvd_count_who who = who_of("chat", "m", 1, "");
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    for (uint64_t s = 0; s <= 2 * 86400; s++) {
        (void)count(c, T0 + s, &who, 1, 0);
        if (s >= 86400 && s % 1009 == 0) {
            for (unsigned w = 0; w < KVD_WINDOW_EVER; w++) {
                const uint64_t got = asked_blocks(c, T0 + s, (enum kvd_window)w);
                assert_true(got >= length[w] && got <= most[w]);
            }
        }
    }
    assert_int_equal(asked_blocks(c, T0 + 2 * 86400, KVD_WINDOW_EVER), 2 * 86400 + 1);
    kvd_counting_destroy(&c);
}

/* Threads don't come in the order of their clocks. */
static void test_late_and_early(void **state)
{
    (void)state;
    struct kvd_counting *c = NULL;
    const struct kvd_count_who who = who_of("chat", "m", 1, "");
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    (void)count(c, T0 + 11, &who, 1, 0);
    (void)count(c, T0, &who, 10, 0); /* held up: counts now */
    assert_int_equal(asked_blocks(c, T0 + 11, KVD_WINDOW_10S), 11);
    assert_int_equal(asked_blocks(c, T0, KVD_WINDOW_10S), 11); /* a report behind all others */
    assert_int_equal(asked_blocks(c, T0 + 22, KVD_WINDOW_10S), 0);
    assert_int_equal(asked_blocks(c, T0 + 11, KVD_WINDOW_10S), 0); /* and time doesn't go back */
    assert_int_equal(asked_blocks(c, T0 + 11, KVD_WINDOW_EVER), 11);
    kvd_counting_destroy(&c);
}

/* ---- failures ---- */

static void test_failed_moves_in_its_window(void **state)
{
    (void)state;
    struct kvd_counting *c = NULL;
    const struct kvd_count_who who = who_of("chat", "m", 1, "alice");
    const struct kvd_count_who other = who_of("agent", "m", 1, "bob");
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    const struct kvd_count_slot slot = count(c, T0, &who, 8, 2);
    (void)count(c, T0 + 30, &other, 5, 0);
    const struct kvd_amount failed = amount_of(3);
    kvd_counting_failed(c, &slot, &who, KVD_TIER_DRAM, &failed);

    /* the last 10 s don't know that look-up: nothing failed there, nothing is negative */
    struct rows *rows = report(c, T0 + 30, KVD_BY_ALL, KVD_WINDOW_10S);
    assert_int_equal(rows->sum.hit[KVD_TIER_DRAM].blocks, 5);
    assert_int_equal(rows->sum.missed[KVD_MISS_FAILED].blocks, 0);
    static const enum kvd_window longer[] = {KVD_WINDOW_1M, KVD_WINDOW_5M, KVD_WINDOW_1H,
                                             KVD_WINDOW_24H, KVD_WINDOW_EVER};
    for (size_t i = 0; i < sizeof(longer) / sizeof(longer[0]); i++) {
        rows = report(c, T0 + 30, KVD_BY_TENANT, longer[i]);
        assert_int_equal(rows->n, 2);
        const struct kvd_tally *t = row_named(rows, "alice");
        assert_int_equal(t->asked.blocks, 10);
        assert_int_equal(t->hit[KVD_TIER_DRAM].tokens, 5 * 64);
        assert_int_equal(t->missed[KVD_MISS_FAILED].bytes, 3000);
        assert_int_equal(t->missed[KVD_MISS_NEVER_SEEN].blocks, 2);
        assert_int_equal(row_named(rows, "bob")->missed[KVD_MISS_FAILED].blocks, 0);
    }
    rows = report(c, T0 + 30, KVD_BY_SCENARIO, KVD_WINDOW_EVER);
    assert_int_equal(row_named(rows, "chat")->missed[KVD_MISS_FAILED].blocks, 3);
    kvd_counting_destroy(&c);
}

/* ---- rows ---- */

static void test_rows_by_space_and_default_tenant(void **state)
{
    (void)state;
    struct kvd_counting *c = NULL;
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    const struct kvd_count_who a = who_of("chat", "smol", 0x12, "");
    const struct kvd_count_who b = who_of("chat", "smol", 0x13, "");
    (void)count(c, T0, &a, 1, 0);
    (void)count(c, T0, &b, 2, 0);
    struct rows *rows = report(c, T0, KVD_BY_SPACE, KVD_WINDOW_EVER);
    assert_int_equal(rows->n, 2);
    assert_int_equal(row_named(rows, "smol@12000000")->asked.blocks, 1);
    assert_int_equal(row_named(rows, "smol@13000000")->asked.blocks, 2);
    rows = report(c, T0, KVD_BY_TENANT, KVD_WINDOW_EVER);
    assert_int_equal(rows->n, 1);
    assert_string_equal(rows->name[0], "(default)");
    kvd_counting_destroy(&c);
}

/* Names come from clients: what leaves is UTF-8 that a terminal and JSON can take. */
static void test_hostile_names(void **state)
{
    (void)state;
    static const struct {
        const char *given;
        const char *shown;
    } names[] = {
        {"Zo\xc3\xab \xe2\x82\xac \xf0\x9f\x98\x80", "Zo\xc3\xab \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"a\x1b[31mred\n", "a?[31mred?"},
        {"\xff\xfe", "??"},
        {"cut \xe2\x82", "cut ??"},
        {"over \xc0\xaf", "over ??"},
        {"half \xed\xa0\x80", "half ???"},
        {"big \xf5\x80\x80\x80", "big ????"},
        {"c1 \xc2\x9b", "c1 ??"},
    };
    struct kvd_counting *c = NULL;
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct kvd_count_who who = who_of("chat", "m", 1, names[i].given);
        (void)count(c, T0, &who, i + 1, 0);
        struct rows *rows = report(c, T0, KVD_BY_TENANT, KVD_WINDOW_EVER);
        assert_int_equal(row_named(rows, names[i].shown)->asked.blocks, i + 1);
    }
    kvd_counting_destroy(&c);
}

static void test_too_many_tenants(void **state)
{
    (void)state;
    struct kvd_counting *c = NULL;
    char name[32];
    struct kvd_count_slot slot = {0};
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    for (unsigned i = 0; i < 400; i++) {
        (void)snprintf(name, sizeof(name), "user%u", i);
        const struct kvd_count_who who = who_of("chat", "m", 1, name);
        slot = count(c, T0, &who, 2, 1);
    }
    struct rows *rows = report(c, T0, KVD_BY_TENANT, KVD_WINDOW_10S);
    assert_int_equal(rows->n, 257);
    assert_int_equal(rows->sum.lookups, 400);
    assert_int_equal(row_named(rows, "(other)")->lookups, 400 - 256);
    /* a failure of one of the rest is counted in the rest */
    const struct kvd_count_who last = who_of("chat", "m", 1, "user399");
    const struct kvd_amount failed = amount_of(2);
    kvd_counting_failed(c, &slot, &last, KVD_TIER_DRAM, &failed);
    rows = report(c, T0, KVD_BY_TENANT, KVD_WINDOW_10S);
    assert_int_equal(row_named(rows, "(other)")->missed[KVD_MISS_FAILED].blocks, 2);
    assert_int_equal(rows->sum.missed[KVD_MISS_FAILED].blocks, 2);

    /* two days later a new name finds a place, and the totals stay whole */
    const uint64_t later = T0 + 2 * 86400;
    const struct kvd_count_who fresh = who_of("chat", "m", 1, "fresh");
    (void)count(c, later, &fresh, 1, 0);
    rows = report(c, later, KVD_BY_TENANT, KVD_WINDOW_24H);
    assert_int_equal(rows->n, 1);
    assert_int_equal(row_named(rows, "fresh")->lookups, 1);
    rows = report(c, later, KVD_BY_TENANT, KVD_WINDOW_EVER);
    assert_int_equal(rows->sum.lookups, 401);
    assert_int_equal(rows->sum.asked.blocks, asked_blocks(c, later, KVD_WINDOW_EVER));
    kvd_counting_destroy(&c);
}

/* ---- many threads ---- */

enum { WRITERS = 3, LOOKUPS = 4000 };

struct writer {
    struct kvd_counting *c;
    _Atomic uint64_t *now_s;
    unsigned id;
};

static void *write_many(void *arg)
{
    struct writer *w = arg;
    char name[16];
    for (unsigned i = 0; i < LOOKUPS; i++) {
        (void)snprintf(name, sizeof(name), "t%u", (i + w->id) % 5);
        const struct kvd_count_who who =
            who_of(i % 2 ? "chat" : "agent", "m", (uint8_t)(i % 3), name);
        const uint64_t now = atomic_load(w->now_s);
        const struct kvd_count_slot slot = count(w->c, now, &who, 5, i % 7);
        if (i % 4 == 0) {
            const struct kvd_amount failed = amount_of(1 + i % 5);
            kvd_counting_failed(w->c, &slot, &who, KVD_TIER_DRAM, &failed);
        }
        if (i % 50 == 0) {
            atomic_fetch_add(w->now_s, 1);
        }
    }
    return NULL;
}

static void test_adds_up_at_any_moment(void **state)
{
    (void)state;
    static const enum kvd_count_by bys[] = {KVD_BY_ALL, KVD_BY_SCENARIO, KVD_BY_SPACE,
                                            KVD_BY_TENANT};
    struct kvd_counting *c = NULL;
    _Atomic uint64_t now_s = T0;
    struct writer writers[WRITERS];
    pthread_t threads[WRITERS];
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    for (unsigned i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){.c = c, .now_s = &now_s, .id = i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, &writers[i]), 0);
    }
    for (unsigned i = 0; i < 300; i++) { /* report checks each row */
        struct rows *rows =
            report(c, atomic_load(&now_s), bys[i % 4], (enum kvd_window)(i / 4 % KVD_WINDOW_COUNT));
        assert_true(rows->sum.hit[KVD_TIER_DRAM].blocks <= rows->sum.asked.blocks);
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    struct kvd_tally first = report(c, now_s, KVD_BY_ALL, KVD_WINDOW_EVER)->sum;
    assert_int_equal(first.lookups, WRITERS * LOOKUPS);
    assert_true(first.missed[KVD_MISS_FAILED].blocks > 0);
    for (int by = 1; by < 4; by++) { /* every way to divide it has the same sum */
        struct kvd_tally sum = report(c, now_s, bys[by], KVD_WINDOW_EVER)->sum;
        assert_memory_equal(&sum, &first, sizeof(sum));
    }
    kvd_counting_destroy(&c);
}

/* ---- stored totals ---- */

static struct kvd_counting *some_counters(void)
{
    struct kvd_counting *c = NULL;
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    const struct kvd_count_who a = who_of("chat", "m", 1, "alice");
    const struct kvd_count_who b = who_of("agent", "n", 2, "");
    const struct kvd_count_slot slot = count(c, T0, &a, 7, 1);
    (void)count(c, T0, &b, 0, 9);
    const struct kvd_amount failed = amount_of(2);
    kvd_counting_failed(c, &slot, &a, KVD_TIER_DRAM, &failed);
    return c;
}

static void test_stored_totals(void **state)
{
    (void)state;
    struct kvd_counting *c = some_counters();
    struct kvd_counting *d = NULL;
    struct kvd_diag diag;
    void *bytes = NULL;
    uint32_t n = 0;
    assert_int_equal(kvd_counting_encode(c, &bytes, &n), 0);
    assert_int_equal(kvd_counting_create(T0 + 5, &d), 0);
    assert_int_equal(kvd_counting_decode(d, bytes, n, &diag), 0);
    for (int by = KVD_BY_ALL; by <= KVD_BY_TENANT; by++) {
        static struct rows was;
        was = *report(c, T0, (enum kvd_count_by)by, KVD_WINDOW_EVER);
        struct rows *now = report(d, T0 + 5, (enum kvd_count_by)by, KVD_WINDOW_EVER);
        assert_memory_equal(now, &was, sizeof(was));
        assert_int_equal(report(d, T0 + 5, (enum kvd_count_by)by, KVD_WINDOW_24H)->sum.lookups, 0);
    }
    /* it goes on from there */
    const struct kvd_count_who a = who_of("chat", "m", 1, "alice");
    (void)count(d, T0 + 6, &a, 1, 0);
    struct rows *rows = report(d, T0 + 6, KVD_BY_TENANT, KVD_WINDOW_EVER);
    assert_int_equal(rows->n, 2);
    assert_int_equal(row_named(rows, "alice")->asked.blocks, 9);
    free(bytes);
    kvd_counting_destroy(&c);
    kvd_counting_destroy(&d);
}

/* Totals of the version that knew no purges: one reason fewer, the last. */
static void test_stored_totals_of_fewer_reasons(void **state)
{
    (void)state;
    struct kvd_counting *c = some_counters();
    struct kvd_counting *d = NULL;
    struct kvd_diag diag;
    uint8_t *bytes = NULL;
    uint32_t n = 0;
    assert_int_equal(kvd_counting_encode(c, (void **)&bytes, &n), 0);
    assert_int_equal(kvd_counting_create(T0, &d), 0);
    kvd_put_le32(bytes + 12, KVD_MISS_PURGED);
    assert_int_equal(kvd_counting_decode(d, bytes, n, &diag), 0);
    static struct rows was;
    was = *report(c, T0, KVD_BY_TENANT, KVD_WINDOW_EVER);
    assert_memory_equal(report(d, T0, KVD_BY_TENANT, KVD_WINDOW_EVER), &was, sizeof(was));
    free(bytes);
    kvd_counting_destroy(&c);
    kvd_counting_destroy(&d);
}

/* Whatever is damaged or later is refused, and then nothing was added. */
static void test_stored_totals_refused(void **state)
{
    (void)state;
    struct kvd_counting *c = some_counters();
    struct kvd_counting *d = NULL;
    struct kvd_diag diag;
    uint8_t *bytes = NULL;
    uint32_t n = 0;
    assert_int_equal(kvd_counting_encode(c, (void **)&bytes, &n), 0);
    assert_int_equal(kvd_counting_create(T0, &d), 0);
    for (uint32_t cut = 0; cut < n; cut++) {
        assert_true(kvd_counting_decode(d, bytes, cut, &diag) < 0);
    }
    static const struct {
        uint32_t at;
        uint32_t value;
        int err;
    } edits[] = {
        {0, 1, -KVD_E_FORMAT},
        {4, 0, -KVD_E_FORMAT},
        {4, 2, -KVD_E_NEWER},
        {8, KVD_TIER_COUNT + 1, -KVD_E_NEWER},
        {12, KVD_MISS_COUNT + 1, -KVD_E_NEWER},
        {12, 0, -KVD_E_CORRUPT}, /* reasons that its rows have */
        {16, 0, -KVD_E_CORRUPT},
        {16, UINT32_MAX, -KVD_E_CORRUPT},
        {20, 4, -KVD_E_CORRUPT},
        {20 + 4, 2, -KVD_E_CORRUPT},
        {20 + 8 + 32, UINT32_MAX, -KVD_E_CORRUPT},
        {20 + 8 + 32 + 4 + 3 + 8 + 8, 12345, -KVD_E_CORRUPT}, /* tokens asked of "all" */
    };
    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        const uint32_t at = edits[i].at;
        uint8_t was[4];
        memcpy(was, bytes + at, 4);
        kvd_put_le32(bytes + at, edits[i].value);
        diag.text[0] = 0;
        assert_int_equal(kvd_counting_decode(d, bytes, n, &diag), edits[i].err);
        assert_true(diag.text[0] != 0);
        memcpy(bytes + at, was, 4);
    }
    assert_int_equal(report(d, T0, KVD_BY_TENANT, KVD_WINDOW_EVER)->n, 0);
    assert_int_equal(asked_blocks(d, T0, KVD_WINDOW_EVER), 0);
    free(bytes);
    kvd_counting_destroy(&c);
    kvd_counting_destroy(&d);
}

/* ---- what always holds ---- */

/* Whether fn ends the process, as an assertion does. */
static bool aborts(void (*fn)(struct kvd_counting *c))
{
    int status = 0;
    (void)fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct kvd_counting *c = NULL;
        const int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
        (void)dup2(quiet, STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL); /* cmocka's own would go on */
        _exit(kvd_counting_create(T0, &c) == 0 ? (fn(c), 0) : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static void hit_more_than_asked(struct kvd_counting *c)
{
    const struct kvd_count_who who = who_of("chat", "m", 1, "");
    struct kvd_tally t = tally_of(5, 0, KVD_MISS_NEVER_SEEN);
    struct kvd_count_slot slot;
    t.asked = amount_of(4);
    kvd_counting_lookup(c, T0, &who, &t, &slot);
}

static void r_hit_rate_above_one(void **state)
{
    (void)state;
    assert_true(aborts(hit_more_than_asked));
}

static void fail_more_than_hit(struct kvd_counting *c)
{
    const struct kvd_count_who who = who_of("chat", "m", 1, "");
    const struct kvd_count_slot slot = count(c, T0, &who, 5, 0);
    const struct kvd_amount failed = amount_of(6);
    kvd_counting_failed(c, &slot, &who, KVD_TIER_DRAM, &failed);
}

static void r_more_failures_than_hits(void **state)
{
    (void)state;
    assert_true(aborts(fail_more_than_hit));
}

static void report_after_a_tenant_got_more(struct kvd_counting *c)
{
    const struct kvd_count_who who = who_of("chat", "m", 1, "alice");
    (void)count(c, T0, &who, 5, 0);
    struct kvd_tally *t = &c->tables[KVD_BY_TENANT].rows[0]->ever;
    t->asked = t->hit[KVD_TIER_DRAM] = amount_of(6); /* the row itself adds up */
    (void)report(c, T0, KVD_BY_TENANT, KVD_WINDOW_EVER);
}

static void r_rows_that_do_not_add_up(void **state)
{
    (void)state;
    assert_true(aborts(report_after_a_tenant_got_more));
}

/* A name is folded into "(other)", comes back, and then an old look-up of it fails. */
static void r_failure_of_a_forgotten_name(void **state)
{
    (void)state;
    struct kvd_counting *c = NULL;
    char name[32];
    const struct kvd_amount failed = amount_of(3);
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    const struct kvd_count_who who = who_of("first", "m", 1, "");
    const struct kvd_count_slot slot = count(c, T0, &who, 5, 0);
    for (unsigned i = 0; i < 32; i++) { /* the table of scenarios is full */
        (void)snprintf(name, sizeof(name), "s%u", i);
        const struct kvd_count_who other = who_of(name, "m", 1, "");
        (void)count(c, T0 + 2 * 86400, &other, 0, 1);
    }
    struct rows *rows = report(c, T0 + 2 * 86400, KVD_BY_SCENARIO, KVD_WINDOW_EVER);
    assert_int_equal(row_named(rows, "(other)")->hit[KVD_TIER_DRAM].blocks, 5);
    (void)count(c, T0 + 4 * 86400, &who, 4, 0);
    kvd_counting_failed(c, &slot, &who, KVD_TIER_DRAM, &failed);
    rows = report(c, T0 + 4 * 86400, KVD_BY_SCENARIO, KVD_WINDOW_EVER);
    assert_int_equal(row_named(rows, "(other)")->hit[KVD_TIER_DRAM].blocks, 2);
    assert_int_equal(row_named(rows, "first")->hit[KVD_TIER_DRAM].blocks, 4);
    kvd_counting_destroy(&c);
}

/* The same while "(other)" still holds the hour of that look-up, with nothing of it inside. */
static void r_failure_of_a_forgotten_name_beside_an_old_hour(void **state)
{
    (void)state;
    struct kvd_counting *c = NULL;
    char name[32];
    const struct kvd_amount failed = amount_of(3);
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    const struct kvd_count_who who = who_of("first", "m", 1, "");
    const struct kvd_count_slot slot = count(c, T0, &who, 5, 0);
    for (unsigned i = 0; i < 32; i++) { /* the last one finds no place */
        (void)snprintf(name, sizeof(name), "s%u", i);
        const struct kvd_count_who other = who_of(name, "m", 1, "");
        (void)count(c, T0, &other, 0, 1);
    }
    const struct kvd_count_who fresh = who_of("fresh", "m", 1, "");
    (void)count(c, T0 + 2 * 86400, &fresh, 0, 1); /* takes the place of "first" */
    kvd_counting_failed(c, &slot, &who, KVD_TIER_DRAM, &failed);
    struct rows *rows = report(c, T0 + 2 * 86400, KVD_BY_SCENARIO, KVD_WINDOW_EVER);
    assert_int_equal(row_named(rows, "(other)")->hit[KVD_TIER_DRAM].blocks, 2);
    assert_int_equal(row_named(rows, "(other)")->missed[KVD_MISS_FAILED].blocks, 3);
    rows = report(c, T0 + 2 * 86400, KVD_BY_SCENARIO, KVD_WINDOW_24H);
    assert_int_equal(rows->sum.missed[KVD_MISS_FAILED].blocks, 0);
    kvd_counting_destroy(&c);
}

/* The look-ups of now have nothing to do with it. */
static void r_failure_after_its_window(void **state)
{
    (void)state;
    struct kvd_counting *c = NULL;
    const struct kvd_count_who who = who_of("chat", "m", 1, "");
    const struct kvd_amount failed = amount_of(3);
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    const struct kvd_count_slot slot = count(c, T0, &who, 3, 0);
    (void)count(c, T0 + 600, &who, 4, 0);
    kvd_counting_failed(c, &slot, &who, KVD_TIER_DRAM, &failed);
    struct rows *rows = report(c, T0 + 600, KVD_BY_ALL, KVD_WINDOW_1M);
    assert_int_equal(rows->sum.hit[KVD_TIER_DRAM].blocks, 4);
    assert_int_equal(rows->sum.missed[KVD_MISS_FAILED].blocks, 0);
    rows = report(c, T0 + 600, KVD_BY_ALL, KVD_WINDOW_1H);
    assert_int_equal(rows->sum.hit[KVD_TIER_DRAM].blocks, 4);
    assert_int_equal(rows->sum.missed[KVD_MISS_FAILED].blocks, 3);
    kvd_counting_destroy(&c);
}

/* A bad look-up after a good hour that was long ago shows as such. */
static void r_average_over_all_time(void **state)
{
    (void)state;
    struct kvd_counting *c = NULL;
    const struct kvd_count_who who = who_of("chat", "m", 1, "");
    assert_int_equal(kvd_counting_create(T0, &c), 0);
    for (uint64_t s = 0; s < 3600; s += 60) {
        (void)count(c, T0 + s, &who, 10, 0);
    }
    (void)count(c, T0 + 3 * 3600, &who, 0, 10); /* after a silence */
    struct rows *rows = report(c, T0 + 3 * 3600, KVD_BY_ALL, KVD_WINDOW_1H);
    assert_int_equal(rows->sum.asked.blocks, 10);
    assert_int_equal(rows->sum.hit[KVD_TIER_DRAM].blocks, 0);
    kvd_counting_destroy(&c);
}

/* Rows that are whole, but of which one is missing. */
static void r_stored_totals_that_do_not_add_up(void **state)
{
    (void)state;
    struct kvd_counting *c = some_counters();
    struct kvd_counting *d = NULL;
    struct kvd_diag diag;
    uint8_t *bytes = NULL;
    uint32_t n = 0;
    assert_int_equal(kvd_counting_encode(c, (void **)&bytes, &n), 0);
    assert_int_equal(kvd_counting_create(T0, &d), 0);
    uint32_t at = 20 + 8 + 32 + 4 + 3 + 8; /* the mask of what "all" has */
    uint64_t mask = 0;
    memcpy(&mask, bytes + at, 8);
    const uint32_t row = at + 8 + 24 * (uint32_t)__builtin_popcountll(mask);
    memmove(bytes + 20, bytes + row, n - row);
    kvd_put_le32(bytes + 16, kvd_get_le32(bytes + 16) - 1);
    assert_int_equal(kvd_counting_decode(d, bytes, n - (row - 20), &diag), -KVD_E_CORRUPT);
    free(bytes);
    kvd_counting_destroy(&c);
    kvd_counting_destroy(&d);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_hit_rate_above_one),
    cmocka_unit_test(r_more_failures_than_hits),
    cmocka_unit_test(r_rows_that_do_not_add_up),
    cmocka_unit_test(r_failure_of_a_forgotten_name),
    cmocka_unit_test(r_failure_of_a_forgotten_name_beside_an_old_hour),
    cmocka_unit_test(r_failure_after_its_window),
    cmocka_unit_test(r_average_over_all_time),
    cmocka_unit_test(r_stored_totals_that_do_not_add_up),
    cmocka_unit_test(test_names),
    cmocka_unit_test(test_window_lengths),
    cmocka_unit_test(test_windows_over_days),
    cmocka_unit_test(test_late_and_early),
    cmocka_unit_test(test_failed_moves_in_its_window),
    cmocka_unit_test(test_rows_by_space_and_default_tenant),
    cmocka_unit_test(test_hostile_names),
    cmocka_unit_test(test_too_many_tenants),
    cmocka_unit_test(test_adds_up_at_any_moment),
    cmocka_unit_test(test_stored_totals),
    cmocka_unit_test(test_stored_totals_of_fewer_reasons),
    cmocka_unit_test(test_stored_totals_refused),
};
KVD_TEST_MAIN(tests)
