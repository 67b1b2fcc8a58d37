/*
 * GGUF version 3 files, mapped read-only. A GGUF is untrusted input: every length, count and offset
 * is checked when it is opened, so what this returns lies inside the file. Immutable after open;
 * safe from any thread. Source: the GGUF specification of the ggml project
 * (github.com/ggml-org/ggml, docs/gguf.md).
 */
#ifndef ENGINE_MODEL_GGUF_H
#define ENGINE_MODEL_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"

enum kvd_ggml_type {
    KVD_GGML_F32 = 0,
    KVD_GGML_F16 = 1,
    KVD_GGML_Q4_1 = 3,
    KVD_GGML_Q5_0 = 6,
    KVD_GGML_Q8_0 = 8,
    KVD_GGML_Q4_K = 12,
    KVD_GGML_Q6_K = 14
};

enum { KVD_GGUF_DIMS_MAX = 4 };

struct kvd_gguf_str {
    const char *text; /* not terminated; in the mapping */
    uint64_t bytes;
};

struct kvd_gguf_tensor {
    struct kvd_gguf_str name;
    uint32_t n_dims;
    uint64_t dims[KVD_GGUF_DIMS_MAX]; /* dims[0] is the row length; 1 where absent */
    uint32_t type;                    /* enum kvd_ggml_type */
    const void *data;                 /* inside the file; aligned to 8 bytes or more there */
    uint64_t bytes;
};

struct kvd_gguf;

/* -KVD_E_FORMAT, -KVD_E_NEWER, -KVD_E_CORRUPT, errno; diag says the file, the field and its place
 * in the file. */
int kvd_gguf_open(const char *path, struct kvd_diag *diag, struct kvd_gguf **ret);
/* The same over borrowed memory, which outlives it (tests, fuzzing). */
int kvd_gguf_open_memory(const void *bytes, uint64_t n, struct kvd_diag *diag,
                         struct kvd_gguf **ret);
void kvd_gguf_close(struct kvd_gguf **gguf);

uint64_t kvd_gguf_tensor_count(const struct kvd_gguf *gguf);
/* nth below the count, in name order (by bytes), whatever the order in the file. */
const struct kvd_gguf_tensor *kvd_gguf_tensor_at(const struct kvd_gguf *gguf, uint64_t nth);
const struct kvd_gguf_tensor *kvd_gguf_tensor(const struct kvd_gguf *gguf,
                                              const char *name); /* NULL: none */

/* Values by key. -KVD_E_NOT_FOUND, -KVD_E_FORMAT (another type). Integers of any width that fit are
 * taken. */
int kvd_gguf_u64(const struct kvd_gguf *gguf, const char *key, uint64_t *ret);
int kvd_gguf_f64(const struct kvd_gguf *gguf, const char *key, double *ret);
int kvd_gguf_bool(const struct kvd_gguf *gguf, const char *key, bool *ret);
int kvd_gguf_str(const struct kvd_gguf *gguf, const char *key, struct kvd_gguf_str *ret);
int kvd_gguf_array_len(const struct kvd_gguf *gguf, const char *key, uint64_t *ret);
/* Element of an array of strings or of integers, in constant time. -KVD_E_NOT_FOUND also past the
 * end. */
int kvd_gguf_array_str(const struct kvd_gguf *gguf, const char *key, uint64_t nth,
                       struct kvd_gguf_str *ret);
int kvd_gguf_array_i64(const struct kvd_gguf *gguf, const char *key, uint64_t nth, int64_t *ret);

#endif
