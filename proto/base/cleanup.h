/* Cleanup by scope: `KVD_CLEANUP(kvd_close_fd) int fd = -1;`. KVD_TAKE hands a value out of a
 * cleaned variable. */
#ifndef PROTO_BASE_CLEANUP_H
#define PROTO_BASE_CLEANUP_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KVD_CLEANUP(fn) __attribute__((cleanup(fn)))

static inline void kvd_free_p(void *p)
{
    free(*(void **)p);
}

static inline void kvd_close_fd(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd);
        *fd = -1;
    }
}

static inline void kvd_fclose_p(FILE **f)
{
    if (*f) {
        (void)fclose(*f);
    }
}

#define KVD_AUTOFREE KVD_CLEANUP(kvd_free_p)
#define KVD_AUTOCLOSE KVD_CLEANUP(kvd_close_fd)
#define KVD_AUTOFCLOSE KVD_CLEANUP(kvd_fclose_p)

/* Value of a pointer variable, which becomes NULL. */
#define KVD_TAKE(ptr)                                                                              \
    ({                                                                                             \
        __typeof__(ptr) taken_ = (ptr);                                                            \
        (ptr) = NULL;                                                                              \
        taken_;                                                                                    \
    })

/* Value of a descriptor variable, which becomes -1. */
static inline int kvd_take_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

#endif
