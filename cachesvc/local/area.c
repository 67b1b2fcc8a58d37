/*
 * The request area: memory shared with one client, for arrays that are too long for a packet. The
 * client may write to it at any moment, so nothing in it is used before it was copied. And memory
 * for a long text, which nobody may write to any more.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cachesvc/local/door.h"
#include "proto/base/cleanup.h"

int local_area_create(int *ret_fd, uint8_t **ret_map)
{
    KVD_AUTOCLOSE int fd = memfd_create("kvdepot-request-area", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    /* sealed, so that the client cannot shrink it under the door's copy (which would be SIGBUS) */
    if (fd < 0 || ftruncate(fd, KVD_WIRE_REQUEST_AREA_BYTES) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        return -errno;
    }
    void *map = mmap(NULL, KVD_WIRE_REQUEST_AREA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        return -errno;
    }
    (void)madvise(map, KVD_WIRE_REQUEST_AREA_BYTES, MADV_DONTFORK);
    *ret_fd = kvd_take_fd(&fd);
    *ret_map = map;
    return 0;
}

void local_area_unmap(uint8_t **map)
{
    if (*map) {
        (void)munmap(*map, KVD_WIRE_REQUEST_AREA_BYTES);
        *map = NULL;
    }
}

int local_text_create(const char *text, size_t n, int *ret_fd)
{
    KVD_AUTOCLOSE int fd = memfd_create("kvdepot-report", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    size_t done = 0;
    while (fd >= 0 && done < n) {
        ssize_t wrote = write(fd, text + done, n - done);
        if (wrote <= 0 && errno != EINTR) {
            return wrote < 0 ? -errno : -ENOSPC;
        }
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    if (fd < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        return -errno;
    }
    *ret_fd = kvd_take_fd(&fd);
    return 0;
}

int local_range_check(const Kvd__Wire__Range *range, size_t element_bytes, uint64_t max,
                      const char *what, struct kvd_diag *diag, uint32_t *ret_n)
{
    if (!range) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "%s: no range given", what);
    }
    uint64_t n = range->bytes / element_bytes;
    bool inside = range->offset <= KVD_WIRE_REQUEST_AREA_BYTES &&
                  range->bytes <= KVD_WIRE_REQUEST_AREA_BYTES - range->offset;
    size_t align = element_bytes < 8 ? element_bytes : 8;
    if (!inside || range->offset % align || range->bytes % element_bytes || n < 1 || n > max) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "%s: range of %llu bytes at %llu; must be 1 to %llu whole elements of %zu "
                        "bytes, aligned, within %d",
                        what, (unsigned long long)range->bytes, (unsigned long long)range->offset,
                        (unsigned long long)max, element_bytes, KVD_WIRE_REQUEST_AREA_BYTES);
    }
    *ret_n = (uint32_t)n;
    return 0;
}

int local_scratch_room(struct local_scratch *s, size_t bytes)
{
    if (s->size >= bytes) {
        return 0;
    }
    void *grown = realloc(s->bytes, bytes);
    if (!grown) {
        return -ENOMEM;
    }
    s->bytes = grown;
    s->size = bytes;
    return 0;
}
