/*
 * What leases and puts hold: the limits of pins, whoever shares with whom and whoever leaves first;
 * puts that are given up, or completed under another's name. Several clients of one service.
 */
#include "kvd_test.h"

#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>

#include "cachesvc/core/pins.h"
#include "proto/base/clock.h"
#include "service_rig.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5 };

/* ---- the table of pins, against a simple one ---- */

static void pins_like_a_simple_table(void **state)
{
    (void)state;
    enum { SLOTS = 500, STEPS = 40000, APART = 168 };
    static char memory[SLOTS * APART];
    static uint32_t want[SLOTS];
    struct pin_table table = {0};
    uint64_t x = 88172645463325252;
    uint32_t used = 0;
    assert_false(pin_table_has(&table, memory));
    for (int step = 0; step < STEPS; step++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        const uint32_t at = (uint32_t)(x >> 8) % SLOTS;
        const char *slot = memory + (size_t)at * APART;
        /* grows for a while, then shrinks, and again */
        const bool add = want[at] == 0 || (x >> 40) % 100 < (step / 5000 % 2 ? 30 : 70);
        if (add) {
            assert_true(pin_table_reserve(&table));
            assert_int_equal(pin_table_add(&table, slot), want[at] == 0);
            used += want[at]++ == 0;
        } else {
            assert_int_equal(pin_table_remove(&table, slot), want[at] == 1);
            used -= --want[at] == 0;
        }
        assert_int_equal(pin_table_has(&table, slot), want[at] > 0);
        assert_int_equal(table.used, used);
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        assert_int_equal(pin_table_has(&table, memory + (size_t)i * APART), want[i] > 0);
    }
    pin_table_fini(&table);
}

/* ---- clients beside the rig's own ---- */

struct client {
    struct kvd_session *session;
    struct kvd_space_opened space;
    uint8_t *staging;
};

static void client_open(struct rig *rig, struct client *c)
{
    struct kvd_diag diag = {{0}};
    struct kvd_space_desc desc = rig_space(1);
    assert_int_equal(kvd_session_open(rig->service, &c->session), 0);
    assert_int_equal(kvd_service_space_open(c->session, &desc, &diag, &c->space), 0);
}

static struct kvd_prompt_ref prompt_of(const struct client *c, const uint32_t *tokens, uint32_t n)
{
    return (struct kvd_prompt_ref){.space_handle = c->space.handle,
                                   .tenant = "",
                                   .scenario = "chat",
                                   .tokens = tokens,
                                   .n_tokens = n};
}

/* Matches n blocks, all of which must be there. Returns the lease. */
static uint64_t client_match(struct client *c, const uint32_t *tokens, uint32_t n)
{
    struct kvd_diag diag = {{0}};
    struct kvd_match_out out;
    struct kvd_wire_block *rows = calloc(n, sizeof(*rows));
    struct kvd_prompt_ref ref = prompt_of(c, tokens, n * RIG_BLOCK_TOKENS + 1);
    assert_non_null(rows);
    assert_int_equal(kvd_service_match(c->session, &ref, &diag, rows, n, &out), 0);
    assert_int_equal(out.hit_blocks, n);
    free(rows);
    return out.lease;
}

static uint64_t leased(struct rig *rig)
{
    uint64_t bytes = rig_number(rig, "status", "", "tiers.0.leased_bytes");
    /* nothing else pins when nothing is written down: the account is the truth */
    assert_int_equal(bytes, rig_number(rig, "status", "", "tiers.0.pinned_bytes"));
    return bytes;
}

/* Three prompts of 200 blocks, 7.0 MiB each, in a pool of 28 MiB. */
enum { LONG = 200, LONG_TOKENS = LONG * RIG_BLOCK_TOKENS + 1, PROMPTS = 3 };

struct limits {
    struct rig rig;
    uint32_t tokens[PROMPTS][LONG_TOKENS];
    uint64_t extent; /* of a block */
    uint64_t cap;    /* of the pool */
};

static void limits_open(struct limits *l, uint64_t share)
{
    rig_init(&l->rig, "32MiB", "64MiB");
    l->rig.config.client_pin_share = share;
    l->rig.config.client_copy_lease = 3600000;
    rig_open(&l->rig, false);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        rig_tokens(40 + i, LONG_TOKENS, l->tokens[i]);
        assert_int_equal(rig_put(&l->rig, "", "chat", l->tokens[i], LONG), LONG);
    }
    rig_settle(&l->rig);
    l->extent = rig_block_bytes() + 4096;
    l->cap = (32 << 20) - (32 << 20) / 8;
}

static void r_client_pins_more_than_its_share(void **state)
{
    (void)state;
    struct limits l;
    struct client a;
    struct client b;
    limits_open(&l, 30);
    const uint64_t most = l.cap / 100 * 30;
    client_open(&l.rig, &a);
    client_open(&l.rig, &b);
    /* one client, several leases: what it pins twice counts once, and all of them share a limit */
    uint64_t first = client_match(&a, l.tokens[0], LONG);
    assert_int_equal(leased(&l.rig), LONG * l.extent);
    uint64_t again = client_match(&a, l.tokens[0], LONG);
    assert_int_equal(leased(&l.rig), LONG * l.extent);
    (void)client_match(&a, l.tokens[1], LONG);
    assert_in_range(leased(&l.rig), most - l.extent + 1, most);
    /* what another one pins already costs this one as much as anything */
    (void)client_match(&b, l.tokens[0], LONG);
    (void)client_match(&b, l.tokens[1], LONG);
    (void)client_match(&b, l.tokens[2], LONG);
    kvd_service_release(a.session, first, UINT32_MAX);
    assert_in_range(leased(&l.rig), most - l.extent + 1, most); /* `again` holds them too */
    kvd_service_release(a.session, again, UINT32_MAX);
    kvd_session_end(&a.session);
    assert_in_range(leased(&l.rig), most - l.extent + 1, most); /* b's alone */
    kvd_session_end(&b.session);
    assert_int_equal(leased(&l.rig), 0);
    rig_fini(&l.rig);
}

static void r_clients_pin_more_than_all_may(void **state)
{
    (void)state;
    enum { CLIENTS = 4 };
    struct limits l;
    struct client c[CLIENTS];
    limits_open(&l, 50);
    for (int i = 0; i < CLIENTS; i++) {
        client_open(&l.rig, &c[i]);
    }
    /* 25 % of the pool, held by two; then the one who was first leaves */
    (void)client_match(&c[0], l.tokens[0], LONG);
    (void)client_match(&c[1], l.tokens[0], LONG);
    assert_int_equal(leased(&l.rig), LONG * l.extent);
    kvd_session_end(&c[0].session);
    assert_int_equal(leased(&l.rig), LONG * l.extent);
    /* the others want 25 % each: all of it is less than 80 % */
    (void)client_match(&c[2], l.tokens[1], LONG);
    (void)client_match(&c[3], l.tokens[2], LONG);
    assert_int_equal(leased(&l.rig), (uint64_t)PROMPTS * LONG * l.extent);
    /* a fourth prompt goes beyond */
    uint32_t more[LONG_TOKENS];
    rig_tokens(50, LONG_TOKENS, more);
    uint32_t stored = rig_put(&l.rig, "", "chat", more, LONG);
    assert_in_range(stored, 1, LONG);
    assert_in_range(rig_match(&l.rig, "", "chat", more, LONG_TOKENS), 1, LONG);
    while (rig_number(&l.rig, "status", "", "tiers.1.queue_bytes")) {
        (void)sched_yield();
    }
    const uint64_t all = l.cap / 100 * 80;
    assert_in_range(rig_number(&l.rig, "status", "", "tiers.0.leased_bytes"), all - l.extent + 1,
                    all);
    for (int i = 1; i < CLIENTS; i++) {
        kvd_session_end(&c[i].session);
    }
    rig_fini(&l.rig);
}

/* ---- no room, because what is there is pinned ---- */

static void r_put_where_all_is_pinned(void **state)
{
    (void)state;
    /* blocks of a size class of their own: they need a page in which nothing is pinned */
    enum { EACH = 370, EACH_TOKENS = EACH * RIG_BLOCK_TOKENS + 1 };
    struct rig rig;
    struct kvd_diag diag = {{0}};
    static uint32_t pinned[EACH_TOKENS];
    static uint32_t other[EACH_TOKENS];
    struct client c;
    rig_tokens(60, EACH_TOKENS, pinned);
    rig_tokens(61, EACH_TOKENS, other);
    rig_init(&rig, "32MiB", "64MiB");
    rig.config.client_copy_lease = 3600000;
    rig_open(&rig, false);
    for (uint32_t n = 10; n <= EACH; n += 10) { /* in turns, so that both are in every page */
        assert_int_equal(rig_put(&rig, "", "chat", pinned, n), n);
        assert_int_equal(rig_put(&rig, "", "chat", other, n), n);
    }
    rig_settle(&rig);
    client_open(&rig, &c);
    uint64_t lease = client_match(&c, pinned, EACH);
    assert_in_range(leased(&rig), 1, ((32 << 20) - (32 << 20) / 8) / 2);

    struct kvd_space_desc large = rig_space(2);
    struct kvd_space_opened opened;
    struct kvd_put_out out;
    struct kvd_session *s;
    large.layers = RIG_LAYERS * 8;
    large.payload_bytes = rig_block_bytes() * 8;
    assert_int_equal(kvd_session_open(rig.service, &s), 0);
    assert_int_equal(kvd_service_space_open(s, &large, &diag, &opened), 0);
    struct kvd_prompt_ref ref = {.space_handle = opened.handle,
                                 .tenant = "",
                                 .scenario = "chat",
                                 .tokens = pinned,
                                 .n_tokens = RIG_BLOCK_TOKENS + 1};
    uint64_t refused = rig_number(&rig, "status", "", "puts.refused_blocks");
    assert_int_equal(kvd_service_put_begin(s, &ref, 0, 1, &diag, rig.results, &out), 0);
    assert_int_equal(out.granted_blocks, 1);
    assert_int_equal(rig_commit(s, out.put), 0); /* it is no error, and committed nothing */
    assert_int_equal(rig_number(&rig, "status", "", "puts.refused_blocks"), refused + 1);
    assert_int_equal(rig_number(&rig, "status", "", "puts.begun"), 0);
    /* with the lease goes what was in the way */
    kvd_service_release(c.session, lease, UINT32_MAX);
    assert_int_equal(kvd_service_put_begin(s, &ref, 0, 1, &diag, rig.results, &out), 0);
    assert_int_equal(out.granted_blocks, 1);
    assert_int_equal(rig_commit(s, out.put), 1);
    kvd_session_end(&s);
    kvd_session_end(&c.session);
    rig_fini(&rig);
}

/* ---- puts ---- */

static void r_put_given_up_half_way(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag = {{0}};
    struct kvd_put_out out;
    uint32_t tokens[TOKENS];
    rig_tokens(70, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    struct kvd_prompt_ref ref = {.space_handle = rig.space.handle,
                                 .tenant = "",
                                 .scenario = "chat",
                                 .tokens = tokens,
                                 .n_tokens = TOKENS};
    assert_int_equal(kvd_service_put_begin(rig.session, &ref, 0, 4, &diag, rig.results, &out), 0);
    assert_int_equal(out.granted_blocks, 4);
    assert_int_equal(rig_number(&rig, "status", "", "puts.begun"), 1);
    memset(rig.staging, 7, rig_block_bytes() / 2);
    rig_abort(rig.session, out.put);
    assert_int_equal(rig_number(&rig, "status", "", "puts.begun"), 0);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 0);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.pending.blocks"), 0);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_fini(&rig);
}

/* "put finished" comes late, when its blocks are in another put: by the same client, by another
 * one. It names its own put, so it completes nothing. */
static void r_stale_commit_of_an_older_put(void **state)
{
    (void)state;
    struct rig rig;
    struct client other;
    struct kvd_diag diag = {{0}};
    struct kvd_put_out old;
    struct kvd_put_out newer;
    uint32_t tokens[TOKENS];
    rig_tokens(71, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    client_open(&rig, &other);
    struct kvd_prompt_ref ref = {.space_handle = rig.space.handle,
                                 .tenant = "",
                                 .scenario = "chat",
                                 .tokens = tokens,
                                 .n_tokens = TOKENS};
    assert_int_equal(kvd_service_put_begin(rig.session, &ref, 0, 4, &diag, rig.results, &old), 0);
    rig_abort(rig.session, old.put);
    assert_int_equal(kvd_service_put_begin(rig.session, &ref, 0, 4, &diag, rig.results, &newer), 0);
    assert_int_equal(newer.granted_blocks, 4);
    assert_int_not_equal(old.put, newer.put);
    memset(rig.staging, 7, rig_block_bytes() / 2); /* half of the newer one's bytes */
    assert_int_equal(rig_commit(rig.session, old.put), -KVD_E_STALE);
    assert_int_equal(rig_commit(other.session, newer.put), -KVD_E_STALE);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 0);
    assert_int_equal(rig_number(&rig, "status", "", "puts.begun"), 1);
    rig_abort(rig.session, newer.put);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    kvd_session_end(&other.session);
    rig_fini(&rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pins_like_a_simple_table),
    cmocka_unit_test(r_client_pins_more_than_its_share),
    cmocka_unit_test(r_clients_pin_more_than_all_may),
    cmocka_unit_test(r_put_where_all_is_pinned),
    cmocka_unit_test(r_put_given_up_half_way),
    cmocka_unit_test(r_stale_commit_of_an_older_put),
};

KVD_TEST_MAIN(tests)
