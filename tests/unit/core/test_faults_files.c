/* Files that change behind the daemon's back, and file operations that fail: deleted, cut and
 * exchanged segments, a folder that is gone or of another version, names that can't be made durable
 * or removed. */
#include "kvd_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault_io.h"
#include "proto/base/clock.h"
#include "service_rig.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5, SEGMENTS_MAX = 64, PATH_BYTES = 512 };

static int setup(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    assert_non_null(rig);
    rig_init(rig, "64MiB", "64MiB");
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    fault_clear();
    rig_fini(rig);
    free(rig);
    return 0;
}

static void assert_sound(struct rig *rig)
{
    rig_settle(rig);
    rig_assert_adds_up(rig);
    assert_int_equal(rig_number(rig, "status", "", "tiers.0.pinned_bytes"), 0);
    assert_int_equal(rig_number(rig, "status", "", "leases"), 0);
}

/* ---- segments on disk ---- */

static char found[SEGMENTS_MAX][PATH_BYTES];
static int n_found;

static int find_segment(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)flag;
    (void)ftw;
    if (S_ISREG(st->st_mode) && strstr(path, ".seg") && n_found < SEGMENTS_MAX) {
        (void)snprintf(found[n_found++], PATH_BYTES, "%s", path);
    }
    return 0;
}

static int find_segments(const struct rig *rig)
{
    n_found = 0;
    assert_int_equal(nftw(rig->folder, find_segment, 16, FTW_PHYS), 0);
    return n_found;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void remove_all(const struct rig *rig, const char *name)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof(path), "%s/%s", rig->folder, name);
    assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void put_below(struct rig *rig, const uint32_t *tokens)
{
    rig_open(rig, false);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_close(rig);
    rig_open(rig, true);
}

/* Puts and hits again, until the service has its way back. */
static void assert_heals(struct rig *rig, const uint32_t *tokens)
{
    for (int i = 0; i <= N && rig_hit(rig, "", tokens, TOKENS) < N; i++) {
        assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
        rig_settle(rig);
    }
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    assert_sound(rig);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    assert_sound(rig);
}

/* ---- deleted ---- */

/* Between start and first use: nobody has it open. */
static void r_segment_deleted_while_the_daemon_runs(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    rig_tokens(1, TOKENS, tokens);
    put_below(rig, tokens);
    assert_int_equal(find_segments(rig), 1);
    assert_int_equal(unlink(found[0]), 0);
    assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), N);
    assert_int_equal(rig_load(rig, tokens), 0);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.missed.failed.blocks"), N);
    assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), 0); /* from now on a miss */
    assert_heals(rig, tokens);
}

/* While it is open for reading, and while it is being written. Nobody reads anything wrong; once it
 * is noticed it is a miss. */
static void r_segment_deleted_while_open(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    uint32_t other[TOKENS];
    rig_tokens(2, TOKENS, tokens);
    rig_tokens(3, TOKENS, other);
    put_below(rig, tokens);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N); /* opens it */
    assert_int_equal(rig_put(rig, "", "chat", other, N), N);
    rig_settle(rig);
    assert_int_equal(find_segments(rig), 2);
    assert_int_equal(unlink(found[0]), 0);
    assert_int_equal(unlink(found[1]), 0);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    assert_int_equal(rig_hit(rig, "", other, TOKENS), N);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), 0);
    assert_int_equal(rig_hit(rig, "", other, TOKENS), 0);
    assert_heals(rig, tokens);
}

/* Between two runs. */
static void r_segment_deleted_between_runs(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    rig_tokens(4, TOKENS, tokens);
    put_below(rig, tokens);
    rig_close(rig);
    assert_int_equal(find_segments(rig), 1);
    assert_int_equal(unlink(found[0]), 0);
    rig_open(rig, true);
    assert_int_equal(rig_number(rig, "status", "", "tiers.1.blocks"), 0);
    assert_int_equal(rig_number(rig, "status", "", "tiers.1.used_bytes"), 0);
    assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), 0);
    assert_heals(rig, tokens);
}

/* The tier's whole folder. dram goes on; what can't be written is counted, and status says what to
 * do. */
static void r_folder_deleted_while_the_daemon_runs(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    uint32_t other[TOKENS];
    rig_tokens(5, TOKENS, tokens);
    rig_tokens(6, TOKENS, other);
    put_below(rig, tokens);
    remove_all(rig, "nvme");
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), 0);
    assert_int_equal(rig_put(rig, "", "chat", other, N), N);
    rig_settle(rig);
    assert_int_equal(rig_hit(rig, "", other, TOKENS), N);
    assert_true(rig_number(rig, "status", "", "tiers.1.failed_writes") >= N);
    rig_expect_problem(rig, "folder was removed");
    rig_expect_problem(rig, "could not be written below dram");
    assert_sound(rig);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", other, TOKENS), 0);
    assert_heals(rig, tokens);
}

/* ---- removing ---- */

/* Files can't be unlinked: room can't be made, but nothing more than one segment is given up for
 * it, and the cap holds. */
static void r_segments_cannot_be_unlinked(void **state)
{
    enum { OTHERS = 60 };
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    rig_fini(rig);
    rig_init(rig, "64MiB", "16MiB");
    rig_open(rig, false);
    int id = fault_fail(FAULT_UNLINK, ".seg", -EACCES);
    for (uint32_t i = 0; i < OTHERS; i++) {
        rig_tokens(10 + i, TOKENS, tokens);
        assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    }
    rig_settle(rig);
    assert_true(fault_hits(id) > 1);
    uint64_t cap = rig_number(rig, "status", "", "tiers.1.cap_bytes");
    assert_true(rig_number(rig, "status", "", "tiers.1.used_bytes") <= cap);
    assert_true(rig_number(rig, "status", "", "tiers.1.failed_writes") > 0);
    int segments = find_segments(rig);
    assert_int_equal(rig_number(rig, "status", "", "tiers.1.segments"), segments - 1);
    rig_expect_problem(rig, "can't be removed");
    fault_clear();
    rig_tokens(10, TOKENS, tokens);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N); /* which writes it down again */
    rig_settle(rig);
    assert_true(rig_number(rig, "status", "", "tiers.1.dropped_blocks") > 0);
    assert_true(rig_number(rig, "status", "", "tiers.1.used_bytes") <= cap);
    assert_heals(rig, tokens);
    assert_int_equal(rig_number(rig, "status", "", "tiers.1.segments"), find_segments(rig));
}

#define TEST(name)                                                                                 \
    {                                                                                              \
#name, name, setup, teardown, NULL                                                         \
    }

static const struct CMUnitTest tests[] = {
    TEST(r_segment_deleted_while_the_daemon_runs), TEST(r_segment_deleted_while_open),
    TEST(r_segment_deleted_between_runs),          TEST(r_folder_deleted_while_the_daemon_runs),
    TEST(r_segments_cannot_be_unlinked),
};

KVD_TEST_MAIN(tests)
