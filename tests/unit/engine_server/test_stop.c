/* Stop strings: found wherever the text is cut, text before them kept, nothing let out too early.
 */
#include "kvd_test.h"

#include "engine/server/stop.h"

struct run {
    char out[256];
    size_t n;
    bool found;
};

/* Feeds text in two pieces cut at `cut`, or byte by byte where cut is SIZE_MAX. */
static struct run run_cut(char *const *stops, uint32_t n, const char *text, size_t cut)
{
    struct run r = {0};
    struct kvd_stop stop = {.stops = stops, .n = n};
    const size_t total = strlen(text);
    for (size_t at = 0; at < total;) {
        const size_t len = cut == SIZE_MAX ? 1 : at < cut ? cut - at : total - at;
        const char *out = NULL;
        size_t bytes = 0;
        assert_int_equal(kvd_stop_feed(&stop, text + at, len, &out, &bytes), 0);
        memcpy(r.out + r.n, out, bytes);
        r.n += bytes;
        at += len;
    }
    r.found = stop.found;
    const char *out = NULL;
    size_t bytes = 0;
    kvd_stop_end(&stop, &out, &bytes);
    if (bytes) {
        memcpy(r.out + r.n, out, bytes);
    }
    r.n += bytes;
    r.out[r.n] = '\0';
    kvd_stop_fini(&stop);
    return r;
}

struct row {
    char *stops[3];
    const char *text;
    const char *out;
    bool found;
};

static const struct row rows[] = {
    {{"END"}, "hello END world", "hello ", true},
    {{"END"}, "hello EN", "hello EN", false},
    {{"END"}, "ENENEND", "ENEN", true},
    {{"END"}, "END", "", true},
    {{"aab"}, "aaaab", "aa", true},
    {{"\n\n", "Q:"}, "A\nQ: b", "A\n", true},
    {{"abc", "b"}, "xabc", "xa", true}, /* what ends first wins */
    {{"c", "abc"}, "xabc", "x", true},  /* what ends together: the longer */
    {{"\xc3\xa9"}, "caf\xc3\xa8 caf\xc3\xa9!", "caf\xc3\xa8 caf", true},
    {{"zzz"}, "plain", "plain", false},
    {{NULL}, "nothing to stop at", "nothing to stop at", false},
    {{"stop", "top it", "p it now"}, "sto p it no stopp", "sto p it no ", true},
};

static void test_cut_everywhere(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t n = 0;
        while (n < 3 && rows[i].stops[n]) {
            n++;
        }
        for (size_t cut = 0; cut <= strlen(rows[i].text) + 1; cut++) {
            const size_t at = cut > strlen(rows[i].text) ? SIZE_MAX : cut;
            const struct run r = run_cut(rows[i].stops, n, rows[i].text, at);
            if (strcmp(r.out, rows[i].out) != 0 || r.found != rows[i].found) {
                fail_msg("'%s' cut at %zu: '%s' (%d)", rows[i].text, cut, r.out, r.found);
            }
        }
    }
}

/* No more is held back than what may still become a stop string. */
static void test_holds_back_only_a_prefix(void **state)
{
    char *stops[] = {"<end>"};
    struct kvd_stop stop = {.stops = stops, .n = 1};
    const char *out = NULL;
    size_t bytes = 0;
    assert_int_equal(kvd_stop_feed(&stop, "text <e", 7, &out, &bytes), 0);
    assert_int_equal(bytes, 5);
    assert_memory_equal(out, "text ", 5);
    assert_int_equal(kvd_stop_feed(&stop, "x", 1, &out, &bytes), 0);
    assert_int_equal(bytes, 3);
    assert_memory_equal(out, "<ex", 3);
    assert_int_equal(kvd_stop_feed(&stop, "<end>tail", 9, &out, &bytes), 0);
    assert_int_equal(bytes, 0);
    assert_true(stop.found);
    assert_int_equal(kvd_stop_feed(&stop, "more", 4, &out, &bytes), 0);
    assert_int_equal(bytes, 0);
    kvd_stop_fini(&stop);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_cut_everywhere),
    cmocka_unit_test(test_holds_back_only_a_prefix),
};
KVD_TEST_MAIN(tests)
