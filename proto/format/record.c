/*
 * Records: header to bytes and back. The layout is specified in FORMAT.md; the offsets below are
 * its table.
 *
 * Decoding never trusts a length before it has been compared with what is there: first the fixed
 * prefix that all versions share, then the sum over the whole header, then the counts, then the
 * fields that depend on the counts.
 */
#include "proto/format/record.h"

#include <string.h>
#include <xxhash.h>

#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/protect.h"
#include "proto/format/frame.h"

static const char record_magic[8] = {'K', 'V', 'D', 'R', 'E', 'C', 'R', 'D'};

enum record_offset {
    OFF_RAW_BYTES = 24,
    OFF_STORED_BYTES = 32,
    OFF_RAW_SUM = 40,
    OFF_STORED_SUM = 48,
    OFF_CREATED = 56,
    OFF_PUT_ID = 64,
    OFF_INDEX = 72,
    OFF_SCENARIO = 76,
    OFF_RANK = 78,
    OFF_CODEC = 80,
    OFF_N_BLOCKS = 82,
    OFF_N_PARTS = 84,
    OFF_RESERVED_86 = 86,
    OFF_TOTAL_TOKENS = 88,
    OFF_RESERVED_92 = 92,
    OFF_SPACE = 96,
    OFF_TENANT = 128,
    OFF_PARENT = 160,
    OFF_GROUP = 176,
    OFF_RESERVED_188 = 188,
    OFF_PARTS = 192,
    PART_BYTES = 16,
    BLOCK_BYTES = 24,
    HEADER_MAX = 17 * KVD_ALIGN_BYTES, /* 16 blocks of 1,024 tokens and 4 parts */
};

static uint32_t used_bytes(uint32_t n_blocks, uint32_t total_tokens, uint32_t n_parts)
{
    return OFF_PARTS + n_parts * PART_BYTES + n_blocks * BLOCK_BYTES + total_tokens * 4;
}

uint32_t kvd_record_header_bytes(uint32_t n_blocks, uint32_t total_tokens, uint32_t n_parts)
{
    return (uint32_t)kvd_round_up(used_bytes(n_blocks, total_tokens, n_parts), KVD_ALIGN_BYTES);
}

static uint32_t total_tokens(const struct kvd_record *rec)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < rec->n_blocks && i < KVD_RECORD_BLOCKS_MAX; i++) {
        total += rec->blocks[i].n_tokens;
    }
    return total;
}

uint64_t kvd_record_extent_bytes(const struct kvd_record *rec)
{
    return kvd_record_header_bytes(rec->n_blocks, total_tokens(rec), rec->n_parts) +
           kvd_round_up(rec->stored_bytes, KVD_ALIGN_BYTES);
}

uint64_t kvd_sum(const void *bytes, uint64_t n)
{
    return XXH3_64bits(bytes, n);
}

/* Blocks of a record: 1 to 16 of one group, all of one length but for a shorter last one. */
static bool blocks_fit(const struct kvd_record *rec)
{
    if (rec->n_blocks < 1 || rec->n_blocks > KVD_RECORD_BLOCKS_MAX ||
        rec->index % KVD_GROUP_BLOCKS + rec->n_blocks > KVD_GROUP_BLOCKS) {
        return false;
    }
    for (uint32_t i = 0; i < rec->n_blocks; i++) {
        uint32_t n = rec->blocks[i].n_tokens;
        bool last = i + 1 == rec->n_blocks;
        if (n < 1 || n > KVD_BLOCK_TOKENS_MAX || n > rec->blocks[0].n_tokens ||
            (!last && n != rec->blocks[0].n_tokens)) {
            return false;
        }
    }
    return true;
}

static bool lengths_fit(const struct kvd_record *rec)
{
    if (rec->n_parts < 1 || rec->n_parts > KVD_RECORD_PARTS_MAX || rec->raw_bytes < 1 ||
        rec->raw_bytes > KVD_RECORD_PAYLOAD_MAX || rec->stored_bytes < 1 ||
        rec->stored_bytes > KVD_RECORD_PAYLOAD_MAX) {
        return false;
    }
    uint64_t block_bytes = 0;
    for (uint32_t i = 0; i < rec->n_parts; i++) {
        if (rec->parts[i].raw_bytes > KVD_RECORD_PAYLOAD_MAX) {
            return false;
        }
        block_bytes += rec->parts[i].raw_bytes;
    }
    return block_bytes * rec->n_blocks == rec->raw_bytes;
}

static bool codec_fits(const struct kvd_record *rec)
{
    if (rec->codec == KVD_CODEC_NONE) {
        return rec->stored_bytes == rec->raw_bytes && rec->stored_sum == rec->raw_sum;
    }
    return rec->codec <= KVD_CODEC_PLANES_LZ4;
}

static bool record_fits(const struct kvd_record *rec)
{
    return blocks_fit(rec) && lengths_fit(rec) && codec_fits(rec);
}

static void encode_fixed(const struct kvd_record *rec, uint32_t header_bytes, uint8_t *p)
{
    kvd_frame_put(p, record_magic, KVD_RECORD_VERSION, header_bytes);
    kvd_put_le64(p + OFF_RAW_BYTES, rec->raw_bytes);
    kvd_put_le64(p + OFF_STORED_BYTES, rec->stored_bytes);
    kvd_put_le64(p + OFF_RAW_SUM, rec->raw_sum);
    kvd_put_le64(p + OFF_STORED_SUM, rec->stored_sum);
    kvd_put_le64(p + OFF_CREATED, rec->created_s);
    kvd_put_le64(p + OFF_PUT_ID, rec->put_id);
    kvd_put_le32(p + OFF_INDEX, rec->index);
    kvd_put_le16(p + OFF_SCENARIO, rec->scenario);
    kvd_put_le16(p + OFF_RANK, rec->rank);
    kvd_put_le16(p + OFF_CODEC, rec->codec);
    kvd_put_le16(p + OFF_N_BLOCKS, rec->n_blocks);
    kvd_put_le16(p + OFF_N_PARTS, rec->n_parts);
    kvd_put_le32(p + OFF_TOTAL_TOKENS, total_tokens(rec));
    memcpy(p + OFF_SPACE, rec->space.b, KVD_DIGEST_BYTES);
    memcpy(p + OFF_TENANT, rec->tenant.b, KVD_DIGEST_BYTES);
    memcpy(p + OFF_PARENT, rec->parent.b, KVD_KEY_BYTES);
    memcpy(p + OFF_GROUP, rec->group.b, KVD_GROUP_ID_BYTES);
}

/* The parts' rows, the blocks' rows, and the tokens; what is before them is written. */
static void encode_variable(const struct kvd_record *rec, uint8_t *p)
{
    uint8_t *at = p + OFF_PARTS;
    for (uint32_t i = 0; i < rec->n_parts; i++, at += PART_BYTES) {
        kvd_put_le32(at, rec->parts[i].kind);
        kvd_put_le64(at + 8, rec->parts[i].raw_bytes);
    }
    for (uint32_t i = 0; i < rec->n_blocks; i++, at += BLOCK_BYTES) {
        memcpy(at, rec->blocks[i].key.b, KVD_KEY_BYTES);
        kvd_put_le32(at + KVD_KEY_BYTES, rec->blocks[i].n_tokens);
    }
    for (uint32_t i = 0; i < rec->n_blocks; i++) {
        for (uint32_t t = 0; t < rec->blocks[i].n_tokens; t++, at += 4) {
            kvd_put_le32(at, rec->blocks[i].tokens[t]);
        }
    }
}

int kvd_record_encode(const struct kvd_record *rec, void *buf, uint64_t buf_bytes)
{
    if (!record_fits(rec)) {
        return -KVD_E_BAD_REQUEST;
    }
    uint32_t header_bytes = kvd_record_header_bytes(rec->n_blocks, total_tokens(rec), rec->n_parts);
    if (buf_bytes < header_bytes) {
        return -KVD_E_BAD_REQUEST;
    }
    memset(buf, 0, header_bytes);
    encode_fixed(rec, header_bytes, buf);
    encode_variable(rec, buf);
    kvd_frame_seal(buf, header_bytes);
    return (int)header_bytes;
}

static void decode_fixed(const uint8_t *p, struct kvd_record *rec)
{
    memset(rec, 0, sizeof(*rec));
    rec->raw_bytes = kvd_get_le64(p + OFF_RAW_BYTES);
    rec->stored_bytes = kvd_get_le64(p + OFF_STORED_BYTES);
    rec->raw_sum = kvd_get_le64(p + OFF_RAW_SUM);
    rec->stored_sum = kvd_get_le64(p + OFF_STORED_SUM);
    rec->created_s = kvd_get_le64(p + OFF_CREATED);
    rec->put_id = kvd_get_le64(p + OFF_PUT_ID);
    rec->index = kvd_get_le32(p + OFF_INDEX);
    rec->scenario = kvd_get_le16(p + OFF_SCENARIO);
    rec->rank = kvd_get_le16(p + OFF_RANK);
    rec->codec = kvd_get_le16(p + OFF_CODEC);
    rec->n_blocks = kvd_get_le16(p + OFF_N_BLOCKS);
    rec->n_parts = kvd_get_le16(p + OFF_N_PARTS);
    memcpy(rec->space.b, p + OFF_SPACE, KVD_DIGEST_BYTES);
    memcpy(rec->tenant.b, p + OFF_TENANT, KVD_DIGEST_BYTES);
    memcpy(rec->parent.b, p + OFF_PARENT, KVD_KEY_BYTES);
    memcpy(rec->group.b, p + OFF_GROUP, KVD_GROUP_ID_BYTES);
}

/* Counts are in range and agree with the size of the header, so that what follows lies inside. */
static bool counts_fit(const uint8_t *p, const struct kvd_record *rec, uint32_t header_bytes)
{
    uint32_t tokens = kvd_get_le32(p + OFF_TOTAL_TOKENS);
    return rec->n_blocks >= 1 && rec->n_blocks <= KVD_RECORD_BLOCKS_MAX && rec->n_parts >= 1 &&
           rec->n_parts <= KVD_RECORD_PARTS_MAX &&
           tokens <= KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX &&
           kvd_record_header_bytes(rec->n_blocks, tokens, rec->n_parts) == header_bytes &&
           kvd_get_le16(p + OFF_RESERVED_86) == 0 && kvd_get_le32(p + OFF_RESERVED_92) == 0 &&
           kvd_get_le32(p + OFF_RESERVED_188) == 0;
}

/* Rows of parts and blocks; ret_tokens_at is where the tokens begin. False on a reserved field that
 * isn't zero. */
static bool decode_rows(const uint8_t *p, struct kvd_record *rec, const uint8_t **ret_tokens_at)
{
    const uint8_t *at = p + OFF_PARTS;
    uint32_t reserved = 0;
    for (uint32_t i = 0; i < rec->n_parts; i++, at += PART_BYTES) {
        rec->parts[i].kind = kvd_get_le32(at);
        reserved |= kvd_get_le32(at + 4);
        rec->parts[i].raw_bytes = kvd_get_le64(at + 8);
    }
    for (uint32_t i = 0; i < rec->n_blocks; i++, at += BLOCK_BYTES) {
        memcpy(rec->blocks[i].key.b, at, KVD_KEY_BYTES);
        rec->blocks[i].n_tokens = kvd_get_le32(at + KVD_KEY_BYTES);
        reserved |= kvd_get_le32(at + KVD_KEY_BYTES + 4);
    }
    *ret_tokens_at = at;
    return reserved == 0;
}

static void decode_tokens(const uint8_t *at, uint32_t *token_buf, struct kvd_record *rec)
{
    for (uint32_t i = 0; i < rec->n_blocks; i++) {
        rec->blocks[i].tokens = token_buf;
        for (uint32_t t = 0; t < rec->blocks[i].n_tokens; t++, at += 4) {
            *token_buf++ = kvd_get_le32(at);
        }
    }
}

int kvd_record_decode(const void *buf, uint64_t n, uint32_t *token_buf, uint32_t token_buf_ids,
                      struct kvd_record *ret_rec, uint32_t *ret_header_bytes)
{
    const uint8_t *p = buf;
    uint32_t header_bytes;
    int err = kvd_frame_check(p, n, record_magic, KVD_RECORD_VERSION, HEADER_MAX, &header_bytes);
    if (err == 0 || err == -KVD_E_TOO_LONG) {
        *ret_header_bytes = header_bytes;
    }
    if (err) {
        return err;
    }
    struct kvd_record rec;
    const uint8_t *tokens_at;
    decode_fixed(p, &rec);
    if (!counts_fit(p, &rec, header_bytes) || !decode_rows(p, &rec, &tokens_at) ||
        !record_fits(&rec) || total_tokens(&rec) != kvd_get_le32(p + OFF_TOTAL_TOKENS)) {
        return -KVD_E_CORRUPT;
    }
    uint32_t used = used_bytes(rec.n_blocks, total_tokens(&rec), rec.n_parts);
    if (!kvd_all_zero(p + used, header_bytes - used)) {
        return -KVD_E_CORRUPT;
    }
    if (total_tokens(&rec) > token_buf_ids) {
        return -KVD_E_TOO_LONG;
    }
    decode_tokens(tokens_at, token_buf, &rec);
    *ret_rec = rec;
    return 0;
}

int kvd_record_check_stored(const struct kvd_record *rec, const void *payload)
{
    return kvd_sum(payload, rec->stored_bytes) == rec->stored_sum ? 0 : -KVD_E_CORRUPT;
}

/* Name of the first field of block `nth` that isn't as expected, or NULL. */
static const char *differing_field(const struct kvd_record *rec, uint32_t nth,
                                   const struct kvd_record_expect *expect)
{
    if (nth >= rec->n_blocks) {
        return "block count";
    }
    const struct kvd_record_block *block = &rec->blocks[nth];
    const struct kvd_key *parent = nth ? &rec->blocks[nth - 1].key : &rec->parent;
    if (KVD_PROTECT(RECORD_SPACE) && !kvd_digest_equal(&rec->space, expect->space)) {
        return "space";
    }
    if (KVD_PROTECT(RECORD_TENANT) && !kvd_digest_equal(&rec->tenant, expect->tenant)) {
        return "tenant";
    }
    if (KVD_PROTECT(RECORD_RANK) && rec->rank != expect->rank) {
        return "rank";
    }
    if (KVD_PROTECT(RECORD_INDEX) && rec->index + nth != expect->index) {
        return "index";
    }
    if (KVD_PROTECT(RECORD_PARENT) && !kvd_key_equal(parent, expect->parent)) {
        return "parent";
    }
    if (KVD_PROTECT(RECORD_KEY) && !kvd_key_equal(&block->key, expect->key)) {
        return "key";
    }
    if (block->n_tokens != expect->n_tokens) {
        return "token count";
    }
    bool same = memcmp(block->tokens, expect->tokens, (size_t)4 * expect->n_tokens) == 0;
    return KVD_PROTECT(RECORD_TOKENS) && !same ? "tokens" : NULL;
}

int kvd_record_check_identity(const struct kvd_record *rec, uint32_t nth,
                              const struct kvd_record_expect *expect, struct kvd_diag *diag)
{
    const char *field = differing_field(rec, nth, expect);
    if (!field) {
        return 0;
    }
    char hex[KVD_KEY_HEX];
    kvd_hex(expect->key->b, KVD_KEY_BYTES, hex);
    return kvd_fail(diag, -KVD_E_CORRUPT, "record of block %s: %s differs from what was asked for",
                    hex, field);
}
