/*
 * The record: what is stored as one object. FORMAT.md beside this file specifies every byte.
 *
 * One aligned extent: header (padded to 4 KiB), then payload (padded to 4 KiB with zeros). Nobody
 * loads half of one. It holds 1 to 16 consecutive blocks of one group, each with its key and its
 * tokens, and named parts of each block's payload (kv; room for indexer rows and window state). Raw
 * payload order: block by block, within it part by part.
 *
 * Pure functions; safe from any thread. Input to the decoder is not trusted.
 */
#ifndef PROTO_FORMAT_RECORD_H
#define PROTO_FORMAT_RECORD_H

#include <stdint.h>

#include "proto/base/error.h"
#include "proto/keys/keys.h"

enum {
    KVD_ALIGN_BYTES = 4096,
    KVD_RECORD_VERSION = 1,
    KVD_RECORD_BLOCKS_MAX = 16,
    KVD_RECORD_PARTS_MAX = 4,
    KVD_RECORD_PAYLOAD_MAX = 128 << 20, /* bytes, raw or stored */
};

enum kvd_codec { KVD_CODEC_NONE = 0, KVD_CODEC_LZ4 = 1, KVD_CODEC_PLANES_LZ4 = 2 };

enum kvd_part_kind { KVD_PART_KV = 1, KVD_PART_INDEXER = 2, KVD_PART_WINDOW = 3 };

struct kvd_record_part {
    uint32_t kind;      /* enum kvd_part_kind; an unknown kind is kept, not refused */
    uint64_t raw_bytes; /* of this part in each block */
};

struct kvd_record_block {
    struct kvd_key key;
    const uint32_t *tokens; /* encode: borrowed. decode: into the caller's token buffer */
    uint32_t
        n_tokens; /* space's block_tokens; fewer only in a leaf, which is its record's last block */
};

struct kvd_record {
    struct kvd_digest space;
    struct kvd_digest tenant;
    struct kvd_key parent; /* of the first block; the root key for a chain's first */
    struct kvd_group_id group;
    uint32_t index;    /* in the chain, of the first block */
    uint16_t scenario; /* id of the retention class it was put under */
    uint16_t rank;
    uint16_t codec; /* enum kvd_codec */
    uint16_t n_blocks;
    uint16_t n_parts;
    uint64_t raw_bytes; /* payload before the codec: n_blocks * sum of parts */
    uint64_t
        stored_bytes; /* payload after the codec, before padding; equals raw_bytes for codec none */
    uint64_t created_s;  /* UTC seconds */
    uint64_t put_id;     /* unique in the store: never two puts with one id */
    uint64_t raw_sum;    /* XXH3-64 of the raw payload */
    uint64_t stored_sum; /* XXH3-64 of the stored payload (without padding) */
    struct kvd_record_part parts[KVD_RECORD_PARTS_MAX];
    struct kvd_record_block blocks[KVD_RECORD_BLOCKS_MAX];
};

/* Bytes of the padded header of a record with these blocks and parts (a multiple of
 * KVD_ALIGN_BYTES). */
uint32_t kvd_record_header_bytes(uint32_t n_blocks, uint32_t total_tokens, uint32_t n_parts);

/* Bytes of the whole extent: header_bytes + stored_bytes rounded up. */
uint64_t kvd_record_extent_bytes(const struct kvd_record *rec);

/* XXH3-64 of bytes, as records and segments use it. */
uint64_t kvd_sum(const void *bytes, uint64_t n);

/* Writes the header of rec into buf, which has at least kvd_record_header_bytes() bytes; pads with
 * zeros. Returns the padded header's bytes, or a negative error: -KVD_E_BAD_REQUEST (counts or
 * lengths out of range or inconsistent; with codec none, the two sums and lengths must be equal).
 */
int kvd_record_encode(const struct kvd_record *rec, void *buf, uint64_t buf_bytes);

/*
 * Reads a header from n untrusted bytes (at least one page; all of the header's pages). Tokens are
 * copied into token_buf, which holds at least KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX ids or
 * the count that fits is checked against token_buf_ids. ret_header_bytes: the padded header's size,
 * also set with -KVD_E_TOO_LONG, which says that n is smaller than that (or that the tokens don't
 * fit token_buf). 0; -KVD_E_FORMAT (no
 * record's magic), -KVD_E_NEWER (a later version), -KVD_E_CORRUPT (sum or a length is wrong),
 * -KVD_E_TOO_LONG.
 */
int kvd_record_decode(const void *buf, uint64_t n, uint32_t *token_buf, uint32_t token_buf_ids,
                      struct kvd_record *ret_rec, uint32_t *ret_header_bytes);

/* Checks the stored payload (stored_bytes at payload) against its sum. 0 or -KVD_E_CORRUPT. */
int kvd_record_check_stored(const struct kvd_record *rec, const void *payload);

/* Who a record must belong to for a reader to use block `nth` of it. */
struct kvd_record_expect {
    const struct kvd_digest *space;
    const struct kvd_digest *tenant;
    const struct kvd_key *parent; /* of the block that is expected */
    const struct kvd_key *key;
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t index; /* in the chain */
    uint16_t rank;
};

/* Compares everything. 0; -KVD_E_CORRUPT when anything differs, with the field's name in diag (may
 * be NULL). */
int kvd_record_check_identity(const struct kvd_record *rec, uint32_t nth,
                              const struct kvd_record_expect *expect, struct kvd_diag *diag);

#endif
