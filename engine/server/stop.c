/* Stop strings in a stream of text. See stop.h. */
#include "engine/server/stop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the longest stop string that ends at held[end), or 0. */
static size_t ends_at(const struct kvd_stop *stop, size_t end)
{
    size_t best = 0;
    for (uint32_t i = 0; i < stop->n; i++) {
        const size_t len = strlen(stop->stops[i]);
        if (len > best && len <= end && memcmp(stop->held + end - len, stop->stops[i], len) == 0) {
            best = len;
        }
    }
    return best;
}

/* Bytes at the end of held that are the beginning of a stop string. */
static size_t may_become(const struct kvd_stop *stop)
{
    size_t best = 0;
    for (uint32_t i = 0; i < stop->n; i++) {
        size_t len = strlen(stop->stops[i]) - 1;
        len = len < stop->held_bytes ? len : stop->held_bytes;
        for (; len > best; len--) {
            if (memcmp(stop->held + stop->held_bytes - len, stop->stops[i], len) == 0) {
                best = len;
            }
        }
    }
    return best;
}

/* Drops what the last call let out, then adds the text. */
static int take_in(struct kvd_stop *stop, const char *text, size_t bytes)
{
    stop->held_bytes -= stop->out_bytes;
    if (stop->out_bytes > 0) {
        memmove(stop->held, stop->held + stop->out_bytes, stop->held_bytes);
        stop->out_bytes = 0;
    }
    if (stop->held_bytes + bytes > stop->cap) {
        const size_t cap = (stop->held_bytes + bytes) * 2 + 64;
        char *grown = realloc(stop->held, cap);
        if (!grown) {
            return -ENOMEM;
        }
        stop->held = grown;
        stop->cap = cap;
    }
    if (bytes > 0) {
        memcpy(stop->held + stop->held_bytes, text, bytes);
    }
    stop->held_bytes += bytes;
    return 0;
}

int kvd_stop_feed(struct kvd_stop *stop, const char *text, size_t bytes, const char **ret_out,
                  size_t *ret_bytes)
{
    if (stop->found) {
        *ret_out = stop->held;
        *ret_bytes = 0;
        return 0;
    }
    const int rc = take_in(stop, text, bytes);
    if (rc) {
        return rc;
    }
    size_t let_out = 0;
    for (size_t end = stop->held_bytes - bytes + 1; end <= stop->held_bytes; end++) {
        const size_t len = ends_at(stop, end);
        if (len > 0) {
            stop->found = true;
            let_out = end - len;
            break;
        }
    }
    if (!stop->found) {
        let_out = stop->held_bytes - may_become(stop);
    }
    stop->out_bytes = let_out;
    *ret_out = stop->held;
    *ret_bytes = let_out;
    return 0;
}

void kvd_stop_end(struct kvd_stop *stop, const char **ret_out, size_t *ret_bytes)
{
    *ret_out = stop->held + stop->out_bytes;
    *ret_bytes = stop->found ? 0 : stop->held_bytes - stop->out_bytes;
    stop->found = true;
}

void kvd_stop_fini(struct kvd_stop *stop)
{
    free(stop->held);
    stop->held = NULL;
    stop->held_bytes = stop->out_bytes = stop->cap = 0;
}
