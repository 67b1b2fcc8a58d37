/* proto/base: errors, bytes, cleanup, clock, log, assertions. */
#include "kvd_test.h"

#include <errno.h>
#include <fcntl.h>
#include <regex.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

/* ---- errors ---- */

static const struct {
    int number;
    uint32_t wire;
    const char *name;
} rows[] = {
#define KVD_ERROR(number, name, wire, text) {(number), (wire), #name},
#include "proto/base/error.def"
#undef KVD_ERROR
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static void test_error_table(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS; i++) {
        /* beyond any errno, and one meaning each */
        assert_true(rows[i].number > 1000 && rows[i].wire > 0);
        for (int j = 0; j < i; j++) {
            assert_int_not_equal(rows[i].number, rows[j].number);
            assert_int_not_equal(rows[i].wire, rows[j].wire);
        }
        assert_int_equal(kvd_error_to_wire(-rows[i].number), rows[i].wire);
        assert_int_equal(kvd_error_from_wire(rows[i].wire), -rows[i].number);
        assert_string_equal(kvd_error_name(-rows[i].number), rows[i].name);
        assert_true(strlen(kvd_strerror(-rows[i].number)) > 3);
    }
}

static void test_error_others(void **state)
{
    (void)state;
    assert_int_equal(kvd_error_to_wire(0), 0);
    assert_int_equal(kvd_error_from_wire(0), 0);
    assert_int_equal(kvd_error_from_wire(UINT32_MAX), -KVD_E_INTERNAL);
    assert_int_equal(kvd_error_from_wire(kvd_error_to_wire(-ENOSPC)), -KVD_E_INTERNAL);
    assert_string_equal(kvd_strerror(-ENOENT), strerror(ENOENT));
    assert_string_equal(kvd_error_name(-ENOENT), "ERRNO");
    assert_string_equal(kvd_error_name(0), "OK");
    assert_non_null(kvd_strerror(-123456));
}

static void test_diag(void **state)
{
    (void)state;
    struct kvd_diag diag = {{0}};
    char longest[2 * KVD_DIAG_BYTES];
    assert_int_equal(kvd_fail(NULL, -EINVAL, "x"), -EINVAL);
    assert_int_equal(kvd_fail_prefix(NULL, -EINVAL, "x"), -EINVAL);
    assert_int_equal(kvd_fail(&diag, -KVD_E_FULL, "file %s", "a"), -KVD_E_FULL);
    assert_int_equal(kvd_fail_prefix(&diag, -KVD_E_FULL, "line %d", 7), -KVD_E_FULL);
    assert_string_equal(diag.text, "line 7: file a");
    /* too long is cut, and ends */
    memset(longest, 'y', sizeof(longest));
    longest[sizeof(longest) - 1] = 0;
    (void)kvd_fail_prefix(&diag, -1, "%.600s", longest);
    (void)kvd_fail_prefix(&diag, -1, "%.600s", longest);
    assert_int_equal(strlen(diag.text), KVD_DIAG_BYTES - 1);
    (void)kvd_fail_prefix(&diag, -1, "%s", longest);
    (void)kvd_fail(&diag, -1, "%s", longest);
    assert_int_equal(strlen(diag.text), KVD_DIAG_BYTES - 1);
}

/* ---- bytes ---- */

static void test_byte_order(void **state)
{
    (void)state;
    uint8_t b[9] = {0};
    static const uint8_t le16[] = {0x02, 0x01};
    static const uint8_t le32[] = {0x04, 0x03, 0x02, 0x01};
    static const uint8_t be32[] = {0x01, 0x02, 0x03, 0x04};
    static const uint8_t le64[] = {8, 7, 6, 5, 4, 3, 2, 1};
    kvd_put_le16(b + 1, 0x0102); /* at an odd address */
    assert_memory_equal(b + 1, le16, 2);
    assert_int_equal(kvd_get_le16(b + 1), 0x0102);
    kvd_put_le32(b + 1, 0x01020304);
    assert_memory_equal(b + 1, le32, 4);
    assert_int_equal(kvd_get_le32(b + 1), 0x01020304);
    kvd_put_be32(b + 1, 0x01020304);
    assert_memory_equal(b + 1, be32, 4);
    assert_int_equal(kvd_get_be32(b + 1), 0x01020304);
    kvd_put_le64(b + 1, UINT64_C(0x0102030405060708));
    assert_memory_equal(b + 1, le64, 8);
    assert_true(kvd_get_le64(b + 1) == UINT64_C(0x0102030405060708));
}

static void test_round_up(void **state)
{
    (void)state;
    assert_int_equal(kvd_round_up(0, 4096), 0);
    assert_int_equal(kvd_round_up(1, 4096), 4096);
    assert_int_equal(kvd_round_up(4096, 4096), 4096);
    assert_int_equal(kvd_round_up(4097, 4096), 8192);
    assert_true(kvd_round_up(UINT64_C(1) << 40 | 1, 8) == (UINT64_C(1) << 40) + 8);
}

static void test_cursor(void **state)
{
    (void)state;
    static const uint8_t bytes[13] = {1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9};
    struct kvd_cursor c = {.at = bytes, .left = sizeof(bytes)};
    assert_int_equal(kvd_cursor_le32(&c), 1);
    assert_int_equal(kvd_cursor_le64(&c), 2);
    assert_int_equal(c.left, 1);
    assert_false(c.bad);
    /* one byte too few: bad from here on, and nothing is read */
    assert_int_equal(kvd_cursor_le32(&c), 0);
    assert_true(c.bad);
    assert_null(kvd_cursor_take(&c, 1));
    assert_int_equal(c.left, 1);
    struct kvd_cursor whole = {.at = bytes, .left = sizeof(bytes)};
    assert_null(kvd_cursor_take(&whole, SIZE_MAX));
    assert_true(whole.bad);
    struct kvd_cursor end = {.at = bytes, .left = 0};
    assert_non_null(kvd_cursor_take(&end, 0));
    assert_false(end.bad);
}

/* ---- cleanup ---- */

static int open_and_leave(bool take, int *ret_number)
{
    KVD_AUTOCLOSE int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    *ret_number = fd;
    return take ? kvd_take_fd(&fd) : -1;
}

static void test_cleanup(void **state)
{
    (void)state;
    int number = -1;
    assert_int_equal(open_and_leave(false, &number), -1);
    assert_true(number >= 0);
    assert_int_equal(fcntl(number, F_GETFD), -1);
    int fd = open_and_leave(true, &number);
    assert_int_equal(fd, number);
    assert_true(fcntl(fd, F_GETFD) >= 0);
    kvd_close_fd(&fd);
    assert_int_equal(fd, -1);
    kvd_close_fd(&fd);
    char *text = strdup("x");
    char *kept = text;
    KVD_AUTOFREE char *taken = KVD_TAKE(text);
    assert_null(text);
    assert_ptr_equal(taken, kept);
}

/* ---- clock ---- */

static void test_deadlines(void **state)
{
    (void)state;
    const uint64_t now = kvd_mono_ns();
    assert_true(kvd_mono_ns() >= now);
    assert_int_equal(kvd_deadline_poll_ms(now), 0);
    assert_int_equal(kvd_deadline_poll_ms(0), 0);
    const int ms = kvd_deadline_poll_ms(kvd_mono_ns() + 5 * KVD_NS_PER_S);
    assert_true(ms > 1000 && ms <= 5000);
    assert_int_equal(kvd_deadline_poll_ms(UINT64_MAX), 3600000);
    /* less than a millisecond isn't no time: it would spin */
    uint64_t soon = kvd_mono_ns() + KVD_NS_PER_S;
    assert_true(kvd_deadline_poll_ms(soon) >= 1);
}

/* ---- log ---- */

static size_t log_read(int fd, char *ret, size_t room)
{
    const ssize_t n = read(fd, ret, room - 1);
    const size_t got = n > 0 ? (size_t)n : 0;
    ret[got] = 0;
    return got;
}

static void test_log_line(void **state)
{
    (void)state;
    char text[4096];
    int fds[2];
    struct kvd_log log;
    regex_t form;
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    kvd_log_init(&log, fds[1], "prog", KVD_LOG_WARN);
    kvd_log_info(&log, "not %s", "this");
    kvd_log_error(NULL, "nowhere");
    assert_int_equal(log_read(fds[0], text, sizeof(text)), 0);
    kvd_log_warn(&log, "disk %d%% full", 93);
    (void)log_read(fds[0], text, sizeof(text));
    assert_int_equal(regcomp(&form,
                             "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "
                             "prog W disk 93% full\n$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    assert_int_equal(regexec(&form, text, 0, NULL, 0), 0);
    regfree(&form);
    atomic_store(&log.level, KVD_LOG_DEBUG);
    kvd_log_debug(&log, "now");
    assert_non_null(log_read(fds[0], text, sizeof(text)) ? strstr(text, " D now\n") : NULL);
    /* too long: cut, and still one line */
    memset(text, 'z', 3000);
    text[3000] = 0;
    kvd_log_error(&log, "%s", text);
    const size_t n = log_read(fds[0], text, sizeof(text));
    assert_true(n > 900 && n <= 1024);
    assert_ptr_equal(strchr(text, '\n'), text + n - 1);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static void test_log_levels(void **state)
{
    (void)state;
    assert_int_equal(kvd_log_level_parse("error"), KVD_LOG_ERROR);
    assert_int_equal(kvd_log_level_parse("debug"), KVD_LOG_DEBUG);
    assert_int_equal(kvd_log_level_parse("Warn"), -EINVAL);
    assert_int_equal(kvd_log_level_parse(""), -EINVAL);
}

/* ---- assertions ---- */

static void test_assertion_ends_the_process(void **state)
{
    (void)state;
    char text[512];
    int fds[2];
    int status;
    int evaluated = 0;
    KVD_ASSERT(++evaluated == 1); /* once, also in a release build */
    assert_int_equal(evaluated, 1);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        (void)dup2(fds[1], STDERR_FILENO);
        KVD_ASSERT(evaluated == 2);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    (void)log_read(fds[0], text, sizeof(text));
    assert_non_null(strstr(text, "test_base.c"));
    assert_non_null(strstr(text, "evaluated == 2"));
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_error_table),
    cmocka_unit_test(test_error_others),
    cmocka_unit_test(test_diag),
    cmocka_unit_test(test_byte_order),
    cmocka_unit_test(test_round_up),
    cmocka_unit_test(test_cursor),
    cmocka_unit_test(test_cleanup),
    cmocka_unit_test(test_deadlines),
    cmocka_unit_test(test_log_line),
    cmocka_unit_test(test_log_levels),
    cmocka_unit_test(test_assertion_ends_the_process),
};
KVD_TEST_MAIN(tests)
