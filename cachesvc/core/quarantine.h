/*
 * Records on a device that turned out to be bad. They lie where they lie until their segment dies;
 * a row for each keeps start-up from taking one up again, and a check from counting it twice. The
 * rows are kept in the index's meta, durably, and in memory.
 *
 * Key: "quarantine/" | segment (u64 big-endian) | offset (u64 big-endian).
 * Value: version (1) | gone (1) | bytes of the text (u16) | rank (u16) | reserved (u16) | put id
 * (u64) | when (u64, UTC seconds) | key (16) | the text, little-endian. A value of another version
 * is left alone, and its place counts as quarantined.
 *
 * Threads: any; one mutex, a leaf, not held while a row is written.
 */
#ifndef CACHESVC_CORE_QUARANTINE_H
#define CACHESVC_CORE_QUARANTINE_H

#include <stdbool.h>
#include <stdint.h>

#include "cachesvc/index/index.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/keys/keys.h"

enum { QUARANTINE_TEXT_MAX = 96 };

struct quarantined {
    uint64_t segment;
    uint64_t offset; /* 0: the segment's own header or footer */
    uint64_t put_id;
    uint64_t when_s;
    struct kvd_key key;
    uint16_t rank;
    uint8_t gone; /* enum kvd_gone_reason: corrupt, or lost (it can't be read) */
    char text[QUARANTINE_TEXT_MAX];
};

struct quarantine;

/* Reads back the rows. The index is borrowed and outlives the quarantine. */
int quarantine_open(struct kvd_index *index, struct kvd_log *log, struct quarantine **ret);
void quarantine_close(struct quarantine **quarantine);

bool quarantine_has(struct quarantine *q, uint64_t segment, uint64_t offset);
/* False when it is there already: then it is no news. Waits until the row is durable; a row that
 * can't be written is logged, and holds until the next start. */
bool quarantine_add(struct quarantine *q, const struct quarantined *row);
/* A segment died: its rows go. */
void quarantine_forget(struct quarantine *q, uint64_t segment);

uint64_t quarantine_count(struct quarantine *q);
/* Copies up to max rows, in order of their places, from the first that is not below (segment,
 * offset) on; returns how many. */
uint32_t quarantine_list(struct quarantine *q, uint64_t segment, uint64_t offset, uint32_t max,
                         struct quarantined *ret);

#endif
