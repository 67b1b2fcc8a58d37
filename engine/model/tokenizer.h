/*
 * Byte-pair tokenizer of GGUF files: tokenizer.ggml.model `gpt2`, pre `smollm`. Immutable; safe
 * from any thread.
 */
#ifndef ENGINE_MODEL_TOKENIZER_H
#define ENGINE_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/model/gguf.h"
#include "proto/base/error.h"

struct kvd_tokenizer;

int kvd_tokenizer_create(const struct kvd_gguf *gguf, struct kvd_diag *diag,
                         struct kvd_tokenizer **ret);
void kvd_tokenizer_destroy(struct kvd_tokenizer **tok);

/* A growing array of token ids. Zero-initialise; kvd_tokens_fini frees. */
struct kvd_tokens {
    uint32_t *ids;
    uint32_t n;
    uint32_t cap;
};
int kvd_tokens_push(struct kvd_tokens *tokens, uint32_t id); /* -ENOMEM */
void kvd_tokens_fini(struct kvd_tokens *tokens);

/* Appends the ids of a UTF-8 text (invalid bytes are encoded as bytes). special: recognise special
 * tokens such as
 * <|im_start|> in the text; without it they are ordinary text, as user input must be. -ENOMEM. */
int kvd_tokenizer_encode(const struct kvd_tokenizer *tok, const char *text, uint64_t bytes,
                         bool special, struct kvd_tokens *tokens);

/* Bytes of one token (may be part of a UTF-8 sequence). NULL for an id out of range. Special tokens
 * give their text. */
const char *kvd_tokenizer_piece(const struct kvd_tokenizer *tok, uint32_t id, uint32_t *ret_bytes);
bool kvd_tokenizer_is_special(const struct kvd_tokenizer *tok, uint32_t id);
bool kvd_tokenizer_is_end(const struct kvd_tokenizer *tok,
                          uint32_t id); /* ends an answer: eos, <|im_end|> */
uint32_t kvd_tokenizer_vocab(const struct kvd_tokenizer *tok);

/* Feeds pieces, yields only whole UTF-8 sequences: what a stream may send. Zero-initialise. */
struct kvd_utf8_gate {
    char held[4];
    uint32_t n;
};
/* out has room for bytes + 4; returns how many bytes were written. */
uint32_t kvd_utf8_gate_feed(struct kvd_utf8_gate *gate, const char *piece, uint32_t bytes,
                            char *out);

#endif
