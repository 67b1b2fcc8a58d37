/*
 * For test programs: cmocka, counts, and skipping with a reason. A program's main is
 * KVD_TEST_MAIN(tests), which prints "N passed, N failed, N skipped" and returns 0, 1, or 77 when
 * everything was skipped.
 */
#ifndef TESTS_SUPPORT_KVD_TEST_H
#define TESTS_SUPPORT_KVD_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int kvd_test_skipped __attribute__((unused));

/* Skips the running test and says why. Where KVD_REQUIRE names what is missing, that is a failure
 * instead. */
#define KVD_SKIP(what, ...)                                                                        \
    do {                                                                                           \
        char why_[256];                                                                            \
        (void)snprintf(why_, sizeof(why_), __VA_ARGS__);                                           \
        const char *need_ = getenv("KVD_REQUIRE");                                                 \
        if (need_ && strstr(need_, (what))) {                                                      \
            fail_msg("%s is required here: %s", (what), why_);                                     \
        }                                                                                          \
        (void)printf("skipped: %s\n", why_);                                                       \
        kvd_test_skipped++;                                                                        \
        skip();                                                                                    \
    } while (0)

/* Tests whose name is `only` (all, where that is NULL), and tells cmocka to leave out the others.
 */
static int __attribute__((unused))
kvd_test_select(const struct CMUnitTest *tests, int n, const char *only)
{
    int selected = 0;
    for (int i = 0; i < n; i++) {
        selected += !only || strcmp(tests[i].name, only) == 0;
    }
    if (only) {
        cmocka_set_test_filter(only);
    }
    return selected;
}

/* An argument names the one test to run. */
#define KVD_TEST_MAIN_AROUND(tests, setup, teardown)                                               \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        const int total_ = kvd_test_select((tests), (int)(sizeof(tests) / sizeof((tests)[0])),     \
                                           argc > 1 ? argv[1] : NULL);                             \
        if (total_ == 0) {                                                                         \
            (void)fprintf(stderr, "%s has no test %s\n", argv[0], argv[1]);                        \
            return 2;                                                                              \
        }                                                                                          \
        const int failed_ = cmocka_run_group_tests((tests), (setup), (teardown));                  \
        (void)printf("%d passed, %d failed, %d skipped\n", total_ - failed_ - kvd_test_skipped,    \
                     failed_, kvd_test_skipped);                                                   \
        return failed_ ? 1 : kvd_test_skipped == total_ ? 77 : 0;                                  \
    }
#define KVD_TEST_MAIN(tests) KVD_TEST_MAIN_AROUND(tests, NULL, NULL)

#endif
