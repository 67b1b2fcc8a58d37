/*
 * Inside the nvme tier.
 *
 * States of a segment: OPEN (one a scenario, written by the writer thread) -> SEALED (has its
 * footer) -> DYING (nobody may begin to read it; the row says so durably; then the file is
 * unlinked) -> DEAD (a row in memory that says when and why). Any live segment may die. A segment
 * of an earlier run that had no footer is sealed before it is used.
 *
 * Bytes against the cap: an OPEN segment counts what it may take at most (kvd_nvme_open_charge), so
 * that writing to it needs no further check; a sealed one what its file takes. A dead one counts
 * until its last reader has closed the file: only then the file system has the space back.
 *
 * Locks, in this order: `change` (creating, sealing, killing segments; held over file operations
 * and over the events' calls, never over writing records or over a callback), then `mtx` (all else;
 * short).
 */
#ifndef CACHESVC_TIER_NVME_PRIVATE_H
#define CACHESVC_TIER_NVME_PRIVATE_H

#include <pthread.h>

#include "cachesvc/tier/segment_file.h"
#include "cachesvc/tier/tier.h"

enum {
    NVME_MAGIC = 0x6b6e766d,
    NVME_BATCH_RECORDS = 256,
    NVME_BATCH_BYTES = 32 << 20,
    NVME_FDS_MAX = 256, /* descriptors kept open for reading */
    NVME_DRAIN_S = 10,  /* how long room is waited for that readers of dead segments hold */
};

struct nvme_segment {
    struct kvd_segment_info info; /* lock: mtx for reading, change and mtx for writing */
    int fd;                       /* lock: mtx; -1 when not open */
    uint32_t readers;             /* lock: mtx; fetches that use fd */
    uint64_t used_tick;           /* lock: mtx; of fd, for closing the longest unused */
    bool busy;                    /* lock: mtx; records of the current batch go into it */
    bool lost;                    /* lock: mtx; a reader found that its file is gone */
    bool held;                    /* lock: mtx; dead, but counts until its readers are done */
    bool newer;                   /* constant once recovered: holds what a later version wrote */
    bool appendable;              /* lock: change; OPEN, of this run, and nothing failed in it */
    bool footed;                  /* lock: change; OPEN, and its footer is durable */
    /* of an appendable segment; owner: the writer thread, with change */
    uint64_t end;
    struct kvd_segment_row *rows;
    uint32_t n_rows;
    uint32_t rows_cap;
    uint32_t n_placed; /* rows and records on their way */
};

struct nvme_batch;

struct nvme {
    struct kvd_tier base;
    uint32_t magic;
    /* constant */
    int root_fd;
    uint64_t cap_bytes;
    uint64_t segment_bytes;
    uint64_t queue_max_bytes;
    uint64_t epoch;
    uint64_t seed;
    struct kvd_store_id store;
    const struct kvd_scenarios *scenarios;
    struct kvd_io *io;
    struct kvd_tier_events events;
    struct kvd_log *log;

    pthread_mutex_t change;
    uint64_t next_segment;      /* lock: change */
    uint64_t now_s;             /* lock: change; latest time that anybody has told */
    uint64_t no_space_until_ns; /* lock: change; nothing more is evicted for ENOSPC till then */

    pthread_mutex_t mtx;
    pthread_cond_t work;         /* something to write, a lost segment, or the end */
    pthread_cond_t changed;      /* records finished, readers gone */
    struct nvme_segment **table; /* lock: mtx; ascending by info.segment; grows under change */
    uint32_t n_table;
    uint32_t table_cap;
    uint64_t used_bytes;    /* lock: mtx, and all below */
    uint64_t held_bytes;    /* part of used_bytes: dead, waiting for readers */
    uint64_t foreign_bytes; /* part of used_bytes: files that were left alone */
    uint64_t foreign_files;
    uint64_t newer_bytes; /* part of used_bytes: files that a later version wrote to */
    uint64_t newer_files;
    struct kvd_list queue; /* of kvd_store_request.link */
    uint64_t queue_bytes;
    uint64_t queued_seq;   /* requests ever taken */
    uint64_t finished_seq; /* of those, callback has returned; in order */
    uint64_t tick;
    uint32_t open_fds;
    uint32_t fetches; /* whose callback hasn't returned */
    uint64_t written_bytes;
    uint64_t read_bytes;
    uint64_t dropped_records;
    uint64_t failed_writes;
    bool buffered; /* some file takes no direct I/O */
    bool no_space;
    bool folder_gone; /* somebody removed it */
    bool unsealed;    /* some segment could not be sealed */
    uint32_t undead;  /* segments that are DYING because their file can't be unlinked */
    bool any_lost;
    bool stopping;

    struct nvme_batch *batch; /* owner: the writer thread */
    pthread_t writer;
    bool writer_started;
};

/* ---- nvme_segments.c; change is held unless said otherwise ---- */

/* Most bytes that an open segment and the file system's own blocks for it may take. */
uint64_t kvd_nvme_open_charge(uint64_t segment_bytes);

/* A row in the table, after the highest; NULL without memory. */
struct nvme_segment *kvd_nvme_add(struct nvme *t, const struct kvd_segment_info *info);
/* mtx is held. NULL when there is none. */
struct nvme_segment *kvd_nvme_find_locked(struct nvme *t, uint64_t segment);
bool kvd_nvme_is_live(const struct nvme_segment *seg);

/* Reports a row to the tier's user. */
int kvd_nvme_report(struct nvme *t, const struct nvme_segment *seg, bool sync);

/* Room for one more row than `used`. -ENOMEM. */
int kvd_nvme_reserve_row(struct nvme_segment *seg, uint32_t used);
/* The segment that records of a scenario are appended to now, or NULL. */
struct nvme_segment *kvd_nvme_appendable(struct nvme *t, uint16_t scenario);
/* A new one, with room made for it. -KVD_E_BUSY: only segments of the current batch are left to
 * evict. -KVD_E_FULL, -ENOSPC, … */
int kvd_nvme_create(struct nvme *t, const struct kvd_scenario *scenario, uint64_t slice_s,
                    struct nvme_segment **ret);
/* Seals, or kills where it is empty or its file is gone. On failure it is left as it is, and not
 * appended to any more. What it holds has been reported: a SEALED row says that nobody needs to
 * read the segment again to know. */
int kvd_nvme_seal(struct nvme *t, struct nvme_segment *seg);
/* The first half of it, for a segment with rows: the footer, durable. */
int kvd_nvme_foot(struct nvme *t, struct nvme_segment *seg);
/* Unlinks a live segment, whole. */
int kvd_nvme_kill(struct nvme *t, struct nvme_segment *seg, enum kvd_gone_reason reason);
/* Evicts until `bytes` more fit the cap. -KVD_E_BUSY, -KVD_E_FULL. */
int kvd_nvme_make_room(struct nvme *t, uint64_t bytes);
/* Tries again to unlink what is DYING. An error: the first that can't be, still. */
int kvd_nvme_unlink_dying(struct nvme *t);
/* Kills what readers have found to be gone. */
void kvd_nvme_bury_lost(struct nvme *t);
/* Sets what a segment counts against the cap. */
void kvd_nvme_charge(struct nvme *t, struct nvme_segment *seg, uint64_t bytes);

/* A reader's descriptor of a live segment, until kvd_nvme_reader_put. No lock is held, and none
 * while the file is opened. -KVD_E_NOT_FOUND, … */
int kvd_nvme_reader_get(struct nvme *t, uint64_t segment, int *ret_fd);
void kvd_nvme_reader_put(struct nvme *t, uint64_t segment, uint64_t read_bytes);

/* ---- nvme_check.c; no lock held ---- */
int kvd_nvme_records(struct kvd_tier *tier, uint64_t from, struct kvd_segment_records *ret);

/* ---- nvme_write.c ---- */

struct nvme_batch *kvd_nvme_batch_create(void);
void kvd_nvme_batch_destroy(struct nvme_batch **batch);
void *kvd_nvme_writer_thread(void *tier);

/* ---- nvme_recover.c; before any other thread runs ---- */

int kvd_nvme_recover(struct nvme *t, const struct kvd_segment_info *known, uint32_t n_known,
                     struct kvd_diag *diag);

#endif
