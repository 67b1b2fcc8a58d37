/* Files that change behind the daemon's back, and file operations that fail: deleted, cut and
 * exchanged segments, a folder that is gone or of another version, names that can't be made durable
 * or removed. */
#include "kvd_test.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults_rig.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5, SEGMENTS_MAX = 64, PATH_BYTES = 512 };

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
    faults_assert_sound(rig);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
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
    faults_assert_sound(rig);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", other, TOKENS), 0);
    assert_heals(rig, tokens);
}

/* ---- cut, exchanged ---- */

static void r_segment_cut_while_the_daemon_runs(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    rig_tokens(7, TOKENS, tokens);
    put_below(rig, tokens);
    assert_int_equal(find_segments(rig), 1);
    assert_int_equal(truncate(found[0], 4096 + 3 * (off_t)(4096 + rig_block_bytes()) + 4096), 0);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), 3);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.missed.failed.blocks"), N - 3);
    assert_int_equal(rig_number(rig, "status", "", "corrupt"), 0);
    rig_expect_problem(rig, "could not be read");
    assert_heals(rig, tokens);
}

static void copy_over(const char *from, const char *to)
{
    char bytes[64 << 10];
    int in = open(from, O_RDONLY);
    int out = open(to, O_WRONLY | O_TRUNC);
    assert_true(in >= 0 && out >= 0);
    for (;;) {
        ssize_t n = read(in, bytes, sizeof(bytes));
        assert_true(n >= 0);
        if (n == 0) {
            break;
        }
        assert_int_equal(write(out, bytes, (size_t)n), n);
    }
    (void)close(in);
    assert_int_equal(fsync(out), 0);
    (void)close(out);
}

/* A segment copied over another: every record in it is whole, and says whose it is. */
static void r_segment_copied_over_another(void **state)
{
    struct rig *rig = *state;
    uint32_t first[TOKENS];
    uint32_t second[TOKENS];
    rig_tokens(8, TOKENS, first);
    rig_tokens(9, TOKENS, second);
    put_below(rig, first);
    assert_int_equal(rig_put(rig, "", "chat", second, N), N); /* another run: another segment */
    rig_close(rig);
    assert_int_equal(find_segments(rig), 2);
    copy_over(found[0], found[1]);
    rig_open(rig, true);
    uint32_t hits = rig_hit(rig, "", first, TOKENS) + rig_hit(rig, "", second, TOKENS);
    assert_int_equal(hits, N); /* one is as it was, of the other nothing is served */
    assert_true(rig_number(rig, "status", "", "corrupt") > 0);
    rig_expect_problem(rig, "did not match their sum or identity");
    assert_heals(rig, first);
    assert_heals(rig, second);
}

/* The start-up scan comes again over what it has found, after a start that lost its rows: nothing
 * is counted twice, and used bytes are those on disk. */
static void r_start_up_scan_twice(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    uint64_t used = 0;
    rig_tokens(10, TOKENS, tokens);
    put_below(rig, tokens);
    rig_close(rig);
    for (int i = 0; i < 3; i++) {
        remove_all(rig, "index");
        rig_open(rig, true);
        assert_int_equal(rig_number(rig, "status", "", "tiers.1.blocks"), N);
        assert_int_equal(rig_number(rig, "status", "", "tiers.1.segments"), 1);
        assert_true(!used || rig_number(rig, "status", "", "tiers.1.used_bytes") == used);
        used = rig_number(rig, "status", "", "tiers.1.used_bytes");
        assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
        rig_close(rig);
    }
    rig_open(rig, true);
    assert_int_equal(rig_number(rig, "status", "", "tiers.1.used_bytes"), used);
    faults_assert_sound(rig);
}

/* ---- the folder's name and identity ---- */

static void assert_identity_fails(struct rig *rig, enum fault_op op, const char *file)
{
    struct kvd_diag diag = {{0}};
    struct kvd_service *service = NULL;
    int id = fault_fail(op, file, -EIO);
    int err = kvd_service_open(&rig->config, false, NULL, &diag, &service);
    assert_int_equal(err, -EIO);
    assert_null(service);
    assert_true(fault_hits(id) > 0);
    assert_non_null(strstr(diag.text, rig->folder)); /* says where */
    fault_clear();
}

/* IDENTITY can't be replaced, in any of its steps: the daemon doesn't start, and the old one stays
 * whole. */
static void r_identity_cannot_be_written(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    rig_tokens(11, TOKENS, tokens);
    put_below(rig, tokens);
    rig_close(rig);
    assert_identity_fails(rig, FAULT_OPEN, "IDENTITY.new");
    assert_identity_fails(rig, FAULT_WRITE, "IDENTITY.new");
    assert_identity_fails(rig, FAULT_FDATASYNC, "IDENTITY.new");
    assert_identity_fails(rig, FAULT_RENAME, "IDENTITY");
    assert_identity_fails(rig, FAULT_SYNC_FOLDER, rig->folder);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
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
#name, name, faults_setup, faults_teardown, NULL                                           \
    }

static const struct CMUnitTest tests[] = {
    TEST(r_segment_deleted_while_the_daemon_runs),
    TEST(r_segment_deleted_while_open),
    TEST(r_segment_deleted_between_runs),
    TEST(r_folder_deleted_while_the_daemon_runs),
    TEST(r_segment_cut_while_the_daemon_runs),
    TEST(r_segment_copied_over_another),
    TEST(r_start_up_scan_twice),
    TEST(r_identity_cannot_be_written),
    TEST(r_segments_cannot_be_unlinked),
};

KVD_TEST_MAIN(tests)
