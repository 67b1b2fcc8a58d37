/*
 * Vocabulary of a byte-level BPE: tokens as the bytes they stand for, the token of each single
 * byte, the merges. Read from a GGUF once; immutable; safe from any thread.
 */
#ifndef ENGINE_MODEL_VOCAB_H
#define ENGINE_MODEL_VOCAB_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/model/gguf.h"
#include "proto/base/error.h"

#define VOCAB_NONE UINT32_MAX

/* Numbers as in tokenizer.ggml.token_type. */
enum vocab_kind { VOCAB_NORMAL = 1, VOCAB_UNKNOWN = 2, VOCAB_CONTROL = 3, VOCAB_UNUSED = 5 };

struct vocab_token {
    uint64_t at; /* in vocab.bytes */
    uint32_t n;
    uint32_t kind; /* enum vocab_kind */
};

struct vocab_merge {
    uint32_t left;
    uint32_t right;
    uint32_t rank; /* lower is applied first */
    uint32_t to;   /* VOCAB_NONE: a free slot */
};

struct vocab {
    uint32_t n;
    struct vocab_token *tokens;
    char *bytes;           /* of all tokens, each followed by a zero */
    uint32_t of_byte[256]; /* VOCAB_NONE where the vocabulary lacks the byte */
    uint32_t *slots;       /* hash table of the normal tokens: ids */
    uint64_t slots_mask;
    struct vocab_merge *merges; /* hash table by (left, right) */
    uint64_t merges_mask;
    uint32_t *controls; /* control tokens, longest first */
    uint32_t n_controls;
};

int vocab_load(const struct kvd_gguf *gguf, struct kvd_diag *diag, struct vocab *v);
void vocab_fini(struct vocab *v); /* a zeroed or half-loaded one too */

/* Id of the normal token that stands for these bytes, or VOCAB_NONE. */
uint32_t vocab_find(const struct vocab *v, const char *bytes, uint64_t n);

/* The merge of two neighbours, or NULL. */
const struct vocab_merge *vocab_merge_of(const struct vocab *v, uint32_t left, uint32_t right);

/* The longest control token that text begins with, or VOCAB_NONE. */
uint32_t vocab_control_at(const struct vocab *v, const char *text, uint64_t n);

/* Id of the control token with exactly this text, or VOCAB_NONE. */
uint32_t vocab_control(const struct vocab *v, const char *text);

#endif
