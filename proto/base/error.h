/*
 * Errors. A function that can fail returns int: 0, or a negative number that is either a negated
 * errno or a negated domain error of error.def. Outputs named ret_* are written only on success.
 *
 * A message that reaches a person travels in a struct kvd_diag: what was wrong, where, and what to
 * do. Libraries fill it and do not log; the caller logs or prints it once.
 */
#ifndef PROTO_BASE_ERROR_H
#define PROTO_BASE_ERROR_H

#include <stdarg.h>
#include <stdint.h>

enum kvd_error {
#define KVD_ERROR(number, name, wire, text) KVD_E_##name = (number),
#include "proto/base/error.def"
#undef KVD_ERROR
};

enum { KVD_DIAG_BYTES = 640 };

struct kvd_diag {
    char text[KVD_DIAG_BYTES]; /* always terminated; empty when nothing was said */
};

/* Short text of a negative error number (errno or domain). Never NULL; static or thread-local
 * storage. */
const char *kvd_strerror(int err);

/* Name of a domain error ("NOT_FOUND"), or "ERRNO" for an errno, "OK" for 0. */
const char *kvd_error_name(int err);

/* Wire code of an error: 0 for success, the table's code for a domain error, INTERNAL's for any
 * errno. */
uint32_t kvd_error_to_wire(int err);

/* The negative error number of a wire code; an unknown code is -KVD_E_INTERNAL. */
int kvd_error_from_wire(uint32_t wire);

/* Writes a message into diag, which may be NULL. */
void kvd_diag_set(struct kvd_diag *diag, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Writes a message into diag and is err, so that `return kvd_fail(diag, -EINVAL, "...")` works. A
 * macro, so that the compiler and the analyser see that it is not 0. */
#define kvd_fail(diag, err, ...)                                                                   \
    ({                                                                                             \
        const int fail_err_ __attribute__((unused)) = (err);                                       \
        kvd_diag_set((diag), __VA_ARGS__);                                                         \
        fail_err_;                                                                                 \
    })

/* Puts text before the message that is there: "context: message". Returns err. diag may be NULL. */
int kvd_fail_prefix(struct kvd_diag *diag, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
