/*
 * Log lines on a descriptor: "2026-01-31T12:00:00.123Z kvdepotd W text". A log is passed, never
 * global. One line is one write(), so lines of several threads do not mix. NULL as log drops
 * everything.
 */
#ifndef PROTO_BASE_LOG_H
#define PROTO_BASE_LOG_H

#include <stdatomic.h>

enum kvd_log_level { KVD_LOG_ERROR, KVD_LOG_WARN, KVD_LOG_INFO, KVD_LOG_DEBUG };

struct kvd_log {
    int fd;              /* borrowed */
    const char *program; /* borrowed */
    atomic_int level;    /* lines above it are dropped */
};

void kvd_log_init(struct kvd_log *log, int fd, const char *program, enum kvd_log_level level);

/* Level of a name (error, warn, info, debug), or -EINVAL. */
int kvd_log_level_parse(const char *name);

void kvd_log(struct kvd_log *log, enum kvd_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define kvd_log_error(log, ...) kvd_log((log), KVD_LOG_ERROR, __VA_ARGS__)
#define kvd_log_warn(log, ...) kvd_log((log), KVD_LOG_WARN, __VA_ARGS__)
#define kvd_log_info(log, ...) kvd_log((log), KVD_LOG_INFO, __VA_ARGS__)
#define kvd_log_debug(log, ...) kvd_log((log), KVD_LOG_DEBUG, __VA_ARGS__)

#endif
