/*
 * Fuzz entry of the record reader: any bytes are refused, or give a record that encodes to the same
 * bytes again and is nobody's but its own.
 *
 * Input: a byte of choices, then the header without the zeros at its end (and, where it is choice
 * PAYLOAD, a payload before it). Choice SEAL recomputes the header's sum, so that what lies behind
 * that check is reached.
 */
#include "fuzz.h"
#include "proto/format/frame.h"
#include "proto/format/record.h"

enum { SEAL = 1, PAYLOAD = 2, SUM_PAYLOAD = 4, SHORT = 8 };
enum { HEADER_BYTES_MAX = 128 << 10, PAYLOAD_BYTES = 64 };
enum { OFF_RAW_SUM = 40, OFF_STORED_SUM = 48 }; /* as in FORMAT.md */
enum { TOKENS_MAX = KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX };

/* Each field alone makes another record of it. */
static void check_identity(const struct kvd_record *rec, uint32_t nth)
{
    const struct kvd_record_block *block = &rec->blocks[nth];
    const struct kvd_key *parent = nth ? &rec->blocks[nth - 1].key : &rec->parent;
    const struct kvd_record_expect own = {.space = &rec->space,
                                          .tenant = &rec->tenant,
                                          .parent = parent,
                                          .key = &block->key,
                                          .tokens = block->tokens,
                                          .n_tokens = block->n_tokens,
                                          .index = rec->index + nth,
                                          .rank = rec->rank};
    struct kvd_digest digest = rec->space;
    struct kvd_key key = block->key;
    struct kvd_record_expect other = own;
    struct kvd_diag diag;
    FUZZ_CHECK(kvd_record_check_identity(rec, nth, &own, &diag) == 0);
    digest.b[nth]++;
    other.space = &digest;
    FUZZ_CHECK(kvd_record_check_identity(rec, nth, &other, &diag) == -KVD_E_CORRUPT);
    other = own;
    key.b[nth]++;
    other.key = &key;
    FUZZ_CHECK(kvd_record_check_identity(rec, nth, &other, &diag) == -KVD_E_CORRUPT);
    other = own;
    other.n_tokens--;
    FUZZ_CHECK(kvd_record_check_identity(rec, nth, &other, NULL) == -KVD_E_CORRUPT);
    other = own;
    other.index++;
    FUZZ_CHECK(kvd_record_check_identity(rec, nth, &other, NULL) == -KVD_E_CORRUPT);
}

static void use(const struct kvd_record *rec, const uint8_t *header, uint32_t header_bytes,
                const uint8_t *payload, size_t payload_bytes)
{
    static uint8_t again[HEADER_BYTES_MAX];
    uint64_t raw = 0;
    FUZZ_CHECK(rec->n_blocks >= 1 && rec->n_blocks <= KVD_RECORD_BLOCKS_MAX);
    FUZZ_CHECK(header_bytes <= sizeof(again));
    FUZZ_CHECK(kvd_record_encode(rec, again, sizeof(again)) == (int)header_bytes);
    FUZZ_CHECK(memcmp(again, header, header_bytes) == 0);
    for (uint32_t i = 0; i < rec->n_parts; i++) {
        raw += rec->parts[i].raw_bytes * rec->n_blocks;
    }
    FUZZ_CHECK(raw == rec->raw_bytes && rec->raw_bytes <= KVD_RECORD_PAYLOAD_MAX);
    FUZZ_CHECK(kvd_record_extent_bytes(rec) >= header_bytes + rec->stored_bytes);
    FUZZ_CHECK(kvd_record_extent_bytes(rec) % KVD_ALIGN_BYTES == 0);
    for (uint32_t i = 0; i < rec->n_blocks; i++) {
        check_identity(rec, i);
    }
    struct kvd_record_expect none = {.key = &rec->parent};
    FUZZ_CHECK(kvd_record_check_identity(rec, rec->n_blocks, &none, NULL) == -KVD_E_CORRUPT);
    if (rec->stored_bytes <= payload_bytes) {
        const bool right = kvd_sum(payload, rec->stored_bytes) == rec->stored_sum;
        FUZZ_CHECK((kvd_record_check_stored(rec, payload) == 0) == right);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint32_t tokens[TOKENS_MAX];
    struct fuzz_in in = {data, size};
    struct kvd_record rec;
    uint32_t header_bytes = 0;
    size_t payload_n = 0;
    size_t n = 0;
    const uint8_t how = fuzz_u8(&in);
    const uint8_t *payload = fuzz_take(&in, how & PAYLOAD ? PAYLOAD_BYTES : 0, &payload_n);
    const uint8_t *given = fuzz_take(&in, HEADER_BYTES_MAX, &n);
    uint64_t whole = kvd_round_up(n, KVD_ALIGN_BYTES);
    if (n >= KVD_FRAME_SUM && kvd_get_le32(given + KVD_FRAME_HEADER_BYTES) <= HEADER_BYTES_MAX &&
        kvd_get_le32(given + KVD_FRAME_HEADER_BYTES) > whole) {
        whole = kvd_get_le32(given + KVD_FRAME_HEADER_BYTES);
    }
    uint8_t *buf = calloc(1, whole ? whole : 1);
    FUZZ_CHECK(buf != NULL);
    memcpy(buf, given, n);
    if (how & SUM_PAYLOAD && n > OFF_STORED_SUM + 8) {
        kvd_put_le64(buf + OFF_RAW_SUM, kvd_sum(payload, payload_n));
        kvd_put_le64(buf + OFF_STORED_SUM, kvd_sum(payload, payload_n));
    }
    if (how & SEAL && whole > 0) {
        kvd_frame_seal(buf, (uint32_t)whole);
    }
    const uint32_t room = how & SHORT ? 64 : TOKENS_MAX;
    const int err = kvd_record_decode(buf, whole, tokens, room, &rec, &header_bytes);
    if (err == 0) {
        use(&rec, buf, header_bytes, payload, payload_n);
    } else {
        FUZZ_CHECK(err == -KVD_E_FORMAT || err == -KVD_E_NEWER || err == -KVD_E_CORRUPT ||
                   err == -KVD_E_TOO_LONG);
    }
    free(buf);
    return 0;
}
