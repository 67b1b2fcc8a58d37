/*
 * Known content for tests of the formats: records and segments made from a counter, so that their
 * encodings are the same for ever, and a small generator of random numbers.
 */
#ifndef TESTS_UNIT_PROTO_FORMAT_CASES_H
#define TESTS_UNIT_PROTO_FORMAT_CASES_H

#include <string.h>

#include "proto/format/segment.h"

enum { CASE_TOKENS_MAX = KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX };

static inline uint64_t case_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline void case_fill(void *p, size_t n, uint8_t first)
{
    uint8_t *b = p;
    for (size_t i = 0; i < n; i++) {
        b[i] = (uint8_t)(first + i);
    }
}

/* A record of n_blocks blocks; the last has last_tokens. tokens: CASE_TOKENS_MAX ids. */
static inline void case_record(struct kvd_record *rec, uint32_t *tokens, uint16_t n_blocks,
                               uint32_t block_tokens, uint32_t last_tokens, uint16_t n_parts)
{
    memset(rec, 0, sizeof(*rec));
    case_fill(rec->space.b, sizeof(rec->space), 1);
    case_fill(rec->tenant.b, sizeof(rec->tenant), 50);
    case_fill(rec->parent.b, sizeof(rec->parent), 100);
    case_fill(rec->group.b, sizeof(rec->group), 150);
    rec->index = 64;
    rec->scenario = 2;
    rec->rank = 3;
    rec->n_blocks = n_blocks;
    rec->n_parts = n_parts;
    uint64_t block_bytes = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        rec->parts[i] = (struct kvd_record_part){.kind = i + 1, .raw_bytes = 1000 + i};
        block_bytes += 1000 + i;
    }
    rec->raw_bytes = block_bytes * n_blocks;
    rec->stored_bytes = rec->raw_bytes;
    rec->created_s = UINT64_C(1767225600);
    rec->put_id = UINT64_C(0x1122334455667788);
    rec->raw_sum = UINT64_C(0x0123456789abcdef);
    rec->stored_sum = rec->raw_sum;
    for (uint32_t b = 0; b < n_blocks; b++) {
        case_fill(rec->blocks[b].key.b, KVD_KEY_BYTES, (uint8_t)(200 + b));
        rec->blocks[b].tokens = tokens;
        rec->blocks[b].n_tokens = b + 1 == n_blocks ? last_tokens : block_tokens;
        for (uint32_t t = 0; t < rec->blocks[b].n_tokens; t++) {
            *tokens++ = b * 100000 + t;
        }
    }
}

static inline void case_segment_header(struct kvd_segment_header *h)
{
    memset(h, 0, sizeof(*h));
    case_fill(h->store.b, sizeof(h->store), 10);
    h->seed = UINT64_C(0xfeedfacecafebeef);
    h->writer = 7;
    h->epoch = 42;
    h->number = UINT64_C(0x100000002);
    h->slice_s = UINT64_C(1767225600);
    h->slice_len_s = 43200;
    h->scenario = 1;
    h->created_s = UINT64_C(1767225660);
}

static inline void case_rows(struct kvd_segment_row *rows, uint32_t n)
{
    memset(rows, 0, n * sizeof(*rows));
    for (uint32_t i = 0; i < n; i++) {
        rows[i].offset = KVD_SEGMENT_HEADER_BYTES + (uint64_t)i * 8 * KVD_ALIGN_BYTES;
        rows[i].extent_bytes = 8 * KVD_ALIGN_BYTES;
        rows[i].n_blocks = (uint16_t)(1 + i % 16);
        rows[i].rank = (uint16_t)(i % 3);
        rows[i].put_id = 1000 + i;
        rows[i].index = i;
        case_fill(rows[i].group.b, sizeof(rows[i].group), (uint8_t)i);
        case_fill(rows[i].first_key.b, sizeof(rows[i].first_key), (uint8_t)(i + 77));
    }
}

#endif
