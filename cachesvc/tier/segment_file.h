/*
 * Files of segments: their names, and how one is created, sealed, found again and read. Knows
 * nothing of caps or of which segments there are. All functions wait for the device; none keeps
 * state.
 *
 * Name: <scenario id>/<slice start>-<epoch>-<number>.seg, relative to the tier's folder.
 */
#ifndef CACHESVC_TIER_SEGMENT_FILE_H
#define CACHESVC_TIER_SEGMENT_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "cachesvc/io/io.h"
#include "cachesvc/tier/tier.h"

enum { KVD_SEGMENT_NAME_BYTES = 96 };

void kvd_segment_name(const struct kvd_segment_info *info, char ret_name[KVD_SEGMENT_NAME_BYTES]);

/* Scenario, slice, epoch and number of a name that kvd_segment_name could have made; else false. */
bool kvd_segment_name_parse(const char *folder, const char *file, struct kvd_segment_info *ret);

/* A new file, preallocated where the file system can, with its header; its name is durable when
 * this returns, the header once something in the file is. Leaves nothing behind on failure.
 * *ret_direct: whether it takes direct I/O. */
int kvd_segment_file_create(struct kvd_io *io, int root_fd, const struct kvd_segment_info *info,
                            const struct kvd_segment_header *header, uint64_t prealloc_bytes,
                            int *ret_fd, bool *ret_direct);

/* Opens for reading and writing, direct where that works. */
int kvd_segment_file_open(struct kvd_io *io, int root_fd, const struct kvd_segment_info *info,
                          int *ret_fd);

/* Removes the name; a missing one is no error. */
int kvd_segment_file_unlink(struct kvd_io *io, int root_fd, const struct kvd_segment_info *info);

/* Footer at `end`, then the file is cut there; both are durable when this returns. */
int kvd_segment_file_seal(struct kvd_io *io, int fd, const struct kvd_segment_row *rows,
                          uint32_t n_rows, uint64_t end);

/* What a file takes: the larger of its size and its blocks. */
uint64_t kvd_segment_stat_bytes(const struct stat *st);
/* The same of an open file, and its size. -KVD_E_NOT_FOUND where its name is gone. */
int kvd_segment_file_bytes(int fd, uint64_t *ret_size, uint64_t *ret_charge_bytes);

/* Reads records one by one, into a buffer that grows. */
struct kvd_segment_reader {
    struct kvd_io *io;
    int fd;
    uint64_t file_bytes;
    uint8_t *buf;
    uint64_t buf_bytes;
    uint32_t *tokens;
};

/* Sizes the reader to a file. 0 or -ENOMEM. The descriptor stays the caller's. */
int kvd_segment_reader_init(struct kvd_segment_reader *r, struct kvd_io *io, int fd,
                            uint64_t file_bytes);
void kvd_segment_reader_fini(struct kvd_segment_reader *r);

/* The header page. As kvd_segment_header_decode; -KVD_E_CORRUPT for a file without one, and
 * *ret_blank says that the page is empty. */
int kvd_segment_reader_header(struct kvd_segment_reader *r, struct kvd_segment_header *ret,
                              bool *ret_blank);

/* The footer's rows; *ret_end is where the records end. -KVD_E_FORMAT (none), -KVD_E_CORRUPT, …
 * Rows are the caller's to free. */
int kvd_segment_reader_footer(struct kvd_segment_reader *r, struct kvd_segment_row **ret_rows,
                              uint32_t *ret_n_rows, uint64_t *ret_end);

/* The record at an offset: its header, and with `payload` that its stored payload has its sum. Its
 * tokens stay valid until the next call. *ret_extent_bytes: bytes of the whole record. */
int kvd_segment_reader_record(struct kvd_segment_reader *r, uint64_t offset, bool payload,
                              struct kvd_record *ret_rec, uint32_t *ret_extent_bytes);

#endif
