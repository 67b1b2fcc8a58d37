/* Start-up of the nvme tier: after crashes in every state, with damaged and with strange files. A
 * crash is a forked child that ends without closing anything. */
#include "kvd_test.h"

#include "nvme_world.h"
#include "proto/format/frame.h"

enum { KIB = 1024, RECORD = 100 * KIB };

static struct kvd_io *open_threads(void)
{
    struct kvd_diag diag = {{0}};
    struct kvd_io *io = NULL;
    assert_int_equal(kvd_io_open("threads", 8, &diag, &io), 0);
    return io;
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    world_init(w, open_threads());
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    world_fini(w);
    kvd_io_close(&w->io);
    free(w);
    return 0;
}

/* Runs fn in a child that opens the tier and then ends at once. Nobody has threads when it forks:
 * the child wouldn't have them. */
static void crash(struct world *w, void (*fn)(struct world *w))
{
    kvd_io_close(&w->io);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct kvd_diag diag = {{0}};
        if (kvd_io_open("auto", 8, &diag, &w->io) != 0 || world_open_diag(w, &diag) != 0) {
            (void)fprintf(stderr, "child: %s\n", diag.text);
            _exit(3);
        }
        fn(w);
        _exit(w->broken ? 4 : 0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    w->epoch++; /* the child's */
    w->io = open_threads();
}

static void store_ten(struct world *w)
{
    world_store(w, 1, 10, 1, RECORD, NULL);
}

static void do_nothing(struct world *w)
{
    (void)w;
}

static void expect_found(struct world *w, uint64_t first, uint64_t last)
{
    for (uint64_t id = first; id <= last; id++) {
        struct kvd_place place;
        assert_int_equal(world_found(w, id, &place), 1);
        assert_int_equal(place.offset, w->shared->places[id].offset);
        assert_int_equal(place.extent_bytes, w->shared->places[id].extent_bytes);
        assert_int_equal(world_fetch_at(w, &place, id), 0);
    }
    assert_int_equal(w->n_found, last - first + 1);
}

static void flip(const char *path, off_t at)
{
    KVD_AUTOCLOSE int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte = 0;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static uint64_t file_bytes(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

/* ---- crashes ---- */

static void test_crash_keeps_what_was_durable(void **state)
{
    struct world *w = *state;
    crash(w, store_ten);
    assert_int_equal(w->shared->rows[1].state, KVD_SEGMENT_OPEN);
    world_open(w);
    expect_found(w, 1, 10);
    assert_int_equal(w->shared->rows[1].state, KVD_SEGMENT_SEALED);
    assert_int_equal(w->shared->rows[1].records, 10);
    char path[192];
    world_path(w, 1, path, sizeof(path));
    assert_int_equal(file_bytes(path), w->shared->rows[1].bytes); /* cut to what it holds */
    struct kvd_tier_stat stat;
    kvd_tier_nvme.stat(w->tier, &stat);
    assert_int_equal(stat.used_bytes, world_disk_bytes(w, NULL));
    world_store(w, 11, 1, 1, RECORD, NULL); /* never appended to again */
    assert_int_equal(w->shared->places[11].segment, 2);
    world_close(w);
    world_open(w);
    assert_int_equal(w->n_found, 0);
    assert_int_equal(world_fetch(w, 1), 0);
    assert_int_equal(world_fetch(w, 11), 0);
}

/* A crash just after a start that has sealed what it found; the rows of that start may be lost. */
static void test_recovery_twice(void **state)
{
    struct world *w = *state;
    crash(w, store_ten);
    struct kvd_segment_info before = w->shared->rows[1];
    crash(w, do_nothing);
    w->shared->rows[1] = before;
    world_open(w);
    expect_found(w, 1, 10);
}

static void test_lost_index(void **state)
{
    struct world *w = *state;
    crash(w, store_ten);
    world_open(w);
    world_store(w, 11, 5, 2, RECORD, NULL);
    world_close(w);
    w->forget_rows = true;
    world_open(w);
    expect_found(w, 1, 15);
    world_close(w);
    w->forget_rows = false;
    world_open(w);
    assert_int_equal(w->n_found, 0);
}

/* The last run ended after unlinking was decided, before and after it was done. */
static void test_dying_rows_are_finished(void **state)
{
    struct world *w = *state;
    crash(w, store_ten);
    for (int with_file = 1; with_file >= 0; with_file--) {
        w->shared->rows[1].state = KVD_SEGMENT_DYING;
        w->shared->rows[1].gone = KVD_GONE_EXPIRED;
        w->shared->rows[1].died_s = WORLD_T0 + 5;
        world_open(w);
        assert_int_equal(w->n_found, 0);
        assert_false(world_file_exists(w, &w->shared->rows[1]));
        assert_int_equal(w->shared->rows[1].state, KVD_SEGMENT_DEAD);
        assert_int_equal(w->shared->rows[1].gone, KVD_GONE_EXPIRED);
        assert_int_equal(w->shared->rows[1].died_s, WORLD_T0 + 5);
        assert_int_equal(world_fetch(w, 1), -KVD_E_NOT_FOUND);
        world_close(w);
    }
}

/* A file that is there although its segment is dead: the unlink didn't survive a power cut. */
static void test_dead_file_comes_back(void **state)
{
    struct world *w = *state;
    crash(w, store_ten);
    w->shared->rows[1].state = KVD_SEGMENT_DEAD;
    world_open(w);
    assert_false(world_file_exists(w, &w->shared->rows[1]));
    assert_int_equal(w->n_found, 0);
}

static void test_lost_file(void **state)
{
    struct world *w = *state;
    char path[192];
    crash(w, store_ten);
    world_path(w, 1, path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    world_open(w);
    assert_int_equal(w->shared->rows[1].state, KVD_SEGMENT_DEAD);
    assert_int_equal(w->shared->rows[1].gone, KVD_GONE_LOST);
    struct kvd_segment_info info = {0};
    assert_false(kvd_tier_nvme.live(w->tier, 1, &info));
    assert_int_equal(info.gone, KVD_GONE_LOST);
    assert_int_equal(world_fetch(w, 1), -KVD_E_NOT_FOUND);
}

/* ---- torn and damaged files ---- */

enum damage { CUT_IN_PAYLOAD, CUT_IN_HEADER, FLIP_PAYLOAD, FLIP_HEADER, CUT_AT_RECORD, DAMAGES };

static void damage_record(const struct world *w, const char *path, uint64_t id, enum damage how)
{
    off_t at = (off_t)w->shared->places[id].offset;
    switch (how) {
    case CUT_IN_PAYLOAD:
        assert_int_equal(truncate(path, at + 3 * KVD_ALIGN_BYTES + 17), 0);
        break;
    case CUT_IN_HEADER:
        assert_int_equal(truncate(path, at + 100), 0);
        break;
    case FLIP_PAYLOAD:
        flip(path, at + KVD_ALIGN_BYTES + 50000);
        break;
    case FLIP_HEADER:
        flip(path, at + 200);
        break;
    case CUT_AT_RECORD:
        assert_int_equal(truncate(path, at), 0);
        break;
    default:
        fail();
    }
}

/* What is before the damage is kept, what is behind goes, and the segment is whole again. */
static void test_torn_tail(void **state)
{
    struct world *w = *state;
    char path[192];
    for (int how = 0; how < DAMAGES; how++) {
        memset(w->shared, 0, sizeof(*w->shared));
        crash(w, store_ten);
        world_path(w, 1, path, sizeof(path));
        damage_record(w, path, 8, (enum damage)how);
        world_open(w);
        expect_found(w, 1, 7);
        assert_int_equal(w->shared->rows[1].state, KVD_SEGMENT_SEALED);
        assert_int_equal(w->shared->rows[1].records, 7);
        assert_int_equal(world_fetch(w, 8), -KVD_E_IO); /* the file ends before it, or within */
        world_close(w);
        w->forget_rows = true; /* and its new footer says so */
        world_open(w);
        expect_found(w, 1, 7);
        w->forget_rows = false;
        world_close(w);
        world_path(w, 1, path, sizeof(path));
        assert_int_equal(unlink(path), 0);
    }
}

static void test_no_records_no_segment(void **state)
{
    struct world *w = *state;
    char path[192];
    crash(w, store_ten);
    world_path(w, 1, path, sizeof(path));
    assert_int_equal(truncate(path, KVD_SEGMENT_HEADER_BYTES), 0);
    world_open(w);
    assert_false(world_file_exists(w, &w->shared->rows[1]));
    assert_int_equal(w->shared->rows[1].state, KVD_SEGMENT_DEAD);
    struct kvd_tier_stat stat;
    kvd_tier_nvme.stat(w->tier, &stat);
    assert_int_equal(stat.used_bytes, 0);
    assert_int_equal(stat.segments, 0);
}

static void test_damaged_header(void **state)
{
    struct world *w = *state;
    char path[192];
    crash(w, store_ten);
    world_path(w, 1, path, sizeof(path));
    flip(path, 30);
    world_open(w);
    assert_int_equal(w->shared->rows[1].state, KVD_SEGMENT_DEAD);
    assert_int_equal(w->shared->rows[1].gone, KVD_GONE_CORRUPT);
    assert_false(world_file_exists(w, &w->shared->rows[1]));
    assert_int_equal(w->n_found, 0);
}

/* A sealed segment whose footer is damaged, in a start without rows: the records are still there.
 */
static void test_damaged_footer(void **state)
{
    struct world *w = *state;
    char path[192];
    world_open(w);
    world_store(w, 1, 10, 1, RECORD, NULL);
    world_close(w);
    world_path(w, 1, path, sizeof(path));
    flip(path, (off_t)file_bytes(path) - 40);
    w->forget_rows = true;
    world_open(w);
    expect_found(w, 1, 10);
}

/* One damaged record in a sealed segment costs only itself. */
static void test_damaged_record_in_sealed(void **state)
{
    struct world *w = *state;
    char path[192];
    world_open(w);
    world_store(w, 1, 10, 1, RECORD, NULL);
    world_close(w);
    world_path(w, 1, path, sizeof(path));
    damage_record(w, path, 4, FLIP_HEADER);
    damage_record(w, path, 6, FLIP_PAYLOAD);
    w->forget_rows = true;
    world_open(w);
    struct kvd_place place;
    assert_int_equal(w->n_found, 9);
    assert_int_equal(world_found(w, 4, &place), 0);
    assert_int_equal(world_fetch(w, 6), -KVD_E_CORRUPT); /* what was read isn't checked here */
    assert_int_equal(world_fetch(w, 7), 0);
}

/* ---- files that aren't ours ---- */

static void write_segment(const struct world *w, const char *name, struct kvd_segment_header *h,
                          const char *store, unsigned version_up)
{
    uint8_t page[2 * KVD_ALIGN_BYTES];
    char path[192];
    memset(page, 0, sizeof(page));
    if (h) {
        memcpy(h->store.b, store, 3);
        kvd_segment_header_encode(h, page);
        if (version_up) {
            kvd_put_le16(page + KVD_FRAME_VERSION, (uint16_t)(KVD_SEGMENT_VERSION + version_up));
            kvd_frame_seal(page, KVD_SEGMENT_HEADER_BYTES);
        }
    }
    (void)snprintf(path, sizeof(path), "%s/%s", w->dir, name);
    KVD_AUTOCLOSE int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, page, sizeof(page)), sizeof(page));
}

static bool exists(const struct world *w, const char *name)
{
    char path[192];
    (void)snprintf(path, sizeof(path), "%s/%s", w->dir, name);
    return access(path, F_OK) == 0;
}

static void test_strange_files_are_left_alone(void **state)
{
    struct world *w = *state;
    char path[192];
    (void)snprintf(path, sizeof(path), "%s/1", w->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    struct kvd_segment_header h = {.seed = 77,
                                   .epoch = 9,
                                   .number = 1,
                                   .slice_s = 3600,
                                   .slice_len_s = 3600,
                                   .scenario = 1,
                                   .created_s = 3600};
    write_segment(w, "1/3600-9-1.seg", &h, "\t\t\t", 0); /* another store's */
    h.number = 2;
    write_segment(w, "1/3600-9-2.seg", &h, "\1\2\3", 1); /* newer */
    h.number = 3;
    h.seed = 78;
    write_segment(w, "1/3600-9-3.seg", &h, "\1\2\3", 0); /* other keys */
    h.number = 4;
    h.seed = 77;
    write_segment(w, "1/3600-9-5.seg", &h, "\1\2\3", 0); /* renamed */
    write_segment(w, "1/3600-9-6.seg", &h, "\1\2\3", 0);
    (void)snprintf(path, sizeof(path), "%s/1/3600-9-6.seg", w->dir);
    flip(path, 40);                                      /* damaged */
    write_segment(w, "1/3600-9-7.seg", NULL, NULL, 0);   /* blank: a start of ours that ended */
    write_segment(w, "1/3600-9-4.seg", &h, "\1\2\3", 0); /* ours, empty */
    write_segment(w, "1/003600-9-4.seg", &h, "\1\2\3", 0);
    write_segment(w, "1/notes.txt", NULL, NULL, 0);
    write_segment(w, "7.seg", NULL, NULL, 0);
    world_open(w);
    assert_true(exists(w, "1/3600-9-1.seg"));
    assert_true(exists(w, "1/3600-9-2.seg"));
    assert_true(exists(w, "1/3600-9-3.seg"));
    assert_true(exists(w, "1/3600-9-5.seg"));
    assert_true(exists(w, "1/3600-9-6.seg"));
    assert_false(exists(w, "1/3600-9-7.seg"));
    assert_false(exists(w, "1/3600-9-4.seg"));
    assert_true(exists(w, "1/003600-9-4.seg"));
    assert_true(exists(w, "1/notes.txt"));
    assert_true(exists(w, "7.seg"));
    assert_int_equal(w->n_found, 0);
    struct kvd_tier_stat stat;
    kvd_tier_nvme.stat(w->tier, &stat);
    assert_int_equal(stat.segments, 0);
    assert_int_equal(stat.used_bytes, 5 * 2 * KVD_ALIGN_BYTES); /* left alone, yet counted */
    assert_non_null(strstr(stat.state, "not ours"));
    world_store(w, 1, 1, 1, RECORD, NULL);
    assert_int_equal(world_fetch(w, 1), 0);
}

/* A power cut before a segment's first sync may leave its records without its header: nothing of
 * that was promised, so it goes, and its bytes with it. */
static void r_power_cut_before_the_first_sync(void **state)
{
    struct world *w = *state;
    struct kvd_store_request req;
    char path[192];
    (void)snprintf(path, sizeof(path), "%s/1", w->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    write_segment(w, "1/3600-9-8.seg", NULL, NULL, 0);
    (void)snprintf(path, sizeof(path), "%s/1/3600-9-8.seg", w->dir);
    KVD_AUTOFREE uint8_t *record = world_record(1, 1, RECORD, &req);
    KVD_AUTOCLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, record, req.extent_bytes, KVD_SEGMENT_HEADER_BYTES),
                     req.extent_bytes);
    world_open(w);
    struct kvd_tier_stat stat;
    kvd_tier_nvme.stat(w->tier, &stat);
    assert_false(exists(w, "1/3600-9-8.seg"));
    assert_int_equal(w->n_found, 0);
    assert_int_equal(stat.used_bytes, 0);
    assert_string_equal(stat.state, "ok");
}

/* A name that the next segment would have is taken: it takes the one after. */
static void test_taken_name(void **state)
{
    struct world *w = *state;
    char name[64];
    (void)snprintf(name, sizeof(name), "%s/1", w->dir);
    assert_int_equal(mkdir(name, 0700), 0);
    (void)snprintf(name, sizeof(name), "1/%" PRIu64 "-1-1.seg", WORLD_T0);
    struct kvd_segment_header h = {.seed = 5};
    write_segment(w, name, &h, "\t\t\t", 0);
    world_open(w);
    world_store(w, 1, 1, 1, RECORD, NULL);
    assert_int_equal(w->shared->places[1].segment, 2);
    assert_true(exists(w, name));
}

static void test_names(void **state)
{
    (void)state;
    struct kvd_segment_info info = {
        .scenario = 65535, .slice_s = UINT64_MAX, .epoch = UINT64_MAX, .number = UINT64_MAX};
    struct kvd_segment_info got;
    char name[KVD_SEGMENT_NAME_BYTES];
    kvd_segment_name(&info, name);
    char *slash = strchr(name, '/');
    assert_non_null(slash);
    *slash = 0;
    assert_true(kvd_segment_name_parse(name, slash + 1, &got));
    assert_true(got.scenario == info.scenario && got.slice_s == info.slice_s &&
                got.epoch == info.epoch && got.number == info.number);
    static const char *const bad[][2] = {
        {"1", "1-2-3"},         {"1", "1-2.seg"},
        {"1", "1-2-3.seg.tmp"}, {"01", "1-2-3.seg"},
        {"1", "01-2-3.seg"},    {"1", "+1-2-3.seg"},
        {"1", " 1-2-3.seg"},    {"1", "1--2-3.seg"},
        {"70000", "1-2-3.seg"}, {"x", "1-2-3.seg"},
        {"1", "1-2-x.seg"},     {"1", ""},
        {"", "1-2-3.seg"},      {"1", "1-2-99999999999999999999999.seg"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (kvd_segment_name_parse(bad[i][0], bad[i][1], &got)) {
            fail_msg("\"%s/%s\" was taken for a segment", bad[i][0], bad[i][1]);
        }
    }
}

/* Segments with bytes changed at random places: whatever the start makes of them, it ends, keeps
 * its accounts, and never reports a record that isn't whole. */
static void test_random_damage(void **state)
{
    struct world *w = *state;
    uint64_t rng = 2463534242;
    for (int round = 0; round < 40; round++) {
        memset(w->shared, 0, sizeof(*w->shared));
        world_open(w);
        world_store(w, 1, 6, 1, 8 * KIB, NULL);
        world_close(w);
        char path[192];
        world_path(w, 1, path, sizeof(path));
        uint64_t size = file_bytes(path);
        for (int i = 0; i < 3; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            flip(path, (off_t)((rng >> 20) % size));
        }
        if (round % 4 == 3) {
            assert_int_equal(truncate(path, (off_t)((rng >> 20) % size)), 0);
        }
        w->forget_rows = true;
        world_open(w);
        w->forget_rows = false;
        for (uint32_t i = 0; i < w->n_found; i++) {
            int err = world_fetch_at(w, &w->found[i].place, w->found[i].put_id);
            assert_true(err == 0 || err == -KVD_E_CORRUPT);
        }
        struct kvd_tier_stat stat;
        kvd_tier_nvme.stat(w->tier, &stat);
        assert_true(stat.records >= w->n_found);
        world_close(w);
        (void)unlink(path);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static const struct CMUnitTest tests[] = {
    TEST(test_crash_keeps_what_was_durable),
    TEST(test_recovery_twice),
    TEST(test_lost_index),
    TEST(test_dying_rows_are_finished),
    TEST(test_dead_file_comes_back),
    TEST(test_lost_file),
    TEST(test_torn_tail),
    TEST(test_no_records_no_segment),
    TEST(test_damaged_header),
    TEST(test_damaged_footer),
    TEST(test_damaged_record_in_sealed),
    TEST(test_strange_files_are_left_alone),
    TEST(r_power_cut_before_the_first_sync),
    TEST(test_taken_name),
    TEST(test_random_damage),
    cmocka_unit_test(test_names),
};

KVD_TEST_MAIN(tests)
