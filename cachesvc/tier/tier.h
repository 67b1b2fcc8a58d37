/*
 * Tiers below dram: places where whole records are written, read, and thrown away by segments. A
 * tier is one file that ends in one `const struct kvd_tier_ops`. It knows nothing of the index: it
 * tells its user where a record went, and when a segment dies, and the user keeps the map.
 *
 * Threads: store and fetch return at once; their callbacks run on the I/O engine's completion
 * thread or on the tier's writer thread, must be short, and may call fetch but not store. The
 * others may be called from any thread.
 */
#ifndef CACHESVC_TIER_TIER_H
#define CACHESVC_TIER_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "cachesvc/io/io.h"
#include "policies/scenario.h"
#include "proto/base/error.h"
#include "proto/base/list.h"
#include "proto/base/log.h"
#include "proto/format/segment.h"

struct kvd_tier;

/* Where a record lies. segment 0 is nowhere. */
struct kvd_place {
    uint64_t segment; /* the store's number of the segment: never used again, dense, from 1 */
    uint64_t offset;
    uint32_t extent_bytes;
};

enum kvd_segment_state {
    KVD_SEGMENT_OPEN = 1,
    KVD_SEGMENT_SEALED = 2,
    KVD_SEGMENT_DYING = 3,
    KVD_SEGMENT_DEAD = 4
};
enum kvd_gone_reason {
    KVD_GONE_NOT = 0,
    KVD_GONE_EXPIRED = 1,
    KVD_GONE_EVICTED = 2,
    KVD_GONE_LOST = 3,
    KVD_GONE_CORRUPT = 4,
    KVD_GONE_PURGED = 5
};

/* A segment as its tier's user persists it (the index's segments column family). */
struct kvd_segment_info {
    uint64_t segment;
    uint64_t epoch;
    uint64_t number;
    uint64_t slice_s;
    uint64_t bytes; /* of the file, as counted against the cap */
    uint64_t created_s;
    uint64_t died_s; /* DYING, DEAD */
    uint32_t slice_len_s;
    uint32_t records;
    uint16_t scenario;
    uint8_t state; /* enum kvd_segment_state */
    uint8_t gone;  /* enum kvd_gone_reason */
};

/* What the tier's user is told and asked. */
struct kvd_tier_events {
    /* A segment's row changed: write it down. sync: return only when it is durable (before an
     * unlink). */
    int (*segment_changed)(const struct kvd_segment_info *info, bool sync, void *user);
    /* Start-up found a record that the rows don't cover (an unsealed tail, or a lost index). */
    void (*record_found)(const struct kvd_place *place, const struct kvd_record *rec, void *user);
    void *user;
};

struct kvd_tier_options {
    const char *path;       /* folder; its user has made it, durably */
    uint64_t cap_bytes;     /* hard, checked before writing */
    uint64_t segment_bytes; /* 0: chosen: at most cap / 16, within 1 MiB to 1 GiB */
    struct kvd_store_id store;
    uint64_t seed;
    uint64_t epoch;                       /* boot number */
    uint64_t next_segment;                /* first segment number that was never used */
    const struct kvd_segment_info *known; /* rows from the index; borrowed for open */
    uint32_t n_known;
    uint64_t queue_bytes; /* write-behind: most bytes waiting */
    const struct kvd_scenarios *scenarios;
    struct kvd_io *io; /* borrowed, outlives the tier */
    struct kvd_tier_events events;
    struct kvd_log *log;
};

struct kvd_store_request;
typedef void kvd_store_done_fn(struct kvd_store_request *req);

/* One record to write down: a whole extent in 4 KiB-aligned memory that stays until `done`. */
struct kvd_store_request {
    const void *extent;
    uint64_t extent_bytes;
    int buffer_index; /* registered region that holds it, or -1 */
    uint16_t scenario;
    struct kvd_segment_row row; /* for the footer; offset is filled in by the tier */
    uint64_t now_s;
    kvd_store_done_fn *done; /* called when the record is durable, or failed */
    void *user;
    int result; /* 0; -KVD_E_FULL, -KVD_E_IO, -ENOSPC, … */
    struct kvd_place place;
    struct kvd_list link; /* the tier's */
};

struct kvd_fetch_request;
typedef void kvd_fetch_done_fn(struct kvd_fetch_request *req);

/* One record to read, whole, into 4 KiB-aligned memory. What was read is not checked here. */
struct kvd_fetch_request {
    struct kvd_place place;
    void *extent;
    int buffer_index;
    kvd_fetch_done_fn *done;
    void *user;
    int result; /* 0; -KVD_E_NOT_FOUND (segment not live, or its file is gone), -KVD_E_IO, … */
    struct kvd_io_request io; /* the tier's */
    struct kvd_list link;     /* the tier's */
};

/* The records of one live segment, for a check of what lies on the device. */
struct kvd_segment_records {
    struct kvd_segment_info info;
    struct kvd_segment_row *rows; /* the caller's to free */
    uint32_t n_rows;
    int damage;        /* of the segment itself: 0, -KVD_E_CORRUPT, -KVD_E_NEWER, -KVD_E_IO, … */
    const char *where; /* what is damaged: "header", "footer" */
};

struct kvd_tier_stat {
    uint64_t cap_bytes;
    uint64_t used_bytes; /* of files, as counted against the cap */
    uint64_t records;
    uint64_t segments;
    uint64_t queue_bytes;     /* waiting or being written */
    uint64_t written_bytes;   /* since start */
    uint64_t read_bytes;      /* since start */
    uint64_t dropped_records; /* with segments, since start */
    uint64_t failed_writes;
    uint64_t reads;         /* under way */
    uint64_t foreign_files; /* left alone: another store's, damaged, unreadable */
    uint64_t foreign_bytes;
    uint64_t newer_files; /* left alone: they, or records in them, are of a later version */
    uint64_t newer_bytes;
    const char *state; /* "ok", or why not in a few words */
};

struct kvd_tier_ops {
    const char *name;
    int (*open)(const struct kvd_tier_options *options, struct kvd_diag *diag,
                struct kvd_tier **ret);
    /* Queues records, all or none. -KVD_E_BUSY: the queue is full; nothing was taken. */
    int (*store)(struct kvd_tier *tier, struct kvd_store_request *const *reqs, uint32_t n);
    int (*fetch)(struct kvd_tier *tier, struct kvd_fetch_request *const *reqs, uint32_t n);
    /* Whether a segment is live; if not and it is known, ret_info (may be NULL) says when and why
     * it went. */
    bool (*live)(struct kvd_tier *tier, uint64_t segment, struct kvd_segment_info *ret_info);
    /* Throws whole segments away: those for which `expired` says that nothing in them is wanted any
     * more. */
    int (*reclaim)(struct kvd_tier *tier, uint64_t now_s,
                   bool (*expired)(const struct kvd_segment_info *info, void *user), void *user);
    /* Returns when everything queued before the call is durable, or at the deadline
     * (-KVD_E_DEADLINE). */
    int (*flush)(struct kvd_tier *tier, uint64_t deadline_ns);
    /* What the first live segment numbered `from` or higher holds: by its footer, or as it was
     * written so far; where the footer is damaged, by the records' own headers. The rows are not
     * compared with the records. -KVD_E_NOT_FOUND: there is none; -ENOMEM. Reads a few pages, holds
     * up no writer, and the segment may die meanwhile. */
    int (*records)(struct kvd_tier *tier, uint64_t from, struct kvd_segment_records *ret);
    void (*stat)(struct kvd_tier *tier, struct kvd_tier_stat *ret);
    void (*scenario_bytes)(struct kvd_tier *tier, uint64_t *per, uint32_t n);
    void (*close)(struct kvd_tier **tier); /* flushes, seals open segments */
};

struct kvd_tier {
    const struct kvd_tier_ops *ops;
};

extern const struct kvd_tier_ops kvd_tier_nvme;

#endif
