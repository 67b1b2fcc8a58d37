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

/*
 * Appends the ids of a text. UTF-8 is cut and merged as the pre-tokenizer says; a run of bytes that
 * aren't UTF-8 is one piece of its own. A byte that the vocabulary has no token for is left out, as
 * the original tokenizer does (SmolLM2 lacks six control characters, 0xc0, 0xc1, 0xf1, 0xf2 and
 * 0xf5 to 0xff). special: recognise special tokens such as <|im_start|> in the text; without it
 * they are ordinary text, as user input must be. On failure tokens keeps what it held.
 * -ENOMEM, -KVD_E_TOO_LONG (over 1 GiB).
 */
int kvd_tokenizer_encode(const struct kvd_tokenizer *tok, const char *text, uint64_t bytes,
                         bool special, struct kvd_tokens *tokens);

/* Bytes of one token (may be part of a UTF-8 sequence). NULL for an id out of range. Special tokens
 * give their text. */
const char *kvd_tokenizer_piece(const struct kvd_tokenizer *tok, uint32_t id, uint32_t *ret_bytes);
bool kvd_tokenizer_is_special(const struct kvd_tokenizer *tok, uint32_t id);
/* Ends an answer: the file's eos and eot, <|im_end|>, <|endoftext|>. */
bool kvd_tokenizer_is_end(const struct kvd_tokenizer *tok, uint32_t id);
uint32_t kvd_tokenizer_vocab(const struct kvd_tokenizer *tok);

#define KVD_TOKEN_NONE UINT32_MAX
/* Id of the special token with exactly this text, or KVD_TOKEN_NONE. */
uint32_t kvd_tokenizer_special_id(const struct kvd_tokenizer *tok, const char *text);
/* The file's chat template; NULL where it has none. Lives as long as tok. */
const char *kvd_tokenizer_chat_template(const struct kvd_tokenizer *tok);

/*
 * Feeds pieces, yields only whole UTF-8 sequences: what a stream may send. A broken sequence comes
 * out as one '?'; what is held when the stream ends was no whole character and is not sent.
 * Zero-initialise.
 */
struct kvd_utf8_gate {
    char held[4];
    uint32_t n;
};
/* out has room for bytes + 4; returns how many bytes were written. */
uint32_t kvd_utf8_gate_feed(struct kvd_utf8_gate *gate, const char *piece, uint32_t bytes,
                            char *out);

#endif
