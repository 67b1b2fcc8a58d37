#include "proto/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void kvd_log_init(struct kvd_log *log, int fd, const char *program, enum kvd_log_level level)
{
    log->fd = fd;
    log->program = program;
    atomic_init(&log->level, (int)level);
}

int kvd_log_level_parse(const char *name)
{
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            return i;
        }
    }
    return -EINVAL;
}

void kvd_log(struct kvd_log *log, enum kvd_log_level level, const char *fmt, ...)
{
    if (!log || (int)level > atomic_load_explicit(&log->level, memory_order_relaxed)) {
        return;
    }
    char line[1024];
    struct timespec ts;
    struct tm tm;
    (void)clock_gettime(CLOCK_REALTIME, &ts);
    (void)gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ldZ %s %c ", ts.tv_nsec / 1000000,
                          log->program, "EWID"[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
    va_end(ap);
    if (m > 0) {
        size_t room = sizeof(line) - n - 2;
        n += (size_t)m < room ? (size_t)m : room;
    }
    line[n++] = '\n';
    ssize_t written = write(log->fd, line, n);
    (void)written; /* there is nobody left to tell */
}
