/* Bytes that grow at the end. Zero-initialise; kvd_buffer_fini frees. Belongs to one thread or to
 * its owner's lock. */
#ifndef ENGINE_SERVER_BUFFER_H
#define ENGINE_SERVER_BUFFER_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct kvd_buffer {
    char *bytes;
    size_t n;
    size_t cap;
};

/* -ENOMEM: nothing was added. */
static inline int kvd_buffer_add(struct kvd_buffer *b, const char *bytes, size_t n)
{
    if (n > b->cap - b->n) {
        const size_t cap = (b->n + n) * 2;
        char *grown = realloc(b->bytes, cap);
        if (!grown) {
            return -ENOMEM;
        }
        b->bytes = grown;
        b->cap = cap;
    }
    if (n > 0) {
        memcpy(b->bytes + b->n, bytes, n);
        b->n += n;
    }
    return 0;
}

static inline void kvd_buffer_fini(struct kvd_buffer *b)
{
    free(b->bytes);
    *b = (struct kvd_buffer){0};
}

#endif
