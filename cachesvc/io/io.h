/*
 * File I/O of the daemon: one interface, two implementations (io_uring; a pool of threads with
 * pread and pwrite, for places where io_uring is forbidden). Knows nothing of records or tiers.
 *
 * Contract
 *   - submit never blocks on the device; it may block briefly while the queue is full.
 *   - A request belongs to the engine from submit until its callback begins; then it is the
 * caller's again.
 *   - Callbacks run on the engine's completion thread; they must be short, and may submit.
 *   - Offsets, lengths and buffers of O_DIRECT files are multiples of 4,096; that is the caller's
 * business.
 *   - A short transfer is continued by the engine; a read that meets the end of file completes with
 * -KVD_E_IO and done_bytes says how far it came.
 *   - result: 0 or a negated errno / -KVD_E_IO.
 */
#ifndef CACHESVC_IO_IO_H
#define CACHESVC_IO_IO_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/error.h"
#include "proto/base/list.h"

struct kvd_io;
struct kvd_io_request;

typedef void kvd_io_done_fn(struct kvd_io_request *req);

enum kvd_io_kind { KVD_IO_READ, KVD_IO_WRITE, KVD_IO_FDATASYNC };

struct kvd_io_request {
    enum kvd_io_kind kind;
    int fd;
    int buffer_index; /* of a registered region that holds the whole buffer, or -1 */
    int result;       /* valid in and after the callback */
    void *buffer;
    uint64_t bytes;
    uint64_t offset;
    kvd_io_done_fn *done;
    void *user;
    uint64_t done_bytes; /* valid in and after the callback */
    /* the engine's */
    struct kvd_list link;
};

struct kvd_io_ops {
    const char *name; /* "io_uring", "threads" */
    int (*create)(uint32_t depth, struct kvd_diag *diag, struct kvd_io **ret);
    void (*destroy)(struct kvd_io **io); /* waits for what is in flight */
    int (*submit)(struct kvd_io *io, struct kvd_io_request *const *reqs, uint32_t n);
    /* Registers memory for faster transfers. Returns its buffer index, or -ENOTSUP, -ENOMEM
     * (memlock limit), -ENOSPC (table full): then use index -1. Allocates; call it off the hot
     * path. At most 1 GiB a region. */
    int (*register_region)(struct kvd_io *io, void *base, uint64_t bytes);
};

extern const struct kvd_io_ops kvd_io_uring;
extern const struct kvd_io_ops kvd_io_threads;

/* Every implementation begins with this. */
struct kvd_io {
    const struct kvd_io_ops *ops;
};

/* Opens by name: "io_uring", "threads", or "auto" (io_uring where it works, else threads). diag
 * says why not. */
int kvd_io_open(const char *name, uint32_t depth, struct kvd_diag *diag, struct kvd_io **ret);
void kvd_io_close(struct kvd_io **io);

static inline int kvd_io_submit(struct kvd_io *io, struct kvd_io_request *const *reqs, uint32_t n)
{
    return io->ops->submit(io, reqs, n);
}

/* One request, waited for. Not from a callback. */
int kvd_io_run(struct kvd_io *io, struct kvd_io_request *req);

#endif
