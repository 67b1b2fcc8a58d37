/*
 * Assertions stay on in production. They are for what this program itself promises; input from a
 * peer, a disk, a file or a person is checked and refused with an error instead.
 */
#ifndef PROTO_BASE_ASSERT_H
#define PROTO_BASE_ASSERT_H

#include <stdint.h>

_Noreturn void kvd_assert_failed(const char *expr, const char *file, int line);

#define KVD_ASSERT(expr)                                                                           \
    do {                                                                                           \
        if (__builtin_expect(!(expr), 0)) {                                                        \
            kvd_assert_failed(#expr, __FILE__, __LINE__);                                          \
        }                                                                                          \
    } while (0)

/* Long-lived structs begin with `uint32_t magic`, set at creation, checked on entry, cleared at the
 * end. */
#define KVD_MAGIC_SET(obj, value) ((obj)->magic = (value))
#define KVD_MAGIC_CHECK(obj, value) KVD_ASSERT((obj) != NULL && (obj)->magic == (value))
#define KVD_MAGIC_CLEAR(obj) ((obj)->magic = 0)

#endif
