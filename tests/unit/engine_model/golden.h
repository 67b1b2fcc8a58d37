/* Reading of golden files: bytes in hex. */
#ifndef TESTS_UNIT_ENGINE_MODEL_GOLDEN_H
#define TESTS_UNIT_ENGINE_MODEL_GOLDEN_H

#include <stdint.h>
#include <stdio.h>

/* Bytes at *at, up to the first character that is no hex digit ("-" alone: none). Moves *at behind
 * them. */
static inline uint64_t golden_unhex(const char **at, uint8_t *out)
{
    uint64_t n = 0;
    unsigned byte;
    if (**at == '-') {
        (*at)++;
        return 0;
    }
    while (sscanf(*at, "%2x", &byte) == 1 && **at != ' ') {
        out[n++] = (uint8_t)byte;
        *at += 2;
    }
    return n;
}

#endif
