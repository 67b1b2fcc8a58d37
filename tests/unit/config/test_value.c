/* Values of options: what parses to what, what is refused, and that the table is sound: every
 * default passes its own range, and every number prints as text that parses to it. */
#include "config_test.h"

static void test_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t want;
    } rows[] = {
        {"0", 0},
        {"4096", 4096},
        {"1B", 1},
        {"1KiB", 1024},
        {"64MiB", UINT64_C(64) << 20},
        {"1.5GiB", UINT64_C(3) << 29},
        {"2GB", UINT64_C(2000000000)},
        {"1kB", 1000},
        {"0.1GB", UINT64_C(100000000)},
        {"1TiB", UINT64_C(1) << 40},
        {"64PiB", UINT64_C(1) << 56},
        {"18446744073709551615", UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t v = 7;
        assert_int_equal(kvd_config_parse_bytes(rows[i].text, &v), 0);
        assert_int_equal(v, rows[i].want);
    }
}

static void test_bad_bytes(void **state)
{
    (void)state;
    static const char *const rows[] = {"",
                                       " 1",
                                       "1 ",
                                       "-1",
                                       "+1",
                                       "010",
                                       "00",
                                       "0x10",
                                       "12k",
                                       "12K",
                                       "12M",
                                       "12m",
                                       "1mib",
                                       "1 MiB",
                                       "1MiBs",
                                       "MiB",
                                       "1.",
                                       ".5GiB",
                                       "1.5",
                                       "1.0",
                                       "1.GiB",
                                       "1e3",
                                       "1.5.1GiB",
                                       "0.1KiB" /* not a whole number of bytes */,
                                       "1.0000000001GiB",
                                       "18446744073709551616",
                                       "16384PiB",
                                       "99999999999999999999999GiB",
                                       "1,5GiB"};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t v = 7;
        if (kvd_config_parse_bytes(rows[i], &v) != -KVD_E_CONFIG || v != 7) {
            fail_msg("taken: \"%s\"", rows[i]);
        }
    }
}

static void test_ms(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "10", "0", "10 s", "10S", "1.5", "0.5ms", "07s", "1d"};
    uint64_t v = 7;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (kvd_config_parse_ms(bad[i], &v) != -KVD_E_CONFIG || v != 7) {
            fail_msg("taken: \"%s\"", bad[i]);
        }
    }
    assert_true(kvd_config_parse_ms("250ms", &v) == 0 && v == 250);
    assert_true(kvd_config_parse_ms("10s", &v) == 0 && v == 10000);
    assert_true(kvd_config_parse_ms("1.5s", &v) == 0 && v == 1500);
    assert_true(kvd_config_parse_ms("5m", &v) == 0 && v == 300000);
    assert_true(kvd_config_parse_ms("1h", &v) == 0 && v == 3600000);
}

static void test_defaults_pass_their_own_range(void **state)
{
    (void)state;
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        const struct kvd_option *o = &kvd_options[i];
        CONFIG c = {0};
        struct kvd_diag diag = {""};
        if (kvd_config_set(&c, o->name, o->def, o->name, &diag) != 0) {
            fail_msg("%s: %s", o->name, diag.text);
        }
        assert_ptr_equal(kvd_option_by_name(o->name), o);
        assert_true(strlen(o->name) <= KVD_OPTION_NAME_MAX && strlen(o->text) > 0);
    }
    CONFIG c;
    assert_int_equal(kvd_config_init(&c), 0);
    assert_int_equal(c.dram_cap, UINT64_C(1) << 30);
    assert_int_equal(c.client_copy_lease, 10000);
    assert_true(c.nvme_enabled);
    assert_string_equal(c.io_engine, "auto");
    assert_string_equal(c.dram_path, "");
}

/* A number just outside its range is refused, and the message says the range. */
static void test_ranges_hold(void **state)
{
    (void)state;
    int checked = 0;
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        const struct kvd_option *o = &kvd_options[i];
        if (!kvd_option_is_number(o)) {
            continue;
        }
        const uint64_t rows[] = {o->min, o->max, o->max + 1, o->min ? o->min - 1 : o->max + 1};
        for (size_t r = 0; r < 4; r++) {
            CONFIG c = {0};
            struct kvd_diag diag = {""};
            char text[KVD_OPTION_NUMBER_BYTES];
            char max[KVD_OPTION_NUMBER_BYTES];
            kvd_option_format(o, rows[r], text);
            kvd_option_format(o, o->max, max);
            int err = kvd_config_set(&c, o->name, text, "here", &diag);
            assert_int_equal(err, r < 2 ? 0 : -KVD_E_CONFIG);
            assert_true(err ? strstr(diag.text, max) != NULL : *kvd_option_u64(o, &c) == rows[r]);
            checked++;
        }
    }
    assert_true(checked >= 20);
}

static void test_format_reads_back(void **state)
{
    (void)state;
    static const uint64_t values[] = {0,
                                      1,
                                      999,
                                      1000,
                                      1023,
                                      1024,
                                      1500,
                                      60000,
                                      3600000,
                                      5 << 20,
                                      1073741825,
                                      UINT64_MAX,
                                      UINT64_C(1) << 56};
    static const struct kvd_option bytes = {.type = KVD_OPTION_BYTES};
    static const struct kvd_option ms = {.type = KVD_OPTION_MS};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        char text[KVD_OPTION_NUMBER_BYTES];
        uint64_t v = 7;
        kvd_option_format(&bytes, values[i], text);
        assert_true(kvd_config_parse_bytes(text, &v) == 0 && v == values[i]);
        kvd_option_format(&ms, values[i], text);
        assert_true(kvd_config_parse_ms(text, &v) == 0 && v == values[i]);
    }
    char text[KVD_OPTION_NUMBER_BYTES];
    kvd_option_format(&bytes, UINT64_C(3) << 29, text);
    assert_string_equal(text, "1536MiB");
    kvd_option_format(&ms, 90000, text);
    assert_string_equal(text, "90s");
}

struct bad {
    const char *name;
    const char *value;
    const char *say;
};

static const struct bad bad_values[] = {
    {"dram.cap", "12k", "W is \"12k\"; 32MiB to 1PiB, as 4096, 64MiB"},
    {"dram.cap", "1MiB", "W is \"1MiB\"; 32MiB to 1PiB"},
    {"io.depth", "0", "W is \"0\"; 1 to 4096, a whole number, is allowed"},
    {"io.depth", "064", "W is \"064\"; 1 to 4096"},
    {"io.depth", "64.0", "W is \"64.0\"; 1 to 4096"},
    {"client.copy-lease", "10", "W is \"10\"; 100ms to 1h, as 250ms, 10s or 5m, is allowed"},
    {"nvme.enabled", "yes", "W is \"yes\"; true or false is allowed"},
    {"nvme.enabled", "", "W is \"\"; true or false is allowed"},
    {"io.engine", "uring", "W is \"uring\"; auto, io_uring or threads is allowed"},
    {"io.engine", "", "W is \"\"; auto"},
    {"io.engine", "auto|io_uring", "W is \"auto|io_uring\"; auto"},
    {"io.engine", "aut", "W is \"aut\"; auto"},
    {"dir", "", "W is empty; the path of a folder is needed"},
    {"dir", "a\nb", "W is \"a\nb\"; UTF-8 text without control characters"},
    {"dir", "a\x7f", "W is \"a\x7f\"; UTF-8 text"},
    {"dir", "\xff", "W is \"\xff\"; UTF-8 text"},
    {"dir", "\xc0\x80", "W is"},
    {"dir", "\xed\xa0\x80", "W is"},
    {"dir", "\xe2\x80", "W is"},
    {"socket", "", "W is a path of 0 bytes"},
    {"socket-mode", "660x", "W is \"660x\"; three octal digits"},
    {"socket-mode", "1777", "W is \"1777\"; three octal digits"},
    {"socket-mode", "0690", "W is \"0690\"; three octal digits"},
    {"socket-mode", "", "W is \"\"; three octal digits"},
    {"dram.eviction", "fifo", "W is \"fifo\", no eviction policy; allowed: lru"},
    {"log.level", "verbose", "W is \"verbose\"; error, warn, info or debug is allowed"},
    {"dram.capp", "1GiB", "W: no option is called \"dram.capp\"; did you mean dram.cap?"},
    {"zzzzzzzzzzzzz", "1", "W: no option is called \"zzzzzzzzzzzzz\""},
    {"", "1", "W: no option is called \"\""},
};

static void test_bad_values(void **state)
{
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof(bad_values) / sizeof(bad_values[0]); i++) {
        const struct bad *b = &bad_values[i];
        CONFIG c;
        CONFIG before;
        struct kvd_diag diag = {""};
        assert_int_equal(kvd_config_init(&c), 0);
        assert_int_equal(kvd_config_init(&before), 0);
        assert_int_equal(kvd_config_set(&c, b->name, b->value, "W", &diag), -KVD_E_CONFIG);
        wrong += says(b->value, b->say, diag.text);
        /* nothing was changed */
        assert_string_equal(c.dir, before.dir);
        assert_string_equal(c.io_engine, before.io_engine);
        assert_int_equal(c.dram_cap, before.dram_cap);
    }
    assert_int_equal(wrong, 0);
}

static void test_socket_path_length(void **state)
{
    (void)state;
    char path[109];
    CONFIG c;
    struct kvd_diag diag = {""};
    assert_int_equal(kvd_config_init(&c), 0);
    memset(path, 'a', sizeof(path));
    path[107] = 0;
    assert_int_equal(kvd_config_set(&c, "socket", path, "--socket", &diag), 0);
    path[107] = 'a';
    path[108] = 0;
    assert_int_equal(kvd_config_set(&c, "socket", path, "--socket", &diag), -KVD_E_CONFIG);
    assert_non_null(strstr(diag.text, "--socket is a path of 108 bytes"));
    assert_non_null(strstr(diag.text, "1 to 107"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_bytes),       cmocka_unit_test(test_bad_bytes),
    cmocka_unit_test(test_ms),          cmocka_unit_test(test_defaults_pass_their_own_range),
    cmocka_unit_test(test_ranges_hold), cmocka_unit_test(test_format_reads_back),
    cmocka_unit_test(test_bad_values),  cmocka_unit_test(test_socket_path_length),
};
KVD_TEST_MAIN(tests)
