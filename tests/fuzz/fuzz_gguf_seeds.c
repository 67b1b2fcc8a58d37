/*
 * Runs the fuzz entry of the GGUF reader over a small real file and 6,000 mutations of it, always
 * the same ones: bytes flipped, numbers replaced by ones that like to overflow, pieces cut out.
 * Half of them stay within the header's parameters and tensor descriptions, where most fields are.
 * Sanitizer builds make this worth its time.
 */
#include "kvd_test.h"

#include "fuzz.h"
#include "tiny_gguf.h"

enum { ROUNDS = 6000 };

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

static void test_mutations(void **state)
{
    const struct kvd_tiny_gguf_options o = {
        .layers = 1, .width = 32, .heads = 2, .kv_heads = 1, .ffn = 32};
    size_t whole;
    uint8_t *seed = kvd_tiny_gguf_build(&o, &whole);
    assert_non_null(seed);
    assert_int_equal(LLVMFuzzerTestOneInput(seed, whole), 0);
    uint64_t rng = 88172645463325252U;
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = whole;
        uint8_t *bytes = malloc(whole);
        assert_non_null(bytes);
        memcpy(bytes, seed, whole);
        for (uint64_t i = 0; i <= random_next(&rng) % 3; i++) {
            mutate(bytes, &n, &rng);
        }
        uint8_t *exact = realloc(bytes, n ? n : 1); /* so that one byte too far is seen */
        assert_non_null(exact);
        assert_int_equal(LLVMFuzzerTestOneInput(exact, n), 0);
        free(exact);
    }
    free(seed);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_mutations),
};

KVD_TEST_MAIN(tests)
