/* Little-endian fields at byte addresses, rounding, and a cursor over bytes that are not to be
 * trusted. */
#ifndef PROTO_BASE_BYTES_H
#define PROTO_BASE_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void kvd_put_le16(void *p, uint16_t v)
{
    v = htole16(v);
    memcpy(p, &v, sizeof(v));
}

static inline void kvd_put_le32(void *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof(v));
}

static inline void kvd_put_le64(void *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof(v));
}

static inline void kvd_put_be32(void *p, uint32_t v)
{
    v = htobe32(v);
    memcpy(p, &v, sizeof(v));
}

static inline uint16_t kvd_get_le16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return le16toh(v);
}

static inline uint32_t kvd_get_le32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return le32toh(v);
}

static inline uint64_t kvd_get_le64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return le64toh(v);
}

static inline uint32_t kvd_get_be32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return be32toh(v);
}

/* v rounded up to a multiple of a power of two. */
static inline uint64_t kvd_round_up(uint64_t v, uint64_t pow2)
{
    return (v + pow2 - 1) & ~(pow2 - 1);
}

/* Reads forward over n untrusted bytes. One read past the end sets `bad`, and every read after it
 * yields zero. */
struct kvd_cursor {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static inline const uint8_t *kvd_cursor_take(struct kvd_cursor *c, size_t n)
{
    if (c->bad || n > c->left) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->at;
    c->at += n;
    c->left -= n;
    return p;
}

static inline uint32_t kvd_cursor_le32(struct kvd_cursor *c)
{
    const uint8_t *p = kvd_cursor_take(c, 4);
    return p ? kvd_get_le32(p) : 0;
}

static inline uint64_t kvd_cursor_le64(struct kvd_cursor *c)
{
    const uint8_t *p = kvd_cursor_take(c, 8);
    return p ? kvd_get_le64(p) : 0;
}

#endif
