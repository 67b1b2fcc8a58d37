/*
 * Opens a model: parameters from the file's keys, tensors by role, and the check that the file
 * holds exactly what the graph computes with. A tensor that the graph has no place for (a bias,
 * experts, rope factors) is refused: leaving it out would give answers that look right and are not.
 */
#include "engine/model/model.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "engine/model/fingerprint.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

/* Far above real models of this architecture; they keep products of parameters within 64 bits. */
enum {
    LAYERS_MAX = 1024,
    HEADS_MAX = 1024,
    HEAD_DIM_MAX = 1024,
    WIDTH_MAX = 1 << 17,
    FFN_MAX = 1 << 20,
    VOCAB_MAX = 1 << 24,
    CONTEXT_MAX = 1 << 24,
    QUANT_COLUMNS = 32, /* rows are quantised in runs of this many */
    TENSORS_A_LAYER = 9
};

enum matrix_kind { MATRIX, NORM };

struct opener {
    struct kvd_model *model;
    struct kvd_diag *diag;
    uint64_t tensors_used;
};

static int read_u32(const struct opener *o, const char *key, uint64_t min, uint64_t max,
                    uint32_t *ret)
{
    uint64_t v;
    int r = kvd_gguf_u64(o->model->gguf, key, &v);
    if (r == -KVD_E_NOT_FOUND) {
        return kvd_fail(o->diag, -KVD_E_FORMAT, "key %s is missing", key);
    }
    if (r < 0) {
        return kvd_fail(o->diag, -KVD_E_FORMAT, "key %s is no positive integer", key);
    }
    if (v < min || v > max) {
        return kvd_fail(o->diag, -KVD_E_FORMAT,
                        "key %s is %" PRIu64 "; %" PRIu64 " to %" PRIu64 " can be used", key, v,
                        min, max);
    }
    *ret = (uint32_t)v;
    return 0;
}

/* The same, with a value for a key that isn't there. */
static int read_u32_or(const struct opener *o, const char *key, uint64_t max, uint32_t fallback,
                       uint32_t *ret)
{
    uint64_t v;
    if (kvd_gguf_u64(o->model->gguf, key, &v) == -KVD_E_NOT_FOUND) {
        *ret = fallback;
        return 0;
    }
    return read_u32(o, key, 0, max, ret);
}

static int read_float(const struct opener *o, const char *key, double *ret)
{
    int r = kvd_gguf_f64(o->model->gguf, key, ret);
    if (r < 0) {
        return kvd_fail(o->diag, -KVD_E_FORMAT, "key %s is %s", key,
                        r == -KVD_E_NOT_FOUND ? "missing" : "no floating-point number");
    }
    if (!isfinite(*ret) || *ret <= 0) {
        return kvd_fail(o->diag, -KVD_E_FORMAT, "key %s is %g; a positive number is needed", key,
                        *ret);
    }
    return 0;
}

static int require_text(const struct opener *o, const char *key, const char *want)
{
    struct kvd_gguf_str s;
    int r = kvd_gguf_str(o->model->gguf, key, &s);
    if (r < 0) {
        return kvd_fail(o->diag, -KVD_E_FORMAT, "key %s is %s; it must be %s", key,
                        r == -KVD_E_NOT_FOUND ? "missing" : "no text", want);
    }
    if (s.bytes != strlen(want) || memcmp(s.text, want, s.bytes) != 0) {
        return kvd_fail(o->diag, -KVD_E_FORMAT, "key %s is '%.*s'; only '%s' can be computed", key,
                        s.bytes > 64 ? 64 : (int)s.bytes, s.text, want);
    }
    return 0;
}

/* Keys that change the computation in a way that the graph doesn't know. */
static int refuse_variants(const struct opener *o)
{
    const struct kvd_gguf *gguf = o->model->gguf;
    struct kvd_gguf_str s;
    if (kvd_gguf_str(gguf, "llama.rope.scaling.type", &s) != -KVD_E_NOT_FOUND) {
        int r = require_text(o, "llama.rope.scaling.type", "none");
        if (r < 0) {
            return r;
        }
    }
    uint32_t experts = 0;
    int r = read_u32_or(o, "llama.expert_count", UINT32_MAX, 0, &experts);
    if (r < 0) {
        return r;
    }
    if (experts > 0) {
        return kvd_fail(o->diag, -KVD_E_FORMAT,
                        "a model of %u experts; only dense models can be computed", experts);
    }
    return 0;
}

/* Sizes that are derived, and how sizes must fit each other. */
static int check_sizes(const struct opener *o)
{
    struct kvd_model_params *p = &o->model->params;
    if (p->heads % p->kv_heads != 0) {
        return kvd_fail(o->diag, -KVD_E_FORMAT, "%u heads can't be shared out to %u KV heads",
                        p->heads, p->kv_heads);
    }
    uint32_t value_dim = 0;
    uint32_t rope_dim = 0;
    int r = read_u32_or(o, "llama.attention.key_length", HEAD_DIM_MAX, p->width / p->heads,
                        &p->head_dim);
    r = r < 0
            ? r
            : read_u32_or(o, "llama.attention.value_length", HEAD_DIM_MAX, p->head_dim, &value_dim);
    r = r < 0 ? r
              : read_u32_or(o, "llama.rope.dimension_count", HEAD_DIM_MAX, p->head_dim, &rope_dim);
    if (r < 0) {
        return r;
    }
    if (p->head_dim == 0 || p->head_dim > HEAD_DIM_MAX || p->head_dim % 2 != 0 ||
        value_dim != p->head_dim || rope_dim != p->head_dim) {
        return kvd_fail(
            o->diag, -KVD_E_FORMAT,
            "head size %u, values %u, rotated %u: they must be equal, even, and at most %d",
            p->head_dim, value_dim, rope_dim, HEAD_DIM_MAX);
    }
    if (p->width % QUANT_COLUMNS != 0 || p->ffn % QUANT_COLUMNS != 0 ||
        p->heads * p->head_dim % QUANT_COLUMNS != 0) {
        return kvd_fail(o->diag, -KVD_E_FORMAT,
                        "width %u, ffn %u and heads x head size %u must be multiples of %d",
                        p->width, p->ffn, p->heads * p->head_dim, QUANT_COLUMNS);
    }
    return 0;
}

static int read_params(const struct opener *o)
{
    struct kvd_model_params *p = &o->model->params;
    int r = require_text(o, "general.architecture", "llama");
    r = r < 0 ? r : read_u32(o, "llama.block_count", 1, LAYERS_MAX, &p->layers);
    r = r < 0 ? r : read_u32(o, "llama.embedding_length", 1, WIDTH_MAX, &p->width);
    r = r < 0 ? r : read_u32(o, "llama.attention.head_count", 1, HEADS_MAX, &p->heads);
    r = r < 0 ? r
              : read_u32_or(o, "llama.attention.head_count_kv", HEADS_MAX, p->heads, &p->kv_heads);
    r = r < 0 ? r : read_u32(o, "llama.feed_forward_length", 1, FFN_MAX, &p->ffn);
    r = r < 0 ? r : read_u32(o, "llama.context_length", 1, CONTEXT_MAX, &p->context);
    double eps = 0;
    r = r < 0 ? r : read_float(o, "llama.attention.layer_norm_rms_epsilon", &eps);
    r = r < 0 ? r : read_float(o, "llama.rope.freq_base", &p->rope_base);
    if (r < 0) {
        return r;
    }
    p->rms_eps = (float)eps;
    if (p->kv_heads == 0) {
        return kvd_fail(o->diag, -KVD_E_FORMAT, "key llama.attention.head_count_kv is 0");
    }
    r = refuse_variants(o);
    return r < 0 ? r : check_sizes(o);
}

static bool type_fits(enum matrix_kind kind, uint32_t type)
{
    if (kind == NORM) {
        return type == KVD_GGML_F32;
    }
    return type == KVD_GGML_F32 || type == KVD_GGML_F16 || type == KVD_GGML_Q4_1 ||
           type == KVD_GGML_Q8_0;
}

/* Finds a tensor and holds it against shape [columns][rows] and the types its role can have. */
static int bind(struct opener *o, const char *name, enum matrix_kind kind, uint64_t columns,
                uint64_t rows, const struct kvd_gguf_tensor **ret)
{
    const struct kvd_gguf_tensor *t = kvd_gguf_tensor(o->model->gguf, name);
    if (!t) {
        return kvd_fail(o->diag, -KVD_E_FORMAT, "tensor %s is missing", name);
    }
    if (t->dims[0] != columns || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1) {
        return kvd_fail(o->diag, -KVD_E_FORMAT,
                        "tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                        "; by the file's keys it must be %" PRIu64 " x %" PRIu64,
                        name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], columns, rows);
    }
    if (!type_fits(kind, t->type)) {
        return kvd_fail(o->diag, -KVD_E_FORMAT, "tensor %s has type %u; %s can be computed with",
                        name, t->type, kind == NORM ? "F32" : "F32, F16, Q4_1 and Q8_0");
    }
    o->tensors_used++;
    *ret = t;
    return 0;
}

static int bind_layer(struct opener *o, uint32_t nth)
{
    const struct kvd_model_params *p = &o->model->params;
    struct kvd_model_layer *l = &o->model->layers[nth];
    uint64_t q = (uint64_t)p->heads * p->head_dim;
    uint64_t kv = (uint64_t)p->kv_heads * p->head_dim;
    const struct {
        const char *name;
        enum matrix_kind kind;
        uint64_t columns, rows;
        const struct kvd_gguf_tensor **to;
    } roles[TENSORS_A_LAYER] = {
        {"attn_norm", NORM, p->width, 1, &l->attn_norm},
        {"attn_q", MATRIX, p->width, q, &l->q},
        {"attn_k", MATRIX, p->width, kv, &l->k},
        {"attn_v", MATRIX, p->width, kv, &l->v},
        {"attn_output", MATRIX, q, p->width, &l->o},
        {"ffn_norm", NORM, p->width, 1, &l->ffn_norm},
        {"ffn_gate", MATRIX, p->width, p->ffn, &l->gate},
        {"ffn_up", MATRIX, p->width, p->ffn, &l->up},
        {"ffn_down", MATRIX, p->ffn, p->width, &l->down},
    };
    for (int i = 0; i < TENSORS_A_LAYER; i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "blk.%u.%s.weight", nth, roles[i].name);
        int r = bind(o, name, roles[i].kind, roles[i].columns, roles[i].rows, roles[i].to);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static bool layer_holds(const struct kvd_model_layer *l, const struct kvd_gguf_tensor *t)
{
    return t == l->attn_norm || t == l->q || t == l->k || t == l->v || t == l->o ||
           t == l->ffn_norm || t == l->gate || t == l->up || t == l->down;
}

/* Says which tensor has no role. Called only when there is one. */
static int fail_unused(const struct opener *o)
{
    const struct kvd_model *m = o->model;
    for (uint64_t i = 0; i < kvd_gguf_tensor_count(m->gguf); i++) {
        const struct kvd_gguf_tensor *t = kvd_gguf_tensor_at(m->gguf, i);
        bool used = t == m->embedding || t == m->output_norm || t == m->output;
        for (uint32_t l = 0; l < m->params.layers && !used; l++) {
            used = layer_holds(&m->layers[l], t);
        }
        if (!used) {
            return kvd_fail(
                o->diag, -KVD_E_FORMAT,
                "tensor %.*s has no place in a llama graph; this variant can't be computed",
                (int)t->name.bytes, t->name.text);
        }
    }
    return kvd_fail(o->diag, -KVD_E_INTERNAL, "tensors were counted wrong");
}

static int bind_tensors(struct opener *o)
{
    struct kvd_model *m = o->model;
    const struct kvd_model_params *p = &m->params;
    int r = bind(o, "token_embd.weight", MATRIX, p->width, p->vocab, &m->embedding);
    r = r < 0 ? r : bind(o, "output_norm.weight", NORM, p->width, 1, &m->output_norm);
    if (r < 0) {
        return r;
    }
    m->output = m->embedding;
    if (kvd_gguf_tensor(m->gguf, "output.weight")) {
        r = bind(o, "output.weight", MATRIX, p->width, p->vocab, &m->output);
        if (r < 0) {
            return r;
        }
    }
    m->layers = calloc(p->layers, sizeof(*m->layers));
    if (!m->layers) {
        return kvd_fail(o->diag, -ENOMEM, "no memory for %u layers", p->layers);
    }
    for (uint32_t i = 0; i < p->layers; i++) {
        r = bind_layer(o, i);
        if (r < 0) {
            return r;
        }
    }
    return o->tensors_used == kvd_gguf_tensor_count(m->gguf) ? 0 : fail_unused(o);
}

/* The tokenizer's vocabulary is the truth; a key that says otherwise is a broken file. */
static int bind_tokenizer(const struct opener *o)
{
    struct kvd_model *m = o->model;
    int r = kvd_tokenizer_create(m->gguf, o->diag, &m->tokenizer);
    if (r < 0) {
        return r;
    }
    uint32_t vocab = kvd_tokenizer_vocab(m->tokenizer);
    r = read_u32_or(o, "llama.vocab_size", VOCAB_MAX, vocab, &m->params.vocab);
    if (r < 0) {
        return r;
    }
    if (m->params.vocab != vocab || vocab > VOCAB_MAX) {
        return kvd_fail(o->diag, -KVD_E_FORMAT,
                        "llama.vocab_size is %u, the tokenizer has %u tokens", m->params.vocab,
                        vocab);
    }
    return 0;
}

/* general.name, or the file's name; cut at a whole UTF-8 character, control characters shown as
 * '?'. */
static void set_name(struct kvd_model *m, const char *path)
{
    const char *slash = strrchr(path, '/');
    struct kvd_gguf_str s = {.text = slash ? slash + 1 : path};
    s.bytes = strlen(s.text);
    struct kvd_gguf_str given;
    if (kvd_gguf_str(m->gguf, "general.name", &given) == 0 && given.bytes > 0) {
        s = given;
    }
    uint64_t n = s.bytes;
    if (n > sizeof(m->name) - 1) {
        n = sizeof(m->name) - 1;
        while (n > 0 && ((uint8_t)s.text[n] & 0xc0) == 0x80) {
            n--;
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)s.text[i];
        m->name[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    m->name[n] = '\0';
}

void kvd_model_close(struct kvd_model **model)
{
    struct kvd_model *m = KVD_TAKE(*model);
    if (!m) {
        return;
    }
    kvd_tokenizer_destroy(&m->tokenizer);
    free(m->layers);
    free(m->path);
    kvd_gguf_close(&m->gguf);
    free(m);
}

int kvd_model_open(const char *path, const char *cache_dir, struct kvd_diag *diag,
                   struct kvd_model **ret)
{
    KVD_CLEANUP(kvd_model_close) struct kvd_model *m = calloc(1, sizeof(*m));
    if (!m) {
        return kvd_fail(diag, -ENOMEM, "no memory");
    }
    m->path = strdup(path);
    if (!m->path) {
        return kvd_fail(diag, -ENOMEM, "no memory");
    }
    if (stat(path, &m->file) < 0) {
        int err = errno;
        return kvd_fail(diag, -err, "%s: can't find the model file: %s", path, kvd_strerror(-err));
    }
    int r = kvd_gguf_open(path, diag, &m->gguf);
    if (r < 0) {
        return r;
    }
    struct opener o = {.model = m, .diag = diag};
    r = read_params(&o);
    r = r < 0 ? r : bind_tokenizer(&o);
    r = r < 0 ? r : bind_tensors(&o);
    if (r < 0) {
        return kvd_fail_prefix(diag, r, "%s", path);
    }
    set_name(m, path);
    kvd_fingerprint_cached(m->gguf, path, &m->file, cache_dir, &m->weights);
    *ret = KVD_TAKE(m);
    return 0;
}

int kvd_model_check_file(const struct kvd_model *model, struct kvd_diag *diag)
{
    struct stat now;
    if (!KVD_PROTECT(MODEL_FILE_CHECKED) ||
        (stat(model->path, &now) == 0 && kvd_fingerprint_same_file(&model->file, &now))) {
        return 0;
    }
    return kvd_fail(
        diag, -KVD_E_STALE,
        "%s was written to or replaced while it was being loaded; start again when it is "
        "whole",
        model->path);
}
