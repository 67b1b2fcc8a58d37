/* Numbers as people read them, and tables of text. */
#include "kvd_test.h"

#include "proto/base/error.h"
#include "tools/kvdepot/table.h"
#include "tools/kvdepot/units.h"

static void test_count(void **state)
{
    char text[KVD_TEXT_BYTES];
    assert_string_equal(kvd_units_count(text, 0), "0");
    assert_string_equal(kvd_units_count(text, 999), "999");
    assert_string_equal(kvd_units_count(text, 1000), "1,000");
    assert_string_equal(kvd_units_count(text, UINT64_MAX), "18,446,744,073,709,551,615");
}

static void test_bytes(void **state)
{
    char text[KVD_TEXT_BYTES];
    assert_string_equal(kvd_units_bytes(text, 0), "0 B");
    assert_string_equal(kvd_units_bytes(text, 1023), "1023 B");
    assert_string_equal(kvd_units_bytes(text, 1474560), "1.4 MiB");
    assert_string_equal(kvd_units_bytes(text, (1 << 20) - 1), "1.0 MiB");
    assert_string_equal(kvd_units_bytes(text, UINT64_MAX), "16.0 EiB");
}

static void test_share_is_honest_at_the_ends(void **state)
{
    char text[KVD_TEXT_BYTES];
    assert_string_equal(kvd_units_share(text, 0, 0), "-");
    assert_string_equal(kvd_units_share(text, 0, 10), "0.0 %");
    assert_string_equal(kvd_units_share(text, 1, 1000000), "0.1 %");
    assert_string_equal(kvd_units_share(text, 999999, 1000000), "99.9 %");
    assert_string_equal(kvd_units_share(text, 10, 10), "100.0 %");
}

static void test_duration(void **state)
{
    char text[KVD_TEXT_BYTES];
    assert_string_equal(kvd_units_duration(text, 0), "0 s");
    assert_string_equal(kvd_units_duration(text, 60), "1 min");
    assert_string_equal(kvd_units_duration(text, 3725), "1 h 2 min");
    assert_string_equal(kvd_units_duration(text, 604800), "7 d");
    assert_string_equal(kvd_units_duration(text, 604800 + 3 * 3600 + 5), "7 d 3 h");
}

static char *table_text(const char *columns, const char *const *cells, int n)
{
    struct kvd_table *table = NULL;
    assert_int_equal(kvd_table_create(columns, &table), 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(kvd_table_cell(table, "%s", cells[i]), 0);
    }
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(kvd_table_print(table, 0, out), 0);
    (void)fclose(out);
    kvd_table_destroy(&table);
    assert_null(table);
    return text;
}

static void test_table_aligns(void **state)
{
    const char *cells[] = {"name", "n", "", "a", "1", "note", "\xc3\xa4\xc3\xb6", "1,234", ""};
    char *text = table_text("lrl", cells, 9);
    assert_string_equal(text, "name      n\n"
                              "a         1  note\n"
                              "\xc3\xa4\xc3\xb6    1,234\n");
    free(text);
}

static void test_table_takes_no_orders(void **state)
{
    const char *cells[] = {"\x1b[2Jx\ny", "\xc2\x9b"
                                          "31m"};
    char *text = table_text("ll", cells, 2);
    assert_string_equal(text, "?[2Jx?y  ??31m\n");
    free(text);
}

static void test_table_many_rows(void **state)
{
    struct kvd_table *table = NULL;
    assert_int_equal(kvd_table_create("r", &table), 0);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(kvd_table_cell(table, "%d", i), 0);
    }
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(kvd_table_print(table, 2, out), 0);
    (void)fclose(out);
    kvd_table_destroy(&table);
    assert_int_equal(size, 1000 * (2 + 3 + 1));
    free(text);
}

static void test_parse_bytes(void **state)
{
    uint64_t n = 0;
    assert_int_equal(kvd_units_parse_bytes("4096", &n), 0);
    assert_int_equal(n, 4096);
    assert_int_equal(kvd_units_parse_bytes("8MiB", &n), 0);
    assert_int_equal(n, 8 << 20);
    assert_int_equal(kvd_units_parse_bytes("1.5KiB", &n), 0);
    assert_int_equal(n, 1536);
    static const char *const wrong[] = {"", "MiB", "-1", " 1", "1 MiB", "inf", "1e30GiB", "1mib"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(kvd_units_parse_bytes(wrong[i], &n), -KVD_E_BAD_REQUEST);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_parse_bytes),
    cmocka_unit_test(test_count),
    cmocka_unit_test(test_bytes),
    cmocka_unit_test(test_share_is_honest_at_the_ends),
    cmocka_unit_test(test_duration),
    cmocka_unit_test(test_table_aligns),
    cmocka_unit_test(test_table_takes_no_orders),
    cmocka_unit_test(test_table_many_rows),
};

KVD_TEST_MAIN(tests)
