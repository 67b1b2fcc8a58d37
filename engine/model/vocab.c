/*
 * Loading of a vocabulary. In the file, ordinary tokens are written in the alphabet of GPT-2's
 * byte-level BPE, where each of the 256 bytes is one printable character; they are turned back into
 * bytes here, once, so that nothing after this knows of that alphabet. The file is not trusted:
 * ids, texts and merges are checked.
 */
#include "engine/model/vocab.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/model/utf8.h"

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define KEY_MERGES "tokenizer.ggml.merges"

enum {
    TOKENS_MAX = 1 << 24,
    TOKEN_BYTES_MAX = 4096,
    CONTROLS_MAX = 1024, /* each position of a text is held against all of them */
    ALPHABET_END = 0x144 /* one past the highest character of the alphabet */
};

struct loader {
    const struct kvd_gguf *gguf;
    struct kvd_diag *diag;
    struct vocab *v;
    int16_t byte_of[ALPHABET_END]; /* -1: not in the alphabet */
};

/* Bytes that are printable in Latin-1 are themselves; the others follow from U+0100 on, in order.
 */
static void alphabet_init(struct loader *l)
{
    for (int c = 0; c < ALPHABET_END; c++) {
        l->byte_of[c] = -1;
    }
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        l->byte_of[itself ? b : next++] = (int16_t)b;
    }
}

/* Turns a text of the alphabet into bytes; out has room for text's bytes. Returns their number, or
 * -1. */
static int64_t alphabet_decode(const struct loader *l, struct kvd_gguf_str text, char *out)
{
    int64_t n = 0;
    for (uint64_t i = 0; i < text.bytes;) {
        int length = kvd_utf8_next(text.text + i, text.bytes - i);
        if (length <= 0) {
            return -1;
        }
        uint32_t c = kvd_utf8_decode(text.text + i, length);
        if (c >= ALPHABET_END || l->byte_of[c] < 0) {
            return -1;
        }
        out[n++] = (char)l->byte_of[c];
        i += (uint64_t)length;
    }
    return n;
}

static uint64_t table_size(uint64_t entries)
{
    uint64_t n = 16;
    while (n < entries * 2) {
        n *= 2;
    }
    return n;
}

/* The slot of a token's bytes: where it is, or the free one where it would go. */
static uint64_t token_slot(const struct vocab *v, const char *bytes, uint64_t n)
{
    uint64_t at = XXH3_64bits(bytes, n) & v->slots_mask;
    while (v->slots[at] != VOCAB_NONE) {
        const struct vocab_token *t = &v->tokens[v->slots[at]];
        if (t->n == n && memcmp(v->bytes + t->at, bytes, n) == 0) {
            break;
        }
        at = (at + 1) & v->slots_mask;
    }
    return at;
}

uint32_t vocab_find(const struct vocab *v, const char *bytes, uint64_t n)
{
    return v->slots[token_slot(v, bytes, n)];
}

static struct vocab_merge *merge_slot(const struct vocab *v, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    uint64_t at = (h ^ h >> 32) & v->merges_mask;
    while (v->merges[at].to != VOCAB_NONE &&
           (v->merges[at].left != left || v->merges[at].right != right)) {
        at = (at + 1) & v->merges_mask;
    }
    return &v->merges[at];
}

const struct vocab_merge *vocab_merge_of(const struct vocab *v, uint32_t left, uint32_t right)
{
    const struct vocab_merge *m = merge_slot(v, left, right);
    return m->to != VOCAB_NONE ? m : NULL;
}

uint32_t vocab_control_at(const struct vocab *v, const char *text, uint64_t n)
{
    for (uint32_t i = 0; i < v->n_controls; i++) {
        const struct vocab_token *t = &v->tokens[v->controls[i]];
        if (t->n <= n && v->bytes[t->at] == text[0] && memcmp(v->bytes + t->at, text, t->n) == 0) {
            return v->controls[i];
        }
    }
    return VOCAB_NONE;
}

uint32_t vocab_control(const struct vocab *v, const char *text)
{
    uint64_t n = strlen(text);
    for (uint32_t i = 0; i < v->n_controls; i++) {
        const struct vocab_token *t = &v->tokens[v->controls[i]];
        if (t->n == n && memcmp(v->bytes + t->at, text, n) == 0) {
            return v->controls[i];
        }
    }
    return VOCAB_NONE;
}

static int need_array(const struct loader *l, const char *key, uint64_t *ret)
{
    int r = kvd_gguf_array_len(l->gguf, key, ret);
    if (r < 0) {
        return kvd_fail(l->diag, -KVD_E_FORMAT, "key %s is %s", key,
                        r == -KVD_E_NOT_FOUND ? "missing" : "no array");
    }
    return 0;
}

/* Bytes that all tokens can need at most, checked so that nothing overflows after. */
static int measure_tokens(const struct loader *l, uint64_t n, uint64_t *ret_bytes)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < n; i++) {
        struct kvd_gguf_str text;
        if (kvd_gguf_array_str(l->gguf, KEY_TOKENS, i, &text) < 0) {
            return kvd_fail(l->diag, -KVD_E_FORMAT, "key " KEY_TOKENS " is no array of texts");
        }
        if (text.bytes == 0 || text.bytes > TOKEN_BYTES_MAX) {
            return kvd_fail(l->diag, -KVD_E_FORMAT,
                            "token %" PRIu64 " has %" PRIu64 " bytes; 1 to %d can be used", i,
                            text.bytes, TOKEN_BYTES_MAX);
        }
        total += text.bytes + 1;
    }
    *ret_bytes = total;
    return 0;
}

static int token_kind(const struct loader *l, uint64_t id, uint32_t *ret)
{
    int64_t type;
    if (kvd_gguf_array_i64(l->gguf, KEY_TYPES, id, &type) < 0) {
        return kvd_fail(l->diag, -KVD_E_FORMAT, "key " KEY_TYPES " is no array of integers");
    }
    if (type != VOCAB_NORMAL && type != VOCAB_UNKNOWN && type != VOCAB_CONTROL &&
        type != VOCAB_UNUSED) {
        return kvd_fail(l->diag, -KVD_E_FORMAT,
                        "token %" PRIu64 " has type %" PRId64 ", which a byte-level "
                        "vocabulary of this kind doesn't have",
                        id, type);
    }
    *ret = (uint32_t)type;
    return 0;
}

static int load_token(struct loader *l, uint64_t id, uint64_t at)
{
    struct vocab *v = l->v;
    struct vocab_token *t = &v->tokens[id];
    struct kvd_gguf_str text;
    int r = token_kind(l, id, &t->kind);
    if (r < 0) {
        return r;
    }
    r = kvd_gguf_array_str(l->gguf, KEY_TOKENS, id, &text);
    if (r < 0) {
        return r;
    }
    int64_t n = (int64_t)text.bytes;
    if (t->kind == VOCAB_NORMAL) {
        n = alphabet_decode(l, text, v->bytes + at);
    } else {
        memcpy(v->bytes + at, text.text, text.bytes);
    }
    if (n < 0) {
        return kvd_fail(l->diag, -KVD_E_FORMAT,
                        "token %" PRIu64 " isn't written in the alphabet of byte-level "
                        "BPE",
                        id);
    }
    t->at = at;
    t->n = (uint32_t)n;
    return 0;
}

static int load_tokens(struct loader *l)
{
    struct vocab *v = l->v;
    uint64_t n = 0;
    uint64_t n_types = 0;
    uint64_t bytes = 0;
    int r = need_array(l, KEY_TOKENS, &n);
    r = r < 0 ? r : need_array(l, KEY_TYPES, &n_types);
    if (r < 0) {
        return r;
    }
    if (n == 0 || n > TOKENS_MAX || n_types != n) {
        return kvd_fail(l->diag, -KVD_E_FORMAT,
                        "%" PRIu64 " tokens with %" PRIu64 " types; equal numbers from 1 to "
                        "%d can be used",
                        n, n_types, TOKENS_MAX);
    }
    r = measure_tokens(l, n, &bytes);
    if (r < 0) {
        return r;
    }
    v->tokens = calloc(n, sizeof(*v->tokens));
    v->bytes = calloc(bytes + 1, 1);
    if (!v->tokens || !v->bytes) {
        return kvd_fail(l->diag, -ENOMEM, "no memory for %" PRIu64 " tokens", n);
    }
    v->n = (uint32_t)n;
    uint64_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        r = load_token(l, i, at);
        if (r < 0) {
            return r;
        }
        at += v->tokens[i].n + 1;
    }
    return 0;
}

static int index_tokens(struct loader *l)
{
    struct vocab *v = l->v;
    uint64_t size = table_size(v->n);
    v->slots = malloc(size * sizeof(*v->slots));
    if (!v->slots) {
        return kvd_fail(l->diag, -ENOMEM, "no memory for the vocabulary's index");
    }
    memset(v->slots, 0xff, size * sizeof(*v->slots));
    v->slots_mask = size - 1;
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->tokens[i].kind != VOCAB_NORMAL) {
            continue;
        }
        uint64_t slot = token_slot(v, v->bytes + v->tokens[i].at, v->tokens[i].n);
        if (v->slots[slot] != VOCAB_NONE) {
            return kvd_fail(l->diag, -KVD_E_FORMAT, "tokens %u and %u are the same", v->slots[slot],
                            i);
        }
        v->slots[slot] = i;
    }
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        v->of_byte[b] = vocab_find(v, &c, 1);
    }
    return 0;
}

static int index_controls(struct loader *l)
{
    struct vocab *v = l->v;
    v->controls = calloc(CONTROLS_MAX, sizeof(*v->controls));
    if (!v->controls) {
        return kvd_fail(l->diag, -ENOMEM, "no memory for the control tokens");
    }
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->tokens[i].kind != VOCAB_CONTROL) {
            continue;
        }
        if (v->n_controls == CONTROLS_MAX) {
            return kvd_fail(l->diag, -KVD_E_FORMAT, "more than %d control tokens", CONTROLS_MAX);
        }
        uint32_t at = v->n_controls++;
        for (; at > 0 && v->tokens[v->controls[at - 1]].n < v->tokens[i].n; at--) {
            v->controls[at] = v->controls[at - 1];
        }
        v->controls[at] = i;
    }
    return 0;
}

/* One merge is "left right", both and their union tokens of the vocabulary. */
static int resolve_merge(const struct loader *l, struct kvd_gguf_str text, struct vocab_merge *ret)
{
    const char *space = memchr(text.text, ' ', text.bytes);
    if (!space || text.bytes > 2 * (uint64_t)TOKEN_BYTES_MAX) {
        return -KVD_E_FORMAT;
    }
    char joined[2 * TOKEN_BYTES_MAX];
    struct kvd_gguf_str left = {.text = text.text, .bytes = (uint64_t)(space - text.text)};
    struct kvd_gguf_str right = {.text = space + 1, .bytes = text.bytes - left.bytes - 1};
    int64_t n_left = alphabet_decode(l, left, joined);
    int64_t n_right = n_left < 0 ? -1 : alphabet_decode(l, right, joined + n_left);
    if (n_left <= 0 || n_right <= 0) {
        return -KVD_E_FORMAT;
    }
    ret->left = vocab_find(l->v, joined, (uint64_t)n_left);
    ret->right = vocab_find(l->v, joined + n_left, (uint64_t)n_right);
    ret->to = vocab_find(l->v, joined, (uint64_t)(n_left + n_right));
    return ret->left == VOCAB_NONE || ret->right == VOCAB_NONE || ret->to == VOCAB_NONE
               ? -KVD_E_FORMAT
               : 0;
}

static int load_merge(struct loader *l, uint64_t rank)
{
    struct kvd_gguf_str text;
    if (kvd_gguf_array_str(l->gguf, KEY_MERGES, rank, &text) < 0) {
        return kvd_fail(l->diag, -KVD_E_FORMAT, "key " KEY_MERGES " is no array of texts");
    }
    struct vocab_merge m = {.rank = (uint32_t)rank};
    if (resolve_merge(l, text, &m) < 0) {
        return kvd_fail(l->diag, -KVD_E_FORMAT,
                        "merge %" PRIu64 " isn't two tokens that make a third", rank);
    }
    struct vocab_merge *slot = merge_slot(l->v, m.left, m.right);
    if (slot->to == VOCAB_NONE) { /* of two equal ones the first has the better rank */
        *slot = m;
    }
    return 0;
}

static int load_merges(struct loader *l)
{
    struct vocab *v = l->v;
    uint64_t n = 0;
    int r = need_array(l, KEY_MERGES, &n);
    if (r < 0) {
        return r;
    }
    if (n > TOKENS_MAX) {
        return kvd_fail(l->diag, -KVD_E_FORMAT, "%" PRIu64 " merges; %d can be used", n,
                        TOKENS_MAX);
    }
    uint64_t size = table_size(n);
    v->merges = malloc(size * sizeof(*v->merges));
    if (!v->merges) {
        return kvd_fail(l->diag, -ENOMEM, "no memory for %" PRIu64 " merges", n);
    }
    memset(v->merges, 0xff, size * sizeof(*v->merges));
    v->merges_mask = size - 1;
    for (uint64_t i = 0; i < n; i++) {
        r = load_merge(l, i);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

int vocab_load(const struct kvd_gguf *gguf, struct kvd_diag *diag, struct vocab *v)
{
    struct loader l = {.gguf = gguf, .diag = diag, .v = v};
    alphabet_init(&l);
    int r = load_tokens(&l);
    r = r < 0 ? r : index_tokens(&l);
    r = r < 0 ? r : index_controls(&l);
    return r < 0 ? r : load_merges(&l);
}

void vocab_fini(struct vocab *v)
{
    free(v->tokens);
    free(v->bytes);
    free(v->slots);
    free(v->merges);
    free(v->controls);
    *v = (struct vocab){0};
}
