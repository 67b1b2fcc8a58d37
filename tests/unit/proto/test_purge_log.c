/* The log of purges: golden encodings, round trips, torn ends, damage, refusals. */
#include "kvd_test.h"

#include "format_cases.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/format/frame.h"
#include "proto/format/purge_log.h"

enum { ROWS = 5, FILE_MAX = KVD_PURGE_LOG_HEADER_BYTES + 64 * KVD_PURGE_ROW_BYTES };

struct golden {
    const char *name;
    uint32_t rows;
    uint64_t bytes;
    uint64_t sum;
    const char *shown; /* hex of bytes 0..63 */
};

static const struct golden golden_purges[] = {
#define GOLDEN_RECORD(...)
#define GOLDEN_SEGMENT(...)
#define GOLDEN_PURGES(...) {__VA_ARGS__},
#include "golden_format.inc"
#undef GOLDEN_RECORD
#undef GOLDEN_SEGMENT
#undef GOLDEN_PURGES
};

static struct kvd_store_id case_store(void)
{
    struct kvd_store_id store;
    case_fill(store.b, sizeof(store.b), 7);
    return store;
}

/* Row i has scope i + 1 and a call of its own. */
static void case_purges(struct kvd_purge_row *rows, uint32_t n)
{
    struct kvd_digest space;
    struct kvd_digest tenant;
    struct kvd_key key;
    case_fill(space.b, sizeof(space.b), 1);
    case_fill(tenant.b, sizeof(tenant.b), 50);
    case_fill(key.b, sizeof(key.b), 100);
    for (uint32_t i = 0; i < n; i++) {
        key.b[0] = (uint8_t)i;
        rows[i] = (struct kvd_purge_row){
            .what = kvd_purge_what_of((enum kvd_purge_scope)(1 + i % KVD_PURGE_BLOCK), &space,
                                      &tenant, &key, 3),
            .cut = (UINT64_C(1) << 40) + i,
            .when_s = UINT64_C(1767225600) + i};
    }
}

static void append(uint8_t *file, uint32_t *n, const struct kvd_purge_row *row)
{
    kvd_purge_row_encode(row, file + kvd_purge_log_bytes((*n)++));
}

/* Reads a copy of exactly n bytes, so that the sanitizers see a step past the end. */
static int decode(const uint8_t *file, uint64_t n, struct kvd_purge_log *ret)
{
    uint8_t *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, file, n);
    int err = kvd_purge_log_decode(exact, n, ret);
    free(exact);
    return err;
}

static void test_golden(void **state)
{
    (void)state;
    static uint8_t buf[FILE_MAX];
    struct kvd_purge_row rows[ROWS];
    struct kvd_store_id store = case_store();
    case_purges(rows, ROWS);
    for (size_t i = 0; i < sizeof(golden_purges) / sizeof(golden_purges[0]); i++) {
        const struct golden *g = &golden_purges[i];
        uint64_t bytes = kvd_purge_log_bytes(g->rows);
        kvd_purge_log_encode(&store, rows, g->rows, buf);
        char hex[129];
        kvd_hex(buf, 64, hex);
        if (bytes != g->bytes || kvd_sum(buf, bytes) != g->sum || strcmp(hex, g->shown) != 0) {
            fail_msg("%s: GOLDEN_PURGES has %llu, UINT64_C(0x%016llx), \"%s\"", g->name,
                     (unsigned long long)bytes, (unsigned long long)kvd_sum(buf, bytes), hex);
        }
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    static uint8_t file[FILE_MAX];
    struct kvd_purge_row rows[ROWS + 2];
    struct kvd_purge_log log;
    struct kvd_store_id store = case_store();
    uint32_t n = ROWS;
    case_purges(rows, ROWS + 2);
    kvd_purge_log_encode(&store, rows, ROWS, file);
    assert_int_equal(decode(file, kvd_purge_log_bytes(n), &log), 0);
    assert_false(log.appended);
    free(log.rows);
    append(file, &n, &rows[ROWS]);
    append(file, &n, &rows[ROWS + 1]);
    assert_int_equal(decode(file, kvd_purge_log_bytes(n), &log), 0);
    assert_true(log.known_store && log.appended);
    assert_memory_equal(&log.store, &store, sizeof(store));
    assert_int_equal(log.n_rows, ROWS + 2);
    assert_int_equal(log.damaged, 0);
    for (uint32_t i = 0; i < log.n_rows; i++) {
        assert_memory_equal(&log.rows[i].what, &rows[i].what, sizeof(rows[i].what));
        assert_int_equal(log.rows[i].cut, rows[i].cut);
        assert_int_equal(log.rows[i].when_s, rows[i].when_s);
    }
    free(log.rows);
}

/* A call of three rows at the end, of which a crash left any part: no damage, and the rows before
 * are there. */
static void test_torn_end(void **state)
{
    (void)state;
    static uint8_t file[FILE_MAX];
    static uint8_t torn[FILE_MAX];
    struct kvd_purge_row rows[ROWS];
    struct kvd_purge_log log;
    struct kvd_store_id store = case_store();
    uint32_t n = 1;
    case_purges(rows, ROWS);
    kvd_purge_log_encode(&store, rows, 1, file);
    append(file, &n, &rows[1]);
    for (uint32_t i = 2; i < 5; i++) {
        rows[i].cut = rows[2].cut;
        rows[i].nth = i - 2;
        append(file, &n, &rows[i]);
    }
    for (unsigned lost = 0; lost < 8; lost++) { /* any of the three */
        memcpy(torn, file, sizeof(torn));
        for (uint32_t i = 0; i < 3; i++) {
            if (lost >> i & 1) {
                memset(torn + kvd_purge_log_bytes(2 + i) + 30, 0, 60);
            }
        }
        assert_int_equal(decode(torn, kvd_purge_log_bytes(5), &log), 0);
        assert_int_equal(log.damaged, 0);
        assert_int_equal(log.n_rows, 5 - (uint32_t)__builtin_popcount(lost));
        free(log.rows);
    }
    for (uint64_t cut = kvd_purge_log_bytes(2); cut <= kvd_purge_log_bytes(5); cut++) {
        assert_int_equal(decode(file, cut, &log), 0);
        assert_int_equal(log.damaged, 0);
        assert_int_equal(log.n_rows, (cut - KVD_PURGE_LOG_HEADER_BYTES) / KVD_PURGE_ROW_BYTES);
        assert_true(log.appended);
        free(log.rows);
    }
}

/* A bit that changed in a row that was durable is damage, bounded by the next row's cut. */
static void r_bit_flipped_in_a_durable_row(void **state)
{
    (void)state;
    static uint8_t file[FILE_MAX];
    struct kvd_purge_row rows[ROWS];
    struct kvd_purge_log log;
    struct kvd_store_id store = case_store();
    uint32_t n = 2;
    case_purges(rows, ROWS);
    kvd_purge_log_encode(&store, rows, 2, file);
    append(file, &n, &rows[2]);
    append(file, &n, &rows[3]);
    for (uint32_t row = 0; row < 4; row++) {
        for (uint32_t bit = 0; bit < 8 * KVD_PURGE_ROW_BYTES; bit++) {
            uint8_t *at = file + kvd_purge_log_bytes(row) + bit / 8;
            *at ^= (uint8_t)(1u << bit % 8);
            assert_int_equal(decode(file, kvd_purge_log_bytes(4), &log), 0);
            assert_int_equal(log.n_rows, 3);
            assert_int_equal(log.damaged, row < 3); /* the last may be torn */
            assert_int_equal(log.damaged_cut, row < 3 ? rows[row + 1].cut : 0);
            free(log.rows);
            *at ^= (uint8_t)(1u << bit % 8);
        }
    }
    /* rows that the header counts and the file has not */
    for (uint64_t bytes = KVD_PURGE_LOG_HEADER_BYTES; bytes < kvd_purge_log_bytes(2); bytes++) {
        assert_int_equal(decode(file, bytes, &log), 0);
        assert_int_equal(log.damaged, bytes < kvd_purge_log_bytes(1) ? 2 : 1);
        assert_true(log.damaged_cut == UINT64_MAX);
        free(log.rows);
    }
}

static void r_bit_flipped_in_the_header(void **state)
{
    (void)state;
    static uint8_t file[FILE_MAX];
    struct kvd_purge_row rows[ROWS];
    struct kvd_purge_log log;
    struct kvd_store_id store = case_store();
    case_purges(rows, ROWS);
    kvd_purge_log_encode(&store, rows, ROWS, file);
    for (uint32_t bit = 0; bit < 8 * KVD_PURGE_LOG_HEADER_BYTES; bit += bit < 600 ? 1 : 251) {
        file[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int err = decode(file, kvd_purge_log_bytes(ROWS), &log);
        if (bit < 64) {
            assert_int_equal(err, -KVD_E_FORMAT);
        } else if (err == 0) { /* else it claims to be newer, and is refused as well */
            assert_false(log.known_store);
            assert_int_equal(log.damaged, 1);
            assert_true(log.damaged_cut == UINT64_MAX);
            assert_int_equal(log.n_rows, ROWS);
            free(log.rows);
        } else {
            assert_int_equal(err, -KVD_E_NEWER);
        }
        file[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (uint64_t bytes = 0; bytes < KVD_PURGE_LOG_HEADER_BYTES; bytes += 511) {
        assert_int_equal(decode(file, bytes, &log), 0);
        assert_int_equal(log.damaged, 1);
        free(log.rows);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static uint8_t file[FILE_MAX];
    struct kvd_purge_row rows[ROWS];
    struct kvd_purge_row row;
    struct kvd_purge_log log;
    struct kvd_store_id store = case_store();
    uint8_t bytes[KVD_PURGE_ROW_BYTES];
    case_purges(rows, ROWS);
    kvd_purge_log_encode(&store, rows, ROWS, file);
    kvd_put_le16(file + KVD_FRAME_VERSION, KVD_PURGE_LOG_VERSION + 1);
    kvd_frame_seal(file, KVD_PURGE_LOG_HEADER_BYTES);
    assert_int_equal(decode(file, kvd_purge_log_bytes(ROWS), &log), -KVD_E_NEWER);
    kvd_put_le32(file + KVD_FRAME_HEADER_BYTES, 1 << 20);
    assert_int_equal(decode(file, kvd_purge_log_bytes(ROWS), &log), -KVD_E_NEWER);
    uint64_t many = kvd_purge_log_bytes(KVD_PURGE_ROWS_MAX + 1);
    uint8_t *large = calloc(1, many);
    assert_non_null(large);
    kvd_purge_log_encode(&store, rows, ROWS, large);
    assert_int_equal(decode(large, many, &log), -KVD_E_TOO_LONG);
    free(large);
    row = rows[0]; /* fields that the scope doesn't use */
    row.what.rank = 1;
    kvd_purge_row_encode(&row, bytes);
    assert_int_equal(kvd_purge_row_decode(bytes, &row), -KVD_E_CORRUPT);
    row = rows[0];
    row.what.scope = KVD_PURGE_BLOCK + 1;
    kvd_purge_row_encode(&row, bytes);
    assert_int_equal(kvd_purge_row_decode(bytes, &row), -KVD_E_CORRUPT);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_golden),
    cmocka_unit_test(test_round_trip),
    cmocka_unit_test(test_torn_end),
    cmocka_unit_test(r_bit_flipped_in_a_durable_row),
    cmocka_unit_test(r_bit_flipped_in_the_header),
    cmocka_unit_test(test_refusals),
};

KVD_TEST_MAIN(tests)
