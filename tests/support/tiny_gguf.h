/*
 * A small llama model with random weights and a small real vocabulary
 * (tests/golden/tiny_vocab.txt), written when a test needs one. Types as in the real file: matrices
 * Q4_1, embedding Q8_0 and tied, norms F32. The same options give the same bytes on every machine.
 */
#ifndef TESTS_SUPPORT_TINY_GGUF_H
#define TESTS_SUPPORT_TINY_GGUF_H

#include <stddef.h>
#include <stdint.h>

/* Zero in a field means its default. Width, ffn and heads x head size must be multiples of 32. */
struct kvd_tiny_gguf_options {
    uint64_t seed;    /* another seed: other weights, all else equal (0 is a seed like any other) */
    const char *name; /* general.name; default "tiny" */
    uint32_t layers;  /* 2 */
    uint32_t width;   /* 64 */
    uint32_t heads;   /* 4 */
    uint32_t kv_heads; /* 2 */
    uint32_t ffn;      /* 128 */
    uint32_t context;  /* 2048 */
};

enum { KVD_TINY_VOCAB = 768 };

/* Writes the file; options may be NULL. 0, or -1 with a line on stderr. */
int kvd_tiny_gguf_write(const char *path, const struct kvd_tiny_gguf_options *options);

/* The same into memory that the caller frees. NULL with a line on stderr. */
uint8_t *kvd_tiny_gguf_build(const struct kvd_tiny_gguf_options *options, size_t *ret_bytes);

#endif
