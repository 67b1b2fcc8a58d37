/* Segment headers and footers: golden encodings, round trips, refusals. */
#include "kvd_test.h"

#include "format_cases.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/format/frame.h"
#include "proto/format/segment.h"

enum { FOOTER_MAX = 64 << 10, TAIL_BYTES = 64, FILE_BYTES = 1 << 30 };

struct golden {
    const char *name;
    int n_rows; /* -1: the header */
    uint64_t bytes;
    uint64_t sum;
    const char *shown; /* hex of the header's bytes 0..63, or of the footer's last 64 */
};

static const struct golden golden_segments[] = {
#define GOLDEN_RECORD(...)
#define GOLDEN_SEGMENT(...) {__VA_ARGS__},
#define GOLDEN_PURGES(...)
#include "golden_format.inc"
#undef GOLDEN_PURGES
#undef GOLDEN_RECORD
#undef GOLDEN_SEGMENT
};

static void test_golden(void **state)
{
    (void)state;
    static uint8_t buf[FOOTER_MAX];
    struct kvd_segment_header h;
    struct kvd_segment_row rows[200];
    case_segment_header(&h);
    case_rows(rows, 200);
    for (size_t i = 0; i < sizeof(golden_segments) / sizeof(golden_segments[0]); i++) {
        const struct golden *g = &golden_segments[i];
        uint64_t bytes = KVD_SEGMENT_HEADER_BYTES;
        const uint8_t *shown = buf;
        if (g->n_rows < 0) {
            kvd_segment_header_encode(&h, buf);
        } else {
            bytes = kvd_segment_footer_bytes((uint32_t)g->n_rows);
            assert_true(bytes <= sizeof(buf));
            kvd_segment_footer_encode(rows, (uint32_t)g->n_rows, buf);
            shown = buf + bytes - TAIL_BYTES;
        }
        char hex[129];
        kvd_hex(shown, 64, hex);
        if (bytes != g->bytes || kvd_sum(buf, bytes) != g->sum || strcmp(hex, g->shown) != 0) {
            fail_msg("%s: GOLDEN_SEGMENT has %llu, UINT64_C(0x%016llx), \"%s\"", g->name,
                     (unsigned long long)bytes, (unsigned long long)kvd_sum(buf, bytes), hex);
        }
    }
}

static void test_header_round_trip(void **state)
{
    (void)state;
    uint8_t buf[KVD_SEGMENT_HEADER_BYTES];
    struct kvd_segment_header h;
    struct kvd_segment_header got;
    memset(&got, 0, sizeof(got));
    case_segment_header(&h);
    kvd_segment_header_encode(&h, buf);
    assert_int_equal(kvd_segment_header_decode(buf, sizeof(buf), &got), 0);
    assert_memory_equal(h.store.b, got.store.b, KVD_STORE_ID_BYTES);
    assert_true(h.seed == got.seed && h.writer == got.writer && h.epoch == got.epoch &&
                h.number == got.number && h.slice_s == got.slice_s &&
                h.slice_len_s == got.slice_len_s && h.scenario == got.scenario &&
                h.created_s == got.created_s);
    assert_int_equal(kvd_segment_header_decode(buf, sizeof(buf) - 1, &got), -KVD_E_CORRUPT);
}

static void test_header_every_bit_flip_is_refused(void **state)
{
    (void)state;
    uint8_t buf[KVD_SEGMENT_HEADER_BYTES];
    struct kvd_segment_header h;
    case_segment_header(&h);
    kvd_segment_header_encode(&h, buf);
    for (uint32_t bit = 0; bit < sizeof(buf) * 8; bit++) {
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int err = kvd_segment_header_decode(buf, sizeof(buf), &h);
        assert_true(err == -KVD_E_FORMAT || err == -KVD_E_CORRUPT);
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void test_header_newer(void **state)
{
    (void)state;
    uint8_t buf[KVD_SEGMENT_HEADER_BYTES];
    struct kvd_segment_header h;
    case_segment_header(&h);
    kvd_segment_header_encode(&h, buf);
    kvd_put_le16(buf + KVD_FRAME_VERSION, KVD_SEGMENT_VERSION + 1);
    assert_int_equal(kvd_segment_header_decode(buf, sizeof(buf), &h), -KVD_E_CORRUPT);
    kvd_frame_seal(buf, sizeof(buf));
    assert_int_equal(kvd_segment_header_decode(buf, sizeof(buf), &h), -KVD_E_NEWER);
}

/* Reads a footer as a reader of a file does: the last page first. */
static int read_footer(const uint8_t *buf, uint64_t bytes, struct kvd_segment_row **ret_rows,
                       uint32_t *ret_n)
{
    uint64_t footer_bytes = 0;
    int err = kvd_segment_footer_probe(buf + bytes - KVD_ALIGN_BYTES, FILE_BYTES, &footer_bytes);
    if (err) {
        return err;
    }
    /* a size that was believed must be the true one, or there is less memory behind it */
    return footer_bytes == bytes ? kvd_segment_footer_decode(buf, bytes, ret_rows, ret_n)
                                 : -KVD_E_CORRUPT;
}

static void test_footer_round_trip(void **state)
{
    (void)state;
    static uint8_t buf[FOOTER_MAX];
    struct kvd_segment_row rows[200];
    case_rows(rows, 200);
    const uint32_t counts[] = {0, 1, 63, 64, 127, 128, 200};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        kvd_segment_footer_encode(rows, counts[i], buf);
        KVD_AUTOFREE struct kvd_segment_row *got = NULL;
        uint32_t n = 0;
        assert_int_equal(read_footer(buf, kvd_segment_footer_bytes(counts[i]), &got, &n), 0);
        assert_int_equal(n, counts[i]);
        for (uint32_t r = 0; r < n; r++) {
            assert_true(got[r].offset == rows[r].offset &&
                        got[r].extent_bytes == rows[r].extent_bytes &&
                        got[r].n_blocks == rows[r].n_blocks && got[r].rank == rows[r].rank &&
                        got[r].put_id == rows[r].put_id && got[r].index == rows[r].index);
            assert_memory_equal(got[r].group.b, rows[r].group.b, KVD_GROUP_ID_BYTES);
            assert_memory_equal(got[r].first_key.b, rows[r].first_key.b, KVD_KEY_BYTES);
        }
    }
}

static void test_footer_every_bit_flip_is_refused(void **state)
{
    (void)state;
    static uint8_t buf[FOOTER_MAX];
    struct kvd_segment_row rows[70];
    case_rows(rows, 70);
    kvd_segment_footer_encode(rows, 70, buf);
    uint64_t bytes = kvd_segment_footer_bytes(70);
    assert_int_equal(bytes, 2 * KVD_ALIGN_BYTES);
    for (uint64_t bit = 0; bit < bytes * 8; bit++) {
        struct kvd_segment_row *got = NULL;
        uint32_t n = 0;
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int err = read_footer(buf, bytes, &got, &n);
        assert_true(err == -KVD_E_FORMAT || err == -KVD_E_CORRUPT);
        assert_null(got);
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void seal_footer(uint8_t *buf, uint64_t bytes)
{
    uint8_t *tail = buf + bytes - TAIL_BYTES;
    kvd_put_le64(tail + 24, kvd_sum(buf, bytes - TAIL_BYTES));
    kvd_put_le64(tail + 56, kvd_sum(tail, 56));
}

static void test_footer_probe_refuses(void **state)
{
    (void)state;
    uint8_t buf[KVD_ALIGN_BYTES];
    uint64_t footer_bytes = 0;
    memset(buf, 0, sizeof(buf));
    assert_int_equal(kvd_segment_footer_probe(buf, FILE_BYTES, &footer_bytes), -KVD_E_FORMAT);
    kvd_segment_footer_encode(NULL, 0, buf);
    assert_int_equal(kvd_segment_footer_probe(buf, 2 * KVD_ALIGN_BYTES, &footer_bytes), 0);
    /* a file in which there is no place for a header, or that isn't whole pages */
    assert_int_equal(kvd_segment_footer_probe(buf, KVD_ALIGN_BYTES, &footer_bytes), -KVD_E_CORRUPT);
    assert_int_equal(kvd_segment_footer_probe(buf, 2 * KVD_ALIGN_BYTES + 1, &footer_bytes),
                     -KVD_E_CORRUPT);
    kvd_put_le16(buf + KVD_ALIGN_BYTES - TAIL_BYTES + 8, KVD_SEGMENT_VERSION + 1);
    seal_footer(buf, sizeof(buf));
    assert_int_equal(kvd_segment_footer_probe(buf, FILE_BYTES, &footer_bytes), -KVD_E_NEWER);
}

/* Footers changed at random, with sums that fit again: what is accepted has rows that lie in order
 * and don't overlap. */
static void test_footer_mutations(void **state)
{
    (void)state;
    static uint8_t buf[FOOTER_MAX];
    struct kvd_segment_row rows[10];
    uint64_t rng = 987654321;
    unsigned accepted = 0;
    case_rows(rows, 10);
    for (int round = 0; round < 20000; round++) {
        kvd_segment_footer_encode(rows, 10, buf);
        uint64_t r = case_random(&rng);
        uint32_t at = r & 1 ? (uint32_t)(r >> 8) % 640
                            : KVD_ALIGN_BYTES - TAIL_BYTES + 8 + (uint32_t)(r >> 8) % 48;
        buf[at] = (uint8_t)(r >> 48);
        seal_footer(buf, KVD_ALIGN_BYTES);
        KVD_AUTOFREE struct kvd_segment_row *got = NULL;
        uint32_t n = 0;
        if (read_footer(buf, KVD_ALIGN_BYTES, &got, &n) != 0) {
            continue;
        }
        accepted++;
        uint64_t end = KVD_SEGMENT_HEADER_BYTES;
        for (uint32_t i = 0; i < n; i++) {
            assert_true(got[i].offset >= end && got[i].offset % KVD_ALIGN_BYTES == 0);
            end = got[i].offset + got[i].extent_bytes;
        }
    }
    assert_true(accepted > 100);
}

static void test_garbage(void **state)
{
    (void)state;
    uint8_t buf[KVD_ALIGN_BYTES];
    uint64_t rng = 55;
    for (int round = 0; round < 1000; round++) {
        for (size_t i = 0; i < sizeof(buf); i += 8) {
            kvd_put_le64(buf + i, case_random(&rng));
        }
        struct kvd_segment_header h;
        uint64_t footer_bytes;
        assert_true(kvd_segment_header_decode(buf, sizeof(buf), &h) < 0);
        assert_true(kvd_segment_footer_probe(buf, FILE_BYTES, &footer_bytes) < 0);
        struct kvd_segment_row *rows = NULL;
        uint32_t n;
        assert_true(kvd_segment_footer_decode(buf, sizeof(buf), &rows, &n) < 0);
        memcpy(buf + KVD_ALIGN_BYTES - TAIL_BYTES, "KVDSEGFT", 8);
        memcpy(buf, "KVDSEGMT", 8);
        assert_true(kvd_segment_header_decode(buf, sizeof(buf), &h) < 0);
        assert_true(kvd_segment_footer_decode(buf, sizeof(buf), &rows, &n) < 0);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_golden),
    cmocka_unit_test(test_header_round_trip),
    cmocka_unit_test(test_header_every_bit_flip_is_refused),
    cmocka_unit_test(test_header_newer),
    cmocka_unit_test(test_footer_round_trip),
    cmocka_unit_test(test_footer_every_bit_flip_is_refused),
    cmocka_unit_test(test_footer_probe_refuses),
    cmocka_unit_test(test_footer_mutations),
    cmocka_unit_test(test_garbage),
};

KVD_TEST_MAIN(tests)
