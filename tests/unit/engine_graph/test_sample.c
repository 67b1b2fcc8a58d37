/* Sampling: greedy, the distribution, the nucleus, and numbers that are none. */
#include <math.h>

#include "engine/sample/sample.h"
#include "kvd_test.h"

enum { VOCAB = 50, DRAWS = 20000 };

static uint64_t scratch[VOCAB];

static void fill(float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        logits[i] = 3.0f * sinf((float)(i * i));
    }
}

static void zero_temperature_is_the_largest_and_the_lower_id(void **state)
{
    (void)state;
    const struct kvd_sample_options bad_or_zero[] = {
        {0.0f, 1.0f, 1}, {-1.0f, 0.5f, 2}, {NAN, 0.5f, 3}};
    float logits[VOCAB];
    fill(logits, VOCAB);
    logits[7] = 5.0f;
    logits[31] = 5.0f;
    for (size_t i = 0; i < 3; i++) {
        for (uint64_t position = 0; position < 10; position++) {
            assert_int_equal(kvd_sample(&bad_or_zero[i], position, logits, VOCAB, scratch), 7);
        }
    }
}

/* Chi-square of DRAWS draws against the probabilities of the ids in `kept`. */
static void follows(const struct kvd_sample_options *options, const float *logits,
                    const uint8_t *kept)
{
    double p[VOCAB];
    double total = 0.0;
    uint32_t counts[VOCAB] = {0};
    for (uint32_t i = 0; i < VOCAB; i++) {
        p[i] = kept[i] ? exp((double)logits[i] / (double)options->temperature) : 0.0;
        total += p[i];
    }
    for (uint64_t position = 0; position < DRAWS; position++) {
        counts[kvd_sample(options, position, logits, VOCAB, scratch)]++;
    }
    double chi = 0.0;
    uint32_t cells = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        const double want = DRAWS * p[i] / total;
        if (!kept[i]) {
            assert_int_equal(counts[i], 0);
        } else if (want >= 5.0) {
            chi += (counts[i] - want) * (counts[i] - want) / want;
            cells++;
        }
    }
    /* Mean cells - 1, variance twice that: six standard deviations and some. */
    assert_true(cells >= 2);
    assert_true(chi < cells + 6.0 * sqrt(2.0 * cells) + 10.0);
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    float logits[VOCAB];
    uint8_t all[VOCAB];
    fill(logits, VOCAB);
    memset(all, 1, sizeof(all));
    const float temperatures[] = {0.5f, 1.0f, 2.0f};
    for (size_t i = 0; i < 3; i++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            const struct kvd_sample_options options = {temperatures[i], 1.0f, seed};
            follows(&options, logits, all);
        }
    }
}

/* The nucleus: the fewest, heaviest ids that hold top_p of the mass. */
static void draws_stay_in_the_nucleus(void **state)
{
    (void)state;
    float logits[VOCAB];
    fill(logits, VOCAB);
    const float masses[] = {0.3f, 0.6f, 0.9f, 0.99f};
    for (size_t m = 0; m < 4; m++) {
        const struct kvd_sample_options options = {1.0f, masses[m], 77};
        uint8_t kept[VOCAB] = {0};
        double total = 0.0;
        double held = 0.0;
        for (uint32_t i = 0; i < VOCAB; i++) {
            total += exp((double)logits[i]);
        }
        while (held < (double)masses[m] * total) {
            uint32_t best = VOCAB;
            for (uint32_t i = 0; i < VOCAB; i++) {
                if (!kept[i] && (best == VOCAB || logits[i] > logits[best])) {
                    best = i;
                }
            }
            kept[best] = 1;
            held += exp((double)logits[best]);
        }
        follows(&options, logits, kept);
    }
}

static void nucleus_edges(void **state)
{
    (void)state;
    float flat[VOCAB] = {0};
    float logits[VOCAB];
    fill(logits, VOCAB);
    logits[13] = 9.0f;
    for (uint64_t position = 0; position < 200; position++) {
        /* So small that one is enough; ties go to the lower id. */
        struct kvd_sample_options options = {1.0f, 1e-9f, 3};
        assert_int_equal(kvd_sample(&options, position, logits, VOCAB, scratch), 13);
        assert_int_equal(kvd_sample(&options, position, flat, VOCAB, scratch), 0);
        /* Half of equals: the lower half. */
        options.top_p = 0.5f;
        assert_true(kvd_sample(&options, position, flat, VOCAB, scratch) < VOCAB / 2);
        /* One token is all there is. */
        assert_int_equal(kvd_sample(&options, position, logits, 1, scratch), 0);
        /* Nearly everything: any id, but one of them. */
        options.top_p = 0x1.fffffep-1f;
        assert_true(kvd_sample(&options, position, flat, VOCAB, scratch) < VOCAB);
        /* The smallest temperature there is. */
        options.temperature = 1e-45f;
        assert_int_equal(kvd_sample(&options, position, logits, VOCAB, scratch), 13);
    }
}

static void what_is_no_number_is_never_drawn(void **state)
{
    (void)state;
    float logits[VOCAB];
    fill(logits, VOCAB);
    logits[0] = NAN;
    logits[20] = -NAN;
    logits[21] = -INFINITY;
    const float masses[] = {1.0f, 0.9999f};
    for (uint64_t position = 0; position < DRAWS; position++) {
        const struct kvd_sample_options options = {1.5f, masses[position % 2], 5};
        const uint32_t id = kvd_sample(&options, position, logits, VOCAB, scratch);
        assert_true(id < VOCAB && id != 0 && id != 20 && id != 21);
    }
    const struct kvd_sample_options options = {1.0f, 0.9f, 5};
    logits[30] = INFINITY;
    assert_int_equal(kvd_sample(&options, 0, logits, VOCAB, scratch), 30);
    for (uint32_t i = 0; i < VOCAB; i++) {
        logits[i] = NAN;
    }
    assert_int_equal(kvd_sample(&options, 0, logits, VOCAB, scratch), 0);
}

/* The number depends on seed and position alone, and its first values never change: answers of a
 * seed are to be had again. */
static void uniform_is_stable_and_even(void **state)
{
    (void)state;
    double mean = 0.0;
    uint32_t tenths[10] = {0};
    for (uint64_t position = 0; position < DRAWS; position++) {
        const double u = kvd_sample_uniform(9, position);
        assert_true(u >= 0.0 && u < 1.0);
        assert_true(u == kvd_sample_uniform(9, position));
        mean += u / DRAWS;
        tenths[(int)(u * 10.0)]++;
    }
    assert_true(fabs(mean - 0.5) < 0.01);
    for (int i = 0; i < 10; i++) {
        assert_in_range(tenths[i], DRAWS / 10 - 250, DRAWS / 10 + 250);
    }
    assert_true(kvd_sample_uniform(9, 0) != kvd_sample_uniform(10, 0));
    assert_true(kvd_sample_uniform(0, 1) != kvd_sample_uniform(1, 0));
    assert_true(kvd_sample_uniform(0, 0) == 0x1.4e0dba5e9a32fp-1);
    assert_true(kvd_sample_uniform(42, 1000000) == 0x1.0a0bb53d1522bp-1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(zero_temperature_is_the_largest_and_the_lower_id),
    cmocka_unit_test(draws_follow_the_distribution),
    cmocka_unit_test(draws_stay_in_the_nucleus),
    cmocka_unit_test(nucleus_edges),
    cmocka_unit_test(what_is_no_number_is_never_drawn),
    cmocka_unit_test(uniform_is_stable_and_even),
};

KVD_TEST_MAIN(tests)
