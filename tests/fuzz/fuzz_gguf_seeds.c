/*
 * Runs the fuzz entry of the GGUF reader over two good files and thousands of mutations of them,
 * always the same ones: bits and bytes changed, numbers replaced by ones that like to overflow,
 * pieces cut out. One file is the small test model, half of whose changes stay within its first
 * keys; the other is so small that most changes hit a field that matters.
 */
#include "kvd_test.h"

#include "../unit/engine_model/blob.h"
#include "fuzz.h"
#include "tiny_gguf.h"

enum { MODEL_ROUNDS = 2000, SMALL_ROUNDS = 30000 };

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void mutate(uint8_t *bytes, size_t *n, uint64_t *rng)
{
    static const uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       31,
                                       255,
                                       65536,
                                       INT32_MAX,
                                       UINT32_MAX,
                                       UINT64_C(1) << 61,
                                       INT64_MAX,
                                       UINT64_MAX - 31,
                                       UINT64_MAX};
    size_t range = random_next(rng) % 2 ? *n : *n / 40;
    size_t at = random_next(rng) % (range ? range : 1);
    switch (random_next(rng) % 4) {
    case 0:
        bytes[at] ^= (uint8_t)(1U << random_next(rng) % 8);
        break;
    case 1:
        bytes[at] = (uint8_t)random_next(rng);
        break;
    case 2:
        if (at + 8 <= *n) {
            memcpy(bytes + at, &numbers[random_next(rng) % (sizeof(numbers) / sizeof(numbers[0]))],
                   random_next(rng) % 2 ? 8 : 4);
        }
        break;
    default: {
        size_t cut = random_next(rng) % 16;
        if (at + cut < *n) {
            memmove(bytes + at, bytes + at + cut, *n - at - cut);
            *n -= cut;
        }
    }
    }
}

/* Runs the entry over a seed and mutations of it. Each is in memory of its own size, so that one
 * byte too far is seen. */
static void run(const uint8_t *seed, size_t whole, int rounds)
{
    uint64_t rng = 88172645463325252U;
    for (int round = 0; round < rounds; round++) {
        size_t n = whole;
        uint8_t *bytes = blob_exact(seed, whole);
        uint64_t changes = round == 0 ? 0 : 1 + random_next(&rng) % 3;
        for (uint64_t i = 0; i < changes; i++) {
            mutate(bytes, &n, &rng);
        }
        uint8_t *exact = blob_exact(bytes, n);
        assert_int_equal(LLVMFuzzerTestOneInput(exact, n), 0);
        free(exact);
        free(bytes);
    }
}

static void test_model(void **state)
{
    const struct kvd_tiny_gguf_options o = {
        .layers = 1, .width = 32, .heads = 2, .kv_heads = 1, .ffn = 32};
    size_t n;
    uint8_t *seed = kvd_tiny_gguf_build(&o, &n);
    assert_non_null(seed);
    run(seed, n, MODEL_ROUNDS);
    free(seed);
}

static void put_vocabulary(struct blob *b)
{
    static const char *const tokens[] = {"<|im_end|>", "H", "e", "l", "o", "He", "ll"};
    enum { TOKENS = sizeof(tokens) / sizeof(tokens[0]) };
    blob_array(b, "tokenizer.ggml.tokens", B_STRING, TOKENS);
    for (int i = 0; i < TOKENS; i++) {
        blob_str(b, tokens[i]);
    }
    blob_array(b, "tokenizer.ggml.token_type", B_I32, TOKENS);
    for (int i = 0; i < TOKENS; i++) {
        blob_le(b, i == 0 ? 3 : 1, 4);
    }
    blob_array(b, "tokenizer.ggml.merges", B_STRING, 2);
    blob_str(b, "H e");
    blob_str(b, "l l");
}

/* A file so small that most changes hit a field that matters. */
static void test_small_file(void **state)
{
    static struct blob b;
    blob_head(&b, 2, 9);
    blob_number(&b, "general.alignment", B_U32, 32, 4);
    blob_key(&b, "tokenizer.ggml.model", B_STRING);
    blob_str(&b, "gpt2");
    blob_key(&b, "tokenizer.ggml.pre", B_STRING);
    blob_str(&b, "smollm");
    put_vocabulary(&b);
    blob_number(&b, "tokenizer.ggml.eos_token_id", B_U32, 0, 4);
    blob_number(&b, "tokenizer.ggml.add_bos_token", B_BOOL, 0, 1);
    blob_number(&b, "a.u8", B_U8, 7, 1);
    blob_tensor(&b, "q", 32, 1, 3, 0);
    blob_tensor(&b, "norm", 4, 1, 0, 32);
    blob_data(&b, 64);
    run(b.bytes, b.n, SMALL_ROUNDS);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_model),
    cmocka_unit_test(test_small_file),
};

KVD_TEST_MAIN(tests)
