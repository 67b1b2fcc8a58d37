#include "cachesvc/tier/segment_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

enum {
    READ_STEP_BYTES = 1 << 20, /* of the first read of a record: most are whole then */
    TOKENS_MAX = KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX,
    STAT_BLOCK_BYTES = 512,
};

void kvd_segment_name(const struct kvd_segment_info *info, char ret_name[KVD_SEGMENT_NAME_BYTES])
{
    (void)snprintf(ret_name, KVD_SEGMENT_NAME_BYTES, "%u/%" PRIu64 "-%" PRIu64 "-%" PRIu64 ".seg",
                   (unsigned)info->scenario, info->slice_s, info->epoch, info->number);
}

bool kvd_segment_name_parse(const char *folder, const char *file, struct kvd_segment_info *ret)
{
    struct kvd_segment_info info = {0};
    unsigned scenario;
    if (sscanf(folder, "%5u", &scenario) != 1 || scenario > UINT16_MAX ||
        sscanf(file, "%20" SCNu64 "-%20" SCNu64 "-%20" SCNu64, &info.slice_s, &info.epoch,
               &info.number) != 3) {
        return false;
    }
    info.scenario = (uint16_t)scenario;
    /* only what we would have written ourselves: no signs, zeros or tails */
    char again[KVD_SEGMENT_NAME_BYTES];
    char given[KVD_SEGMENT_NAME_BYTES];
    kvd_segment_name(&info, again);
    int n = snprintf(given, sizeof(given), "%s/%s", folder, file);
    if (n < 0 || (size_t)n >= sizeof(given) || strcmp(again, given) != 0) {
        return false;
    }
    *ret = info;
    return true;
}

static int open_at(struct kvd_io *io, int root_fd, const char *name, int flags, int *ret_fd,
                   bool *ret_direct)
{
    bool direct = true;
    int fd = io->files->open(io, root_fd, name, flags | O_DIRECT);
    if (fd == -EINVAL) { /* this file system has no direct I/O */
        direct = false;
        /* where the first try made a file before it was refused, O_EXCL would stand in the way */
        fd = io->files->open(io, root_fd, name, flags & ~O_EXCL);
    }
    if (fd < 0) {
        return fd;
    }
    *ret_fd = fd;
    *ret_direct = direct;
    return 0;
}

/* Makes the scenario's folder if it is missing, and its name durable. */
static int ensure_folder(struct kvd_io *io, int root_fd, const char *folder)
{
    int err = io->files->mkdir(io, root_fd, folder);
    if (err == 0 && KVD_PROTECT(SYNC_CLASS_FOLDER)) {
        err = io->files->sync_folder(io, root_fd);
    }
    return err == -EEXIST ? 0 : err;
}

static int sync_folder(struct kvd_io *io, int root_fd, const char *folder)
{
    KVD_AUTOCLOSE int fd = io->files->open(io, root_fd, folder, O_RDONLY | O_DIRECTORY);
    return fd < 0 ? fd : io->files->sync_folder(io, fd);
}

/* Not synced by itself: the sync of the first records is the header's too, and before that nothing
 * is in the file. */
static int write_header(struct kvd_io *io, int fd, const struct kvd_segment_header *header)
{
    KVD_AUTOFREE void *page = aligned_alloc(KVD_ALIGN_BYTES, KVD_SEGMENT_HEADER_BYTES);
    if (!page) {
        return -ENOMEM;
    }
    kvd_segment_header_encode(header, page);
    return kvd_io_transfer(io, KVD_IO_WRITE, fd, page, KVD_SEGMENT_HEADER_BYTES, 0);
}

int kvd_segment_file_create(struct kvd_io *io, int root_fd, const struct kvd_segment_info *info,
                            const struct kvd_segment_header *header, uint64_t prealloc_bytes,
                            int *ret_fd, bool *ret_direct)
{
    char name[KVD_SEGMENT_NAME_BYTES];
    char folder[8];
    kvd_segment_name(info, name);
    (void)snprintf(folder, sizeof(folder), "%u", (unsigned)info->scenario);
    KVD_AUTOCLOSE int fd = -1;
    bool direct = false;
    int err = ensure_folder(io, root_fd, folder);
    err = err ? err : open_at(io, root_fd, name, O_RDWR | O_CREAT | O_EXCL, &fd, &direct);
    if (err) {
        return err;
    }
    err = io->files->allocate(io, fd, prealloc_bytes);
    err = err ? err : write_header(io, fd, header);
    if (!err && KVD_PROTECT(SYNC_SEGMENT_NAME)) {
        err = sync_folder(io, root_fd, folder);
    }
    if (err) {
        (void)io->files->unlink(io, root_fd, name);
        return err;
    }
    *ret_fd = kvd_take_fd(&fd);
    *ret_direct = direct;
    return 0;
}

int kvd_segment_file_open(struct kvd_io *io, int root_fd, const struct kvd_segment_info *info,
                          int *ret_fd)
{
    char name[KVD_SEGMENT_NAME_BYTES];
    bool direct;
    kvd_segment_name(info, name);
    return open_at(io, root_fd, name, O_RDWR | O_NOFOLLOW, ret_fd, &direct);
}

int kvd_segment_file_unlink(struct kvd_io *io, int root_fd, const struct kvd_segment_info *info)
{
    char name[KVD_SEGMENT_NAME_BYTES];
    kvd_segment_name(info, name);
    int err = io->files->unlink(io, root_fd, name);
    return err == -ENOENT ? 0 : err;
}

int kvd_segment_file_seal(struct kvd_io *io, int fd, const struct kvd_segment_row *rows,
                          uint32_t n_rows, uint64_t end)
{
    uint64_t bytes = kvd_segment_footer_bytes(n_rows);
    KVD_AUTOFREE void *buf = aligned_alloc(KVD_ALIGN_BYTES, bytes);
    if (!buf) {
        return -ENOMEM;
    }
    kvd_segment_footer_encode(rows, n_rows, buf);
    int err = kvd_io_transfer(io, KVD_IO_WRITE, fd, buf, bytes, end);
    /* in any order on the device: a file that is cut and has no whole footer is scanned */
    err = err ? err : io->files->truncate(io, fd, end + bytes);
    if (!err && KVD_PROTECT(SYNC_FOOTER)) {
        err = kvd_io_transfer(io, KVD_IO_FDATASYNC, fd, NULL, 0, 0);
    }
    return err;
}

uint64_t kvd_segment_stat_bytes(const struct stat *st)
{
    uint64_t size = (uint64_t)st->st_size;
    uint64_t on_disk = (uint64_t)st->st_blocks * STAT_BLOCK_BYTES;
    return size > on_disk ? size : on_disk;
}

int kvd_segment_file_bytes(int fd, uint64_t *ret_size, uint64_t *ret_charge_bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return -errno;
    }
    if (st.st_nlink == 0) {
        return -KVD_E_NOT_FOUND;
    }
    *ret_size = (uint64_t)st.st_size;
    *ret_charge_bytes = kvd_segment_stat_bytes(&st);
    return 0;
}

/* At least `bytes` of buffer; what is in it is lost. */
static int reader_grow(struct kvd_segment_reader *r, uint64_t bytes)
{
    if (bytes <= r->buf_bytes) {
        return 0;
    }
    uint8_t *buf = aligned_alloc(KVD_ALIGN_BYTES, kvd_round_up(bytes, KVD_ALIGN_BYTES));
    if (!buf) {
        return -ENOMEM;
    }
    free(r->buf);
    r->buf = buf;
    r->buf_bytes = kvd_round_up(bytes, KVD_ALIGN_BYTES);
    return 0;
}

int kvd_segment_reader_init(struct kvd_segment_reader *r, struct kvd_io *io, int fd,
                            uint64_t file_bytes)
{
    memset(r, 0, sizeof(*r));
    r->io = io;
    r->fd = fd;
    r->file_bytes = file_bytes;
    r->tokens = calloc(TOKENS_MAX, sizeof(*r->tokens));
    return r->tokens && reader_grow(r, READ_STEP_BYTES) == 0 ? 0 : -ENOMEM;
}

void kvd_segment_reader_fini(struct kvd_segment_reader *r)
{
    free(r->buf);
    free(r->tokens);
    r->buf = NULL;
    r->tokens = NULL;
}

static int read_at(struct kvd_segment_reader *r, uint64_t offset, uint64_t bytes)
{
    int err = reader_grow(r, bytes);
    return err ? err : kvd_io_transfer(r->io, KVD_IO_READ, r->fd, r->buf, bytes, offset);
}

int kvd_segment_reader_header(struct kvd_segment_reader *r, struct kvd_segment_header *ret,
                              bool *ret_blank)
{
    *ret_blank = true;
    if (r->file_bytes < KVD_SEGMENT_HEADER_BYTES) {
        return -KVD_E_CORRUPT;
    }
    int err = read_at(r, 0, KVD_SEGMENT_HEADER_BYTES);
    if (err) {
        *ret_blank = false;
        return err;
    }
    for (uint32_t i = 0; i < KVD_SEGMENT_HEADER_BYTES && *ret_blank; i++) {
        *ret_blank = r->buf[i] == 0;
    }
    err = kvd_segment_header_decode(r->buf, KVD_SEGMENT_HEADER_BYTES, ret);
    return err == -KVD_E_FORMAT && *ret_blank ? -KVD_E_CORRUPT : err;
}

int kvd_segment_reader_footer(struct kvd_segment_reader *r, struct kvd_segment_row **ret_rows,
                              uint32_t *ret_n_rows, uint64_t *ret_end)
{
    if (r->file_bytes % KVD_ALIGN_BYTES != 0 || r->file_bytes < 2 * KVD_ALIGN_BYTES) {
        return -KVD_E_FORMAT;
    }
    uint64_t footer_bytes = 0;
    int err = read_at(r, r->file_bytes - KVD_ALIGN_BYTES, KVD_ALIGN_BYTES);
    err = err ? err : kvd_segment_footer_probe(r->buf, r->file_bytes, &footer_bytes);
    err = err ? err : read_at(r, r->file_bytes - footer_bytes, footer_bytes);
    KVD_AUTOFREE struct kvd_segment_row *rows = NULL;
    uint32_t n = 0;
    err = err ? err : kvd_segment_footer_decode(r->buf, footer_bytes, &rows, &n);
    if (err) {
        return err;
    }
    uint64_t end = r->file_bytes - footer_bytes;
    if (n > 0 && rows[n - 1].offset + rows[n - 1].extent_bytes > end) {
        return -KVD_E_CORRUPT;
    }
    *ret_rows = KVD_TAKE(rows);
    *ret_n_rows = n;
    *ret_end = end;
    return 0;
}

/* Reads at least `want` bytes of the record at offset, or all there is, and decodes its header. */
static int read_record_header(struct kvd_segment_reader *r, uint64_t offset, uint64_t want,
                              struct kvd_record *ret_rec, uint32_t *ret_header_bytes,
                              uint64_t *ret_have)
{
    uint64_t left = (r->file_bytes - offset) / KVD_ALIGN_BYTES * KVD_ALIGN_BYTES;
    uint64_t have = want < left ? want : left;
    int err = read_at(r, offset, have);
    if (err) {
        return err;
    }
    *ret_have = have;
    return kvd_record_decode(r->buf, have, r->tokens, TOKENS_MAX, ret_rec, ret_header_bytes);
}

int kvd_segment_reader_record(struct kvd_segment_reader *r, uint64_t offset, bool payload,
                              struct kvd_record *ret_rec, uint32_t *ret_extent_bytes)
{
    if (offset % KVD_ALIGN_BYTES != 0 || offset + KVD_ALIGN_BYTES > r->file_bytes) {
        return -KVD_E_FORMAT;
    }
    uint32_t header_bytes = 0;
    uint64_t have = 0;
    int err = read_record_header(r, offset, payload ? READ_STEP_BYTES : KVD_ALIGN_BYTES, ret_rec,
                                 &header_bytes, &have);
    if (err == -KVD_E_TOO_LONG && header_bytes > have) {
        err = read_record_header(r, offset, header_bytes, ret_rec, &header_bytes, &have);
    }
    if (err) {
        return err;
    }
    uint64_t extent = kvd_record_extent_bytes(ret_rec);
    if (extent > r->file_bytes - offset) {
        return -KVD_E_CORRUPT;
    }
    if (payload && extent > have) {
        err = read_at(r, offset, extent);
        err =
            err ? err
                : kvd_record_decode(r->buf, extent, r->tokens, TOKENS_MAX, ret_rec, &header_bytes);
    }
    if (!err && payload) {
        err = kvd_record_check_stored(ret_rec, r->buf + header_bytes);
    }
    if (!err) {
        *ret_extent_bytes = (uint32_t)extent;
    }
    return err;
}
