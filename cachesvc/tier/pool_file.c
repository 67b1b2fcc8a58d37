/*
 * The pool's file: found again or made, mapped, its pages allocated, and the headers in it written
 * and read. What is read is not trusted: sums and ranges are checked.
 *
 * A file is never made shorter and never punched: whoever maps it would get other pages than the
 * pool writes. A pool file that doesn't fit is unlinked and a new one made; old mappings keep the
 * old. A file that is no pool file is somebody's data under a mistyped path: refused, never
 * removed.
 *
 * Order of writing, so that a kill at any moment leaves what can be read back: a slot's bytes
 * before its meta, its meta before READY; a page's slot headers before its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "cachesvc/tier/pool_internal.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

#define FILE_MAGIC UINT64_C(0x316c6f6f7064766b) /* "kvdpool1" */
#define PAGE_MAGIC UINT64_C(0x3165676170647670) /* "pvdpage1" */
enum { BYTE_ORDER_MARK = 0x01020304, POOL_FILE_MODE = 0600, MODE_FOR_ALL = 0666 };

/* ---- the file ---- */

static void file_header_fill(const struct kvd_pool *pool, const struct kvd_store_id *store,
                             struct pool_file_header *ret)
{
    *ret = (struct pool_file_header){
        .magic = FILE_MAGIC,
        .version = POOL_FILE_VERSION,
        .byte_order = BYTE_ORDER_MARK,
        .file_bytes = pool->layout.file_bytes,
        .page_bytes = pool->layout.page_bytes,
        .slot_header_bytes = sizeof(struct pool_slot_header),
        .store = *store,
    };
    ret->sum = XXH3_64bits(ret, offsetof(struct pool_file_header, sum));
}

/* Whether the open file is this store's pool of this size: then its header is what we would write.
 */
static bool file_fits(const struct kvd_pool *pool, int fd, const struct stat *st,
                      const struct kvd_store_id *store)
{
    struct pool_file_header want;
    struct pool_file_header have;
    file_header_fill(pool, store, &want);
    /* who could open it while its rights were wider may hold it for writing still */
    return (st->st_mode & 07777) == POOL_FILE_MODE && st->st_nlink == 1 &&
           (uint64_t)st->st_size == pool->layout.file_bytes &&
           pread(fd, &have, sizeof(have), 0) == (ssize_t)sizeof(have) &&
           (!KVD_PROTECT(POOL_OF_THIS_STORE) || memcmp(&have, &want, sizeof(want)) == 0);
}

static int lock_file(int fd, const char *path, struct kvd_diag *diag)
{
    if (!KVD_PROTECT(POOL_LOCK) || flock(fd, LOCK_EX | LOCK_NB) == 0) {
        return 0;
    }
    return kvd_fail(diag, errno == EWOULDBLOCK ? -KVD_E_IN_USE : -errno,
                    "pool file %s: %s; stop the other daemon or give this one another path", path,
                    errno == EWOULDBLOCK ? "another process has it" : strerror(errno));
}

/* Whether the open file may be thrown away: it is empty, begins like a pool file of whatever size
 * and store, or was left half-made, without its header (see create_file). */
static bool file_is_replaceable(int fd, const struct stat *st)
{
    static const uint8_t zero[POOL_UNIT_BYTES];
    uint8_t unit[POOL_UNIT_BYTES];
    uint64_t magic;
    if (st->st_size == 0) {
        return true;
    }
    const ssize_t n = pread(fd, unit, sizeof(unit), 0);
    if (n < (ssize_t)sizeof(magic)) {
        return false;
    }
    memcpy(&magic, unit, sizeof(magic));
    return magic == FILE_MAGIC ||
           (n == (ssize_t)sizeof(unit) && memcmp(unit, zero, sizeof(unit)) == 0);
}

/* Opens what lies at path. *ret_fd is -1 when nothing does, or a pool file that doesn't fit: that
 * is gone. */
static int open_existing(const struct kvd_pool *pool, const struct kvd_pool_options *options,
                         struct kvd_diag *diag, int *ret_fd)
{
    const char *path = options->path;
    KVD_AUTOCLOSE int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd < 0 && errno == ENOENT) {
        *ret_fd = -1;
        return 0;
    }
    if (fd < 0 || fstat(fd, &st) != 0) {
        const int err = errno;
        return kvd_fail(diag, -err, "pool file %s: %s; remove it or choose another path", path,
                        err == ELOOP ? "is a symbolic link" : strerror(err));
    }
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
        return kvd_fail(diag, -KVD_E_CONFIG, "pool file %s: %s; remove it or choose another path",
                        path, S_ISREG(st.st_mode) ? "belongs to another user" : "is not a file");
    }
    const int err = lock_file(fd, path, diag);
    if (err) {
        return err;
    }
    if (!options->drop && file_fits(pool, fd, &st, &options->store)) {
        *ret_fd = kvd_take_fd(&fd);
        return 0;
    }
    if (!file_is_replaceable(fd, &st)) {
        return kvd_fail(
            diag, -KVD_E_WRONG_STORE,
            "pool file %s: is not a pool file and is left as it is; remove it, or choose "
            "another path (dram.path)",
            path);
    }
    if (unlink(path) != 0 && errno != ENOENT) {
        return kvd_fail(diag, -errno, "pool file %s: cannot replace it: %s", path, strerror(errno));
    }
    *ret_fd = -1;
    return 0;
}

/* The header comes last: a file without one is replaced at the next start. */
static int create_file(const struct kvd_pool *pool, const struct kvd_pool_options *options,
                       struct kvd_diag *diag, int *ret_fd)
{
    const char *path = options->path;
    const mode_t mode = KVD_PROTECT(POOL_FILE_PRIVATE) ? POOL_FILE_MODE : MODE_FOR_ALL;
    KVD_AUTOCLOSE int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0) {
        return kvd_fail(diag, -errno, "pool file %s: cannot be made: %s", path, strerror(errno));
    }
    int err = lock_file(fd, path, diag);
    if (err) {
        return err;
    }
    uint8_t unit[POOL_UNIT_BYTES] = {0};
    struct pool_file_header header;
    file_header_fill(pool, &options->store, &header);
    memcpy(unit, &header, sizeof(header));
    /* the umask may have taken bits away that a later start would miss */
    if (fchmod(fd, mode) != 0 || ftruncate(fd, (off_t)pool->layout.file_bytes) != 0) {
        err = -errno;
    } else {
        const ssize_t wrote = pwrite(fd, unit, sizeof(unit), 0);
        err = wrote == (ssize_t)sizeof(unit) ? 0 : wrote < 0 ? -errno : -ENOSPC;
    }
    if (err) {
        (void)unlink(path);
        return kvd_fail(diag, err, "pool file %s: cannot get %llu bytes: %s", path,
                        (unsigned long long)pool->layout.file_bytes, strerror(-err));
    }
    *ret_fd = kvd_take_fd(&fd);
    return 0;
}

/* A second open of the same file, so that the descriptor's own mode is read-only. */
static int open_readonly(const char *path, int fd, struct kvd_diag *diag, int *ret_fd)
{
    const int access = KVD_PROTECT(POOL_FD_READONLY) ? O_RDONLY : O_RDWR;
    KVD_AUTOCLOSE int ro = open(path, access | O_NOFOLLOW | O_CLOEXEC);
    struct stat a;
    struct stat b;
    if (ro < 0 || fstat(ro, &a) != 0 || fstat(fd, &b) != 0) {
        return kvd_fail(diag, -errno, "pool file %s: %s", path, strerror(errno));
    }
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino) {
        return kvd_fail(diag, -KVD_E_IN_USE, "pool file %s: was replaced while it was opened",
                        path);
    }
    *ret_fd = kvd_take_fd(&ro);
    return 0;
}

static int map_file(struct kvd_pool *pool, const char *path, struct kvd_diag *diag)
{
    const size_t bytes = (size_t)pool->layout.file_bytes;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pool->fd, 0);
    if (map == MAP_FAILED) {
        return kvd_fail(diag, -errno, "pool file %s: cannot map %zu bytes: %s", path, bytes,
                        strerror(errno));
    }
    pool->map = map;
    (void)madvise(map, bytes, MADV_DONTDUMP); /* users' prompts don't belong in a core file */
    return 0;
}

int pool_file_open(struct kvd_pool *pool, const struct kvd_pool_options *options,
                   struct kvd_diag *diag, bool *ret_fresh)
{
    int err = open_existing(pool, options, diag, &pool->fd);
    if (err) {
        return err;
    }
    const bool fresh = pool->fd < 0;
    err = fresh ? create_file(pool, options, diag, &pool->fd) : 0;
    err = err ? err : open_readonly(options->path, pool->fd, diag, &pool->fd_readonly);
    err = err ? err : map_file(pool, options->path, diag);
    if (!err) {
        *ret_fresh = fresh;
    }
    return err;
}

void pool_file_close(struct kvd_pool *pool)
{
    if (pool->map) {
        (void)munmap(pool->map, (size_t)pool->layout.file_bytes);
        pool->map = NULL;
    }
    kvd_close_fd(&pool->fd_readonly);
    kvd_close_fd(&pool->fd);
}

int pool_file_allocate_page(const struct kvd_pool *pool, uint32_t page)
{
    const off_t at = (off_t)pool_layout_page_offset(&pool->layout, page);
    while (fallocate(pool->fd, 0, at, (off_t)pool->layout.page_bytes) != 0) {
        if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

/* ---- pages ---- */

static uint8_t *page_base(const struct kvd_pool *pool, uint32_t page)
{
    return pool->map + pool_layout_page_offset(&pool->layout, page);
}

_Atomic uint32_t *pool_file_generation(const struct kvd_pool *pool, uint32_t page, uint32_t slot)
{
    return (_Atomic uint32_t *)(void *)(page_base(pool, page) + POOL_GENERATIONS_OFFSET) + slot;
}

static struct pool_slot_header *slot_header(const struct kvd_pool *pool, uint32_t page,
                                            uint32_t slot)
{
    uint8_t *at = page_base(pool, page) + POOL_GENERATIONS_OFFSET +
                  sizeof(uint32_t) * (size_t)pool->layout.max_slots;
    return (struct pool_slot_header *)(void *)kvd_round_up((uintptr_t)at, sizeof(uint64_t)) + slot;
}

static void page_header_fill(const struct kvd_pool *pool, uint32_t page, int class,
                             struct pool_page_header *ret)
{
    const struct pool_shape *shape = &pool->layout.shape[class];
    *ret = (struct pool_page_header){
        .magic = PAGE_MAGIC,
        .version = POOL_FILE_VERSION,
        .state = POOL_PAGE_USED,
        .page = page,
        .slots = shape->slots,
        .slot_bytes = shape->slot_bytes,
    };
    ret->sum = XXH3_64bits(ret, offsetof(struct pool_page_header, sum));
}

int pool_file_page_class(const struct kvd_pool *pool, uint32_t page)
{
    static const struct pool_page_header zero;
    struct pool_page_header have;
    struct pool_page_header want;
    /* not through the mapping: reading a hole there would make the file system fill it */
    if (pread(pool->fd, &have, sizeof(have), (off_t)pool_layout_page_offset(&pool->layout, page)) !=
        (ssize_t)sizeof(have)) {
        return -KVD_E_CORRUPT;
    }
    if (memcmp(&have, &zero, sizeof(have)) == 0) {
        return -KVD_E_NOT_FOUND;
    }
    const int class = pool_layout_class(&pool->layout, have.slot_bytes);
    if (class < 0) {
        return -KVD_E_CORRUPT;
    }
    page_header_fill(pool, page, class, &want);
    return !KVD_PROTECT(POOL_PAGE_SUM) || memcmp(&have, &want, sizeof(want)) == 0 ? class
                                                                                  : -KVD_E_CORRUPT;
}

void pool_file_page_format(const struct kvd_pool *pool, uint32_t page, int class)
{
    struct pool_page_header *header = (struct pool_page_header *)(void *)page_base(pool, page);
    memset(header, 0, sizeof(*header));
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t i = 0; i < pool->layout.max_slots; i++) {
        _Atomic uint32_t *generation = pool_file_generation(pool, page, i);
        const uint32_t next = atomic_load_explicit(generation, memory_order_relaxed) + 1;
        atomic_store_explicit(generation, next, memory_order_release);
    }
    /* the new slot headers may lie on what were bytes of the old class's slots */
    atomic_thread_fence(memory_order_seq_cst);
    if (KVD_PROTECT(POOL_PAGE_WIPED)) {
        memset(slot_header(pool, page, 0), 0,
               sizeof(struct pool_slot_header) * (size_t)pool->layout.shape[class].slots);
    }
    struct pool_page_header fresh;
    page_header_fill(pool, page, class, &fresh);
    atomic_thread_fence(memory_order_seq_cst);
    memcpy(header, &fresh, sizeof(fresh));
}

/* ---- slots ---- */

static struct pool_slot_header *header_of(const struct kvd_pool *pool, const struct pool_slot *slot)
{
    return slot_header(pool, (uint32_t)slot->pub.page, pool_slot_index(pool, slot));
}

void pool_file_slot_state(const struct kvd_pool *pool, const struct pool_slot *slot,
                          enum pool_slot_state state)
{
    KVD_ASSERT(state != POOL_SLOT_REMOVED);
    __atomic_store_n(&header_of(pool, slot)->state, (uint32_t)state, __ATOMIC_RELEASE);
}

uint32_t pool_file_slot_begin(const struct kvd_pool *pool, const struct pool_slot *slot)
{
    _Atomic uint32_t *generation =
        pool_file_generation(pool, (uint32_t)slot->pub.page, pool_slot_index(pool, slot));
    const uint32_t next = atomic_load_explicit(generation, memory_order_relaxed) +
                          (KVD_PROTECT(GENERATION_RAISED) ? 1 : 0);
    pool_file_slot_state(pool, slot, POOL_SLOT_FILLING);
    atomic_store_explicit(generation, next, memory_order_release);
    /* nothing that the caller writes into the slot may be seen before it */
    atomic_thread_fence(memory_order_seq_cst);
    return next;
}

static uint64_t slot_header_sum(const struct pool_slot_header *h, uint64_t file_offset)
{
    const size_t from = offsetof(struct pool_slot_header, index);
    return XXH3_64bits_withSeed((const uint8_t *)h + from,
                                offsetof(struct pool_slot_header, sum) - from, file_offset);
}

void pool_file_slot_meta(const struct kvd_pool *pool, const struct pool_slot *slot)
{
    const struct kvd_slot_meta *meta = &slot->pub.meta;
    struct pool_slot_header *h = header_of(pool, slot);
    struct pool_slot_header fresh = {
        .state = h->state,
        .index = meta->index,
        .key = meta->addr.key,
        .group = meta->group,
        .rank = meta->addr.rank,
        .scenario = meta->scenario,
        .last_use_day = meta->last_use_day,
        .created_day = meta->created_day,
        .put_id = meta->put_id,
        .header_bytes = meta->header_bytes,
        .payload_bytes = meta->payload_bytes,
        .used_tick = slot->used_tick,
        .nvme_segment = meta->nvme_segment,
    };
    fresh.sum = slot_header_sum(&fresh, slot->pub.file_offset);
    *h = fresh;
}

bool pool_file_slot_read(const struct kvd_pool *pool, struct pool_slot *slot)
{
    const struct pool_slot_header h = *header_of(pool, slot);
    const uint64_t extent =
        (uint64_t)h.header_bytes + kvd_round_up(h.payload_bytes, POOL_UNIT_BYTES);
    bool sum_right =
        !KVD_PROTECT(POOL_SLOT_SUM) || h.sum == slot_header_sum(&h, slot->pub.file_offset);
    bool ready = !KVD_PROTECT(FILLING_IS_NOT_READY) || h.state == POOL_SLOT_READY;
    if (!ready || !sum_right || h.header_bytes == 0 || h.header_bytes % POOL_UNIT_BYTES != 0 ||
        extent > slot->pub.slot_bytes) {
        return false;
    }
    slot->pub.meta = (struct kvd_slot_meta){
        .addr = {h.key, h.rank},
        .group = h.group,
        .index = h.index,
        .scenario = h.scenario,
        .nvme_segment = kvd_slot_segment(h.nvme_segment),
        .last_use_day = h.last_use_day,
        .created_day = h.created_day,
        .put_id = h.put_id,
        .header_bytes = h.header_bytes,
        .payload_bytes = h.payload_bytes,
    };
    slot->used_tick = h.used_tick;
    return true;
}
