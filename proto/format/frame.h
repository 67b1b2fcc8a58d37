/*
 * What the headers of records and segments have in common, in every version of the format: magic,
 * version, size and sum at fixed places, the sum over the whole padded header. So a reader can tell
 * a newer version from a damaged one. Only for the .c files beside it.
 */
#ifndef PROTO_FORMAT_FRAME_H
#define PROTO_FORMAT_FRAME_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <xxhash.h>

#include "proto/base/bytes.h"
#include "proto/base/error.h"
#include "proto/base/protect.h"
#include "proto/format/record.h"

enum {
    KVD_FRAME_VERSION = 8,          /* u16 */
    KVD_FRAME_RESERVED = 10,        /* u16, zero */
    KVD_FRAME_HEADER_BYTES = 12,    /* u32 */
    KVD_FRAME_SUM = 16,             /* u64 */
    KVD_FRAME_BYTES = 24,           /* fields of the format follow */
    KVD_FRAME_HEADER_MAX = 1 << 20, /* no later version has a longer header */
};

static inline bool kvd_all_zero(const uint8_t *p, uint64_t n)
{
    return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/* Sum over a header: what follows the sum, seeded by the sum of what precedes it. */
static inline uint64_t kvd_frame_sum(const uint8_t *p, uint64_t n)
{
    return XXH3_64bits_withSeed(p + KVD_FRAME_BYTES, n - KVD_FRAME_BYTES,
                                XXH3_64bits(p, KVD_FRAME_SUM));
}

static inline void kvd_frame_put(uint8_t *p, const char magic[8], uint16_t version,
                                 uint32_t header_bytes)
{
    memcpy(p, magic, 8);
    kvd_put_le16(p + KVD_FRAME_VERSION, version);
    kvd_put_le32(p + KVD_FRAME_HEADER_BYTES, header_bytes);
}

static inline void kvd_frame_seal(uint8_t *p, uint32_t header_bytes)
{
    kvd_put_le64(p + KVD_FRAME_SUM, kvd_frame_sum(p, header_bytes));
}

/* Compares n bytes with the magic and version of a format whose headers are at most max_bytes.
 * 0; -KVD_E_FORMAT (another magic), -KVD_E_CORRUPT, -KVD_E_TOO_LONG (n is less than
 * *ret_header_bytes), -KVD_E_NEWER (undamaged, but of a later version). */
static inline int kvd_frame_check(const uint8_t *p, uint64_t n, const char magic[8],
                                  uint16_t version, uint32_t max_bytes, uint32_t *ret_header_bytes)
{
    if (n < KVD_ALIGN_BYTES) {
        return -KVD_E_CORRUPT;
    }
    if (memcmp(p, magic, 8) != 0) {
        return -KVD_E_FORMAT;
    }
    uint16_t have = kvd_get_le16(p + KVD_FRAME_VERSION);
    uint32_t header_bytes = kvd_get_le32(p + KVD_FRAME_HEADER_BYTES);
    if (header_bytes == 0 || header_bytes % KVD_ALIGN_BYTES != 0 ||
        header_bytes > (have > version ? KVD_FRAME_HEADER_MAX : max_bytes)) {
        return -KVD_E_CORRUPT;
    }
    *ret_header_bytes = header_bytes;
    if (n < header_bytes) {
        return -KVD_E_TOO_LONG;
    }
    if (KVD_PROTECT(HEADER_SUM) &&
        kvd_get_le64(p + KVD_FRAME_SUM) != kvd_frame_sum(p, header_bytes)) {
        return -KVD_E_CORRUPT;
    }
    if (have > version) {
        return -KVD_E_NEWER;
    }
    return have == version && kvd_get_le16(p + KVD_FRAME_RESERVED) == 0 ? 0 : -KVD_E_CORRUPT;
}

#endif
