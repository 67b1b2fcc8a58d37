/*
 * Faults under the I/O interface. A test executable that depends on dep_fault_io is linked with
 * -Wl,--wrap=kvd_io_open: every engine that is opened in it, by a test or by a whole daemon, is
 * wrapped, and does what the program of faults says. There is one program a process; it starts
 * empty, or as KVD_FAULTS in the environment says (grammar below), and changes at any time, from
 * any thread.
 *
 * RocksDB's own files don't pass through the interface: see fault_rocksdb.c.
 *
 * A fault chooses operations by kind and by a part of the file's path, lets the first `skip` of
 * them pass, and then strikes `times` of them. All faults count an operation, the first of the
 * program that would strike does.
 *
 * Which thread: data operations are decided, held and called back on the thread that submits; what
 * comes after the device (FAULT_AFTER, FAULT_MIDDLE, flips of what was read) runs on the engine's
 * completion thread. A held data operation blocks nobody; a held file operation (open, unlink, …)
 * blocks its caller, as a hung device would.
 *
 * KVD_FAULTS: faults, parted by `;`, each
 *     what@op:file:count[:detail]
 *   what    kill, eio, enospc, erofs, eacces, short, flip, hold (for ever: nobody releases it)
 *   op      read, write, fdatasync, open, mkdir, unlink, rename, allocate, truncate, sync_folder,
 *           or any
 *   file    part of the path; * is every file
 *   count   N: the N-th such operation; N+: from the N-th on; N-M: the N-th to the M-th; *: all
 *   detail  kill: before, middle (half of the bytes are on the device) or after it (the default is
 *           before); short: bytes that come through; flip: number of the bit
 * as in kill@write:.seg:17:middle;eio@read:.seg:*
 */
#ifndef TESTS_SUPPORT_FAULT_IO_H
#define TESTS_SUPPORT_FAULT_IO_H

#include <stdbool.h>
#include <stdint.h>

enum { FAULTS_MAX = 32, FAULT_PATH_BYTES = 512 };

enum fault_op {
    FAULT_READ,
    FAULT_WRITE,
    FAULT_FDATASYNC,
    FAULT_OPEN,
    FAULT_MKDIR,
    FAULT_UNLINK,
    FAULT_RENAME,
    FAULT_ALLOCATE,
    FAULT_TRUNCATE,
    FAULT_SYNC_FOLDER,
    FAULT_ANY,
};

enum fault_kind {
    FAULT_FAIL = 1, /* with err; the device isn't asked */
    FAULT_SHORT,    /* only the first `bytes` come through (at most half, where 0), then err */
    FAULT_FLIP,     /* one bit of what is read, or of what is written, is the other */
    FAULT_HOLD,     /* waits for fault_release; then goes on, or fails with err where that is set */
    FAULT_KILL,     /* SIGKILL to this process */
    FAULT_CALL,     /* the test's function; the operation goes on */
};

enum fault_when { FAULT_BEFORE, FAULT_MIDDLE, FAULT_AFTER }; /* of KILL and CALL */

/* An operation as it is told to a test. */
struct fault_hit {
    enum fault_op op;
    const char *path;
    uint64_t bytes;
    uint64_t offset;
};

struct fault {
    enum fault_op op;
    enum fault_kind kind;
    const char *file; /* part of the path; NULL: any. Copied */
    uint32_t skip;
    uint32_t times; /* 0: for ever */
    int err;        /* negative; 0: -EIO of FAIL and SHORT */
    enum fault_when when;
    uint64_t bytes; /* of SHORT; a multiple of 4,096 for files with direct I/O */
    uint64_t bit;   /* of FLIP; modulo the transfer's bits */
    void (*call)(const struct fault_hit *hit, void *user);
    void *user;
};

/* Adds a fault to the program. Returns its id. */
int fault_add(const struct fault *fault);

/* The commonest: fails `op` of files with `file` in their path, all from now on. */
int fault_fail(enum fault_op op, const char *file, int err);

/* Holds them. */
int fault_hold(enum fault_op op, const char *file);

/* Disarms a fault; what it holds goes on. Its counts stay. */
void fault_release(int id);

/* Disarms all, forgets all: ids begin anew. */
void fault_clear(void);

/* How often a fault struck. */
uint64_t fault_hits(int id);

/* Waits until a fault struck n times in all, or holds n operations now. False after 30 s. */
bool fault_wait_hits(int id, uint64_t n);
bool fault_wait_held(int id, uint64_t n);

/* Operations of a kind (or of any) that were asked for since the start or fault_clear, struck or
 * not. */
uint64_t fault_asked(enum fault_op op);

/* For operations outside the interface: what comes before one. 0, or what it fails with. */
int fault_before(enum fault_op op, const char *path);

/* Adds the faults of a text in the grammar above. False: the text is wrong from *ret_at on. */
bool fault_add_text(const char *text, const char **ret_at);

#endif
