/* Options of kvdepot's subcommands. */
#include "kvd_test.h"

#include "tools/kvdepot/args.h"

struct parsed {
    bool flag;
    const char *text;
    unsigned number;
};

static int parse(struct parsed *p, struct kvd_diag *diag, int argc, const char **argv)
{
    const struct kvd_arg args[] = {
        {"json", KVD_ARG_FLAG, &p->flag},
        {"socket", KVD_ARG_STRING, &p->text},
        {"repeat", KVD_ARG_UINT, &p->number},
    };
    return kvd_args_parse(argc, (char **)argv, args, 3, diag);
}

static void test_both_spellings(void **state)
{
    struct parsed p = {0};
    struct kvd_diag diag = {0};
    const char *apart[] = {"status", "--socket", "/a", "--json", "--repeat", "7"};
    assert_int_equal(parse(&p, &diag, 6, apart), 0);
    assert_true(p.flag);
    assert_string_equal(p.text, "/a");
    assert_int_equal(p.number, 7);
    const char *joined[] = {"status", "--socket=/b=c", "--repeat=1000000"};
    assert_int_equal(parse(&p, &diag, 3, joined), 0);
    assert_string_equal(p.text, "/b=c");
    assert_int_equal(p.number, 1000000);
}

static void test_defaults_stay(void **state)
{
    struct parsed p = {.text = "default", .number = 3};
    struct kvd_diag diag = {0};
    const char *none[] = {"status"};
    assert_int_equal(parse(&p, &diag, 1, none), 0);
    assert_false(p.flag);
    assert_string_equal(p.text, "default");
    assert_int_equal(p.number, 3);
}

static void test_refuses_in_words(void **state)
{
    static const struct {
        const char *argument;
        const char *says;
    } bad[] = {
        {"--sockets=x", "no option --sockets"},
        {"--sock=x", "no option --sock"},
        {"--socket", "needs a value"},
        {"--json=1", "takes no value"},
        {"extra", "not an option"},
        {"--", "not an option"},
        {"--repeat=0", "whole number"},
        {"--repeat=-1", "whole number"},
        {"--repeat=1x", "whole number"},
        {"--repeat=", "whole number"},
        {"--repeat=99999999999999999999999", "whole number"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct parsed p = {0};
        struct kvd_diag diag = {0};
        const char *argv[] = {"status", bad[i].argument};
        assert_int_equal(parse(&p, &diag, 2, argv), -KVD_E_BAD_REQUEST);
        assert_non_null(strstr(diag.text, bad[i].says));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_both_spellings),
    cmocka_unit_test(test_defaults_stay),
    cmocka_unit_test(test_refuses_in_words),
};

KVD_TEST_MAIN(tests)
