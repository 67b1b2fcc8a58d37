/* UTF-8: which sequences are whole, begun or broken; and the gate, cut at every byte. */
#include "kvd_test.h"

#include "engine/model/tokenizer.h"
#include "engine/model/utf8.h"

static void test_next(void **state)
{
    static const struct {
        const char *bytes;
        int want;
    } cases[] = {
        {"a", 1},
        {"\xc3\xa9", 2},
        {"\xe4\xbd\xa0", 3},
        {"\xf0\x9f\x99\x82", 4},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\xed\x9f\xbf", 3},
        {"\xc3", 0},
        {"\xe4\xbd", 0},
        {"\xf0\x9f\x99", 0},
        {"\x80", -1},
        {"\xc0\xaf", -1},
        {"\xc1\xbf", -1},
        {"\xe0\x80\xaf", -1},     /* longer than needed */
        {"\xed\xa0\x80", -1},     /* surrogate */
        {"\xf0\x80\x80\x80", -1}, /* longer than needed */
        {"\xf4\x90\x80\x80", -1}, /* above U+10FFFF */
        {"\xf5\x80\x80\x80", -1},
        {"\xff", -1},
        {"\xc3(", -1},
        {"\xe4\xbd(", -2},
        {"\xf0\x9f\x99(", -3},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int got = kvd_utf8_next(cases[i].bytes, strlen(cases[i].bytes));
        if (got != cases[i].want) {
            fail_msg("case %zu: %d, not %d", i, got, cases[i].want);
        }
    }
    assert_int_equal(kvd_utf8_decode("\xf0\x9f\x99\x82", 4), 0x1f642);
    assert_int_equal(kvd_utf8_decode("\xc3\xa9", 2), 0xe9);
}

/* Every code point there is, as its own encoding, is whole; and with its last byte cut off it is
 * begun. */
static void test_all_code_points(void **state)
{
    for (uint32_t c = 1; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000) {
            continue;
        }
        char s[4];
        int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        for (int i = n - 1; i > 0; i--) {
            s[i] = (char)(0x80 | (c >> (6 * (n - 1 - i)) & 0x3f));
        }
        s[0] = (char)(n == 1 ? c : (0xf00U >> n & 0xff) | c >> (6 * (n - 1)));
        if (kvd_utf8_next(s, (uint64_t)n) != n || kvd_utf8_decode(s, n) != c ||
            (n > 1 && kvd_utf8_next(s, (uint64_t)n - 1) != 0)) {
            fail_msg("U+%04X", c);
        }
    }
}

static const char text[] = "a\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x99\x82z\xf4\x8f\xbf\xbf.";

/* Text in two pieces, cut anywhere: each yield is whole characters, together they are the text. */
static void test_gate_two_pieces(void **state)
{
    uint32_t n = sizeof(text) - 1;
    for (uint32_t cut = 0; cut <= n; cut++) {
        struct kvd_utf8_gate gate = {.n = 0};
        char out[sizeof(text) + 8];
        uint32_t first = kvd_utf8_gate_feed(&gate, text, cut, out);
        for (uint32_t i = 0; i < first;) {
            int length = kvd_utf8_next(out + i, first - i);
            assert_true(length > 0);
            i += (uint32_t)length;
        }
        assert_true(cut - first < 4);
        uint32_t second = kvd_utf8_gate_feed(&gate, text + cut, n - cut, out + first);
        assert_int_equal(first + second, n);
        assert_memory_equal(out, text, n);
        assert_int_equal(gate.n, 0);
    }
}

static void test_gate_byte_by_byte(void **state)
{
    struct kvd_utf8_gate gate = {.n = 0};
    char out[sizeof(text) + 8];
    uint32_t n = 0;
    for (uint32_t i = 0; i < sizeof(text) - 1; i++) {
        n += kvd_utf8_gate_feed(&gate, text + i, 1, out + n);
    }
    assert_int_equal(n, sizeof(text) - 1);
    assert_memory_equal(out, text, n);
}

/* Broken sequences: one '?' each, nothing after them is lost, whatever the cut; and the output
 * fits. */
static void test_gate_broken(void **state)
{
    static const struct {
        const char *in;
        const char *out;
    } cases[] = {
        {"\xff", "?"},
        {"a\x80z", "a?z"},
        {"\xe4\xbd"
         "A",
         "?A"},
        {"\xf0\x9f\x99\xe4\xbd\xa0", "?\xe4\xbd\xa0"},
        {"\xed\xa0\x80", "???"},
        {"\xc3\xc3\xa9", "?\xc3\xa9"},
        {"x\xf0\x9f", "x"}, /* begun and never ended: held back */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t n = (uint32_t)strlen(cases[i].in);
        for (uint32_t cut = 0; cut <= n; cut++) {
            struct kvd_utf8_gate gate = {.n = 0};
            char out[32];
            uint32_t got = kvd_utf8_gate_feed(&gate, cases[i].in, cut, out);
            got += kvd_utf8_gate_feed(&gate, cases[i].in + cut, n - cut, out + got);
            assert_int_equal(got, strlen(cases[i].out));
            assert_memory_equal(out, cases[i].out, got);
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_next),
    cmocka_unit_test(test_all_code_points),
    cmocka_unit_test(test_gate_two_pieces),
    cmocka_unit_test(test_gate_byte_by_byte),
    cmocka_unit_test(test_gate_broken),
};

KVD_TEST_MAIN(tests)
