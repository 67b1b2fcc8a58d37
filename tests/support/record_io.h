/*
 * A record of everything that passes through the I/O interface, in order: what begins and what
 * ends, with the bytes of writes, so that another program can work out what a power cut at any
 * moment may leave on the device.
 *
 * A test executable that depends on dep_record_io has every engine wrapped twice: the recorder over
 * the faults (fault_io.h) over the real one. Nothing is recorded before record_start. The record is
 * one file, appended to by one process after the other: a killed one leaves behind what it has
 * done, and the next goes on.
 *
 * What else matters for the order (RocksDB's writes, promises made to somebody) is put into the
 * same record by marks, whose meaning is their user's.
 *
 * Paths are relative to the root given to record_start ("" is the root itself); what lies outside
 * is not recorded. Only changes are: opening for reading, and reading, are not.
 */
#ifndef TESTS_SUPPORT_RECORD_IO_H
#define TESTS_SUPPORT_RECORD_IO_H

#include <stdbool.h>
#include <stdint.h>

enum { RECORD_PATH_BYTES = 256 };

enum record_op {
    RECORD_END, /* of the event with this id: result */
    RECORD_CREATE,
    RECORD_MKDIR,
    RECORD_UNLINK,
    RECORD_RENAME, /* path to path2 */
    RECORD_ALLOCATE,
    RECORD_TRUNCATE,
    RECORD_SYNC_FOLDER,
    RECORD_WRITE,
    RECORD_FDATASYNC,
    RECORD_MARK,
};

/* As it lies in the file, followed by `extra_bytes` (of a write its bytes, of a mark what its user
 * gave) and zeros to a multiple of 8. */
struct record_event {
    uint32_t op;
    uint32_t mark;        /* of a mark: its user's number */
    uint64_t id;          /* of an END: whose; else a number of its own, from 1, in all the file */
    uint64_t inode;       /* of what happens to an open file: which one */
    uint64_t offset;      /* of writes */
    uint64_t bytes;       /* of writes; the size of allocate and truncate */
    int64_t result;       /* of an END */
    uint64_t extra_bytes; /* that follow */
    char path[RECORD_PATH_BYTES];
    char path2[RECORD_PATH_BYTES];
};

/* ---- recording (record_io.c) ---- */

/* From now on this process records into the file `log`, which is made where it is missing. root: an
 * absolute path without symbolic links. */
void record_start(const char *log, const char *root);

/* SIGKILL to this process right after its nth event from now on, marks included. */
void record_kill_at(uint64_t nth);

/* Appends a mark. Any thread. Returns its id, which may be given to record_end. Without a
 * record_start it does nothing. */
uint64_t record_mark(uint32_t mark, uint64_t value, const void *extra, uint64_t extra_bytes);
void record_end(uint64_t id, int64_t result);

/* ---- reading (record_log.c) ---- */

struct record_log {
    uint8_t *bytes;
    uint64_t n_bytes;
    const struct record_event **events;
    uint32_t n;
};

void record_load(const char *log, struct record_log *ret);
void record_unload(struct record_log *log);
static inline const void *record_extra(const struct record_event *e)
{
    return e + 1;
}

/* After a process was killed, and is gone for good: what it had begun and not ended is compared
 * with what lies under root, and ended in the file accordingly: a write with the bytes that are
 * really there, a name or size that didn't come about with -ECANCELED. */
void record_settle(const char *log, const char *root);

/* A mark between two processes. */
void record_add_mark(const char *log, uint32_t mark, uint64_t value);

#endif
