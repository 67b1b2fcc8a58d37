/* The intrusive list. */
#include "kvd_test.h"

#include "proto/base/list.h"

struct item {
    int n;
    struct kvd_list link;
};

static int item_of(const struct kvd_list *link)
{
    return KVD_CONTAINER_OF(link, const struct item, link)->n;
}

/* The numbers in order as a decimal number, and the links back agree. */
static int order_of(const struct kvd_list *head)
{
    int order = 0;
    kvd_list_foreach (it, (struct kvd_list *)(uintptr_t)head) {
        order = order * 10 + item_of(it);
        assert_ptr_equal(it->next->prev, it);
        assert_ptr_equal(it->prev->next, it);
    }
    return order;
}

static void items_init(struct kvd_list *head, struct item *items, int n)
{
    kvd_list_init(head);
    for (int i = 0; i < n; i++) {
        items[i].n = i + 1;
        kvd_list_init(&items[i].link);
    }
}

static void test_push_remove_order(void **state)
{
    (void)state;
    struct kvd_list head;
    struct item items[4];
    items_init(&head, items, 4);
    assert_true(kvd_list_empty(&head));
    kvd_list_push_back(&head, &items[0].link);
    kvd_list_push_back(&head, &items[1].link);
    kvd_list_push_front(&head, &items[2].link);
    kvd_list_insert(&items[0].link, &items[3].link);
    assert_false(kvd_list_empty(&head));
    assert_int_equal(order_of(&head), 3142);
    kvd_list_remove(&items[0].link);
    assert_int_equal(order_of(&head), 342);
    kvd_list_remove(&items[1].link);
    assert_int_equal(order_of(&head), 34);
    kvd_list_remove(&items[2].link);
    kvd_list_remove(&items[3].link);
    assert_true(kvd_list_empty(&head));
}

static void test_remove_twice_and_reuse(void **state)
{
    (void)state;
    struct kvd_list head;
    struct item items[2];
    items_init(&head, items, 2);
    kvd_list_push_back(&head, &items[0].link);
    kvd_list_push_back(&head, &items[1].link);
    kvd_list_remove(&items[0].link);
    kvd_list_remove(&items[0].link);
    assert_int_equal(order_of(&head), 2);
    assert_true(kvd_list_empty(&items[0].link));
    kvd_list_push_front(&head, &items[0].link);
    assert_int_equal(order_of(&head), 12);
}

static void test_pop_front(void **state)
{
    (void)state;
    struct kvd_list head;
    struct item items[3];
    items_init(&head, items, 3);
    assert_null(kvd_list_pop_front(&head));
    for (int i = 0; i < 3; i++) {
        kvd_list_push_back(&head, &items[i].link);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(item_of(kvd_list_pop_front(&head)), i + 1);
    }
    assert_null(kvd_list_pop_front(&head));
}

static void test_foreach_safe_may_remove(void **state)
{
    (void)state;
    struct kvd_list head;
    struct item items[6];
    items_init(&head, items, 6);
    for (int i = 0; i < 6; i++) {
        kvd_list_push_back(&head, &items[i].link);
    }
    int seen = 0;
    kvd_list_foreach_safe (it, &head) {
        seen++;
        if (item_of(it) % 2 == 0) {
            kvd_list_remove(it);
        }
    }
    assert_int_equal(seen, 6);
    assert_int_equal(order_of(&head), 135);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_push_remove_order),
    cmocka_unit_test(test_remove_twice_and_reuse),
    cmocka_unit_test(test_pop_front),
    cmocka_unit_test(test_foreach_safe_may_remove),
};
KVD_TEST_MAIN(tests)
