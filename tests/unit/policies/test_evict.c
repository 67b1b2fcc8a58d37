/* Eviction policies: what every policy in the table must do, and the order of lru. */
#include "kvd_test.h"
#include "policies/policy.h"

enum { NODES = 8 };

struct bench {
    const struct kvd_evict_ops *ops;
    struct kvd_evict *e;
    struct kvd_evict_node nodes[NODES];
    unsigned pinned; /* bits */
};

static bool may(const struct kvd_evict_node *node, void *user)
{
    struct bench *b = user;
    return !(b->pinned & (1u << (node - b->nodes)));
}

static void bench_open(struct bench *b, const struct kvd_evict_ops *ops)
{
    memset(b, 0, sizeof(*b));
    b->ops = ops;
    assert_int_equal(ops->create(&b->e), 0);
    for (uint32_t i = 0; i < NODES; i++) {
        b->nodes[i].bytes = 4096;
        b->nodes[i].depth_blocks = i;
        ops->insert(b->e, &b->nodes[i]);
    }
}

/* Index of the next victim, taken out; -1: none. */
static int next(struct bench *b)
{
    struct kvd_evict_node *node = b->ops->victim(b->e, may, b);
    if (!node) {
        return -1;
    }
    b->ops->remove(b->e, node);
    return (int)(node - b->nodes);
}

static void test_every_policy_gives_up_each_once(void **state)
{
    (void)state;
    for (const struct kvd_evict_ops *const *ops = kvd_evict_all; *ops; ops++) {
        struct bench b;
        unsigned seen = 0;
        bench_open(&b, *ops);
        b.pinned = 1u << 3;
        for (int got = next(&b); got >= 0; got = next(&b)) {
            assert_false(seen & (1u << got));
            seen |= 1u << got;
        }
        assert_int_equal(seen, 0xffu & ~b.pinned);
        b.pinned = 0;
        assert_int_equal(next(&b), 3);
        assert_int_equal(next(&b), -1);
        (*ops)->destroy(&b.e);
        assert_null(b.e);
        (*ops)->destroy(&b.e);
    }
}

static void test_every_policy_is_found_by_name(void **state)
{
    (void)state;
    for (const struct kvd_evict_ops *const *ops = kvd_evict_all; *ops; ops++) {
        assert_ptr_equal(kvd_evict_by_name((*ops)->name), *ops);
        assert_true(strlen((*ops)->text) > 0);
    }
    assert_null(kvd_evict_by_name("LRU"));
    assert_null(kvd_evict_by_name(""));
}

static void test_lru_order(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b, &kvd_evict_lru);
    /* a chain is used tail first: its tail is then the coldest of it */
    for (int i = 5; i >= 2; i--) {
        b.ops->touch(b.e, &b.nodes[i]);
    }
    static const int want[] = {0, 1, 6, 7, 5, 4, 3, 2};
    assert_ptr_equal(b.ops->victim(b.e, may, &b), &b.nodes[0]); /* asking takes nothing out */
    for (size_t i = 0; i < NODES; i++) {
        assert_int_equal(next(&b), want[i]);
    }
    b.ops->destroy(&b.e);
}

static void test_lru_left_nodes_survive(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b, &kvd_evict_lru);
    b.ops->destroy(&b.e);
    for (size_t i = 0; i < NODES; i++) {
        assert_true(kvd_list_empty(&b.nodes[i].link));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_every_policy_gives_up_each_once),
    cmocka_unit_test(test_every_policy_is_found_by_name),
    cmocka_unit_test(test_lru_order),
    cmocka_unit_test(test_lru_left_nodes_survive),
};
KVD_TEST_MAIN(tests)
