/*
 * The counters against a simple model that keeps every look-up and adds them all up whenever it is
 * asked. Random operations from printed seeds: look-ups of more names than there are rows, failures
 * of any look-up at any later time, callers whose clocks are behind, gaps of seconds to days,
 * totals written down and read back, and restarts that lose what came after that. Every row of
 * every report is compared, exactly.
 *
 * KVD_SEED in the environment is one more seed to try.
 */
#include "kvd_test.h"

#include "cachesvc/core/counting.h"

enum { STEPS = 2500, ROWS_MAX = 256, ROW_OTHER = -1, FORGOTTEN_S = 91800 };
enum { N_SCENARIOS = 40, N_SPACES = 9, N_TENANTS = 700, DIMS = 4 };

/* As counting.h says: a window is so many slots of so many seconds. */
static const struct {
    uint64_t slot_s;
    uint64_t slots;
} windows[KVD_WINDOW_EVER] = {{1, 11}, {5, 13}, {20, 16}, {240, 16}, {5400, 17}};

static const unsigned rows_max[DIMS] = {0, 32, 256, 256};
static const unsigned n_names[DIMS] = {1, N_SCENARIOS, N_SPACES, N_TENANTS};

struct lookup {
    uint64_t at_s;
    bool old;      /* of an earlier process: in "ever" alone */
    int row[DIMS]; /* ROW_OTHER, or index of the model's row */
    unsigned who[DIMS];
    struct kvd_tally tally;
    struct kvd_count_slot slot;
};

struct model_row {
    unsigned name;
    uint64_t last_s;
};

struct state {
    uint64_t now_s;
    unsigned n;
    struct lookup lookups[STEPS];
    struct model_row rows[DIMS][ROWS_MAX];
    unsigned n_rows[DIMS];
};

struct model {
    struct state now;
    struct state written; /* when the totals were written down last */
    void *bytes;
    uint32_t n_bytes;
    struct kvd_counting *c;
    uint64_t rng;
};

static uint64_t rnd(struct model *m, uint64_t below)
{
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return m->rng % below;
}

/* ---- the model ---- */

static void fold(struct state *s, int dim, int row)
{
    for (unsigned i = 0; i < s->n; i++) {
        if (s->lookups[i].row[dim] == row) {
            s->lookups[i].row[dim] = ROW_OTHER;
        }
    }
}

/* Which row a name counts in, now. */
static int row_for(struct state *s, int dim, unsigned name)
{
    struct model_row *rows = s->rows[dim];
    for (unsigned i = 0; i < s->n_rows[dim]; i++) {
        if (rows[i].name == name) {
            return (int)i;
        }
    }
    if (s->n_rows[dim] < rows_max[dim]) {
        rows[s->n_rows[dim]].name = name;
        return (int)s->n_rows[dim]++;
    }
    for (unsigned i = 0; i < s->n_rows[dim]; i++) {
        if (rows[i].last_s + FORGOTTEN_S < s->now_s) {
            fold(s, dim, (int)i);
            rows[i].name = name;
            return (int)i;
        }
    }
    return ROW_OTHER;
}

static bool shown(const struct state *s, const struct lookup *l, enum kvd_window w)
{
    return w == KVD_WINDOW_EVER ||
           (!l->old &&
            s->now_s / windows[w].slot_s - l->at_s / windows[w].slot_s < windows[w].slots);
}

static void amount_add(struct kvd_amount *to, const struct kvd_amount *a)
{
    to->tokens += a->tokens;
    to->blocks += a->blocks;
    to->bytes += a->bytes;
}

static void tally_add(struct kvd_tally *to, const struct kvd_tally *t)
{
    to->lookups += t->lookups;
    amount_add(&to->asked, &t->asked);
    for (int i = 0; i < KVD_TIER_COUNT; i++) {
        amount_add(&to->hit[i], &t->hit[i]);
    }
    for (int i = 0; i < KVD_MISS_COUNT; i++) {
        amount_add(&to->missed[i], &t->missed[i]);
    }
}

/* ---- names ---- */

static void name_of(struct model *m, int dim, int row, char *ret, size_t n)
{
    const unsigned name = row == ROW_OTHER ? 0 : m->now.rows[dim][row].name;
    if (row == ROW_OTHER) {
        (void)snprintf(ret, n, "%s", dim == KVD_BY_ALL ? "all" : "(other)");
    } else if (dim == KVD_BY_SPACE) {
        (void)snprintf(ret, n, "m@%02x000000", name + 1);
    } else if (dim == KVD_BY_TENANT && name == 0) {
        (void)snprintf(ret, n, "(default)");
    } else {
        (void)snprintf(ret, n, "%c%u", dim == KVD_BY_SCENARIO ? 's' : 'u', name);
    }
}

struct names {
    char scenario[16];
    char tenant[16];
    struct kvd_count_who who;
};

static void who_of(const struct lookup *l, struct names *ret)
{
    (void)snprintf(ret->scenario, sizeof(ret->scenario), "s%u", l->who[KVD_BY_SCENARIO]);
    (void)snprintf(ret->tenant, sizeof(ret->tenant), "u%u", l->who[KVD_BY_TENANT]);
    ret->who = (struct kvd_count_who){
        .scenario = ret->scenario,
        .space = {{(uint8_t)(l->who[KVD_BY_SPACE] + 1)}},
        .space_name = "m",
        .tenant = {{(uint8_t)l->who[KVD_BY_TENANT], (uint8_t)(l->who[KVD_BY_TENANT] >> 8)}},
        .tenant_name = l->who[KVD_BY_TENANT] == 0 ? "" : ret->tenant};
}

/* ---- comparing ---- */

struct comparison {
    struct model *m;
    int dim;
    unsigned rows; /* of the report */
    struct kvd_tally want[ROWS_MAX + 1];
};

static void compare_row(const char *name, const struct kvd_tally *t, void *user)
{
    struct comparison *c = user;
    char own[64];
    c->rows++;
    for (int row = ROW_OTHER; row < (int)c->m->now.n_rows[c->dim]; row++) {
        name_of(c->m, c->dim, row, own, sizeof(own));
        if (strcmp(own, name) == 0) {
            assert_memory_equal(t, &c->want[row + 1], sizeof(*t));
            return;
        }
    }
    fail_msg("the model has no row %s", name);
}

static void compare(struct model *m, enum kvd_count_by by, enum kvd_window w)
{
    static struct comparison c;
    unsigned rows = 0;
    c = (struct comparison){.m = m, .dim = (int)by};
    for (unsigned i = 0; i < m->now.n; i++) {
        const struct lookup *l = &m->now.lookups[i];
        if (shown(&m->now, l, w)) {
            tally_add(&c.want[l->row[by] + 1], &l->tally);
        }
    }
    for (unsigned i = 0; i <= m->now.n_rows[by]; i++) {
        rows += c.want[i].lookups > 0 || by == KVD_BY_ALL;
    }
    assert_int_equal(kvd_counting_report(m->c, m->now.now_s, by, w, compare_row, &c), 0);
    assert_int_equal(c.rows, rows);
}

static void compare_all(struct model *m)
{
    for (int by = 0; by < DIMS; by++) {
        for (int w = 0; w < KVD_WINDOW_COUNT; w++) {
            compare(m, (enum kvd_count_by)by, (enum kvd_window)w);
        }
    }
}

/* ---- operations ---- */

static struct kvd_amount amount_of(uint64_t blocks)
{
    return (struct kvd_amount){.tokens = 64 * blocks, .blocks = blocks, .bytes = 1000 * blocks};
}

/* Hits in two tiers, misses for any reason, and some tokens that are no block. */
static void tally_make(struct model *m, struct kvd_tally *t)
{
    memset(t, 0, sizeof(*t));
    t->lookups = 1;
    t->hit[KVD_TIER_DRAM] = amount_of(rnd(m, 6));
    t->hit[KVD_TIER_NVME] = amount_of(rnd(m, 3) ? 0 : rnd(m, 6));
    for (uint64_t i = rnd(m, 4); i > 0; i--) {
        const struct kvd_amount a = amount_of(rnd(m, 6));
        amount_add(&t->missed[rnd(m, KVD_MISS_COUNT)], &a);
    }
    t->missed[KVD_MISS_SHORT].tokens += rnd(m, 65);
    for (int i = 0; i < KVD_TIER_COUNT; i++) {
        amount_add(&t->asked, &t->hit[i]);
    }
    for (int i = 0; i < KVD_MISS_COUNT; i++) {
        amount_add(&t->asked, &t->missed[i]);
    }
}

static void op_lookup(struct model *m)
{
    struct state *s = &m->now;
    struct names names;
    if (s->n == STEPS) {
        return;
    }
    struct lookup *l = &s->lookups[s->n];
    memset(l, 0, sizeof(*l));
    tally_make(m, &l->tally);
    l->at_s = s->now_s;
    for (int dim = 1; dim < DIMS; dim++) {
        /* a few names come often, the rest rarely */
        const bool often = dim != KVD_BY_TENANT ? rnd(m, 3) > 0 : rnd(m, 3) == 0;
        l->who[dim] = (unsigned)rnd(m, often ? 4 : n_names[dim]);
    }
    for (int dim = 0; dim < DIMS; dim++) {
        l->row[dim] = dim == 0 ? ROW_OTHER : row_for(s, dim, l->who[dim]);
        if (l->row[dim] != ROW_OTHER) {
            s->rows[dim][l->row[dim]].last_s = s->now_s;
        }
    }
    s->n++;
    who_of(l, &names);
    const uint64_t said_s = s->now_s - (rnd(m, 4) ? 0 : rnd(m, 3)); /* a clock that is behind */
    kvd_counting_lookup(m->c, said_s, &names.who, &l->tally, &l->slot);
}

static void op_failed(struct model *m)
{
    struct state *s = &m->now;
    struct names names;
    if (s->n == 0) {
        return;
    }
    struct lookup *l =
        &s->lookups[rnd(m, 2) ? s->n - 1 - rnd(m, s->n < 9 ? s->n : 9) : rnd(m, s->n)];
    const enum kvd_tier_id tier = rnd(m, 2) ? KVD_TIER_DRAM : KVD_TIER_NVME;
    const uint64_t have = l->tally.hit[tier].blocks;
    if (l->old || have == 0) {
        return;
    }
    const struct kvd_amount moved = amount_of(rnd(m, 3) ? 1 + rnd(m, have) : have);
    struct kvd_amount *hit = &l->tally.hit[tier];
    *hit = amount_of(have - moved.blocks);
    amount_add(&l->tally.missed[KVD_MISS_FAILED], &moved);
    who_of(l, &names);
    kvd_counting_failed(m->c, &l->slot, &names.who, tier, &moved);
}

static void op_time(struct model *m)
{
    static const uint64_t most[] = {2, 2, 2, 7, 25, 90, 400, 4000, 20000, 100000, 300000};
    m->now.now_s += rnd(m, most[rnd(m, sizeof(most) / sizeof(most[0]))]);
}

static void op_write_down(struct model *m)
{
    free(m->bytes);
    assert_int_equal(kvd_counting_encode(m->c, &m->bytes, &m->n_bytes), 0);
    m->written = m->now;
}

/* The next process knows what was written down, and nothing of when it was counted. */
static void op_restart(struct model *m)
{
    struct kvd_diag diag = {""};
    struct state *s = &m->now;
    kvd_counting_destroy(&m->c);
    *s = m->written;
    s->now_s = 1 + rnd(m, 1000000);
    for (unsigned i = 0; i < s->n; i++) {
        s->lookups[i].old = true;
    }
    for (int dim = 1; dim < DIMS; dim++) {
        for (unsigned i = 0; i < s->n_rows[dim]; i++) {
            s->rows[dim][i].last_s = s->now_s;
        }
    }
    assert_int_equal(kvd_counting_create(s->now_s, &m->c), 0);
    if (m->bytes && kvd_counting_decode(m->c, m->bytes, m->n_bytes, &diag)) {
        fail_msg("%s", diag.text);
    }
    op_write_down(m);
}

static void step(struct model *m)
{
    const uint64_t what = rnd(m, 100);
    if (what < 55) {
        op_lookup(m);
    } else if (what < 75) {
        op_failed(m);
    } else if (what < 92) {
        op_time(m);
    } else if (what < 98) {
        op_write_down(m);
    } else if (what == 98) {
        op_write_down(m); /* a clean end */
        op_restart(m);
    } else {
        op_restart(m);
    }
    compare(m, (enum kvd_count_by)rnd(m, DIMS), (enum kvd_window)rnd(m, KVD_WINDOW_COUNT));
}

static void run_seed(uint64_t seed)
{
    struct model *m = calloc(1, sizeof(*m));
    assert_non_null(m);
    print_message("seed %llu\n", (unsigned long long)seed);
    m->rng = seed;
    m->now.now_s = m->written.now_s = 1000;
    assert_int_equal(kvd_counting_create(m->now.now_s, &m->c), 0);
    for (int i = 0; i < STEPS; i++) {
        step(m);
    }
    compare_all(m);
    kvd_counting_destroy(&m->c);
    free(m->bytes);
    free(m);
}

static void test_against_a_model(void **state)
{
    static const uint64_t seeds[] = {88172645463325252U, 1, 7777777, 424242424242U,
                                     UINT64_C(0x123456789abcdef)};
    const char *more = getenv("KVD_SEED");
    (void)state;
    for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++) {
        run_seed(seeds[i]);
    }
    if (more && strtoull(more, NULL, 10)) {
        run_seed(strtoull(more, NULL, 10));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_against_a_model),
};
KVD_TEST_MAIN(tests)
