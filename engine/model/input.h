/*
 * A prompt as somebody gives it on a command line, to token ids: a text, a file of text, or a file
 * of ids. The same for the engine and for tools that show what it asks the cache for.
 */
#ifndef ENGINE_MODEL_INPUT_H
#define ENGINE_MODEL_INPUT_H

#include <stddef.h>

#include "engine/model/tokenizer.h"

struct kvd_input {
    const char *text;        /* or NULL */
    const char *tokens_file; /* or NULL: path of a file with ids in decimal, apart by blanks or
                                commas; needs no tokenizer */
    const char *file;        /* or NULL: path of a file with text. One of the three is given */
    const char *system;      /* system message; NULL: the template's */
    bool raw; /* as it is, without the chat template; special tokens are recognised in it */
};

/* Appends the prompt's ids. Negative with diag. */
int kvd_input_tokens(const struct kvd_input *input, const struct kvd_tokenizer *tok,
                     struct kvd_tokens *tokens, struct kvd_diag *diag);

/* Whole text of a file of at most 64 MiB, terminated; the caller frees. */
int kvd_input_file(const char *path, char **ret, size_t *ret_bytes, struct kvd_diag *diag);

#endif
