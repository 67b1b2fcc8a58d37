/*
 * Chat template of SmolLM2 (ChatML): <|im_start|>role\ncontent<|im_end|>\n …
 * <|im_start|>assistant\n. Where the first message isn't `system`, the model's default system line
 * is put first. Contents are encoded without special tokens, so that a user's text can't open a
 * turn.
 */
#ifndef ENGINE_MODEL_TEMPLATE_H
#define ENGINE_MODEL_TEMPLATE_H

#include "engine/model/tokenizer.h"

struct kvd_chat_message {
    const char *role; /* system, user, assistant */
    const char *content;
};

/* Appends the prompt's ids; on failure tokens keeps what it held. -KVD_E_BAD_REQUEST (an unknown
 * role, no messages), -KVD_E_FORMAT (the vocabulary is not ChatML's), -KVD_E_TOO_LONG, -ENOMEM. */
int kvd_template_chat(const struct kvd_tokenizer *tok, const struct kvd_chat_message *messages,
                      uint32_t n, struct kvd_tokens *tokens, struct kvd_diag *diag);

#endif
