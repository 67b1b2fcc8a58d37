/*
 * What both engines do with the outcome of one system call on a request. Only for the .c files
 * beside it.
 *
 * While an engine owns a request, `result` counts how often in a row a transfer was interrupted
 * without moving a byte; the caller reads it only once the callback has begun.
 */
#ifndef CACHESVC_IO_STEP_H
#define CACHESVC_IO_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "cachesvc/io/io.h"

enum {
    KVD_IO_DEPTH_MAX = 4096,
    KVD_IO_STEP_MAX = 1 << 30, /* bytes of one system call */
};

/* Readies a request for its first step. */
void kvd_io_step_begin(struct kvd_io_request *req);

/* Where the next step begins and how long it is. */
static inline uint8_t *kvd_io_step_buffer(const struct kvd_io_request *req)
{
    return (uint8_t *)req->buffer + req->done_bytes;
}

static inline uint32_t kvd_io_step_bytes(const struct kvd_io_request *req)
{
    uint64_t left = req->bytes - req->done_bytes;
    return left < KVD_IO_STEP_MAX ? (uint32_t)left : KVD_IO_STEP_MAX;
}

/* Takes the outcome of a step: bytes moved, or a negated errno. True: the request is finished and
 * `result` says how. False: it needs another step. */
bool kvd_io_step_end(struct kvd_io_request *req, int64_t outcome);

#endif
