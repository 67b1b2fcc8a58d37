/*
 * Writes a GGUF into a growing buffer: header, keys, tensor descriptions, data. It shares no code
 * with the reader, so that the two check each other.
 */
#include "tiny_gguf.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    U32 = 4,
    F32 = 6,
    BOOL = 7,
    STRING = 8,
    ARRAY = 9,
    I32 = 5,
    LINE_MAX_BYTES = 256,
    ALIGNMENT = 32
};
enum tensor_type { T_F32 = 0, T_Q4_1 = 3, T_Q8_0 = 8 };

struct buffer {
    uint8_t *bytes;
    size_t n;
    size_t cap;
};

struct tensor {
    char name[64];
    uint32_t columns;
    uint32_t rows; /* 0: one dimension */
    enum tensor_type type;
};

struct writer {
    struct kvd_tiny_gguf_options o;
    struct buffer out;
    uint32_t n_keys;
    struct tensor *tensors;
    uint32_t n_tensors;
    char (*tokens)[LINE_MAX_BYTES];
    uint32_t n_tokens;
    uint32_t n_specials;
    char (*merges)[LINE_MAX_BYTES];
    uint32_t n_merges;
};

static void *must(void *p)
{
    if (!p) {
        (void)fprintf(stderr, "tiny_gguf: no memory\n");
        abort();
    }
    return p;
}

static void put(struct buffer *b, const void *bytes, size_t n)
{
    if (n == 0) {
        return;
    }
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n);
        b->bytes = must(realloc(b->bytes, b->cap));
    }
    memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
}

static void put_le(struct buffer *b, uint64_t v, int bytes)
{
    uint8_t le[8];
    for (int i = 0; i < bytes; i++) {
        le[i] = (uint8_t)(v >> (8 * i));
    }
    put(b, le, (size_t)bytes);
}

static void put_float(struct buffer *b, float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    put_le(b, bits, 4);
}

static void put_string(struct buffer *b, const char *s)
{
    put_le(b, strlen(s), 8);
    put(b, s, strlen(s));
}

static void put_key(struct writer *w, const char *key, uint32_t type)
{
    put_string(&w->out, key);
    put_le(&w->out, type, 4);
    w->n_keys++;
}

static void put_key_u32(struct writer *w, const char *key, uint32_t v)
{
    put_key(w, key, U32);
    put_le(&w->out, v, 4);
}

static void put_key_float(struct writer *w, const char *key, float v)
{
    put_key(w, key, F32);
    put_float(&w->out, v);
}

static void put_key_string(struct writer *w, const char *key, const char *v)
{
    put_key(w, key, STRING);
    put_string(&w->out, v);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Half precision of a positive number in its normal range, cut: exact enough, the same everywhere.
 */
static uint16_t half(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)(((bits >> 23) - 127 + 15) << 10 | (bits >> 13 & 0x3ff));
}

/* A scale between 0.75 and 1.25 of `size`, so that blocks differ in size. */
static float block_scale(uint64_t *state, float size)
{
    return size * (0.75F + 0.5F * (float)(next_random(state) >> 40) / (float)(1 << 24));
}

/* Weights of about -size..size: q*d + m with m = -7.5 d. */
static void put_q4_1(struct buffer *b, uint64_t *state, uint64_t blocks, float size)
{
    for (uint64_t i = 0; i < blocks; i++) {
        float d = block_scale(state, size) / 7.5F;
        put_le(b, half(d), 2);
        put_le(b, half(7.5F * d) | 0x8000U, 2);
        put_le(b, next_random(state), 8);
        put_le(b, next_random(state), 8);
    }
}

static void put_q8_0(struct buffer *b, uint64_t *state, uint64_t blocks, float size)
{
    for (uint64_t i = 0; i < blocks; i++) {
        put_le(b, half(block_scale(state, size) / 127.0F), 2);
        for (int j = 0; j < 4; j++) {
            uint64_t eight = next_random(state);
            for (int k = 0; k < 8; k++) { /* -128 is no value that a quantiser gives */
                uint8_t q = (uint8_t)(eight >> (8 * k));
                put_le(b, q == 0x80 ? 0x81 : q, 1);
            }
        }
    }
}

static uint64_t tensor_bytes(const struct tensor *t)
{
    uint64_t n = (uint64_t)t->columns * (t->rows ? t->rows : 1);
    return t->type == T_F32 ? 4 * n : n / 32 * (t->type == T_Q4_1 ? 20 : 34);
}

/* Each tensor has a generator of its own, from the seed and its place. */
static void put_data(struct writer *w, uint32_t nth)
{
    const struct tensor *t = &w->tensors[nth];
    uint64_t state = w->o.seed * UINT64_C(0xd1342543de82ef95) + nth;
    uint64_t blocks = tensor_bytes(t) / (t->type == T_Q4_1 ? 20 : 34);
    /* Uniform on -1.73..1.73 has variance 1: an output is about as large as its input. */
    float size = 1.732F;
    for (uint32_t c = t->columns; c > 1;
         c /= 4) { /* divided by the root of the columns, a power of two */
        size /= 2;
    }
    if (t->type == T_F32) {
        for (uint32_t i = 0; i < t->columns; i++) {
            put_float(&w->out, block_scale(&state, 1.0F));
        }
    } else if (t->type == T_Q4_1) {
        put_q4_1(&w->out, &state, blocks, 2 * size);
    } else {
        put_q8_0(&w->out, &state, blocks, 2 * size);
    }
}

static void add(struct writer *w, const char *name, uint32_t columns, uint32_t rows,
                enum tensor_type type)
{
    w->tensors = must(realloc(w->tensors, (w->n_tensors + 1) * sizeof(*w->tensors)));
    struct tensor *t = &w->tensors[w->n_tensors++];
    *t = (struct tensor){.columns = columns, .rows = rows, .type = type};
    (void)snprintf(t->name, sizeof(t->name), "%s", name);
}

static void add_layer(struct writer *w, uint32_t nth)
{
    uint32_t width = w->o.width;
    uint32_t kv = width / w->o.heads * w->o.kv_heads;
    const struct tensor roles[] = {
        {"attn_norm", width, 0, T_F32},        {"ffn_down", w->o.ffn, width, T_Q4_1},
        {"ffn_gate", width, w->o.ffn, T_Q4_1}, {"ffn_up", width, w->o.ffn, T_Q4_1},
        {"ffn_norm", width, 0, T_F32},         {"attn_k", width, kv, T_Q4_1},
        {"attn_output", width, width, T_Q4_1}, {"attn_q", width, width, T_Q4_1},
        {"attn_v", width, kv, T_Q4_1},
    };
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        char name[96];
        (void)snprintf(name, sizeof(name), "blk.%u.%s.weight", nth, roles[i].name);
        add(w, name, roles[i].columns, roles[i].rows, roles[i].type);
    }
}

static void put_tensors(struct writer *w)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensors[i];
        put_string(&w->out, t->name);
        put_le(&w->out, t->rows ? 2 : 1, 4);
        put_le(&w->out, t->columns, 8);
        if (t->rows) {
            put_le(&w->out, t->rows, 8);
        }
        put_le(&w->out, t->type, 4);
        put_le(&w->out, offset, 8);
        offset += (tensor_bytes(t) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    for (uint32_t i = 0; i < w->n_tensors; i++) {
        while (w->out.n % ALIGNMENT != 0) {
            put_le(&w->out, 0, 1);
        }
        put_data(w, i);
    }
}

static void put_params(struct writer *w)
{
    const struct kvd_tiny_gguf_options *o = &w->o;
    put_key_string(w, "general.architecture", "llama");
    put_key_string(w, "general.name", o->name);
    put_key_u32(w, "llama.block_count", o->layers);
    put_key_u32(w, "llama.context_length", o->context);
    put_key_u32(w, "llama.embedding_length", o->width);
    put_key_u32(w, "llama.feed_forward_length", o->ffn);
    put_key_u32(w, "llama.attention.head_count", o->heads);
    put_key_u32(w, "llama.attention.head_count_kv", o->kv_heads);
    put_key_float(w, "llama.rope.freq_base", 10000.0F);
    put_key_float(w, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    put_key_u32(w, "llama.vocab_size", w->n_tokens);
    put_key_u32(w, "llama.rope.dimension_count", o->width / o->heads);
}

static void put_key_array(struct writer *w, const char *key, uint32_t element, uint32_t n)
{
    put_key(w, key, ARRAY);
    put_le(&w->out, element, 4);
    put_le(&w->out, n, 8);
}

static void put_tokenizer(struct writer *w)
{
    put_key(w, "tokenizer.ggml.add_bos_token", BOOL);
    put_le(&w->out, 0, 1);
    put_key_string(w, "tokenizer.ggml.model", "gpt2");
    put_key_string(w, "tokenizer.ggml.pre", "smollm");
    put_key_array(w, "tokenizer.ggml.tokens", STRING, w->n_tokens);
    for (uint32_t i = 0; i < w->n_tokens; i++) {
        put_string(&w->out, w->tokens[i]);
    }
    put_key_array(w, "tokenizer.ggml.token_type", I32, w->n_tokens);
    for (uint32_t i = 0; i < w->n_tokens; i++) {
        put_le(&w->out, i < w->n_specials ? 3 : 1, 4);
    }
    put_key_array(w, "tokenizer.ggml.merges", STRING, w->n_merges);
    for (uint32_t i = 0; i < w->n_merges; i++) {
        put_string(&w->out, w->merges[i]);
    }
    put_key_u32(w, "tokenizer.ggml.bos_token_id", 1);
    put_key_u32(w, "tokenizer.ggml.eos_token_id", 2);
    put_key_string(
        w, "tokenizer.chat_template",
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a tiny model<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
}

static void take_line(struct writer *w, const char *kind, const char *rest)
{
    char *token = w->tokens[w->n_tokens++];
    if (strcmp(kind, "merge") == 0) {
        (void)snprintf(w->merges[w->n_merges++], LINE_MAX_BYTES, "%s", rest);
        const char *space = strchr(rest, ' ');
        (void)snprintf(token, LINE_MAX_BYTES, "%.*s%s", (int)(space - rest), rest, space + 1);
        return;
    }
    (void)snprintf(token, LINE_MAX_BYTES, "%s", rest);
    w->n_specials += strcmp(kind, "special") == 0;
}

static bool read_vocab(struct writer *w)
{
    static const char path[] = KVD_GOLDEN_DIR "/tiny_vocab.txt";
    FILE *f = fopen(path, "re");
    if (!f) {
        (void)fprintf(stderr, "tiny_gguf: can't open %s\n", path);
        return false;
    }
    w->tokens = must(calloc(KVD_TINY_VOCAB, LINE_MAX_BYTES));
    w->merges = must(calloc(KVD_TINY_VOCAB, LINE_MAX_BYTES));
    char line[LINE_MAX_BYTES];
    while (fgets(line, sizeof(line), f) && w->n_tokens < KVD_TINY_VOCAB) {
        line[strcspn(line, "\n")] = '\0';
        char *space = strchr(line, ' ');
        if (line[0] != '#' && space) {
            *space = '\0';
            take_line(w, line, space + 1);
        }
    }
    (void)fclose(f);
    return w->n_tokens == KVD_TINY_VOCAB;
}

static void set_defaults(struct kvd_tiny_gguf_options *o)
{
    o->name = o->name ? o->name : "tiny";
    o->layers = o->layers ? o->layers : 2;
    o->width = o->width ? o->width : 64;
    o->heads = o->heads ? o->heads : 4;
    o->kv_heads = o->kv_heads ? o->kv_heads : 2;
    o->ffn = o->ffn ? o->ffn : 128;
    o->context = o->context ? o->context : 2048;
}

static void put_all(struct writer *w)
{
    put(&w->out, "GGUF", 4);
    put_le(&w->out, 3, 4);
    put_le(&w->out, w->n_tensors, 8);
    put_le(&w->out, 0, 8); /* number of keys: known at the end */
    put_params(w);
    put_tokenizer(w);
    for (int i = 0; i < 4; i++) {
        w->out.bytes[16 + i] = (uint8_t)(w->n_keys >> (8 * i));
    }
    put_tensors(w);
}

uint8_t *kvd_tiny_gguf_build(const struct kvd_tiny_gguf_options *options, size_t *ret_bytes)
{
    struct writer w = {.o = options ? *options : (struct kvd_tiny_gguf_options){0}};
    set_defaults(&w.o);
    if (read_vocab(&w)) {
        add(&w, "token_embd.weight", w.o.width, w.n_tokens, T_Q8_0);
        for (uint32_t i = 0; i < w.o.layers; i++) {
            add_layer(&w, i);
        }
        add(&w, "output_norm.weight", w.o.width, 0, T_F32);
        put_all(&w);
        *ret_bytes = w.out.n;
    }
    free(w.tokens);
    free(w.merges);
    free(w.tensors);
    return w.out.bytes;
}

int kvd_tiny_gguf_write(const char *path, const struct kvd_tiny_gguf_options *options)
{
    size_t n = 0;
    uint8_t *bytes = kvd_tiny_gguf_build(options, &n);
    if (!bytes) {
        return -1;
    }
    FILE *f = fopen(path, "we");
    bool ok = f && fwrite(bytes, 1, n, f) == n;
    ok = (!f || fclose(f) == 0) && ok;
    free(bytes);
    if (!ok) {
        (void)fprintf(stderr, "tiny_gguf: can't write %s\n", path);
        return -1;
    }
    return 0;
}
