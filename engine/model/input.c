#include "engine/model/input.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/template.h"
#include "proto/base/cleanup.h"

enum { FILE_BYTES_MAX = 64 << 20 };

int kvd_input_file(const char *path, char **ret, size_t *ret_bytes, struct kvd_diag *diag)
{
    KVD_AUTOFCLOSE FILE *f = fopen(path, "rbe");
    if (!f) {
        return kvd_fail(diag, -EIO, "%s: %s", path, kvd_strerror(-errno));
    }
    char *text = NULL;
    size_t n = 0;
    size_t cap = 0;
    do {
        cap = cap ? cap * 2 : 65536;
        char *grown = cap <= FILE_BYTES_MAX ? realloc(text, cap + 1) : NULL;
        if (!grown) {
            free(text);
            return kvd_fail(diag, -KVD_E_TOO_LONG, "%s: more than %d bytes", path, FILE_BYTES_MAX);
        }
        text = grown;
        n += fread(text + n, 1, cap - n, f);
    } while (n == cap);
    if (ferror(f)) {
        free(text);
        return kvd_fail(diag, -EIO, "%s: reading failed", path);
    }
    text[n] = '\0';
    *ret_bytes = n;
    *ret = text;
    return 0;
}

/* Ids in decimal, apart by blanks or commas. */
static int parse_ids(const char *path, const char *text, size_t bytes, struct kvd_tokens *tokens,
                     struct kvd_diag *diag)
{
    const char *at = text;
    for (;;) {
        while (isspace((unsigned char)*at) || *at == ',') {
            at++;
        }
        if (at == text + bytes) {
            return 0;
        }
        char *end = NULL;
        errno = 0;
        const unsigned long v = strtoul(at, &end, 10);
        if (!isdigit((unsigned char)*at) || errno || v > UINT32_MAX) {
            return kvd_fail(diag, -KVD_E_BAD_REQUEST, "%s: byte %zu is no token id", path,
                            (size_t)(at - text));
        }
        const int rc = kvd_tokens_push(tokens, (uint32_t)v);
        if (rc) {
            return kvd_fail(diag, rc, "%s: out of memory", path);
        }
        at = end;
    }
}

static int encode(const struct kvd_input *input, const struct kvd_tokenizer *tok, const char *text,
                  size_t bytes, struct kvd_tokens *tokens, struct kvd_diag *diag)
{
    if (input->raw) {
        return kvd_tokenizer_encode(tok, text, bytes, true, tokens);
    }
    const struct kvd_chat_message messages[] = {{.role = "system", .content = input->system},
                                                {.role = "user", .content = text}};
    const uint32_t skip = input->system ? 0 : 1;
    return kvd_template_chat(tok, messages + skip, 2 - skip, tokens, diag);
}

int kvd_input_tokens(const struct kvd_input *input, const struct kvd_tokenizer *tok,
                     struct kvd_tokens *tokens, struct kvd_diag *diag)
{
    if (input->text) {
        return encode(input, tok, input->text, strlen(input->text), tokens, diag);
    }
    KVD_AUTOFREE char *text = NULL;
    size_t bytes = 0;
    const char *path = input->tokens_file ? input->tokens_file : input->file;
    const int rc = kvd_input_file(path, &text, &bytes, diag);
    if (rc) {
        return rc;
    }
    if (input->tokens_file) {
        return parse_ids(path, text, bytes, tokens, diag);
    }
    if (!input->raw && strlen(text) != bytes) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "%s: has a zero byte at %zu; take it out or use --raw", path, strlen(text));
    }
    return encode(input, tok, text, bytes, tokens, diag);
}
