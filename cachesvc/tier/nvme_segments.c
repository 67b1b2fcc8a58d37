/* Life of the nvme tier's segments: the table, creating, sealing, killing, what counts against the
 * cap, and the descriptors that readers share. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachesvc/tier/nvme_private.h"
#include "proto/base/assert.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

enum {
    /* for the file system's own blocks of a file: extent tree and the like */
    META_BYTES = 16 << 10,
    META_SHARE = 4096,
    CREATE_RETRY_NS = 1000 * KVD_NS_PER_MS,
};

uint64_t kvd_nvme_open_charge(uint64_t segment_bytes)
{
    return segment_bytes + META_BYTES + segment_bytes / META_SHARE;
}

struct nvme_segment *kvd_nvme_add(struct nvme *t, const struct kvd_segment_info *info)
{
    KVD_ASSERT(t->n_table == 0 || t->table[t->n_table - 1]->info.segment < info->segment);
    struct nvme_segment *seg = calloc(1, sizeof(*seg));
    if (!seg) {
        return NULL;
    }
    seg->info = *info;
    seg->fd = -1;
    (void)pthread_mutex_lock(&t->mtx);
    if (t->n_table == t->table_cap) {
        uint32_t cap = t->table_cap ? 2 * t->table_cap : 64;
        struct nvme_segment **table = realloc(t->table, cap * sizeof(struct nvme_segment *));
        if (!table) {
            (void)pthread_mutex_unlock(&t->mtx);
            free(seg);
            return NULL;
        }
        t->table = table;
        t->table_cap = cap;
    }
    t->table[t->n_table++] = seg;
    (void)pthread_mutex_unlock(&t->mtx);
    if (info->segment >= t->next_segment) {
        t->next_segment = info->segment + 1;
    }
    return seg;
}

struct nvme_segment *kvd_nvme_find_locked(struct nvme *t, uint64_t segment)
{
    uint32_t low = 0;
    uint32_t high = t->n_table;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (t->table[mid]->info.segment < segment) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < t->n_table && t->table[low]->info.segment == segment ? t->table[low] : NULL;
}

bool kvd_nvme_is_live(const struct nvme_segment *seg)
{
    return seg->info.state == KVD_SEGMENT_OPEN || seg->info.state == KVD_SEGMENT_SEALED;
}

int kvd_nvme_report(struct nvme *t, const struct nvme_segment *seg, bool sync)
{
    struct kvd_segment_info info = seg->info; /* nobody changes it: change is held */
    int err = t->events.segment_changed(&info, sync, t->events.user);
    if (err) {
        kvd_log_error(t->log, "nvme: the row of segment %" PRIu64 " can't be written: %s",
                      info.segment, kvd_strerror(err));
    }
    return err;
}

void kvd_nvme_charge(struct nvme *t, struct nvme_segment *seg, uint64_t bytes)
{
    (void)pthread_mutex_lock(&t->mtx);
    t->used_bytes = t->used_bytes - seg->info.bytes + bytes;
    seg->info.bytes = bytes;
    (void)pthread_mutex_unlock(&t->mtx);
}

static void set_state(struct nvme *t, struct nvme_segment *seg, enum kvd_segment_state state,
                      enum kvd_gone_reason gone)
{
    (void)pthread_mutex_lock(&t->mtx);
    seg->info.state = (uint8_t)state;
    seg->info.gone = (uint8_t)gone;
    seg->info.died_s = gone == KVD_GONE_NOT && state < KVD_SEGMENT_DYING ? 0 : t->now_s;
    (void)pthread_mutex_unlock(&t->mtx);
}

static void close_fd_locked(struct nvme *t, struct nvme_segment *seg)
{
    if (seg->fd >= 0) {
        (void)close(seg->fd);
        seg->fd = -1;
        t->open_fds--;
    }
}

/* A dead segment's file is closed, so its space is free. */
static void release_locked(struct nvme *t, struct nvme_segment *seg)
{
    close_fd_locked(t, seg);
    t->used_bytes -= seg->info.bytes;
    if (seg->held) {
        seg->held = false;
        t->held_bytes -= seg->info.bytes;
    }
    (void)pthread_cond_broadcast(&t->changed);
}

static void bury(struct nvme *t, struct nvme_segment *seg)
{
    (void)pthread_mutex_lock(&t->mtx);
    seg->info.state = KVD_SEGMENT_DEAD;
    t->dropped_records += seg->info.records;
    if (seg->readers > 0) {
        seg->held = true;
        t->held_bytes += seg->info.bytes;
    } else {
        release_locked(t, seg);
    }
    (void)pthread_mutex_unlock(&t->mtx);
    free(seg->rows);
    seg->rows = NULL;
    seg->n_rows = seg->rows_cap = 0;
}

/* Of a segment whose row says durably that it is DYING. */
static int unlink_and_bury(struct nvme *t, struct nvme_segment *seg)
{
    int err = kvd_segment_file_unlink(t->io, t->root_fd, &seg->info);
    if (!err) {
        bury(t, seg);
        (void)kvd_nvme_report(t, seg, false);
    }
    return err;
}

int kvd_nvme_kill(struct nvme *t, struct nvme_segment *seg, enum kvd_gone_reason reason)
{
    KVD_ASSERT(kvd_nvme_is_live(seg) && !seg->busy);
    enum kvd_segment_state was = seg->info.state;
    char name[KVD_SEGMENT_NAME_BYTES];
    kvd_segment_name(&seg->info, name);
    set_state(t, seg, KVD_SEGMENT_DYING, reason);
    int err = kvd_nvme_report(t, seg, KVD_PROTECT(SYNC_DYING_ROW));
    if (err) {
        set_state(t, seg, was, KVD_GONE_NOT);
        return err;
    }
    seg->appendable = false;
    err = unlink_and_bury(t, seg);
    if (err) {
        /* stays DYING, and counted; whoever needs room, reclaim and the next start try again */
        kvd_log_error(t->log, "nvme: segment %s can't be unlinked: %s", name, kvd_strerror(err));
        (void)pthread_mutex_lock(&t->mtx);
        t->undead++;
        (void)pthread_mutex_unlock(&t->mtx);
    }
    return err;
}

int kvd_nvme_unlink_dying(struct nvme *t)
{
    int first_err = 0;
    for (uint32_t i = 0; i < t->n_table; i++) {
        if (t->table[i]->info.state != KVD_SEGMENT_DYING) {
            continue;
        }
        int err = unlink_and_bury(t, t->table[i]);
        first_err = first_err ? first_err : err;
        (void)pthread_mutex_lock(&t->mtx);
        t->undead -= err == 0;
        (void)pthread_mutex_unlock(&t->mtx);
    }
    return first_err;
}

/* The oldest live segment that isn't being written: by slice, then creation. */
static struct nvme_segment *choose_victim(struct nvme *t, bool *ret_any_busy)
{
    struct nvme_segment *oldest = NULL;
    *ret_any_busy = false;
    for (uint32_t i = 0; i < t->n_table; i++) {
        struct nvme_segment *seg = t->table[i];
        if (!kvd_nvme_is_live(seg) || seg->newer) {
            continue;
        }
        if (seg->busy) {
            *ret_any_busy = true;
        } else if (!oldest || seg->info.slice_s < oldest->info.slice_s ||
                   (seg->info.slice_s == oldest->info.slice_s &&
                    seg->info.created_s < oldest->info.created_s)) {
            oldest = seg;
        }
    }
    return oldest;
}

/* Waits for readers of dead segments until `bytes` more fit. */
static int wait_for_readers(struct nvme *t, uint64_t bytes)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += NVME_DRAIN_S;
    int err = 0;
    (void)pthread_mutex_lock(&t->mtx);
    while (err == 0 && t->used_bytes + bytes > t->cap_bytes) {
        err = pthread_cond_timedwait(&t->changed, &t->mtx, &until);
    }
    (void)pthread_mutex_unlock(&t->mtx);
    return err ? -KVD_E_FULL : 0;
}

int kvd_nvme_make_room(struct nvme *t, uint64_t bytes)
{
    for (;;) {
        (void)pthread_mutex_lock(&t->mtx);
        uint64_t used = t->used_bytes;
        uint64_t held = t->held_bytes;
        (void)pthread_mutex_unlock(&t->mtx);
        if (used + bytes <= t->cap_bytes) {
            return 0;
        }
        if (used - held + bytes <= t->cap_bytes) {
            return wait_for_readers(t, bytes);
        }
        /* where files can't be unlinked, killing one after the other would empty the tier and make
         * no room */
        int err = KVD_PROTECT(NO_VICTIMS_IN_VAIN) ? kvd_nvme_unlink_dying(t) : 0;
        if (err) {
            return err;
        }
        bool any_busy;
        struct nvme_segment *victim = choose_victim(t, &any_busy);
        if (!victim) {
            return any_busy ? -KVD_E_BUSY : -KVD_E_FULL;
        }
        err = kvd_nvme_kill(t, victim, KVD_GONE_EVICTED);
        if (err) {
            return err;
        }
    }
}

int kvd_nvme_reserve_row(struct nvme_segment *seg, uint32_t used)
{
    if (used < seg->rows_cap) {
        return 0;
    }
    uint32_t cap = seg->rows_cap ? 2 * seg->rows_cap : 64;
    struct kvd_segment_row *rows = realloc(seg->rows, cap * sizeof(*rows));
    if (!rows) {
        return -ENOMEM;
    }
    seg->rows = rows;
    seg->rows_cap = cap;
    return 0;
}

struct nvme_segment *kvd_nvme_appendable(struct nvme *t, uint16_t scenario)
{
    for (uint32_t i = t->n_table; i > 0; i--) {
        struct nvme_segment *seg = t->table[i - 1];
        if (seg->appendable && seg->info.scenario == scenario) {
            return seg;
        }
    }
    return NULL;
}

/* The file; where the disk is full by somebody else's doing, once more after evicting the oldest.
 * If that doesn't help, the next attempts within a second don't evict. */
static int create_file(struct nvme *t, const struct kvd_segment_info *info,
                       const struct kvd_segment_header *header, int *ret_fd)
{
    bool direct = true;
    struct stat st;
    int err =
        kvd_segment_file_create(t->io, t->root_fd, info, header, t->segment_bytes, ret_fd, &direct);
    if (err == -ENOSPC && kvd_mono_ns() >= t->no_space_until_ns) {
        bool any_busy;
        struct nvme_segment *victim = choose_victim(t, &any_busy);
        if (victim && kvd_nvme_kill(t, victim, KVD_GONE_EVICTED) == 0) {
            err = kvd_segment_file_create(t->io, t->root_fd, info, header, t->segment_bytes, ret_fd,
                                          &direct);
        }
        t->no_space_until_ns = err == -ENOSPC ? kvd_mono_ns() + CREATE_RETRY_NS : 0;
    }
    (void)pthread_mutex_lock(&t->mtx);
    t->no_space = err == -ENOSPC;
    t->folder_gone = err == -ENOENT && fstat(t->root_fd, &st) == 0 && st.st_nlink == 0;
    t->buffered = t->buffered || !direct;
    (void)pthread_mutex_unlock(&t->mtx);
    return err;
}

static void header_of(const struct nvme *t, const struct kvd_segment_info *info,
                      struct kvd_segment_header *ret)
{
    *ret = (struct kvd_segment_header){.store = t->store,
                                       .seed = t->seed,
                                       .epoch = info->epoch,
                                       .number = info->number,
                                       .slice_s = info->slice_s,
                                       .slice_len_s = info->slice_len_s,
                                       .scenario = info->scenario,
                                       .created_s = info->created_s};
}

/* Takes a file into the table and reports its row. The file is gone on failure. */
static int adopt_new(struct nvme *t, const struct kvd_segment_info *info, int fd,
                     struct nvme_segment **ret)
{
    struct nvme_segment *seg = kvd_nvme_add(t, info);
    if (!seg) {
        (void)kvd_segment_file_unlink(t->io, t->root_fd, info);
        (void)close(fd);
        return -ENOMEM;
    }
    (void)pthread_mutex_lock(&t->mtx);
    seg->fd = fd;
    seg->used_tick = ++t->tick;
    t->open_fds++;
    t->used_bytes += info->bytes;
    (void)pthread_mutex_unlock(&t->mtx);
    seg->end = KVD_SEGMENT_HEADER_BYTES;
    int err = kvd_nvme_report(t, seg, false);
    if (err) {
        (void)kvd_segment_file_unlink(t->io, t->root_fd, info);
        bury(t, seg);
        return err;
    }
    seg->appendable = true;
    *ret = seg;
    return 0;
}

int kvd_nvme_create(struct nvme *t, const struct kvd_scenario *scenario, uint64_t slice_s,
                    struct nvme_segment **ret)
{
    uint64_t charge = kvd_nvme_open_charge(t->segment_bytes);
    int err = kvd_nvme_make_room(t, charge);
    if (err) {
        return err;
    }
    struct kvd_segment_info info = {.epoch = t->epoch,
                                    .slice_s = slice_s,
                                    .bytes = charge,
                                    .created_s = t->now_s,
                                    .slice_len_s = (uint32_t)scenario->slice_s,
                                    .scenario = scenario->id,
                                    .state = KVD_SEGMENT_OPEN};
    struct kvd_segment_header header;
    int fd = -1;
    do { /* a name that is taken, by a file that was left alone, is used up */
        info.segment = t->next_segment++;
        info.number = info.segment;
        header_of(t, &info, &header);
        err = create_file(t, &info, &header, &fd);
    } while (err == -EEXIST);
    return err ? err : adopt_new(t, &info, fd, ret);
}

int kvd_nvme_foot(struct nvme *t, struct nvme_segment *seg)
{
    uint64_t size;
    uint64_t charge = 0;
    int err = kvd_segment_file_bytes(seg->fd, &size, &charge);
    if (err == -KVD_E_NOT_FOUND) {
        return err;
    }
    err = err ? err : kvd_segment_file_seal(t->io, seg->fd, seg->rows, seg->n_rows, seg->end);
    err = err ? err : kvd_segment_file_bytes(seg->fd, &size, &charge);
    if (err) {
        char name[KVD_SEGMENT_NAME_BYTES];
        kvd_segment_name(&seg->info, name);
        kvd_log_error(t->log, "nvme: segment %s can't be sealed: %s", name, kvd_strerror(err));
        (void)pthread_mutex_lock(&t->mtx);
        t->unsealed = true;
        (void)pthread_mutex_unlock(&t->mtx);
        return err;
    }
    kvd_nvme_charge(t, seg, charge);
    seg->footed = true;
    return 0;
}

int kvd_nvme_seal(struct nvme *t, struct nvme_segment *seg)
{
    KVD_ASSERT(seg->info.state == KVD_SEGMENT_OPEN && !seg->busy);
    seg->appendable = false;
    if (seg->n_rows == 0) {
        return kvd_nvme_kill(t, seg, KVD_GONE_NOT);
    }
    int err = seg->footed ? 0 : kvd_nvme_foot(t, seg);
    if (err) {
        return err == -KVD_E_NOT_FOUND ? kvd_nvme_kill(t, seg, KVD_GONE_LOST) : err;
    }
    set_state(t, seg, KVD_SEGMENT_SEALED, KVD_GONE_NOT);
    free(seg->rows);
    seg->rows = NULL;
    seg->n_rows = seg->rows_cap = 0;
    return kvd_nvme_report(t, seg, false);
}

void kvd_nvme_bury_lost(struct nvme *t)
{
    for (uint32_t i = 0; i < t->n_table; i++) {
        struct nvme_segment *seg = t->table[i];
        (void)pthread_mutex_lock(&t->mtx);
        bool lost = seg->lost && !seg->busy && kvd_nvme_is_live(seg);
        seg->lost = seg->lost && seg->busy;
        (void)pthread_mutex_unlock(&t->mtx);
        if (lost) {
            kvd_log_error(t->log, "nvme: the file of segment %" PRIu64 " is gone",
                          seg->info.segment);
            (void)kvd_nvme_kill(t, seg, KVD_GONE_LOST);
        }
    }
}

/* Closes the descriptor that was unused longest; those that are read or written stay. */
static void close_unused_locked(struct nvme *t)
{
    struct nvme_segment *oldest = NULL;
    for (uint32_t i = 0; i < t->n_table; i++) {
        struct nvme_segment *seg = t->table[i];
        if (seg->fd >= 0 && seg->readers == 0 && seg->info.state == KVD_SEGMENT_SEALED &&
            (!oldest || seg->used_tick < oldest->used_tick)) {
            oldest = seg;
        }
    }
    if (oldest) {
        close_fd_locked(t, oldest);
    }
}

/* Opens the file for a reader that is counted already. mtx is held, but not while the file system
 * works: it may hang, and all look-ups ask this tier what is live. */
static int open_for_reader_locked(struct nvme *t, struct nvme_segment *seg)
{
    if (t->open_fds >= NVME_FDS_MAX) {
        close_unused_locked(t);
    }
    int fd = -1;
    const struct kvd_segment_info info = seg->info;
    (void)pthread_mutex_unlock(&t->mtx);
    int err = kvd_segment_file_open(t->io, t->root_fd, &info, &fd);
    (void)pthread_mutex_lock(&t->mtx);
    if (!err && seg->fd < 0) {
        seg->fd = fd;
        t->open_fds++;
    } else if (!err) { /* somebody else was quicker */
        (void)close(fd);
    } else if (err == -ENOENT && KVD_PROTECT(DELETED_IS_A_MISS)) {
        err = -KVD_E_NOT_FOUND;
        seg->lost = kvd_nvme_is_live(seg);
        t->any_lost = t->any_lost || seg->lost;
        (void)pthread_cond_signal(&t->work);
    }
    return err;
}

static void reader_put_locked(struct nvme *t, struct nvme_segment *seg)
{
    KVD_ASSERT(seg->readers > 0);
    if (--seg->readers == 0 && seg->held) {
        release_locked(t, seg);
    }
}

int kvd_nvme_reader_get(struct nvme *t, uint64_t segment, int *ret_fd)
{
    (void)pthread_mutex_lock(&t->mtx);
    struct nvme_segment *seg = kvd_nvme_find_locked(t, segment);
    int err = seg && kvd_nvme_is_live(seg) && !seg->lost ? 0 : -KVD_E_NOT_FOUND;
    if (!err) {
        seg->readers++;
        err = seg->fd < 0 ? open_for_reader_locked(t, seg) : 0;
        if (err) {
            reader_put_locked(t, seg);
        } else {
            seg->used_tick = ++t->tick;
            *ret_fd = seg->fd;
        }
    }
    (void)pthread_mutex_unlock(&t->mtx);
    return err;
}

void kvd_nvme_reader_put(struct nvme *t, uint64_t segment, uint64_t read_bytes)
{
    (void)pthread_mutex_lock(&t->mtx);
    reader_put_locked(t, kvd_nvme_find_locked(t, segment));
    t->read_bytes += read_bytes;
    (void)pthread_mutex_unlock(&t->mtx);
}
