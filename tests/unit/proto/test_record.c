/* Records: golden encodings, round trips, and refusal of everything that isn't a whole record. */
#include "kvd_test.h"

#include "format_cases.h"
#include "proto/base/bytes.h"
#include "proto/format/frame.h"
#include "proto/format/record.h"

enum { HEADER_MAX = 72 << 10 };

struct golden {
    const char *name;
    uint32_t n_blocks;
    uint32_t block_tokens;
    uint32_t last_tokens;
    uint32_t n_parts;
    uint32_t header_bytes;
    uint64_t sum;
    const char *first_bytes; /* hex of bytes 0..63 */
};

static const struct golden golden_records[] = {
#define GOLDEN_RECORD(...) {__VA_ARGS__},
#define GOLDEN_SEGMENT(...)
#define GOLDEN_PURGES(...)
#include "golden_format.inc"
#undef GOLDEN_PURGES
#undef GOLDEN_RECORD
#undef GOLDEN_SEGMENT
};

struct fixture {
    uint32_t tokens[CASE_TOKENS_MAX];
    uint32_t decoded_tokens[CASE_TOKENS_MAX];
    uint8_t buf[HEADER_MAX];
    uint8_t again[HEADER_MAX];
    struct kvd_record rec;
    struct kvd_record got;
};

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

static int decode(struct fixture *f, uint64_t n)
{
    uint32_t header_bytes = 0;
    return kvd_record_decode(f->buf, n, f->decoded_tokens, CASE_TOKENS_MAX, &f->got, &header_bytes);
}

/* Encodes the usual case and returns its header's bytes. */
static uint32_t encode_usual(struct fixture *f)
{
    case_record(&f->rec, f->tokens, 2, 64, 64, 1);
    int n = kvd_record_encode(&f->rec, f->buf, sizeof(f->buf));
    assert_true(n > 0);
    return (uint32_t)n;
}

static void test_golden(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(golden_records) / sizeof(golden_records[0]); i++) {
        const struct golden *g = &golden_records[i];
        case_record(&f->rec, f->tokens, (uint16_t)g->n_blocks, g->block_tokens, g->last_tokens,
                    (uint16_t)g->n_parts);
        int n = kvd_record_encode(&f->rec, f->buf, sizeof(f->buf));
        char hex[129];
        kvd_hex(f->buf, 64, hex);
        if (n != (int)g->header_bytes || kvd_sum(f->buf, (uint64_t)n) != g->sum ||
            strcmp(hex, g->first_bytes) != 0) {
            fail_msg("%s: GOLDEN_RECORD has %d, UINT64_C(0x%016llx), \"%s\"", g->name, n,
                     (unsigned long long)kvd_sum(f->buf, n > 0 ? (uint64_t)n : 0), hex);
        }
    }
}

static void test_round_trip(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(golden_records) / sizeof(golden_records[0]); i++) {
        const struct golden *g = &golden_records[i];
        case_record(&f->rec, f->tokens, (uint16_t)g->n_blocks, g->block_tokens, g->last_tokens,
                    (uint16_t)g->n_parts);
        int n = kvd_record_encode(&f->rec, f->buf, sizeof(f->buf));
        assert_int_equal(n, g->header_bytes);
        uint32_t header_bytes = 0;
        assert_int_equal(kvd_record_decode(f->buf, sizeof(f->buf), f->decoded_tokens,
                                           CASE_TOKENS_MAX, &f->got, &header_bytes),
                         0);
        assert_int_equal(header_bytes, n);
        assert_memory_equal(f->tokens, f->decoded_tokens,
                            (size_t)4 *
                                ((g->n_blocks - 1) * g->block_tokens + (size_t)g->last_tokens));
        assert_int_equal(f->got.put_id, f->rec.put_id);
        assert_int_equal(kvd_record_extent_bytes(&f->got),
                         (uint64_t)n + kvd_round_up(f->rec.stored_bytes, KVD_ALIGN_BYTES));
        assert_int_equal(kvd_record_encode(&f->got, f->again, sizeof(f->again)), n);
        assert_memory_equal(f->buf, f->again, (size_t)n);
    }
}

static void test_every_bit_flip_is_refused(void **state)
{
    struct fixture *f = *state;
    uint32_t n = encode_usual(f);
    for (uint32_t bit = 0; bit < n * 8; bit++) {
        f->buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int err = decode(f, sizeof(f->buf));
        if (err != -KVD_E_FORMAT && err != -KVD_E_CORRUPT) {
            fail_msg("bit %u: %d", bit, err);
        }
        f->buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(decode(f, n), 0);
}

static void test_truncated(void **state)
{
    struct fixture *f = *state;
    case_record(&f->rec, f->tokens, 16, 1024, 1024, 4);
    int n = kvd_record_encode(&f->rec, f->buf, sizeof(f->buf));
    assert_true(n > 4 * KVD_ALIGN_BYTES);
    assert_int_equal(decode(f, KVD_ALIGN_BYTES - 1), -KVD_E_CORRUPT);
    for (int have = KVD_ALIGN_BYTES; have < n; have += KVD_ALIGN_BYTES) {
        uint32_t header_bytes = 0;
        assert_int_equal(kvd_record_decode(f->buf, (uint64_t)have, f->decoded_tokens,
                                           CASE_TOKENS_MAX, &f->got, &header_bytes),
                         -KVD_E_TOO_LONG);
        assert_int_equal(header_bytes, n);
    }
    uint32_t header_bytes = 0;
    assert_int_equal(
        kvd_record_decode(f->buf, (uint64_t)n, f->decoded_tokens, 100, &f->got, &header_bytes),
        -KVD_E_TOO_LONG);
    assert_int_equal(header_bytes, n);
}

static void test_newer_version(void **state)
{
    struct fixture *f = *state;
    uint32_t n = encode_usual(f);
    kvd_put_le16(f->buf + KVD_FRAME_VERSION, KVD_RECORD_VERSION + 1);
    assert_int_equal(decode(f, n), -KVD_E_CORRUPT); /* without its sum it is just damage */
    kvd_frame_seal(f->buf, n);
    assert_int_equal(decode(f, n), -KVD_E_NEWER);
    kvd_put_le16(f->buf + KVD_FRAME_VERSION, 0);
    kvd_frame_seal(f->buf, n);
    assert_int_equal(decode(f, n), -KVD_E_CORRUPT);
}

/* Spoils one field of a good record in memory and expects the encoder to refuse it. */
static void test_encoder_refuses(void **state)
{
    struct fixture *f = *state;
    struct kvd_record *r = &f->rec;
    for (int what = 0; what < 16; what++) {
        case_record(r, f->tokens, 2, 64, 64, 1);
        switch (what) {
        case 0:
            r->n_blocks = 0;
            break;
        case 1:
            r->n_blocks = KVD_RECORD_BLOCKS_MAX + 1;
            break;
        case 2:
            r->index = 31;
            break; /* two blocks would lie in two groups */
        case 3:
            r->blocks[0].n_tokens = 0;
            break;
        case 4:
            r->blocks[0].n_tokens = 63;
            break; /* only the last may be shorter */
        case 5:
            r->blocks[1].n_tokens = 65;
            break;
        case 6:
            r->blocks[0].n_tokens = KVD_BLOCK_TOKENS_MAX + 1;
            break;
        case 7:
            r->n_parts = 0;
            break;
        case 8:
            r->n_parts = KVD_RECORD_PARTS_MAX + 1;
            break;
        case 9:
            r->raw_bytes++;
            break;
        case 10:
            r->stored_bytes--;
            break; /* codec none keeps the length */
        case 11:
            r->stored_sum++;
            break;
        case 12:
            r->codec = KVD_CODEC_PLANES_LZ4 + 1;
            break;
        case 13:
            r->parts[0].raw_bytes = UINT64_MAX;
            break;
        case 14:
            r->raw_bytes = r->stored_bytes = r->parts[0].raw_bytes = 0;
            break;
        case 15:
            r->stored_bytes = (uint64_t)KVD_RECORD_PAYLOAD_MAX + 1;
            break;
        default:
            break;
        }
        if (kvd_record_encode(r, f->buf, sizeof(f->buf)) != -KVD_E_BAD_REQUEST) {
            fail_msg("case %d was encoded", what);
        }
    }
    case_record(r, f->tokens, 2, 64, 64, 1);
    assert_int_equal(kvd_record_encode(r, f->buf, KVD_ALIGN_BYTES - 1), -KVD_E_BAD_REQUEST);
    r->codec = KVD_CODEC_LZ4;
    r->stored_bytes = 5;
    r->stored_sum = 1;
    assert_true(kvd_record_encode(r, f->buf, sizeof(f->buf)) > 0);
}

/* Headers changed at random places, with a sum that fits again: whatever is accepted is whole, and
 * is exactly what the encoder would write. Run under sanitizers, this is the decoder's fuzz test.
 */
static void test_mutations(void **state)
{
    struct fixture *f = *state;
    uint64_t rng = 88172645463325252ull;
    unsigned accepted = 0;
    for (int round = 0; round < 40000; round++) {
        case_record(&f->rec, f->tokens, (uint16_t)(1 + round % 4), 8, 1 + (uint32_t)round % 8, 2);
        int n = kvd_record_encode(&f->rec, f->buf, sizeof(f->buf));
        assert_true(n == KVD_ALIGN_BYTES);
        unsigned changes = 1 + (unsigned)(case_random(&rng) % 3);
        for (unsigned i = 0; i < changes; i++) {
            uint64_t r = case_random(&rng);
            uint32_t at = 10 + (uint32_t)(r % 330);
            f->buf[at] =
                r & 1 << 20 ? (uint8_t)(r >> 32) : (uint8_t)(f->buf[at] ^ 1u << (r >> 60) % 8);
        }
        uint32_t header_bytes = kvd_get_le32(f->buf + KVD_FRAME_HEADER_BYTES);
        if (header_bytes >= KVD_ALIGN_BYTES && header_bytes <= sizeof(f->buf)) {
            kvd_frame_seal(f->buf, header_bytes);
        }
        if (decode(f, sizeof(f->buf)) == 0) {
            accepted++;
            assert_int_equal(kvd_record_encode(&f->got, f->again, sizeof(f->again)), n);
            assert_memory_equal(f->buf, f->again, (size_t)n);
        }
    }
    assert_true(accepted > 100); /* else the test tries nothing but the first check */
}

static void test_garbage(void **state)
{
    struct fixture *f = *state;
    uint64_t rng = 1234567;
    for (int round = 0; round < 300; round++) {
        for (size_t i = 0; i < sizeof(f->buf); i += 8) {
            kvd_put_le64(f->buf + i, case_random(&rng));
        }
        if (round % 2) {
            memcpy(f->buf, "KVDRECRD", 8);
            f->buf[8] = 1;
        }
        int err = decode(f, sizeof(f->buf));
        assert_true(err == -KVD_E_FORMAT || err == -KVD_E_CORRUPT);
    }
    memset(f->buf, 0, sizeof(f->buf));
    assert_int_equal(decode(f, sizeof(f->buf)), -KVD_E_FORMAT);
}

static void test_stored_sum(void **state)
{
    struct fixture *f = *state;
    case_record(&f->rec, f->tokens, 1, 64, 64, 1);
    uint8_t *payload = f->again;
    case_fill(payload, 1000, 9);
    f->rec.stored_sum = kvd_sum(payload, f->rec.stored_bytes);
    assert_int_equal(kvd_record_check_stored(&f->rec, payload), 0);
    payload[999] ^= 1;
    assert_int_equal(kvd_record_check_stored(&f->rec, payload), -KVD_E_CORRUPT);
}

static void test_identity(void **state)
{
    struct fixture *f = *state;
    case_record(&f->rec, f->tokens, 2, 64, 40, 1);
    const struct kvd_record good = f->rec;
    const struct kvd_record_block *b = f->rec.blocks;
    const struct kvd_record_expect first = {
        &good.space, &good.tenant, &good.parent, &good.blocks[0].key, b[0].tokens, 64, 64, 3};
    const struct kvd_record_expect second = {&good.space,
                                             &good.tenant,
                                             &good.blocks[0].key,
                                             &good.blocks[1].key,
                                             b[1].tokens,
                                             40,
                                             65,
                                             3};
    struct kvd_diag diag;
    assert_int_equal(kvd_record_check_identity(&f->rec, 0, &first, NULL), 0);
    assert_int_equal(kvd_record_check_identity(&f->rec, 1, &second, NULL), 0);
    assert_int_equal(kvd_record_check_identity(&f->rec, 2, &second, NULL), -KVD_E_CORRUPT);

    struct {
        const char *field;
        uint8_t *byte;
    } spoils[] = {{"space", &f->rec.space.b[31]},
                  {"tenant", &f->rec.tenant.b[0]},
                  {"parent", &f->rec.blocks[0].key.b[15]},
                  {"key", &f->rec.blocks[1].key.b[0]},
                  {"index", (uint8_t *)&f->rec.index},
                  {"rank", (uint8_t *)&f->rec.rank},
                  {"token count", (uint8_t *)&f->rec.blocks[1].n_tokens}};
    for (size_t i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
        *spoils[i].byte ^= 1;
        assert_int_equal(kvd_record_check_identity(&f->rec, 1, &second, &diag), -KVD_E_CORRUPT);
        assert_non_null(strstr(diag.text, spoils[i].field));
        *spoils[i].byte ^= 1;
    }
    uint32_t other[64];
    memcpy(other, second.tokens, 40 * sizeof(other[0]));
    other[39]++;
    struct kvd_record_expect wrong = second;
    wrong.tokens = other;
    assert_int_equal(kvd_record_check_identity(&f->rec, 1, &wrong, &diag), -KVD_E_CORRUPT);
    assert_non_null(strstr(diag.text, "tokens"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_golden, setup, teardown),
    cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
    cmocka_unit_test_setup_teardown(test_every_bit_flip_is_refused, setup, teardown),
    cmocka_unit_test_setup_teardown(test_truncated, setup, teardown),
    cmocka_unit_test_setup_teardown(test_newer_version, setup, teardown),
    cmocka_unit_test_setup_teardown(test_encoder_refuses, setup, teardown),
    cmocka_unit_test_setup_teardown(test_mutations, setup, teardown),
    cmocka_unit_test_setup_teardown(test_garbage, setup, teardown),
    cmocka_unit_test_setup_teardown(test_stored_sum, setup, teardown),
    cmocka_unit_test_setup_teardown(test_identity, setup, teardown),
};

KVD_TEST_MAIN(tests)
