/*
 * Text to ids. In this order: control tokens are cut out (only where the caller asks for them);
 * what is left is cut into runs of UTF-8 and runs of bytes that aren't; UTF-8 is cut into pieces by
 * the pre-tokenizer's pattern, a run of other bytes is a piece; each piece is merged by rank
 * (bpe.c).
 */
#include "engine/model/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/model/bpe.h"
#include "engine/model/utf8.h"
#include "engine/model/vocab.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"

enum { TOKENIZER_MAGIC = 0x4b4f544b, TEXT_BYTES_MAX = 1 << 30, TOKENS_CAP_MIN = 64, ENDS_MAX = 8 };

/* White_Space of Unicode, spelled out: PCRE2's own \s takes U+180E too, which is no white space any
 * more. */
#define WS                                                                                         \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"

/*
 * Pre-tokenizer `smollm` takes two steps: every digit apart (\p{N}), then GPT-2's pattern within
 * what lies between digits. In one pattern, that is: a digit alone, and white space before a digit
 * whole, because in two steps it stands at the end of its part, where (?!\S) holds.
 */
static const char PATTERN[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+|\\p{N}| ?[^" WS
                              "\\p{L}\\p{N}]+|[" WS "]++(?=\\p{N})|[" WS "]+(?![^" WS "])|[" WS "]";

struct kvd_tokenizer {
    uint32_t magic;
    struct vocab vocab;
    pcre2_code *pattern;
    char *chat_template; /* NULL: the file has none */
    uint32_t ends[ENDS_MAX];
    uint32_t n_ends;
};

/* What one call of encode works with. */
struct encoder {
    const struct kvd_tokenizer *tok;
    pcre2_match_data *match;
    struct bpe_scratch scratch;
    struct kvd_tokens *tokens;
};

int kvd_tokens_push(struct kvd_tokens *tokens, uint32_t id)
{
    if (tokens->n == tokens->cap) {
        uint64_t cap = tokens->cap ? 2 * (uint64_t)tokens->cap : TOKENS_CAP_MIN;
        uint32_t *ids = cap > UINT32_MAX ? NULL : realloc(tokens->ids, cap * sizeof(*ids));
        if (!ids) {
            return -ENOMEM;
        }
        tokens->ids = ids;
        tokens->cap = (uint32_t)cap;
    }
    tokens->ids[tokens->n++] = id;
    return 0;
}

void kvd_tokens_fini(struct kvd_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct kvd_tokens){0};
}

static int check_text(const struct kvd_gguf *gguf, const char *key, const char *want,
                      struct kvd_diag *diag)
{
    struct kvd_gguf_str s;
    int r = kvd_gguf_str(gguf, key, &s);
    if (r < 0) {
        return kvd_fail(diag, -KVD_E_FORMAT, "key %s is %s", key,
                        r == -KVD_E_NOT_FOUND ? "missing" : "no text");
    }
    if (s.bytes != strlen(want) || memcmp(s.text, want, s.bytes) != 0) {
        return kvd_fail(diag, -KVD_E_FORMAT, "key %s is '%.*s'; only '%s' is supported", key,
                        s.bytes > 64 ? 64 : (int)s.bytes, s.text, want);
    }
    return 0;
}

static int check_kind(const struct kvd_gguf *gguf, struct kvd_diag *diag)
{
    int r = check_text(gguf, "tokenizer.ggml.model", "gpt2", diag);
    r = r < 0 ? r : check_text(gguf, "tokenizer.ggml.pre", "smollm", diag);
    if (r < 0) {
        return r;
    }
    bool first = false;
    r = kvd_gguf_bool(gguf, "tokenizer.ggml.add_bos_token", &first);
    if ((r < 0 && r != -KVD_E_NOT_FOUND) || first) {
        return kvd_fail(
            diag, -KVD_E_FORMAT,
            "key tokenizer.ggml.add_bos_token: putting a token before each text isn't supported");
    }
    return 0;
}

static int compile_pattern(struct kvd_tokenizer *t, struct kvd_diag *diag)
{
    int code;
    PCRE2_SIZE at;
    t->pattern =
        pcre2_compile((PCRE2_SPTR)PATTERN, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NO_AUTO_CAPTURE, &code, &at, NULL);
    if (!t->pattern) {
        char why[128] = "";
        (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
        return kvd_fail(diag, -KVD_E_INTERNAL,
                        "PCRE2 refuses the pre-tokenizer's pattern at %zu: %s", at, why);
    }
    /* Without the compiler (a hardened kernel may forbid it) matching is slower and the same. */
    (void)pcre2_jit_compile(t->pattern, PCRE2_JIT_COMPLETE);
    return 0;
}

static void add_end(struct kvd_tokenizer *t, uint32_t id)
{
    for (uint32_t i = 0; i < t->n_ends; i++) {
        if (t->ends[i] == id) {
            return;
        }
    }
    if (id != VOCAB_NONE) {
        KVD_ASSERT(t->n_ends < ENDS_MAX);
        t->ends[t->n_ends++] = id;
    }
}

static int load_ends(struct kvd_tokenizer *t, const struct kvd_gguf *gguf, struct kvd_diag *diag)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        uint64_t id;
        int r = kvd_gguf_u64(gguf, keys[i], &id);
        if (r == -KVD_E_NOT_FOUND) {
            continue;
        }
        if (r < 0 || id >= t->vocab.n) {
            return kvd_fail(diag, -KVD_E_FORMAT, "key %s is no id below %u", keys[i], t->vocab.n);
        }
        add_end(t, (uint32_t)id);
    }
    add_end(t, vocab_control(&t->vocab, "<|im_end|>"));
    add_end(t, vocab_control(&t->vocab, "<|endoftext|>"));
    return 0;
}

static int load_template(struct kvd_tokenizer *t, const struct kvd_gguf *gguf,
                         struct kvd_diag *diag)
{
    struct kvd_gguf_str s;
    int r = kvd_gguf_str(gguf, "tokenizer.chat_template", &s);
    if (r == -KVD_E_NOT_FOUND) {
        return 0;
    }
    if (r < 0) {
        return kvd_fail(diag, -KVD_E_FORMAT, "key tokenizer.chat_template is no text");
    }
    t->chat_template = strndup(s.text, s.bytes);
    return t->chat_template ? 0 : kvd_fail(diag, -ENOMEM, "no memory for the chat template");
}

void kvd_tokenizer_destroy(struct kvd_tokenizer **tok)
{
    struct kvd_tokenizer *t = KVD_TAKE(*tok);
    if (!t) {
        return;
    }
    KVD_MAGIC_CHECK(t, TOKENIZER_MAGIC);
    vocab_fini(&t->vocab);
    pcre2_code_free(t->pattern);
    free(t->chat_template);
    KVD_MAGIC_CLEAR(t);
    free(t);
}

int kvd_tokenizer_create(const struct kvd_gguf *gguf, struct kvd_diag *diag,
                         struct kvd_tokenizer **ret)
{
    KVD_CLEANUP(kvd_tokenizer_destroy) struct kvd_tokenizer *t = calloc(1, sizeof(*t));
    if (!t) {
        return kvd_fail(diag, -ENOMEM, "no memory");
    }
    KVD_MAGIC_SET(t, TOKENIZER_MAGIC);
    int r = check_kind(gguf, diag);
    r = r < 0 ? r : vocab_load(gguf, diag, &t->vocab);
    r = r < 0 ? r : compile_pattern(t, diag);
    r = r < 0 ? r : load_ends(t, gguf, diag);
    r = r < 0 ? r : load_template(t, gguf, diag);
    if (r < 0) {
        return kvd_fail_prefix(diag, r, "tokenizer");
    }
    *ret = KVD_TAKE(t);
    return 0;
}

/* A run of UTF-8, already checked. Every character is in some branch of the pattern, so each round
 * advances. */
static int encode_utf8(struct encoder *e, const char *text, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes;) {
        int rc = pcre2_match(e->tok->pattern, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK,
                             e->match, NULL);
        if (rc < 0) {
            return rc == PCRE2_ERROR_NOMATCH ? -KVD_E_INTERNAL : -ENOMEM;
        }
        uint64_t end = pcre2_get_ovector_pointer(e->match)[1];
        KVD_ASSERT(end > at && end <= bytes);
        int r = bpe_encode(&e->tok->vocab, &e->scratch, text + at, end - at, e->tokens);
        if (r < 0) {
            return r;
        }
        at = end;
    }
    return 0;
}

/* Bytes from the start that are UTF-8 (want), or that aren't. */
static uint64_t run_length(const char *text, uint64_t bytes, bool want)
{
    uint64_t n = 0;
    while (n < bytes) {
        int length = kvd_utf8_next(text + n, bytes - n);
        if ((length > 0) != want) {
            break;
        }
        n += length > 0 ? (uint64_t)length : length < 0 ? (uint64_t)-length : bytes - n;
    }
    return n;
}

static int encode_ordinary(struct encoder *e, const char *text, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes;) {
        uint64_t n = run_length(text + at, bytes - at, true);
        int r = encode_utf8(e, text + at, n);
        at += n;
        n = run_length(text + at, bytes - at, false);
        r = r < 0 ? r : bpe_encode(&e->tok->vocab, &e->scratch, text + at, n, e->tokens);
        if (r < 0) {
            return r;
        }
        at += n;
    }
    return 0;
}

static int encode_with_controls(struct encoder *e, const char *text, uint64_t bytes)
{
    uint64_t start = 0;
    for (uint64_t at = 0; at < bytes;) {
        uint32_t id = vocab_control_at(&e->tok->vocab, text + at, bytes - at);
        if (id == VOCAB_NONE) {
            at++;
            continue;
        }
        int r = encode_ordinary(e, text + start, at - start);
        r = r < 0 ? r : kvd_tokens_push(e->tokens, id);
        if (r < 0) {
            return r;
        }
        at += e->tok->vocab.tokens[id].n;
        start = at;
    }
    return encode_ordinary(e, text + start, bytes - start);
}

int kvd_tokenizer_encode(const struct kvd_tokenizer *tok, const char *text, uint64_t bytes,
                         bool special, struct kvd_tokens *tokens)
{
    KVD_MAGIC_CHECK(tok, TOKENIZER_MAGIC);
    if (bytes > TEXT_BYTES_MAX) {
        return -KVD_E_TOO_LONG;
    }
    struct encoder e = {.tok = tok, .tokens = tokens};
    e.match = pcre2_match_data_create_from_pattern(tok->pattern, NULL);
    if (!e.match) {
        return -ENOMEM;
    }
    uint32_t n_before = tokens->n;
    int r = special ? encode_with_controls(&e, text, bytes) : encode_ordinary(&e, text, bytes);
    if (r < 0) {
        tokens->n = n_before;
    }
    bpe_scratch_fini(&e.scratch);
    pcre2_match_data_free(e.match);
    return r;
}

const char *kvd_tokenizer_piece(const struct kvd_tokenizer *tok, uint32_t id, uint32_t *ret_bytes)
{
    KVD_MAGIC_CHECK(tok, TOKENIZER_MAGIC);
    if (id >= tok->vocab.n) {
        return NULL;
    }
    *ret_bytes = tok->vocab.tokens[id].n;
    return tok->vocab.bytes + tok->vocab.tokens[id].at;
}

bool kvd_tokenizer_is_special(const struct kvd_tokenizer *tok, uint32_t id)
{
    KVD_MAGIC_CHECK(tok, TOKENIZER_MAGIC);
    return id < tok->vocab.n && tok->vocab.tokens[id].kind != VOCAB_NORMAL;
}

bool kvd_tokenizer_is_end(const struct kvd_tokenizer *tok, uint32_t id)
{
    KVD_MAGIC_CHECK(tok, TOKENIZER_MAGIC);
    for (uint32_t i = 0; i < tok->n_ends; i++) {
        if (tok->ends[i] == id) {
            return true;
        }
    }
    return false;
}

uint32_t kvd_tokenizer_vocab(const struct kvd_tokenizer *tok)
{
    KVD_MAGIC_CHECK(tok, TOKENIZER_MAGIC);
    return tok->vocab.n;
}

uint32_t kvd_tokenizer_special_id(const struct kvd_tokenizer *tok, const char *text)
{
    KVD_MAGIC_CHECK(tok, TOKENIZER_MAGIC);
    return vocab_control(&tok->vocab, text);
}

const char *kvd_tokenizer_chat_template(const struct kvd_tokenizer *tok)
{
    KVD_MAGIC_CHECK(tok, TOKENIZER_MAGIC);
    return tok->chat_template;
}
