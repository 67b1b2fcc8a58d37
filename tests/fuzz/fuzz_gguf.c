/*
 * Fuzz entry of the GGUF reader: any bytes are either refused or give a file whose every value and
 * tensor can be touched, and whose tokenizer, if it has one, encodes. Built with libFuzzer by
 * -Dfuzz=true; the unit suite runs the same entry over seeds and mutations of them
 * (fuzz_gguf_seeds.c).
 */
#include <stdint.h>
#include <string.h>

#include "engine/model/tokenizer.h"
#include "fuzz.h"

static const char *const keys[] = {"general.architecture",
                                   "general.alignment",
                                   "llama.block_count",
                                   "llama.rope.freq_base",
                                   "tokenizer.ggml.tokens",
                                   "tokenizer.ggml.merges",
                                   "tokenizer.ggml.token_type",
                                   "a.u8",
                                   "a.words",
                                   "a.numbers"};

/* Reads the first, a middle and the last byte. */
static void touch(const void *bytes, uint64_t n)
{
    const volatile uint8_t *p = bytes;
    if (n > 0) {
        (void)p[0];
        (void)p[n / 2];
        (void)p[n - 1];
    }
}

static void touch_array(const struct kvd_gguf *g, const char *key)
{
    uint64_t n = 0;
    struct kvd_gguf_str s;
    int64_t v;
    (void)kvd_gguf_array_len(g, key, &n);
    for (uint64_t i = 0; i < n && i < 4096; i++) {
        if (kvd_gguf_array_str(g, key, i, &s) == 0) {
            touch(s.text, s.bytes);
        }
        (void)kvd_gguf_array_i64(g, key, i, &v);
    }
}

static void touch_values(const struct kvd_gguf *g)
{
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        uint64_t u;
        double f;
        bool yes;
        struct kvd_gguf_str s;
        (void)kvd_gguf_u64(g, keys[i], &u);
        (void)kvd_gguf_f64(g, keys[i], &f);
        (void)kvd_gguf_bool(g, keys[i], &yes);
        if (kvd_gguf_str(g, keys[i], &s) == 0) {
            touch(s.text, s.bytes);
        }
        touch_array(g, keys[i]);
    }
}

static void encode_with(const struct kvd_gguf *g)
{
    static const char text[] = "Hello <|im_end|> 12\n\n  the\xff end";
    struct kvd_tokenizer *tok = NULL;
    struct kvd_diag diag;
    if (kvd_tokenizer_create(g, &diag, &tok) == 0) {
        struct kvd_tokens t = {0};
        (void)kvd_tokenizer_encode(tok, text, sizeof(text) - 1, true, &t);
        for (uint32_t i = 0; i < t.n; i++) {
            uint32_t n;
            const char *piece = kvd_tokenizer_piece(tok, t.ids[i], &n);
            touch(piece, n);
        }
        kvd_tokens_fini(&t);
        kvd_tokenizer_destroy(&tok);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvd_gguf *g = NULL;
    struct kvd_diag diag;
    if (kvd_gguf_open_memory(data, size, &diag, &g) == 0) {
        touch_values(g);
        for (uint64_t i = 0; i < kvd_gguf_tensor_count(g); i++) {
            const struct kvd_gguf_tensor *t = kvd_gguf_tensor_at(g, i);
            touch(t->data, t->bytes);
            touch(t->name.text, t->name.bytes);
        }
        encode_with(g);
        kvd_gguf_close(&g);
    }
    return 0;
}
