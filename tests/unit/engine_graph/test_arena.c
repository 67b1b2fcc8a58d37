/* Pages: each handed out once, in order or shuffled, refused when there are none. */
#include <errno.h>

#include "engine/graph/arena.h"
#include "kvd_test.h"

enum { PAGES = 100, BYTES = 5000 };

static struct kvd_arena *make(uint64_t seed)
{
    const struct kvd_arena_options options = {BYTES, PAGES, seed};
    struct kvd_arena *arena = NULL;
    assert_int_equal(kvd_arena_create(&options, &arena), 0);
    return arena;
}

static void every_page_is_handed_out_once(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct kvd_arena *arena = make(seed);
        int seen[PAGES] = {0};
        for (int i = 0; i < PAGES; i++) {
            assert_int_equal(kvd_arena_free_pages(arena), PAGES - i);
            const int page = kvd_arena_get(arena);
            assert_in_range(page, 0, PAGES - 1);
            assert_int_equal(seen[page]++, 0);
            memset(kvd_arena_page(arena, page), i, BYTES);
            if (seed == 0) {
                assert_int_equal(page, i);
            }
        }
        assert_int_equal(kvd_arena_get(arena), -KVD_E_FULL);
        kvd_arena_put(arena, 42);
        assert_int_equal(kvd_arena_free_pages(arena), 1);
        assert_int_equal(kvd_arena_get(arena), 42);
        kvd_arena_destroy(&arena);
        assert_null(arena);
    }
}

/* Pages don't overlap and can be read and written directly by the kernel (4 KiB). */
static void pages_are_apart_and_aligned(void **state)
{
    (void)state;
    struct kvd_arena *arena = make(3);
    for (int i = 0; i < PAGES; i++) {
        memset(kvd_arena_page(arena, i), i, BYTES);
    }
    for (int i = 0; i < PAGES; i++) {
        const uint8_t *page = kvd_arena_page(arena, i);
        assert_int_equal((uintptr_t)page % 4096, 0);
        assert_int_equal(page[0], i);
        assert_memory_equal(page, page + 1, BYTES - 1);
    }
    kvd_arena_destroy(&arena);
}

static void a_seed_gives_an_order(void **state)
{
    (void)state;
    struct kvd_arena *a = make(5);
    struct kvd_arena *b = make(5);
    struct kvd_arena *c = make(6);
    uint32_t differ = 0;
    uint32_t ordered = 0;
    for (int i = 0; i < PAGES; i++) {
        const int page = kvd_arena_get(a);
        assert_int_equal(page, kvd_arena_get(b));
        differ += page != kvd_arena_get(c);
        ordered += page == i;
    }
    assert_true(differ > PAGES / 2);
    assert_true(ordered < PAGES / 2);
    kvd_arena_destroy(&a);
    kvd_arena_destroy(&b);
    kvd_arena_destroy(&c);
}

static void bad_sizes_are_refused(void **state)
{
    (void)state;
    const struct kvd_arena_options bad[] = {
        {0, 1, 0}, {1, 0, 0}, {UINT64_MAX, 2, 0}, {1, UINT32_MAX, 0}};
    struct kvd_arena *arena = NULL;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(kvd_arena_create(&bad[i], &arena), -EINVAL);
        assert_null(arena);
    }
    kvd_arena_destroy(&arena);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_page_is_handed_out_once),
    cmocka_unit_test(pages_are_apart_and_aligned),
    cmocka_unit_test(a_seed_gives_an_order),
    cmocka_unit_test(bad_sizes_are_refused),
};

KVD_TEST_MAIN(tests)
