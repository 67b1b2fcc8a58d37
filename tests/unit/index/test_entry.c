/* Keys, values and what changes make of entries. */
#include "index_test.h"

static void test_key_order_and_bytes(void **state)
{
    (void)state;
    struct kvd_index_id id = {.index = 0x01020304, .rank = 0x0a0b};
    struct kvd_index_id back = {.index = 0};
    uint8_t key[KVD_ENTRY_KEY_BYTES];
    memset(id.group.b, 0x11, sizeof(id.group.b));
    memset(id.key.b, 0x22, sizeof(id.key.b));
    kvd_entry_key_encode(&id, key);
    static const uint8_t want[] = {0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11,
                                   0x11, 0x11, 0x11, 1,    2,    3,    4,    0x22, 0x22,
                                   0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22,
                                   0x22, 0x22, 0x22, 0x22, 0x22, 0x0a, 0x0b};
    assert_int_equal(sizeof(want), sizeof(key));
    assert_memory_equal(key, want, sizeof(want));
    assert_int_equal(kvd_entry_key_decode(key, sizeof(key), &back), 0);
    assert_true(back.index == id.index && back.rank == id.rank);
    assert_memory_equal(back.group.b, id.group.b, sizeof(id.group.b));
    assert_true(kvd_key_equal(&back.key, &id.key));
    assert_int_equal(kvd_entry_key_decode(key, sizeof(key) - 1, &back), -KVD_E_CORRUPT);
}

/* The bytes are a format: what was written must be read for ever. */
static void test_value_bytes(void **state)
{
    (void)state;
    struct kvd_index_entry e = {.segment = 0x0102030405060708,
                                .offset = 0x1112131415161718,
                                .extent_bytes = 0x21222324,
                                .block_in_record = 0x3132,
                                .scenario = 0x4142,
                                .last_use_day = 0x51525354,
                                .created_day = 0x61626364,
                                .put_id = 0x7172737475767778,
                                .gone = 0x81,
                                .gone_s = 0x9192939495969798};
    static const uint8_t want[KVD_ENTRY_VALUE_BYTES] = {
        1,    0x81, 0x32, 0x31, 0x42, 0x41, 0x24, 0x23, 0x22, 0x21, 0x54, 0x53, 0x52,
        0x51, 0x64, 0x63, 0x62, 0x61, 8,    7,    6,    5,    4,    3,    2,    1,
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x78, 0x77, 0x76, 0x75, 0x74,
        0x73, 0x72, 0x71, 0x98, 0x97, 0x96, 0x95, 0x94, 0x93, 0x92, 0x91};
    uint8_t value[KVD_ENTRY_VALUE_BYTES + 1];
    struct kvd_index_entry back;
    kvd_entry_encode(&e, value);
    assert_memory_equal(value, want, sizeof(want));
    assert_int_equal(kvd_entry_decode(value, KVD_ENTRY_VALUE_BYTES, &back), 0);
    assert_entry_equal(&e, &back);
    for (size_t n = 0; n <= sizeof(value); n++) {
        assert_int_equal(kvd_entry_decode(value, n, &back),
                         n == KVD_ENTRY_VALUE_BYTES ? 0 : -KVD_E_CORRUPT);
    }
    value[0] = 2;
    assert_int_equal(kvd_entry_decode(value, KVD_ENTRY_VALUE_BYTES, &back), -KVD_E_CORRUPT);
}

static void test_put(void **state)
{
    (void)state;
    struct kvd_index_change c = {.kind = KVD_INDEX_PUT, .entry = entry_at(5, 0)};
    struct kvd_index_entry old = entry_at(4, 9);
    struct kvd_index_entry new;
    assert_true(kvd_entry_change(&c, NULL, &new));
    assert_entry_equal(&new, &c.entry);
    old.last_use_day = c.entry.last_use_day + 3;
    assert_true(kvd_entry_change(&c, &old, &new));
    assert_int_equal(new.last_use_day, old.last_use_day);
    assert_int_equal(new.segment, 5);
    old.last_use_day = c.entry.last_use_day - 3;
    assert_true(kvd_entry_change(&c, &old, &new));
    assert_entry_equal(&new, &c.entry);
}

/* A record that is found again where its entry has it (after a kill) keeps what used it since it
 * was put. */
static void test_put_of_what_is_there(void **state)
{
    (void)state;
    struct kvd_index_change c = {.kind = KVD_INDEX_PUT, .entry = entry_at(5, 4096)};
    struct kvd_index_entry old = c.entry;
    struct kvd_index_entry new;
    old.scenario = (uint16_t)(c.entry.scenario + 1);
    old.last_use_day += 2;
    old.created_day -= 1;
    assert_true(kvd_entry_change(&c, &old, &new));
    assert_entry_equal(&new, &old);
    old.offset += 4096; /* another record of the same block: the new one counts */
    assert_true(kvd_entry_change(&c, &old, &new));
    assert_int_equal(new.scenario, c.entry.scenario);
    assert_int_equal(new.created_day, c.entry.created_day);
}

static void test_move(void **state)
{
    (void)state;
    struct kvd_index_change c = {.kind = KVD_INDEX_MOVE,
                                 .entry = entry_at(9, 8192),
                                 .expect_segment = 4,
                                 .expect_offset = 4096};
    struct kvd_index_entry old = entry_at(4, 4096);
    struct kvd_index_entry new;
    old.last_use_day = 20077;
    old.scenario = 2;
    old.put_id = 123;
    assert_false(kvd_entry_change(&c, NULL, &new));
    assert_true(kvd_entry_change(&c, &old, &new));
    assert_true(new.segment == 9 && new.offset == 8192);
    /* all but the place is the entry's own */
    assert_true(new.last_use_day == 20077 && new.scenario == 2 && new.put_id == 123);
    c.expect_offset = 0;
    assert_false(kvd_entry_change(&c, &old, &new));
    c.expect_offset = 4096;
    c.expect_segment = 3;
    assert_false(kvd_entry_change(&c, &old, &new));
}

static void test_touch(void **state)
{
    (void)state;
    struct kvd_index_change c = {.kind = KVD_INDEX_TOUCH, .entry = entry_at(0, 0)};
    struct kvd_index_entry old = entry_at(4, 4096);
    struct kvd_index_entry new;
    assert_false(kvd_entry_change(&c, NULL, &new)); /* touching makes no entry */
    assert_false(kvd_entry_change(&c, &old, &new)); /* same day, same class: no write */
    c.entry.last_use_day = old.last_use_day - 1;
    assert_false(kvd_entry_change(&c, &old, &new)); /* never goes back */
    c.entry.scenario = 2;
    assert_true(kvd_entry_change(&c, &old, &new));
    assert_true(new.scenario == 2 && new.last_use_day == old.last_use_day);
    c.entry.last_use_day = old.last_use_day + 1;
    assert_true(kvd_entry_change(&c, &old, &new));
    assert_true(new.last_use_day == old.last_use_day + 1 && new.segment == 4);
}

static void test_gone(void **state)
{
    (void)state;
    struct kvd_index_change c = {.kind = KVD_INDEX_GONE,
                                 .entry = {.gone = 2, .gone_s = 77, .last_use_day = 5},
                                 .expect_segment = 4,
                                 .expect_offset = 4096};
    struct kvd_index_entry old = entry_at(4, 4096);
    struct kvd_index_entry new;
    assert_false(kvd_entry_change(&c, NULL, &new));
    assert_true(kvd_entry_change(&c, &old, &new));
    assert_true(new.segment == 0 && new.offset == 0 && new.extent_bytes == 0);
    assert_true(new.gone == 2 && new.gone_s == 77 && new.last_use_day == old.last_use_day);
    old.segment = 5; /* it was put anew meanwhile */
    assert_false(kvd_entry_change(&c, &old, &new));
    c.expect_segment = 0;
    c.expect_offset = 0;
    assert_false(kvd_entry_change(&c, &old, &new));
    assert_true(kvd_entry_change(&c, NULL, &new)); /* a ghost of what never was below dram */
    assert_true(new.segment == 0 && new.gone == 2 && new.last_use_day == 5);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_key_order_and_bytes),
    cmocka_unit_test(test_value_bytes),
    cmocka_unit_test(test_put),
    cmocka_unit_test(test_put_of_what_is_there),
    cmocka_unit_test(test_move),
    cmocka_unit_test(test_touch),
    cmocka_unit_test(test_gone),
};
KVD_TEST_MAIN(tests)
