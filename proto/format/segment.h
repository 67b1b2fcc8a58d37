/*
 * The segment: an append-only file of records of one retention class and one time slice, written by
 * one writer. FORMAT.md beside this file specifies every byte.
 *
 *   header (4 KiB) | record | record | … | footer (aligned; lists the records; present once the
 * segment is sealed)
 *
 * A segment without a footer was not sealed: its records are found by scanning from the header on.
 * Names are never used again. Pure functions; safe from any thread. Input to the decoders is not
 * trusted.
 */
#ifndef PROTO_FORMAT_SEGMENT_H
#define PROTO_FORMAT_SEGMENT_H

#include <stdint.h>

#include "proto/base/error.h"
#include "proto/format/record.h"
#include "proto/keys/keys.h"

enum {
    KVD_SEGMENT_VERSION = 1,
    KVD_SEGMENT_HEADER_BYTES = KVD_ALIGN_BYTES,
    KVD_STORE_ID_BYTES = 16,
};

/* Identity of a store, in IDENTITY files and segment headers. */
struct kvd_store_id {
    uint8_t b[KVD_STORE_ID_BYTES];
};

struct kvd_segment_header {
    struct kvd_store_id store;
    uint64_t seed;    /* of the store's keys: rebuilding an index needs it */
    uint64_t writer;  /* number of the writing daemon; 0 on one node */
    uint64_t epoch;   /* boot number of the writer until there is a cluster */
    uint64_t number;  /* within the epoch; (writer, epoch, number) is never used again */
    uint64_t slice_s; /* UTC seconds of the slice's start */
    uint32_t slice_len_s;
    uint16_t scenario; /* id of the retention class */
    uint64_t created_s;
};

/* One row of the footer. */
struct kvd_segment_row {
    uint64_t offset;       /* of the record in the file */
    uint32_t extent_bytes; /* whole record */
    uint16_t n_blocks;
    uint16_t rank;
    uint64_t put_id;
    uint32_t index; /* in the chain, of the first block */
    struct kvd_group_id group;
    struct kvd_key first_key;
};

/* The row of a record that lies at `offset`. */
void kvd_segment_row_of(const struct kvd_record *rec, uint64_t offset, struct kvd_segment_row *ret);

/* Whether a row speaks of this record: its size, blocks, rank, put id, place in the chain, key. 0;
 * -KVD_E_CORRUPT with the field's name in diag (may be NULL). */
int kvd_segment_row_check(const struct kvd_segment_row *row, const struct kvd_record *rec,
                          struct kvd_diag *diag);

/* Writes the header into buf (KVD_SEGMENT_HEADER_BYTES). */
void kvd_segment_header_encode(const struct kvd_segment_header *h, void *buf);

/* 0; -KVD_E_FORMAT, -KVD_E_NEWER, -KVD_E_CORRUPT. n must be at least KVD_SEGMENT_HEADER_BYTES, else
 * -KVD_E_CORRUPT. */
int kvd_segment_header_decode(const void *buf, uint64_t n, struct kvd_segment_header *ret);

/* Padded bytes of a footer with n_rows rows. */
uint64_t kvd_segment_footer_bytes(uint32_t n_rows);

/* Writes the footer, padded, into buf of kvd_segment_footer_bytes(n_rows). It ends in a fixed tail,
 * so that a reader finds it from the end of the file. */
void kvd_segment_footer_encode(const struct kvd_segment_row *rows, uint32_t n_rows, void *buf);

/* From the last KVD_ALIGN_BYTES of a file: how many bytes the footer has. 0; -KVD_E_FORMAT (no
 * footer), -KVD_E_NEWER, -KVD_E_CORRUPT. */
int kvd_segment_footer_probe(const void *last_page, uint64_t file_bytes,
                             uint64_t *ret_footer_bytes);

/* Reads the footer's rows into an array that the caller frees with free(). 0; -KVD_E_CORRUPT,
 * -ENOMEM. */
int kvd_segment_footer_decode(const void *buf, uint64_t footer_bytes,
                              struct kvd_segment_row **ret_rows, uint32_t *ret_n_rows);

#endif
