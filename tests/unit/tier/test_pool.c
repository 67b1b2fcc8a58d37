/* The pool in one process: classes, filling, evicting, pins, what the counts say. */
#include "pool_fixture.h"

#include "cachesvc/tier/pool_internal.h"

/* ---- sizes ---- */

static void test_layout_classes(void **state)
{
    (void)state;
    static const uint64_t caps[] = {16 * MIB,       16 * MIB + 12345, 256 * MIB,
                                    1000 * MIB + 1, 4096 * MIB,       UINT64_C(1) << 42};
    for (size_t c = 0; c < sizeof(caps) / sizeof(caps[0]); c++) {
        struct pool_layout l;
        pool_layout_init(&l, caps[c]);
        assert_true(l.file_bytes <= caps[c]);
        assert_true(l.page_bytes <= 64 * MIB && l.pages >= 8);
        assert_true(caps[c] - l.file_bytes < (uint64_t)l.pages * 4096 + 4096);
        assert_int_equal(l.shape[0].slot_bytes, 4096);
        for (uint32_t i = 0; i < l.classes; i++) {
            const struct pool_shape *s = &l.shape[i];
            assert_int_equal(s->slot_bytes % 4096, 0);
            assert_int_equal(s->data_offset % 4096, 0);
            assert_true(s->slots <= l.max_slots);
            assert_true(s->data_offset + (uint64_t)s->slots * s->slot_bytes <= l.page_bytes);
            assert_true(s->data_offset >= POOL_GENERATIONS_OFFSET + 4ull * l.max_slots +
                                              sizeof(struct pool_slot_header) * s->slots);
            assert_int_equal(pool_layout_class(&l, s->slot_bytes), (int)i);
            assert_int_equal(pool_layout_class(&l, s->slot_bytes - 4095), (int)i);
            /* an eighth more at most, but for the rounding and where fewer than eight fit */
            if (i > 0 && s->slots >= 8) {
                assert_true(s->slot_bytes <= l.shape[i - 1].slot_bytes * 9ull / 8 + 2 * 4096);
            }
        }
        assert_int_equal(pool_layout_class(&l, l.page_bytes), -1);
    }
}

/* The commonest record: 64 tokens of SmolLM2-135M. */
static void test_layout_common_record(void **state)
{
    (void)state;
    for (uint64_t cap = 512 * MIB; cap <= 8192 * MIB; cap += 97 * MIB) {
        struct pool_layout l;
        pool_layout_init(&l, cap);
        const int class = pool_layout_class(&l, 1478656);
        const uint64_t used = (uint64_t)l.pages * l.shape[class].slots * 1478656;
        assert_true(used * 100 >= cap * 85);
    }
}

/* ---- filling ---- */

/* Puts blocks of sizes that take turns, three times the cap; returns used / cap in per mille. */
static unsigned fill(struct fixture *f, const uint32_t *sizes, unsigned n_sizes)
{
    uint64_t put = 0;
    struct kvd_pool_stat st = {0};
    for (uint32_t n = 0; put < 3 * f->options.cap_bytes; n++) {
        const uint32_t payload = sizes[n % n_sizes] - HEADER_BYTES;
        assert_int_equal(block_put_unpinned(f->pool, n, payload), 0);
        put += payload;
        assert_true(block_there(f->pool, n));
        kvd_pool_stat(f->pool, &st);
        assert_true(st.page_bytes <= st.cap_bytes && st.used_bytes <= st.page_bytes);
    }
    assert_true(file_taken(f) <= f->options.cap_bytes);
    assert_int_equal(st.evicted_blocks, f->evicted);
    assert_true(f->evicted > 0);
    return (unsigned)(st.used_bytes * 1000 / st.cap_bytes);
}

static void test_fill_beyond_cap(void **state)
{
    (void)state;
    static const uint32_t common[] = {1478656};
    static const uint32_t small[] = {57 << 10};
    static const uint32_t mixed[] = {57 << 10, 1478656};
    static const uint32_t large[] = {57 << 10, 1478656, 21000000};
    static const struct {
        const uint32_t *sizes;
        unsigned n;
        unsigned least; /* per mille of the cap */
    } rows[] = {{common, 1, 850}, {small, 1, 850}, {mixed, 2, 800}, {large, 3, 550}};
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct fixture f;
        fixture_begin(&f, 256 * MIB);
        fixture_open(&f);
        const unsigned used = fill(&f, rows[i].sizes, rows[i].n);
        (void)printf("sizes %u: used %u per mille of the cap\n", rows[i].n, used);
        assert_true(used >= rows[i].least);
        fixture_end(&f);
    }
}

static void test_too_long(void **state)
{
    (void)state;
    struct fixture f;
    struct kvd_slot *slot = NULL;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    assert_int_equal(kvd_pool_alloc(f.pool, 2 * MIB, 0, &slot), -KVD_E_TOO_LONG);
    assert_int_equal(kvd_pool_alloc(f.pool, UINT64_MAX, 0, &slot), -KVD_E_TOO_LONG);
    assert_null(slot);
    fixture_end(&f);
}

/* The least recently used goes, and a touch makes a block young. */
static void test_victim_by_policy(void **state)
{
    (void)state;
    struct fixture f;
    uint32_t n = 0;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    while (f.evicted == 0) {
        assert_int_equal(block_put_unpinned(f.pool, n++, 100000), 0);
    }
    assert_false(block_there(f.pool, 0));
    struct kvd_slot *slot = block_pin(f.pool, 1);
    kvd_pool_touch(f.pool, slot, 5, 101);
    kvd_pool_unpin(f.pool, slot);
    assert_int_equal(block_put_unpinned(f.pool, n++, 100000), 0);
    assert_true(block_there(f.pool, 1));
    assert_false(block_there(f.pool, 2));
    fixture_end(&f);
}

/* ---- pins ---- */

enum { PINNED_MAX = 4096 };

static void r_pinned_slot_is_wanted(void **state)
{
    (void)state;
    static struct kvd_slot *slots[PINNED_MAX];
    struct fixture f;
    struct kvd_slot *slot = NULL;
    struct kvd_pool_stat st;
    uint32_t n = 0;
    int err;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    while ((err = block_put(f.pool, n, 60000, &slots[n])) == 0) {
        n++;
        assert_true(n < PINNED_MAX);
    }
    assert_int_equal(err, -KVD_E_FULL);
    assert_int_equal(f.evicted, 0);
    kvd_pool_stat(f.pool, &st);
    assert_int_equal(st.pinned_bytes, st.used_bytes);
    /* neither can a page change its class */
    assert_int_equal(kvd_pool_alloc(f.pool, 8192, 0, &slot), -KVD_E_FULL);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(bytes_right(slots[i]->base, HEADER_BYTES + 60000, i));
    }
    /* one free: it is the one that goes */
    kvd_pool_unpin(f.pool, slots[n / 2]);
    assert_int_equal(block_put(f.pool, n, 60000, &slot), 0);
    assert_ptr_equal(slot, slots[n / 2]);
    assert_int_equal(f.evicted, 1);
    assert_int_equal(f.evicted_index_sum, n / 2);
    for (uint32_t i = 0; i < n; i++) {
        kvd_pool_unpin(f.pool, slots[i]);
    }
    kvd_pool_stat(f.pool, &st);
    assert_int_equal(st.pinned_bytes, 0);
    fixture_end(&f);
}

static void test_pin_chain_stops_at_gap(void **state)
{
    (void)state;
    struct fixture f;
    struct kvd_addr addrs[5];
    struct kvd_slot *slots[5];
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    for (uint32_t i = 0; i < 5; i++) {
        addrs[i] = addr_of(i);
        if (i != 3) {
            assert_int_equal(block_put_unpinned(f.pool, i, 5000), 0);
        }
    }
    assert_int_equal(kvd_pool_pin_chain(f.pool, addrs, 5, slots), 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(slots[i]->meta.index, i);
        kvd_pool_unpin(f.pool, slots[i]);
    }
    /* the rank is part of the address */
    addrs[0].rank++;
    assert_int_equal(kvd_pool_pin_chain(f.pool, addrs, 1, slots), 0);
    fixture_end(&f);
}

static void test_exists_cancel(void **state)
{
    (void)state;
    struct fixture f;
    struct kvd_slot *slot;
    struct kvd_pool_stat st;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    assert_int_equal(block_put_unpinned(f.pool, 1, 5000), 0);
    const struct kvd_slot_meta meta = meta_of(1, 5000);
    assert_int_equal(kvd_pool_alloc(f.pool, 9096, 0, &slot), 0);
    const uint32_t generation = slot->generation;
    assert_int_equal(kvd_pool_publish(f.pool, slot, &meta), -KVD_E_EXISTS);
    kvd_pool_cancel(f.pool, slot);
    kvd_pool_stat(f.pool, &st);
    assert_int_equal(st.blocks, 1);
    assert_int_equal(st.used_bytes, 4096 + 8192);
    /* the same slot comes again, under another generation */
    struct kvd_slot *again;
    assert_int_equal(kvd_pool_alloc(f.pool, 9096, 0, &again), 0);
    assert_ptr_equal(again, slot);
    assert_int_not_equal(again->generation, generation);
    kvd_pool_cancel(f.pool, again);
    fixture_end(&f);
}

static void test_remove_pinned(void **state)
{
    (void)state;
    struct fixture f;
    struct kvd_slot *slot = NULL;
    struct kvd_slot *other = NULL;
    struct kvd_pool_stat st;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    assert_int_equal(block_put(f.pool, 1, 5000, &slot), 0);
    assert_ptr_equal(block_pin(f.pool, 1), slot);
    kvd_pool_remove(f.pool, slot);
    kvd_pool_remove(f.pool, slot); /* of another holder of a pin: no harm */
    assert_null(block_pin(f.pool, 1));
    kvd_pool_unpin(f.pool, slot);
    /* its address is free, its bytes are not, while one pin is left */
    assert_int_equal(block_put(f.pool, 1, 5000, &other), 0);
    assert_ptr_not_equal(other, slot);
    assert_true(bytes_right(slot->base, 9096, 1));
    kvd_pool_stat(f.pool, &st);
    assert_int_equal(st.blocks, 1);
    assert_int_equal(st.used_bytes, 2 * 12288);
    kvd_pool_unpin(f.pool, slot);
    kvd_pool_unpin(f.pool, other);
    kvd_pool_stat(f.pool, &st);
    assert_int_equal(st.used_bytes, 12288);
    assert_int_equal(f.evicted, 0);
    fixture_end(&f);
}

/* ---- pages change their class ---- */

/* A pool full of one size, no longer used, gives way to another size, page by page. */
static void test_class_takes_over_cold_pages(void **state)
{
    (void)state;
    struct fixture f;
    struct kvd_pool_stat st;
    uint32_t n = 0;
    fixture_begin(&f, 64 * MIB);
    fixture_open(&f);
    while (f.evicted == 0) {
        assert_int_equal(block_put_unpinned(f.pool, n++, 100000), 0);
    }
    for (uint32_t i = 0; i < 300; i++) {
        assert_int_equal(block_put_unpinned(f.pool, 1000000 + i, 300000), 0);
    }
    for (uint32_t i = 150; i < 300; i++) {
        assert_true(block_there(f.pool, 1000000 + i)); /* 44 MiB of 64: not a page's worth only */
    }
    kvd_pool_stat(f.pool, &st);
    assert_true(st.used_bytes * 100 >= st.cap_bytes * 80);
    fixture_end(&f);
}

/* Who holds a generation's offset sees a change even after the page became one of another class. */
static void test_generation_survives_class_change(void **state)
{
    (void)state;
    struct fixture f;
    uint32_t n = 0;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    while (f.evicted == 0) { /* many small slots in each page */
        assert_int_equal(block_put_unpinned(f.pool, n++, 4096), 0);
    }
    enum { KEPT = 100 };
    uint64_t offsets[KEPT];
    uint32_t generations[KEPT];
    const uint8_t *map = mmap(NULL, kvd_pool_map_bytes(f.pool), PROT_READ, MAP_SHARED,
                              kvd_pool_fd_readonly(f.pool), 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    for (uint32_t i = 0; i < KEPT; i++) {
        struct kvd_slot *slot = block_pin(f.pool, n - 1 - i * (n / KEPT / 2));
        offsets[i] = slot->generation_offset;
        generations[i] = slot->generation;
        uint32_t seen;
        memcpy(&seen, map + offsets[i], sizeof(seen));
        assert_int_equal(seen, generations[i]);
        kvd_pool_unpin(f.pool, slot);
    }
    const unsigned before = f.evicted;
    for (uint32_t i = 0; i < 20; i++) { /* a slot takes a whole page; filled with a pattern */
        assert_int_equal(block_put_unpinned(f.pool, 1000000 + generations[0], 1500000), 0);
        struct kvd_slot *slot = block_pin(f.pool, 1000000 + generations[0]);
        kvd_pool_remove(f.pool, slot);
        memset(slot->base, 1, 1500000);
        kvd_pool_unpin(f.pool, slot);
        assert_int_equal(block_put_unpinned(f.pool, 2000000 + i, 1500000), 0);
    }
    assert_true(f.evicted > before + KEPT);
    for (uint32_t i = 0; i < KEPT; i++) {
        uint32_t seen;
        memcpy(&seen, map + offsets[i], sizeof(seen));
        assert_int_not_equal(seen, generations[i]);
    }
    (void)munmap((void *)(uintptr_t)map, kvd_pool_map_bytes(f.pool));
    fixture_end(&f);
}

/* ---- counts, walk ---- */

static void walk_count(struct kvd_slot *slot, void *user)
{
    uint64_t *sum = user;
    assert_true(bytes_right(slot->base, 9096, slot->meta.index));
    *sum += slot->meta.index;
}

static void test_walk_and_scenarios(void **state)
{
    (void)state;
    struct fixture f;
    struct kvd_slot *filling;
    uint64_t sum = 0;
    uint64_t per[4] = {0, 0, 0, 7};
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(block_put_unpinned(f.pool, i, 5000), 0);
    }
    assert_int_equal(kvd_pool_alloc(f.pool, 9096, 0, &filling), 0);
    kvd_pool_walk(f.pool, walk_count, &sum);
    assert_int_equal(sum, 199 * 200 / 2);
    kvd_pool_scenario_bytes(f.pool, per, 4);
    assert_int_equal(per[0], 50 * 12288);
    assert_int_equal(per[3], 7 + 50 * 12288); /* added to what is there */
    struct kvd_slot *slot = block_pin(f.pool, 0);
    kvd_pool_touch(f.pool, slot, 1, 90);
    struct kvd_slot_meta meta;
    kvd_pool_meta(f.pool, slot, &meta);
    assert_int_equal(meta.scenario, 1);
    assert_int_equal(meta.last_use_day, 100); /* never goes back */
    kvd_pool_unpin(f.pool, slot);
    memset(per, 0, sizeof(per));
    kvd_pool_scenario_bytes(f.pool, per, 4);
    assert_int_equal(per[0], 49 * 12288);
    assert_int_equal(per[1], 51 * 12288);
    kvd_pool_cancel(f.pool, filling);
    fixture_end(&f);
}

/* A slot that a device is still filling: whatever else wants room, nobody gets it, its page keeps
 * its class, and its generation stays. */
static void r_slot_that_is_being_filled(void **state)
{
    (void)state;
    struct fixture f;
    struct kvd_pool_stat st;
    struct kvd_slot *filling;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    assert_int_equal(kvd_pool_alloc(f.pool, HEADER_BYTES + 60000, 0, &filling), 0);
    const uint32_t generation = filling->generation;
    bytes_write(filling->base, HEADER_BYTES + 60000, 1);
    uint32_t n = 2;
    do { /* another class, until pages had to change theirs */
        assert_int_equal(block_put_unpinned(f.pool, n, n % 2 ? 1500000 : 5000), 0);
        kvd_pool_stat(f.pool, &st);
    } while (n++ < 4000 || st.evicted_blocks < 1000);
    assert_true(bytes_right(filling->base, HEADER_BYTES + 60000, 1));
    assert_int_equal(filling->generation, generation);
    const struct kvd_slot_meta meta = meta_of(1, 60000);
    assert_int_equal(kvd_pool_publish(f.pool, filling, &meta), 0);
    kvd_pool_unpin(f.pool, filling);
    assert_true(block_there(f.pool, 1));
    fixture_end(&f);
}

static void test_pages_for_registering(void **state)
{
    (void)state;
    struct fixture f;
    void *base = NULL;
    uint64_t bytes = 0;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    assert_false(kvd_pool_page(f.pool, 0, &base, &bytes));
    assert_int_equal(block_put_unpinned(f.pool, 1, 5000), 0);
    struct kvd_slot *slot = block_pin(f.pool, 1);
    assert_true(kvd_pool_page(f.pool, slot->page, &base, &bytes));
    assert_true(slot->base >= (uint8_t *)base &&
                slot->base + slot->slot_bytes <= (uint8_t *)base + bytes);
    assert_int_equal((uintptr_t)slot->base % 4096, 0);
    assert_false(kvd_pool_page(f.pool, -1, &base, &bytes));
    assert_false(kvd_pool_page(f.pool, 8, &base, &bytes));
    kvd_pool_unpin(f.pool, slot);
    fixture_end(&f);
}

static void test_ram_per_block(void **state)
{
    (void)state;
    (void)printf("a slot takes %zu bytes of memory\n", sizeof(struct pool_slot));
    assert_true(sizeof(struct pool_slot) <= 160);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_layout_classes),
    cmocka_unit_test(test_layout_common_record),
    cmocka_unit_test(test_fill_beyond_cap),
    cmocka_unit_test(test_too_long),
    cmocka_unit_test(test_victim_by_policy),
    cmocka_unit_test(r_pinned_slot_is_wanted),
    cmocka_unit_test(test_pin_chain_stops_at_gap),
    cmocka_unit_test(test_exists_cancel),
    cmocka_unit_test(test_remove_pinned),
    cmocka_unit_test(test_class_takes_over_cold_pages),
    cmocka_unit_test(test_generation_survives_class_change),
    cmocka_unit_test(test_walk_and_scenarios),
    cmocka_unit_test(r_slot_that_is_being_filled),
    cmocka_unit_test(test_pages_for_registering),
    cmocka_unit_test(test_ram_per_block),
};
KVD_TEST_MAIN(tests)
