/*
 * Stop strings, matched in a stream of text whose pieces may cut them anywhere. What may become a
 * stop string is held back; what cannot is let through at once. The result does not depend on how
 * the text is cut: the string that ends first wins, and of two that end together the longer.
 * Belongs to one thread.
 */
#ifndef ENGINE_SERVER_STOP_H
#define ENGINE_SERVER_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise, then set stops and n (borrowed; none empty). kvd_stop_fini frees. */
struct kvd_stop {
    char *const *stops;
    uint32_t n;
    char *held; /* what the last call let out, then what is kept back */
    size_t out_bytes;
    size_t held_bytes; /* both together */
    size_t cap;
    bool found;
};

/* Lets text in. *ret_out (in held; valid until the next call) and *ret_bytes are what may go out
 * now; when found becomes true that is all the text before the stop string, and nothing follows.
 * -ENOMEM. */
int kvd_stop_feed(struct kvd_stop *stop, const char *text, size_t bytes, const char **ret_out,
                  size_t *ret_bytes);
/* The text ends: what was held back is not a stop string. */
void kvd_stop_end(struct kvd_stop *stop, const char **ret_out, size_t *ret_bytes);
void kvd_stop_fini(struct kvd_stop *stop);

#endif
