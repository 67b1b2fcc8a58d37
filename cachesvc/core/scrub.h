/*
 * The scrub: one thread that slowly reads over again all that is stored, and finds what went bad
 * before somebody asks for it. A round reads every record of the live segments (footer, header,
 * sum, and that the record is the one its segment lists), then every resident block of dram. A bad
 * record goes the way of all bad records (record_bad).
 *
 * Rounds begin scrub.pause after the last one's end, at scrub.rate bytes a second, and whenever
 * somebody asks (kvdepot verify), at the rate that was asked for. One record at a time is read;
 * before each the scrub lets real reads and writes go first, for a second at most. Where a round is
 * survives a restart: row "scrub" of the index's meta.
 *
 * Threads: its own; the functions may be called from any. scrub.mtx is a leaf.
 */
#ifndef CACHESVC_CORE_SCRUB_H
#define CACHESVC_CORE_SCRUB_H

#include "cachesvc/core/service_private.h"

enum { SCRUB_NVME = 1, SCRUB_DRAM = 2, SCRUB_ALL = SCRUB_NVME | SCRUB_DRAM };

struct scrub_tally {
    uint64_t records; /* read and checked */
    uint64_t bytes;
    uint64_t bad;      /* found now, or known already and still there */
    uint64_t newer;    /* of a later version: left alone */
    uint64_t skipped;  /* could not be read now for want of memory or descriptors */
    uint64_t expected; /* records when the round began */
};

struct scrub_round {
    uint64_t number; /* from 1; 0: none */
    uint64_t rate;   /* bytes a second; 0: no limit */
    uint64_t started_s;
    uint64_t ended_s; /* 0: not yet */
    uint64_t segment; /* where it goes on: this segment from this offset; UINT64_MAX: in dram */
    uint64_t offset;
    struct scrub_tally nvme;
    struct scrub_tally dram;
    uint8_t tiers; /* SCRUB_… */
    bool asked;    /* by somebody, not by the clock */
};

struct scrub_view {
    bool running;
    struct scrub_round now;  /* running, or the latest */
    struct scrub_round last; /* the last whole round of all tiers; number 0: none yet */
    uint64_t idle_s;         /* since the thread last gave a sign of life */
};

/* Reads back where the last run was. */
int scrub_open(struct kvd_service *service, struct kvd_diag *diag);
int scrub_start(struct kvd_service *service);
/* Ends the thread, and writes down where it is. */
void scrub_stop(struct kvd_service *service);
void scrub_close(struct kvd_service *service);

/* A whole round of the tiers, now. A round that was asked for and is under way is joined, where it
 * covers the tiers; a round by the clock is given up for it. Returns its number. */
uint64_t scrub_ask(struct scrub *scrub, uint8_t tiers, uint64_t rate);
void scrub_look(struct scrub *scrub, struct scrub_view *ret);

#endif
