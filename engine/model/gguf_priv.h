/* Inside of an open GGUF, shared by the parser (gguf_parse.c) and the look-ups (gguf.c). */
#ifndef ENGINE_MODEL_GGUF_PRIV_H
#define ENGINE_MODEL_GGUF_PRIV_H

#include "engine/model/gguf.h"

/* Limits beyond what the file's own size implies. Real files stay far below them. */
enum {
    GGUF_MAGIC_OBJ = 0x46554747,
    GGUF_TENSORS_MAX = 65536,
    GGUF_KEYS_MAX = 65536,
    GGUF_NAME_MAX = 1024, /* bytes of a key or of a tensor's name */
    GGUF_ALIGNMENT_DEFAULT = 32,
    GGUF_ALIGNMENT_MAX = 65536
};

enum gguf_value_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

struct gguf_value {
    struct kvd_gguf_str key;
    uint32_t type;     /* enum gguf_value_type */
    uint32_t element;  /* type of an array's elements */
    uint64_t count;    /* elements of an array */
    const uint8_t *at; /* a number's bytes, a string's bytes, an array's first element */
    uint64_t bytes;    /* of a string */
    uint64_t
        *str_offsets; /* owned; array of strings: where each begins (its length field), from at */
};

struct kvd_gguf {
    uint32_t magic;
    const uint8_t *base;
    uint64_t bytes;
    void *map; /* owned mapping of `bytes`, NULL over borrowed memory */
    uint64_t n_values;
    struct gguf_value *values; /* sorted by key */
    uint64_t n_tensors;
    struct kvd_gguf_tensor *tensors; /* sorted by name */
};

/* Bytes of a number of this type; 0 for what is no number. */
uint32_t gguf_number_bytes(uint32_t type);

/* Order of names: by bytes, then by length. */
int gguf_str_compare(const struct kvd_gguf_str *a, const struct kvd_gguf_str *b);

/* Fills values and tensors from base and bytes. On failure what was filled stays for the caller to
 * free. */
int gguf_parse(struct kvd_gguf *gguf, struct kvd_diag *diag);

#endif
