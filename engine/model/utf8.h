/* UTF-8 as RFC 3629 has it: no surrogates, nothing above U+10FFFF, no longer form than needed. */
#ifndef ENGINE_MODEL_UTF8_H
#define ENGINE_MODEL_UTF8_H

#include <stdint.h>

/*
 * Looks at the first sequence of n >= 1 bytes. Positive: the length of a whole sequence. Zero: the
 * bytes are the beginning of one, more are needed. Negative: not UTF-8; so many bytes (negated)
 * belong to the broken sequence.
 */
int kvd_utf8_next(const char *bytes, uint64_t n);

/* Code point of a whole sequence of that length. */
uint32_t kvd_utf8_decode(const char *bytes, int length);

#endif
