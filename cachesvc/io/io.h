/*
 * File I/O of the daemon: one interface, two implementations (io_uring; a pool of threads with
 * pread and pwrite, for places where io_uring is forbidden). Knows nothing of records or tiers.
 * Everything that the daemon changes on a device, but for RocksDB's own files, passes through here:
 * data by requests, names and sizes by struct kvd_file_ops. So whoever stands in for a `struct
 * kvd_io` sees, and can spoil, all of it.
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

/*
 * Names, sizes and folders of files. Each waits for the device and returns 0 (open: a descriptor)
 * or a negated errno. `folder` is a descriptor, or AT_FDCWD where name is a whole path. Nothing of
 * it is durable before sync_folder, or a request of KVD_IO_FDATASYNC for what is inside a file.
 */
struct kvd_file_ops {
    /* flags of open(2); O_CLOEXEC is added, and 0600 is the mode of a new file */
    int (*open)(struct kvd_io *io, int folder, const char *name, int flags);
    int (*mkdir)(struct kvd_io *io, int folder, const char *name); /* 0700 */
    int (*unlink)(struct kvd_io *io, int folder, const char *name);
    int (*rename)(struct kvd_io *io, int folder, const char *from, const char *to);
    /* Blocks for the first `bytes`; a success without effect where the file system can't. */
    int (*allocate)(struct kvd_io *io, int fd, uint64_t bytes);
    int (*truncate)(struct kvd_io *io, int fd, uint64_t bytes);
    int (*sync_folder)(struct kvd_io *io, int folder);
};

extern const struct kvd_io_ops kvd_io_uring;
extern const struct kvd_io_ops kvd_io_threads;
extern const struct kvd_file_ops kvd_files_plain; /* of both engines */

/* Every implementation begins with this. */
struct kvd_io {
    const struct kvd_io_ops *ops;
    const struct kvd_file_ops *files;
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
/* The same, by its fields. */
int kvd_io_transfer(struct kvd_io *io, enum kvd_io_kind kind, int fd, void *buffer, uint64_t bytes,
                    uint64_t offset);

/* A small file, whole: NAME.new is written and made durable, then takes the name's place, durably.
 * After a power cut there is the old one or the new one. `bytes` is borrowed. */
int kvd_io_file_replace(struct kvd_io *io, int folder, const char *name, const void *bytes,
                        uint64_t n);

#endif
