/*
 * Sampling; see sample.h. Weights are e^((logit - top) / temperature), by kernels/kmath.h's exp, so
 * the choice too is the same on every machine. The nucleus of top_p is taken from a heap: only as
 * many tokens are put in order as it holds.
 */
#include "engine/sample/sample.h"

#include <math.h>
#include <stdbool.h>

#include "kernels/kmath.h"

/* A token with its weight, which is not normalised. Fits the 8 bytes a row of scratch. */
struct candidate {
    float weight;
    uint32_t id;
};
_Static_assert(sizeof(struct candidate) == 8, "scratch is counted in rows of 8 bytes");

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* SplitMix64's step and mixing, once for the seed and once for the position in the seed's stream.
 * The upper 53 bits are a double's fraction. */
double kvd_sample_uniform(uint64_t seed, uint64_t position)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    const uint64_t stream = mix(seed + golden);
    return (double)(mix(stream + (position + 1) * golden) >> 11) * 0x1p-53;
}

/* Lowest id of the largest logit; what is no number is never chosen over one that is. */
static uint32_t greedy(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++) {
        if (logits[i] > logits[best] || (isnan(logits[best]) && !isnan(logits[i]))) {
            best = i;
        }
    }
    return best;
}

/* Fills c in order of id; returns the sum of the weights, which is at least 1: the top's own. */
static double weigh(const struct kvd_sample_options *options, const float *logits, uint32_t vocab,
                    float top, struct candidate *c)
{
    const double inverse = 1.0 / (double)options->temperature;
    double total = 0.0;
    for (uint32_t i = 0; i < vocab; i++) {
        const double x = ((double)logits[i] - (double)top) * inverse;
        c[i].id = i;
        c[i].weight = x == 0.0 ? 1.0f : (float)kvd_math_exp(x); /* NaN: 0 */
        total += (double)c[i].weight;
    }
    return total;
}

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->weight > b->weight || (a->weight == b->weight && a->id < b->id);
}

static void sift(struct candidate *heap, uint32_t n, uint32_t at)
{
    const struct candidate moved = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!before(&heap[child], &moved)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Moves the heaviest to the array's end, one after the other, until they hold `mass`; returns how
 * many. c[vocab - 1] is the first of them. */
static uint32_t take_nucleus(struct candidate *c, uint32_t vocab, double mass, double *ret_held)
{
    for (uint32_t i = vocab / 2; i-- > 0;) {
        sift(c, vocab, i);
    }
    double held = 0.0;
    uint32_t taken = 0;
    while (taken < vocab && (taken == 0 || held < mass)) {
        const uint32_t last = vocab - 1 - taken;
        const struct candidate heaviest = c[0];
        c[0] = c[last];
        c[last] = heaviest;
        sift(c, last, 0);
        held += (double)heaviest.weight;
        taken++;
    }
    *ret_held = held;
    return taken;
}

/* The nucleus's token at `target` of its weights laid end to end, heaviest first. */
static uint32_t pick_nucleus(const struct candidate *c, uint32_t vocab, uint32_t taken,
                             double target)
{
    double passed = 0.0;
    for (uint32_t i = 0; i + 1 < taken; i++) {
        passed += (double)c[vocab - 1 - i].weight;
        if (target < passed) {
            return c[vocab - 1 - i].id;
        }
    }
    return c[vocab - taken].id;
}

/* The same over all tokens in order of id. The last with any weight takes what rounding leaves. */
static uint32_t pick_all(const struct candidate *c, uint32_t vocab, double target)
{
    double passed = 0.0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        if (c[i].weight > 0.0f) {
            passed += (double)c[i].weight;
            last = i;
            if (target < passed) {
                break;
            }
        }
    }
    return last;
}

uint32_t kvd_sample(const struct kvd_sample_options *options, uint64_t position,
                    const float *logits, uint32_t vocab, void *scratch)
{
    const uint32_t best = greedy(logits, vocab);
    if (!(options->temperature > 0.0f) || !isfinite(logits[best])) {
        return best;
    }
    struct candidate *c = scratch;
    const double total = weigh(options, logits, vocab, logits[best], c);
    const double u = kvd_sample_uniform(options->seed, position);
    if (!(options->top_p < 1.0f)) {
        return pick_all(c, vocab, u * total);
    }
    double held;
    const uint32_t taken = take_nucleus(c, vocab, (double)options->top_p * total, &held);
    return pick_nucleus(c, vocab, taken, u * held);
}
