/* Reading a record, and ending what a killed process left begun: see record_io.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "record_io.h"

/* ---- loading ---- */

static void read_whole(int fd, struct record_log *log)
{
    struct stat st;
    KVD_ASSERT(fstat(fd, &st) == 0);
    log->n_bytes = (uint64_t)st.st_size;
    log->bytes = malloc(log->n_bytes + 1);
    KVD_ASSERT(log->bytes);
    for (uint64_t at = 0; at < log->n_bytes;) {
        ssize_t n = pread(fd, log->bytes + at, log->n_bytes - at, (off_t)at);
        KVD_ASSERT(n > 0);
        at += (uint64_t)n;
    }
}

/* Bytes of the event at `at`; 0 where it isn't whole (its process was killed while writing it). */
static uint64_t event_bytes(const struct record_log *log, uint64_t at)
{
    struct record_event e;
    if (log->n_bytes - at < sizeof(e)) {
        return 0;
    }
    memcpy(&e, log->bytes + at, sizeof(e));
    uint64_t n = sizeof(e) + kvd_round_up(e.extra_bytes, 8);
    return n <= log->n_bytes - at ? n : 0;
}

void record_load(const char *log, struct record_log *ret)
{
    *ret = (struct record_log){0};
    KVD_AUTOCLOSE int fd = open(log, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    read_whole(fd, ret);
    uint32_t cap = 0;
    for (uint64_t at = 0, n = 0; (n = event_bytes(ret, at)) > 0; at += n) {
        if (ret->n == cap) {
            cap = cap ? 2 * cap : 1024;
            ret->events = realloc(ret->events, cap * sizeof(struct record_event *));
            KVD_ASSERT(ret->events);
        }
        ret->events[ret->n++] = (const struct record_event *)(const void *)(ret->bytes + at);
    }
}

void record_unload(struct record_log *log)
{
    free(log->events);
    free(log->bytes);
    *log = (struct record_log){0};
}

/* ---- settling ---- */

static void append(int fd, const struct record_event *e, const void *extra)
{
    static const uint8_t zeros[8];
    uint64_t pad = kvd_round_up(e->extra_bytes, 8) - e->extra_bytes;
    KVD_ASSERT(write(fd, e, sizeof(*e)) == (ssize_t)sizeof(*e));
    KVD_ASSERT(e->extra_bytes == 0 || extra);
    KVD_ASSERT(e->extra_bytes == 0 || write(fd, extra, e->extra_bytes) == (ssize_t)e->extra_bytes);
    KVD_ASSERT(pad == 0 || write(fd, zeros, pad) == (ssize_t)pad);
}

/* The bytes that are where a write was going; zeros where the file ends before. */
static void settle_write(int fd, const char *path, const struct record_event *e,
                         struct record_event *end)
{
    KVD_AUTOFREE uint8_t *bytes = calloc(1, e->bytes + 1);
    KVD_ASSERT(bytes);
    KVD_AUTOCLOSE int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        (void)!pread(file, bytes, e->bytes, (off_t)e->offset);
    }
    end->extra_bytes = e->bytes;
    append(fd, end, bytes);
}

static void settle_one(int fd, const char *root, const struct record_event *e)
{
    struct record_event end = {.op = RECORD_END, .id = e->id, .result = 0};
    char path[2 * RECORD_PATH_BYTES];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/%s", root, e->path);
    bool there = lstat(path, &st) == 0;
    switch ((enum record_op)e->op) {
    case RECORD_WRITE:
        settle_write(fd, path, e, &end);
        return;
    case RECORD_CREATE:
        end.inode = there ? st.st_ino : 0;
        end.result = there ? 0 : -ECANCELED;
        break;
    case RECORD_MKDIR:
        end.result = there ? 0 : -ECANCELED;
        break;
    case RECORD_UNLINK:
    case RECORD_RENAME:
        end.result = there ? -ECANCELED : 0;
        break;
    case RECORD_ALLOCATE:
    case RECORD_TRUNCATE:
        end.result = there && (uint64_t)st.st_size == e->bytes ? 0 : -ECANCELED;
        break;
    default: /* a sync that nobody was told of */
        end.result = -ECANCELED;
        break;
    }
    append(fd, &end, NULL);
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void record_settle(const char *log, const char *root)
{
    struct record_log had;
    record_load(log, &had);
    KVD_AUTOFREE uint64_t *ended = calloc(had.n + 1, sizeof(*ended));
    KVD_ASSERT(ended);
    uint32_t n = 0;
    uint64_t whole = 0;
    for (uint32_t i = 0; i < had.n; i++) {
        whole += sizeof(*had.events[i]) + kvd_round_up(had.events[i]->extra_bytes, 8);
        if (had.events[i]->op == RECORD_END) {
            ended[n++] = had.events[i]->id;
        }
    }
    qsort(ended, n, sizeof(*ended), by_id);
    KVD_AUTOCLOSE int fd = open(log, O_WRONLY | O_APPEND | O_CLOEXEC);
    KVD_ASSERT(fd >= 0 && ftruncate(fd, (off_t)whole) == 0);
    for (uint32_t i = 0; i < had.n; i++) {
        const struct record_event *e = had.events[i];
        if (e->op != RECORD_END && e->op != RECORD_MARK &&
            !bsearch(&e->id, ended, n, sizeof(*ended), by_id)) {
            settle_one(fd, root, e);
        }
    }
    record_unload(&had);
}

void record_add_mark(const char *log, uint32_t mark, uint64_t value)
{
    const struct record_event e = {.op = RECORD_MARK, .mark = mark, .bytes = value};
    KVD_AUTOCLOSE int fd = open(log, O_WRONLY | O_APPEND | O_CLOEXEC);
    KVD_ASSERT(fd >= 0);
    append(fd, &e, NULL);
}
