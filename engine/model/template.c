/*
 * ChatML. The file's template is a Jinja program; it isn't run. Two things are taken from the file:
 * that its vocabulary has the two marks of a turn, and the default system line, which the template
 * holds as a literal.
 */
#include "engine/model/template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"

struct chat {
    const struct kvd_tokenizer *tok;
    struct kvd_tokens *tokens;
    struct kvd_diag *diag;
    uint32_t start; /* <|im_start|> */
    uint32_t end;   /* <|im_end|> */
};

static int chat_failed(const struct chat *c, int err)
{
    return kvd_fail(c->diag, err, "the chat can't be encoded: %s", kvd_strerror(err));
}

static int append_text(const struct chat *c, const char *text, size_t bytes)
{
    int r = kvd_tokenizer_encode(c->tok, text, bytes, false, c->tokens);
    return r < 0 ? chat_failed(c, r) : 0;
}

static int append_mark(const struct chat *c, uint32_t id)
{
    int r = kvd_tokens_push(c->tokens, id);
    return r < 0 ? chat_failed(c, r) : 0;
}

/* Role and content are encoded as one text, as the original does: a merge may reach over the line's
 * end. */
static int append_turn(const struct chat *c, const char *role, const char *content,
                       size_t content_bytes)
{
    size_t role_bytes = strlen(role);
    KVD_AUTOFREE char *text = malloc(role_bytes + 1 + content_bytes);
    if (!text) {
        return chat_failed(c, -ENOMEM);
    }
    char *at = mempcpy(text, role, role_bytes);
    *at++ = '\n';
    memcpy(at, content, content_bytes);
    int r = append_mark(c, c->start);
    r = r < 0 ? r : append_text(c, text, role_bytes + 1 + content_bytes);
    r = r < 0 ? r : append_mark(c, c->end);
    return r < 0 ? r : append_text(c, "\n", 1);
}

/* The literal between "<|im_start|>system" with its line end (a real one, or Jinja's \n) and
 * "<|im_end|>", where the template asks whether the first message is `system`. NULL: the template
 * has no such line. */
static const char *default_system(const struct kvd_tokenizer *tok, size_t *ret_bytes)
{
    static const char open[] = "<|im_start|>system";
    const char *t = kvd_tokenizer_chat_template(tok);
    const char *at = t && strstr(t, "!= 'system'") ? strstr(t, open) : NULL;
    if (!at) {
        return NULL;
    }
    at += sizeof(open) - 1;
    at += *at == '\n' ? 1 : strncmp(at, "\\n", 2) == 0 ? 2 : 0;
    const char *end = strstr(at, "<|im_end|>");
    if (!end) {
        return NULL;
    }
    *ret_bytes = (size_t)(end - at);
    return at;
}

static int check_roles(const struct kvd_chat_message *messages, uint32_t n, struct kvd_diag *diag)
{
    if (n == 0) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "messages is empty; at least one message is needed");
    }
    for (uint32_t i = 0; i < n; i++) {
        const char *role = messages[i].role;
        if (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 &&
            strcmp(role, "assistant") != 0) {
            return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                            "messages[%u].role is '%.32s'; system, user and assistant are known", i,
                            role);
        }
    }
    return 0;
}

static int append_chat(const struct chat *c, const struct kvd_chat_message *messages, uint32_t n)
{
    int r = 0;
    size_t system_bytes;
    const char *system = default_system(c->tok, &system_bytes);
    if (system && strcmp(messages[0].role, "system") != 0) {
        r = append_turn(c, "system", system, system_bytes);
    }
    for (uint32_t i = 0; i < n && r == 0; i++) {
        r = append_turn(c, messages[i].role, messages[i].content, strlen(messages[i].content));
    }
    r = r < 0 ? r : append_mark(c, c->start);
    return r < 0 ? r : append_text(c, "assistant\n", strlen("assistant\n"));
}

int kvd_template_chat(const struct kvd_tokenizer *tok, const struct kvd_chat_message *messages,
                      uint32_t n, struct kvd_tokens *tokens, struct kvd_diag *diag)
{
    int r = check_roles(messages, n, diag);
    if (r < 0) {
        return r;
    }
    struct chat c = {.tok = tok, .tokens = tokens, .diag = diag};
    c.start = kvd_tokenizer_special_id(tok, "<|im_start|>");
    c.end = kvd_tokenizer_special_id(tok, "<|im_end|>");
    if (c.start == KVD_TOKEN_NONE || c.end == KVD_TOKEN_NONE) {
        return kvd_fail(diag, -KVD_E_FORMAT,
                        "this model's vocabulary has no <|im_start|> and <|im_end|>; it "
                        "can't hold a chat");
    }
    uint32_t n_before = tokens->n;
    r = append_chat(&c, messages, n);
    if (r < 0) {
        tokens->n = n_before;
    }
    return r;
}
