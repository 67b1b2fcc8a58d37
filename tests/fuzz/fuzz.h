/*
 * What the fuzz targets share: the entry that libFuzzer calls, a reader that turns an input's bytes
 * into choices, and a check that ends the process, so that libFuzzer keeps the input.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every target defines it. Never fails: returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold whatever the input is. */
#define FUZZ_CHECK(expr)                                                                           \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            (void)fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #expr);        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* An input, read from its beginning. Past its end everything is zero. */
struct fuzz_in {
    const uint8_t *at;
    size_t left;
};

static inline uint64_t fuzz_le(struct fuzz_in *in, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < bytes && in->left > 0; i++, in->left--) {
        v |= (uint64_t)*in->at++ << 8 * i;
    }
    return v;
}

static inline uint8_t fuzz_u8(struct fuzz_in *in)
{
    return (uint8_t)fuzz_le(in, 1);
}

static inline uint32_t fuzz_u32(struct fuzz_in *in)
{
    return (uint32_t)fuzz_le(in, 4);
}

/* At most n bytes of what is left; *ret_n says how many. */
static inline const uint8_t *fuzz_take(struct fuzz_in *in, size_t n, size_t *ret_n)
{
    const uint8_t *at = in->at;
    *ret_n = n < in->left ? n : in->left;
    in->at += *ret_n;
    in->left -= *ret_n;
    return at;
}

/* A number that is usually the one that makes sense, and else one that likes to break things. One
 * byte of input chooses. */
static inline uint64_t fuzz_mostly(struct fuzz_in *in, uint64_t sensible)
{
    const uint8_t how = fuzz_u8(in);
    switch (how) {
    case 0xff:
        return fuzz_le(in, 8);
    case 0xfe:
        return UINT64_MAX;
    case 0xfd:
        return UINT32_MAX;
    case 0xfc:
        return 0;
    case 0xfb:
        return fuzz_le(in, 4);
    case 0xfa:
        return INT64_MAX;
    case 0xf9:
        return sensible - 1;
    case 0xf8:
        return sensible + 1;
    default:
        return how < 0xf0 ? sensible : how & 7;
    }
}

/* A copy in memory of exactly its size, so that one byte too far is seen; free(). */
static inline uint8_t *fuzz_exact(const void *bytes, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    FUZZ_CHECK(copy != NULL);
    if (n) {
        memcpy(copy, bytes, n);
    }
    return copy;
}

#endif
