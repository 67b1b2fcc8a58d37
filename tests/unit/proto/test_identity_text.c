/* IDENTITY's text: what is written is read, and nothing else is. */
#include "kvd_test.h"

#include "proto/format/identity.h"

static const struct kvd_identity some = {
    .store = {{1, 2, 3}}, .seed = UINT64_C(0xfedcba9876543210), .boot = 7};

static void written_is_read(void **state)
{
    (void)state;
    char text[KVD_IDENTITY_TEXT_MAX];
    struct kvd_identity got;
    struct kvd_diag diag = {{0}};
    const size_t n = kvd_identity_print(&some, text);
    assert_int_equal(strlen(text), n);
    assert_non_null(strstr(text, "seed fedcba9876543210\n"));
    assert_int_equal(kvd_identity_parse(text, n, "f", &diag, &got), 0);
    assert_memory_equal(&got, &some, sizeof(got));
}

/* Every cut, and a flipped bit in every byte. */
static void damaged_is_refused(void **state)
{
    (void)state;
    char text[KVD_IDENTITY_TEXT_MAX];
    struct kvd_identity got;
    struct kvd_diag diag = {{0}};
    const size_t n = kvd_identity_print(&some, text);
    for (size_t cut = 0; cut + 1 < n; cut++) {
        char was = text[cut];
        text[cut] = 0;
        assert_int_equal(kvd_identity_parse(text, cut, "f", &diag, &got), -KVD_E_CORRUPT);
        text[cut] = (char)(was ^ 0x10);
        assert_true(kvd_identity_parse(text, n, "f", &diag, &got) < 0);
        text[cut] = was;
    }
    assert_non_null(strstr(diag.text, "f/IDENTITY is damaged"));
}

static void newer_is_told_apart(void **state)
{
    (void)state;
    static const char newer[] = "kvdepot-identity 2\nstore of another kind\n";
    struct kvd_identity got;
    struct kvd_diag diag = {{0}};
    assert_int_equal(kvd_identity_parse(newer, sizeof(newer) - 1, "f", &diag, &got), -KVD_E_NEWER);
    assert_non_null(strstr(diag.text, "newer kvdepotd"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(written_is_read),
    cmocka_unit_test(damaged_is_refused),
    cmocka_unit_test(newer_is_told_apart),
};
KVD_TEST_MAIN(tests)
