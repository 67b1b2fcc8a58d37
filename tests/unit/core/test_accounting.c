/*
 * What the service counts: at look-up, once, and for good. Over a real store; and random operations
 * with clean ends and crashes against a model that knows what is stored. A crash is a copy of the
 * store's folder, made while the service runs, and opened in its place.
 */
#include "kvd_test.h"

#include <jansson.h>
#include <sched.h>
#include <unistd.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/clock.h"
#include "service_rig.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5, WAIT_S = 30 };

/* A report's first row, or the report itself. */
static json_t *hitrate(struct rig *rig, const char *by, const char *window)
{
    char *text = NULL;
    struct kvd_diag diag = {""};
    assert_int_equal(kvd_service_report(rig->service, "hitrate", by, window, &diag, &text), 0);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    free(text);
    return root;
}

static uint64_t tokens_in(struct rig *rig, const char *window, const char *path)
{
    char whole[96];
    json_t *root = hitrate(rig, "", window);
    const json_t *row = json_array_get(json_object_get(root, "rows"), 0);
    (void)snprintf(whole, sizeof(whole), "%s", path);
    char *dot = strchr(whole, '.');
    if (dot) {
        *dot = 0;
        row = json_object_get(row, whole);
    }
    const json_t *amount = json_object_get(row, dot ? dot + 1 : whole);
    const uint64_t tokens = (uint64_t)json_integer_value(json_object_get(amount, "tokens"));
    json_decref(root);
    return tokens;
}

static uint64_t tokens_of(struct rig *rig, const char *path)
{
    return tokens_in(rig, "ever", path);
}

/* The numerator of the hit rate, over all tiers. */
static uint64_t tokens_hit(struct rig *rig)
{
    return tokens_of(rig, "hit.dram") + tokens_of(rig, "hit.nvme");
}

static void assert_rate(struct rig *rig, uint64_t hit, uint64_t asked)
{
    rig_assert_adds_up(rig);
    assert_int_equal(tokens_hit(rig), hit);
    assert_int_equal(tokens_of(rig, "asked"), asked);
    assert_true(hit <= asked);
}

/* ---- at look-up ---- */

/* A rate over what was retrieved would be 1 here, or nothing at all. */
static void r_hit_rate_is_measured_at_look_up(void **state)
{
    struct rig rig;
    uint32_t tokens[TOKENS];
    (void)state;
    rig_tokens(1, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 0);
    assert_rate(&rig, 0, TOKENS);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N / 2), N / 2);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N / 2);
    assert_rate(&rig, N / 2 * RIG_BLOCK_TOKENS, 2 * TOKENS);
    /* loading what was found, twice, asks for nothing */
    assert_int_equal(rig_load(&rig, tokens), N / 2);
    assert_rate(&rig, N / 2 * RIG_BLOCK_TOKENS, 2 * TOKENS);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N / 2);
    assert_rate(&rig, N * RIG_BLOCK_TOKENS, 3 * TOKENS);
    rig_fini(&rig);
}

/* What is no whole block was asked for too, and was not found. */
static void r_tokens_without_a_block(void **state)
{
    struct rig rig;
    uint32_t tokens[TOKENS];
    (void)state;
    rig_tokens(2, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
    assert_rate(&rig, N * RIG_BLOCK_TOKENS, TOKENS);
    assert_int_equal(tokens_of(&rig, "missed.short"), TOKENS - N * RIG_BLOCK_TOKENS);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, RIG_BLOCK_TOKENS), 0);
    assert_rate(&rig, N * RIG_BLOCK_TOKENS, TOKENS + RIG_BLOCK_TOKENS);
    rig_fini(&rig);
}

/* ---- once ---- */

/* Each block is in dram and below: it is one hit, in the faster tier. */
static void r_counted_once_across_tiers(void **state)
{
    struct rig rig;
    uint32_t tokens[TOKENS];
    (void)state;
    rig_tokens(3, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_settle(&rig);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    assert_int_equal(tokens_of(&rig, "hit.dram"), N * RIG_BLOCK_TOKENS);
    assert_rate(&rig, N * RIG_BLOCK_TOKENS, TOKENS);
    rig_close(&rig);
    rig_open(&rig, true);
    /* read from below, and now in both again */
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    assert_int_equal(tokens_of(&rig, "hit.dram"), 2 * N * RIG_BLOCK_TOKENS);
    assert_int_equal(tokens_of(&rig, "hit.nvme"), N * RIG_BLOCK_TOKENS);
    assert_rate(&rig, 3 * N * RIG_BLOCK_TOKENS, 3 * TOKENS);
    rig_fini(&rig);
}

/* One load of a lease at a time: the one before may have been answered and not yet be over. */
static void load_too_late(struct rig *rig)
{
    const uint64_t deadline = kvd_mono_ns() + WAIT_S * KVD_NS_PER_S;
    int err = -KVD_E_BUSY;
    while (err == -KVD_E_BUSY) {
        uint32_t good = 0;
        struct rig_answer *answer = rig_load_begin(rig, 1);
        err = rig_load_end(&answer, &good);
        assert_true(kvd_mono_ns() < deadline);
    }
    assert_int_equal(err, -KVD_E_DEADLINE);
}

/* A client that says twice, and of more than there was, that its copy was stale. */
static void r_failure_told_twice(void **state)
{
    struct rig rig;
    uint32_t tokens[TOKENS];
    (void)state;
    rig_tokens(4, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
    const uint64_t lease = rig.match.lease;
    /* a load that comes too late fails from its first block on */
    load_too_late(&rig);
    assert_int_equal(tokens_of(&rig, "missed.failed"), N * RIG_BLOCK_TOKENS);
    load_too_late(&rig);
    kvd_service_release(rig.session, lease, 3);
    kvd_service_release(rig.session, lease, 0);
    assert_int_equal(tokens_of(&rig, "missed.failed"), N * RIG_BLOCK_TOKENS);
    assert_rate(&rig, 0, TOKENS);
    rig_fini(&rig);
}

/* ---- for good ---- */

/* Returns right after the counters were written down: the next time is a second away. */
static void wait_for_writing_down(struct rig *rig)
{
    const uint64_t deadline = kvd_mono_ns() + WAIT_S * KVD_NS_PER_S;
    void *value = NULL;
    uint32_t n = 0;
    while (kvd_index_row_get(rig->service->index, KVD_INDEX_META, "counters", strlen("counters"),
                             &value, &n) != 0) {
        assert_true(kvd_mono_ns() < deadline);
        (void)sched_yield();
    }
    free(value);
}

static void r_counters_survive_a_restart(void **state)
{
    struct rig rig;
    uint32_t tokens[TOKENS];
    (void)state;
    rig_tokens(5, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    wait_for_writing_down(&rig);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 0);
    rig_close(&rig); /* within the second: what came last is written down at the end */
    rig_open(&rig, false);
    assert_rate(&rig, 0, TOKENS);
    assert_int_equal(tokens_in(&rig, "24h", "asked"), 0);
    rig_close(&rig);
    rig_open(&rig, false); /* and not twice */
    assert_rate(&rig, 0, TOKENS);
    rig_fini(&rig);
}

static uint64_t number(json_t *report, const char *name)
{
    assert_true(json_is_integer(json_object_get(report, name)));
    return (uint64_t)json_integer_value(json_object_get(report, name));
}

/* A window that a restart cut short says so, and "ever" says when it began. */
static void r_windows_say_since_when(void **state)
{
    struct rig rig;
    (void)state;
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    json_t *ever = hitrate(&rig, "", "ever");
    const uint64_t since = number(ever, "since_s");
    assert_true(json_is_false(json_object_get(ever, "restarted")));
    json_decref(ever);
    rig_close(&rig);
    rig_open(&rig, false);
    ever = hitrate(&rig, "tenant", "ever");
    assert_int_equal(number(ever, "since_s"), since);
    json_decref(ever);
    json_t *hour = hitrate(&rig, "", "1h");
    assert_true(json_is_true(json_object_get(hour, "restarted")));
    assert_true(number(hour, "counted_s") < 3600);
    assert_true(number(hour, "since_s") >= since);
    json_decref(hour);
    /* a process that has run for long: the window is whole */
    rig.service->started_mono_ns -= 11 * KVD_NS_PER_S;
    json_t *ten = hitrate(&rig, "", "10s");
    assert_true(json_is_false(json_object_get(ten, "restarted")));
    assert_int_equal(number(ten, "counted_s"), 10);
    json_decref(ten);
    rig_fini(&rig);
}

/* Totals that can't be read are no reason to serve nobody; that they are gone is said. */
static void r_damaged_totals(void **state)
{
    struct rig rig;
    uint32_t tokens[TOKENS];
    (void)state;
    rig_tokens(6, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 0);
    rig_close(&rig);
    struct kvd_index *index = NULL;
    char path[300];
    struct kvd_diag diag = {""};
    (void)snprintf(path, sizeof(path), "%s/index", rig.folder);
    const struct kvd_index_options options = {.path = path, .cache_bytes = 8 << 20};
    assert_int_equal(kvd_index_open(&options, &diag, &index), 0);
    assert_int_equal(kvd_index_row_put(index, KVD_INDEX_META, "counters", strlen("counters"),
                                       "rubbish", 7, true),
                     0);
    kvd_index_close(&index);
    rig_open(&rig, false);
    rig_expect_problem(&rig, "counting began anew");
    assert_rate(&rig, 0, 0);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 0);
    rig_close(&rig);
    rig_open(&rig, false);
    assert_rate(&rig, 0, TOKENS);
    rig_fini(&rig);
}

/* ---- random operations ---- */

enum { STEPS = 150, CONVERSATIONS = 10, HISTORY_MAX = 2 * STEPS, CRASH_S = 3 };

struct totals {
    uint64_t asked;
    uint64_t hit;
    uint64_t never_seen;
    uint64_t short_;
    uint64_t at_ns; /* when it became so */
};

struct model {
    uint64_t rng;
    uint32_t stored[CONVERSATIONS]; /* blocks */
    struct totals now;
    struct totals history[HISTORY_MAX];
    unsigned n;
};

static uint64_t rnd(struct model *m, uint64_t below)
{
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return m->rng % below;
}

static void remember(struct model *m)
{
    assert_true(m->n < HISTORY_MAX);
    m->now.at_ns = kvd_mono_ns();
    m->history[m->n++] = m->now;
}

static void look_up(struct rig *rig, struct model *m, bool load)
{
    uint32_t tokens[TOKENS];
    const uint32_t which = (uint32_t)rnd(m, CONVERSATIONS);
    const uint32_t n_tokens = 1 + (uint32_t)rnd(m, TOKENS);
    const uint32_t asked = (n_tokens - 1) / RIG_BLOCK_TOKENS;
    const uint32_t hit = asked < m->stored[which] ? asked : m->stored[which];
    rig_tokens(100 + which, TOKENS, tokens);
    assert_int_equal(rig_match(rig, "", "chat", tokens, n_tokens), hit);
    if (hit > 0 && load) {
        assert_int_equal(rig_load(rig, tokens), hit);
    } else if (hit > 0) {
        kvd_service_release(rig->session, rig->match.lease, UINT32_MAX);
    }
    m->now.asked += n_tokens;
    m->now.hit += (uint64_t)hit * RIG_BLOCK_TOKENS;
    m->now.never_seen += (uint64_t)(asked - hit) * RIG_BLOCK_TOKENS;
    m->now.short_ += n_tokens - asked * RIG_BLOCK_TOKENS;
    remember(m);
}

static void put(struct rig *rig, struct model *m)
{
    uint32_t tokens[TOKENS];
    const uint32_t which = (uint32_t)rnd(m, CONVERSATIONS);
    const uint32_t n = 1 + (uint32_t)rnd(m, N);
    rig_tokens(100 + which, TOKENS, tokens);
    assert_int_equal(rig_put(rig, "", "chat", tokens, n), n);
    m->stored[which] = n > m->stored[which] ? n : m->stored[which];
}

static struct totals totals_of(struct rig *rig)
{
    return (struct totals){.asked = tokens_of(rig, "asked"),
                           .hit = tokens_hit(rig),
                           .never_seen = tokens_of(rig, "missed.never_seen"),
                           .short_ = tokens_of(rig, "missed.short")};
}

static bool totals_equal(const struct totals *a, const struct totals *b)
{
    return a->asked == b->asked && a->hit == b->hit && a->never_seen == b->never_seen &&
           a->short_ == b->short_;
}

static void copy_folder(const char *from, const char *to)
{
    char command[600];
    (void)snprintf(command, sizeof(command), "rm -rf '%s' && cp -a --sparse=always '%s' '%s'", to,
                   from, to);
    assert_int_equal(system(command), 0);
}

/* Goes on with a copy that was made while the service ran. What was counted in the last seconds may
 * be missing, in whole look-ups. */
static void crash(struct rig *rig, struct model *m)
{
    char copy[300];
    char command[400];
    const uint64_t before_ns = kvd_mono_ns();
    (void)snprintf(copy, sizeof(copy), "%s.copy", rig->folder);
    rig_settle(rig); /* what is stored is known; what is counted is not */
    copy_folder(rig->folder, copy);
    rig_close(rig);
    copy_folder(copy, rig->folder);
    rig_open(rig, false);
    const struct totals found = totals_of(rig);
    unsigned i = m->n;
    while (i > 0 && !totals_equal(&m->history[i - 1], &found)) {
        i--;
    }
    assert_true(i > 0);
    /* the look-up after it was lost, so it was made within a second of the copy, or a little more
     */
    assert_true(i == m->n || m->history[i].at_ns + CRASH_S * KVD_NS_PER_S > before_ns);
    m->now = m->history[i - 1];
    m->n = i;
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", copy);
    assert_int_equal(system(command), 0);
}

static void step(struct rig *rig, struct model *m)
{
    const uint64_t what = rnd(m, 100);
    if (what < 60) {
        look_up(rig, m, what % 2 == 0);
    } else if (what < 92) {
        put(rig, m);
    } else if (what < 97) {
        rig_close(rig);
        rig_open(rig, rnd(m, 2) == 0);
    } else {
        crash(rig, m);
    }
    const struct totals found = totals_of(rig);
    assert_true(totals_equal(&found, &m->now));
    rig_assert_adds_up(rig);
}

static void random_operations_and_restarts(void **state)
{
    static struct model m;
    struct rig rig;
    (void)state;
    m = (struct model){.rng = 88172645463325252U};
    print_message("seed %llu\n", (unsigned long long)m.rng);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    remember(&m);
    for (int i = 0; i < STEPS; i++) {
        step(&rig, &m);
    }
    rig_fini(&rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_hit_rate_is_measured_at_look_up),
    cmocka_unit_test(r_tokens_without_a_block),
    cmocka_unit_test(r_counted_once_across_tiers),
    cmocka_unit_test(r_failure_told_twice),
    cmocka_unit_test(r_counters_survive_a_restart),
    cmocka_unit_test(r_windows_say_since_when),
    cmocka_unit_test(r_damaged_totals),
    cmocka_unit_test(random_operations_and_restarts),
};
KVD_TEST_MAIN(tests)
