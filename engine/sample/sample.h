/* Choosing a token from logits. Deterministic: the random number is a function of (seed, position)
 * alone. */
#ifndef ENGINE_SAMPLE_SAMPLE_H
#define ENGINE_SAMPLE_SAMPLE_H

#include <stdint.h>

struct kvd_sample_options {
    float temperature; /* 0: greedy */
    float top_p;       /* 0 < top_p <= 1 */
    uint64_t seed;
};

/* scratch: vocab rows of 8 bytes. Ties go to the lower id. */
uint32_t kvd_sample(const struct kvd_sample_options *options, uint64_t position,
                    const float *logits, uint32_t vocab, void *scratch);

/* Uniform in [0, 1) from (seed, position). */
double kvd_sample_uniform(uint64_t seed, uint64_t position);

#endif
