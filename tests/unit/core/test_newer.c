/* A store that a later version has been at: what this one can't read stays as it is, and is
 * counted.
 */
#include "kvd_test.h"

#include "cachesvc/core/keeper.h"
#include "cachesvc/index/entry.h"
#include "cachesvc/index/internal.h"
#include "damage.h"
#include "moved_wall.h"
#include "proto/base/bytes.h"
#include "proto/format/frame.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5, NEWER = 5 };

static void stored(struct rig *rig, uint32_t seed, uint32_t *tokens)
{
    rig_tokens(seed, TOKENS, tokens);
    rig_init(rig, "64MiB", "64MiB");
    rig_open(rig, false);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_close(rig);
}

/* ---- files ---- */

static uint64_t file_bytes(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

static void read_page(const char *path, off_t at, uint8_t *page)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, page, DAMAGE_PAGE, at), DAMAGE_PAGE);
    (void)close(fd);
}

static void write_page(const char *path, off_t at, const uint8_t *page)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, page, DAMAGE_PAGE, at), DAMAGE_PAGE);
    (void)close(fd);
}

/* The header page at an offset becomes one of version 2, undamaged. */
static void raise_version(const char *path, off_t at)
{
    uint8_t page[DAMAGE_PAGE];
    read_page(path, at, page);
    kvd_put_le16(page + KVD_FRAME_VERSION, 2);
    kvd_frame_seal(page, DAMAGE_PAGE);
    write_page(path, at, page);
}

static uint64_t sum_of_file(const char *path)
{
    uint64_t n = file_bytes(path);
    uint8_t *bytes = malloc(n);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && bytes);
    assert_int_equal(pread(fd, bytes, n, 0), n);
    uint64_t sum = kvd_sum(bytes, n);
    (void)close(fd);
    free(bytes);
    return sum;
}

/* ---- the index, while no service has it ---- */

static struct kvd_index *index_open(const struct rig *rig)
{
    char path[300];
    struct kvd_diag diag = {{0}};
    struct kvd_index *index = NULL;
    (void)snprintf(path, sizeof(path), "%s/index", rig->folder);
    const struct kvd_index_options options = {.path = path, .cache_bytes = 8 << 20};
    assert_int_equal(kvd_index_open(&options, &diag, &index), 0);
    return index;
}

/* Sets one byte in all values of a family; returns how many there are. */
static int set_byte(struct kvd_index *index, enum index_family family, size_t at, uint8_t value)
{
    const struct index_store *s = &index->store;
    char *error = NULL;
    int n = 0;
    rocksdb_iterator_t *it = rocksdb_create_iterator_cf(s->db, s->read_all, s->families[family]);
    for (rocksdb_iter_seek_to_first(it); rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
        char copy[512];
        size_t key_bytes = 0;
        size_t bytes = 0;
        const char *key = rocksdb_iter_key(it, &key_bytes);
        const char *have = rocksdb_iter_value(it, &bytes);
        assert_in_range(bytes, at + 1, sizeof(copy));
        memcpy(copy, have, bytes);
        copy[at] = (char)value;
        rocksdb_put_cf(s->db, s->write, s->families[family], key, key_bytes, copy, bytes, &error);
        assert_null(error);
        n++;
    }
    rocksdb_iter_destroy(it);
    return n;
}

static int set_byte_closed(const struct rig *rig, enum index_family family, size_t at,
                           uint8_t value)
{
    struct kvd_index *index = index_open(rig);
    int n = set_byte(index, family, at, value);
    kvd_index_close(&index);
    return n;
}

enum { ROW_STATE = 1, ROW_OPEN = 1 };

/* As after a crash: no footer, and the row says OPEN. */
static void unseal(const struct rig *rig)
{
    assert_int_equal(truncate(damage_segment(rig), damage_record_at(N)), 0);
    assert_int_equal(set_byte_closed(rig, FAMILY_SEGMENTS, ROW_STATE, ROW_OPEN), 1);
}

/* ---- records and segments ---- */

static void r_segment_with_newer_records_is_cut(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 1, tokens);
    unseal(&rig);
    const char *path = damage_segment(&rig);
    raise_version(path, damage_record_at(NEWER));
    uint64_t sum = sum_of_file(path);
    for (int start = 0; start < 2; start++) {
        rig_open(&rig, true);
        assert_int_equal(sum_of_file(path), sum);
        assert_int_equal(rig_number(&rig, "status", "", "tiers.1.newer_files"), 1);
        assert_true(rig_number(&rig, "status", "", "tiers.1.newer_bytes") >= file_bytes(path));
        assert_int_equal(rig_number(&rig, "status", "", "tiers.1.foreign_files"), 0);
        (void)rig_match(&rig, "", "chat", tokens, TOKENS);
        assert_int_equal(rig_load(&rig, tokens), NEWER);
        rig_settle(&rig);
        rig_close(&rig);
        assert_int_equal(sum_of_file(path), sum); /* nor when it ends */
    }
    rig_fini(&rig);
}

/* A look-up leads to it once; then it is a miss, or its load would fail for ever. It is not bad. */
static void r_newer_record_is_taken_for_bad(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 2, tokens);
    const char *path = damage_segment(&rig);
    raise_version(path, damage_record_at(NEWER));
    uint64_t sum = sum_of_file(path);
    rig_open(&rig, true);
    damage_verify(&rig, "nvme");
    assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.newer"), 1);
    assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.bad"), 0);
    assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.records"), N - 1);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
    assert_int_equal(rig_load(&rig, tokens), NEWER);
    rig_settle(&rig);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), NEWER);
    assert_int_equal(rig_load(&rig, tokens), NEWER);
    assert_int_equal(rig_number(&rig, "status", "", "newer_records"), 1);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 0);
    assert_int_equal(rig_number(&rig, "verify", "", "quarantined"), 0);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N); /* and it can be stored anew */
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_close(&rig);
    assert_int_equal(sum_of_file(path), sum);
    rig_fini(&rig);
}

static void r_newer_footer_is_overwritten(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    uint8_t page[DAMAGE_PAGE];
    enum { TAIL = DAMAGE_PAGE - 64, TAIL_VERSION = TAIL + 8, TAIL_SUM = TAIL + 56 };
    stored(&rig, 3, tokens);
    const char *path = damage_segment(&rig);
    off_t last = (off_t)file_bytes(path) - DAMAGE_PAGE;
    read_page(path, last, page);
    kvd_put_le16(page + TAIL_VERSION, 2);
    kvd_put_le64(page + TAIL_SUM, kvd_sum(page + TAIL, 56));
    write_page(path, last, page);
    assert_int_equal(set_byte_closed(&rig, FAMILY_SEGMENTS, ROW_STATE, ROW_OPEN), 1);
    uint64_t sum = sum_of_file(path);
    rig_open(&rig, true);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.1.newer_files"), 1);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N); /* the records can be read */
    rig_close(&rig);
    assert_int_equal(sum_of_file(path), sum);
    rig_fini(&rig);
}

static void r_newer_segment_is_touched(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    uint32_t other[TOKENS];
    stored(&rig, 4, tokens);
    rig_tokens(5, TOKENS, other);
    char path[512];
    (void)snprintf(path, sizeof(path), "%s", damage_segment(&rig));
    unseal(&rig);
    raise_version(path, 0);
    uint64_t sum = sum_of_file(path);
    for (int start = 0; start < 2; start++) {
        rig_open(&rig, true);
        assert_int_equal(rig_number(&rig, "status", "", "tiers.1.newer_files"), 1);
        assert_int_equal(rig_number(&rig, "status", "", "tiers.1.newer_bytes"), file_bytes(path));
        assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
        assert_int_equal(rig_put(&rig, "", "chat", other, N), N); /* the store goes on beside it */
        assert_int_equal(rig_hit(&rig, "", other, TOKENS), N);
        rig_close(&rig);
        assert_int_equal(sum_of_file(path), sum);
    }
    raise_version(path, 0); /* whoever reads version 2 finds all of it */
    rig_fini(&rig);
}

/* ---- the index ---- */

static void r_newer_entries_lose_their_segment(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 6, tokens);
    const char *path = damage_segment(&rig);
    assert_int_equal(set_byte_closed(&rig, FAMILY_BLOCKS, 0, KVD_ENTRY_VERSION + 1), N);
    rig_open(&rig, true);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 0);
    assert_true(rig_number(&rig, "status", "", "index.undecodable") > 0);
    moved_wall_advance(3600); /* a segment without entries is otherwise thrown away by now */
    assert_int_equal(keeper_reclaim(rig.service), 0);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.1.segments"), 1);
    assert_int_equal(access(path, F_OK), 0);
    rig_close(&rig);
    assert_int_equal(set_byte_closed(&rig, FAMILY_BLOCKS, 0, KVD_ENTRY_VERSION), N);
    rig_open(&rig, true); /* back at the version that wrote it */
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    moved_wall_advance(-3600);
    rig_fini(&rig);
}

/* A row of a segment that can't be read keeps its number: the next segment takes another. */
static void r_newer_row_of_a_segment_is_overwritten(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    uint32_t other[TOKENS];
    void *row = NULL;
    uint32_t n = 0;
    stored(&rig, 7, tokens);
    rig_tokens(8, TOKENS, other);
    assert_int_equal(set_byte_closed(&rig, FAMILY_SEGMENTS, 0, 2), 1);
    rig_open(&rig, true);
    assert_int_equal(rig_number(&rig, "status", "", "index.undecodable_segments"), 1);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N); /* its file was read instead */
    assert_int_equal(rig_put(&rig, "", "chat", other, N), N);
    rig_close(&rig);
    struct kvd_index *index = index_open(&rig);
    static const uint8_t first[8] = {0, 0, 0, 0, 0, 0, 0, 1};
    assert_int_equal(kvd_index_row_get(index, KVD_INDEX_SEGMENTS, first, sizeof(first), &row, &n),
                     0);
    assert_int_equal(*(uint8_t *)row, 2);
    free(row);
    kvd_index_close(&index);
    rig_fini(&rig);
}

/* ---- the folder ---- */

static void r_newer_identity(void **state)
{
    (void)state;
    struct rig rig;
    char path[300];
    char text[512] = "";
    struct kvd_diag diag = {{0}};
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    rig_close(&rig);
    (void)snprintf(path, sizeof(path), "%s/IDENTITY", rig.folder);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof(text) - 1);
    assert_true(n > 0);
    char *format = strstr(text, "kvdepot-identity 1");
    assert_non_null(format);
    format[strlen("kvdepot-identity ")] = '2';
    assert_int_equal(pwrite(fd, text, (size_t)n, 0), n);
    (void)close(fd);
    uint64_t sum = sum_of_file(path);
    assert_int_equal(kvd_service_open(&rig.config, false, NULL, &diag, &rig.service), -KVD_E_NEWER);
    assert_non_null(strstr(diag.text, "newer kvdepotd"));
    assert_int_equal(sum_of_file(path), sum);
    rig_fini(&rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_segment_with_newer_records_is_cut),
    cmocka_unit_test(r_newer_record_is_taken_for_bad),
    cmocka_unit_test(r_newer_footer_is_overwritten),
    cmocka_unit_test(r_newer_segment_is_touched),
    cmocka_unit_test(r_newer_entries_lose_their_segment),
    cmocka_unit_test(r_newer_row_of_a_segment_is_overwritten),
    cmocka_unit_test(r_newer_identity),
};

KVD_TEST_MAIN(tests)
