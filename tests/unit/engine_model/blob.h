/* Builds GGUF bytes by hand, right or wrong ones, for tests of the reader. */
#ifndef TESTS_UNIT_ENGINE_MODEL_BLOB_H
#define TESTS_UNIT_ENGINE_MODEL_BLOB_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BLOB_MAX = 1 << 16 };

enum blob_type {
    B_U8,
    B_I8,
    B_U16,
    B_I16,
    B_U32,
    B_I32,
    B_F32,
    B_BOOL,
    B_STRING,
    B_ARRAY,
    B_U64,
    B_I64,
    B_F64
};

struct blob {
    uint8_t bytes[BLOB_MAX];
    size_t n;
};

static inline void blob_le(struct blob *b, uint64_t v, int width)
{
    for (int i = 0; i < width; i++) {
        b->bytes[b->n++] = (uint8_t)(v >> (8 * i));
    }
}

static inline void blob_str(struct blob *b, const char *s)
{
    blob_le(b, strlen(s), 8);
    memcpy(b->bytes + b->n, s, strlen(s));
    b->n += strlen(s);
}

static inline void blob_head(struct blob *b, uint64_t tensors, uint64_t keys)
{
    b->n = 0;
    memcpy(b->bytes, "GGUF", 4);
    b->n = 4;
    blob_le(b, 3, 4);
    blob_le(b, tensors, 8);
    blob_le(b, keys, 8);
}

static inline void blob_key(struct blob *b, const char *key, uint32_t type)
{
    blob_str(b, key);
    blob_le(b, type, 4);
}

static inline void blob_number(struct blob *b, const char *key, uint32_t type, uint64_t v,
                               int width)
{
    blob_key(b, key, type);
    blob_le(b, v, width);
}

static inline void blob_array(struct blob *b, const char *key, uint32_t element, uint64_t n)
{
    blob_key(b, key, B_ARRAY);
    blob_le(b, element, 4);
    blob_le(b, n, 8);
}

/* A tensor of two dimensions. */
static inline void blob_tensor(struct blob *b, const char *name, uint64_t d0, uint64_t d1,
                               uint32_t type, uint64_t offset)
{
    blob_str(b, name);
    blob_le(b, 2, 4);
    blob_le(b, d0, 8);
    blob_le(b, d1, 8);
    blob_le(b, type, 4);
    blob_le(b, offset, 8);
}

/* Pads to the data section's start and adds zeros. */
static inline void blob_data(struct blob *b, size_t bytes)
{
    while (b->n % 32 != 0) {
        b->bytes[b->n++] = 0;
    }
    memset(b->bytes + b->n, 0, bytes);
    b->n += bytes;
}

/* A copy of exactly n bytes, so that a sanitizer sees one byte too many. The caller frees. */
static inline uint8_t *blob_exact(const void *bytes, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy) {
        abort();
    }
    memcpy(copy, bytes, n);
    return copy;
}

#endif
