/*
 * Start-up of what lies below dram: segment rows from the index, the tier over them, and what the
 * tier finds that the rows don't cover (an unsealed tail after a crash, or everything after a lost
 * index) put back into the index. Doing it twice changes nothing.
 */
#include <errno.h>
#include <stdlib.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

enum { SEGMENT_ROW_VERSION = 1, SEGMENT_ROW_BYTES = 72 };

static void segment_row_encode(const struct kvd_segment_info *info, uint8_t row[SEGMENT_ROW_BYTES])
{
    memset(row, 0, SEGMENT_ROW_BYTES);
    row[0] = SEGMENT_ROW_VERSION;
    row[1] = info->state;
    row[2] = info->gone;
    kvd_put_le16(row + 4, info->scenario);
    kvd_put_le32(row + 8, info->slice_len_s);
    kvd_put_le32(row + 12, info->records);
    kvd_put_le64(row + 16, info->segment);
    kvd_put_le64(row + 24, info->epoch);
    kvd_put_le64(row + 32, info->number);
    kvd_put_le64(row + 40, info->slice_s);
    kvd_put_le64(row + 48, info->bytes);
    kvd_put_le64(row + 56, info->created_s);
    kvd_put_le64(row + 64, info->died_s);
}

static int segment_row_decode(const uint8_t *row, uint32_t n, struct kvd_segment_info *ret)
{
    if (n != SEGMENT_ROW_BYTES || row[0] != SEGMENT_ROW_VERSION) {
        return -KVD_E_FORMAT;
    }
    *ret = (struct kvd_segment_info){.state = row[1],
                                     .gone = row[2],
                                     .scenario = kvd_get_le16(row + 4),
                                     .slice_len_s = kvd_get_le32(row + 8),
                                     .records = kvd_get_le32(row + 12),
                                     .segment = kvd_get_le64(row + 16),
                                     .epoch = kvd_get_le64(row + 24),
                                     .number = kvd_get_le64(row + 32),
                                     .slice_s = kvd_get_le64(row + 40),
                                     .bytes = kvd_get_le64(row + 48),
                                     .created_s = kvd_get_le64(row + 56),
                                     .died_s = kvd_get_le64(row + 64)};
    return 0;
}

static int segment_changed(const struct kvd_segment_info *info, bool sync, void *user)
{
    struct kvd_service *service = user;
    uint8_t key[8];
    uint8_t row[SEGMENT_ROW_BYTES];
    kvd_put_be32(key, (uint32_t)(info->segment >> 32));
    kvd_put_be32(key + 4, (uint32_t)info->segment);
    segment_row_encode(info, row);
    int err = kvd_index_row_put(service->index, KVD_INDEX_SEGMENTS, key, sizeof(key), row,
                                sizeof(row), sync);
    if (!err && info->state == KVD_SEGMENT_DEAD) {
        quarantine_forget(service->quarantine, info->segment);
    }
    return err;
}

/* A block that is in dram too learns of its copy: else its next use would write it down again. */
static void note_copy(struct kvd_service *service, const struct kvd_addr *addr, uint64_t segment)
{
    struct kvd_slot *slot = kvd_pool_pin(service->pool, addr);
    if (slot) {
        kvd_pool_set_nvme_segment(service->pool, slot, segment);
        kvd_pool_unpin(service->pool, slot);
    }
}

static void forget_copy(struct kvd_slot *slot, void *user)
{
    struct kvd_service *service = user;
    kvd_pool_set_nvme_segment(service->pool, slot, 0);
}

/* A boot number that something stored carries: the store is that old at least. */
static void boot_seen(struct kvd_service *service, uint64_t boot)
{
    service->newest_boot = boot > service->newest_boot ? boot : service->newest_boot;
}

static void record_found(const struct kvd_place *place, const struct kvd_record *rec, void *user)
{
    struct kvd_service *service = user;
    if (KVD_PROTECT(QUARANTINE_AT_START) &&
        quarantine_has(service->quarantine, place->segment, place->offset)) {
        return; /* its header may be good; it was found to be bad all the same */
    }
    boot_seen(service, rec->put_id >> PUT_ID_BOOT_SHIFT);
    for (uint16_t i = 0; i < rec->n_blocks; i++) {
        uint32_t day = kvd_day_of(rec->created_s);
        if (KVD_PROTECT(PURGE_AT_REBUILD) &&
            kvd_purges_hides(service->purges, &rec->space, &rec->tenant, &rec->blocks[i].key,
                             rec->rank, rec->put_id)) {
            continue; /* it would take the place of what was put after the purge */
        }
        struct kvd_index_change change = {.kind = KVD_INDEX_PUT,
                                          .id = {.group = rec->group,
                                                 .index = rec->index + i,
                                                 .key = rec->blocks[i].key,
                                                 .rank = rec->rank},
                                          .entry = {.segment = place->segment,
                                                    .offset = place->offset,
                                                    .extent_bytes = place->extent_bytes,
                                                    .block_in_record = i,
                                                    .scenario = rec->scenario,
                                                    .last_use_day = day,
                                                    .created_day = day,
                                                    .put_id = rec->put_id}};
        if (kvd_index_submit(service->index, &change, 1, NULL, NULL) == -KVD_E_BUSY) {
            (void)kvd_index_sync(service->index, false);
            (void)kvd_index_submit(service->index, &change, 1, NULL, NULL);
        }
        if (KVD_PROTECT(FOUND_COPY_IS_NOTED)) {
            const struct kvd_addr addr = {.key = rec->blocks[i].key, .rank = rec->rank};
            note_copy(service, &addr, place->segment);
        }
    }
}

/* ---- rows ---- */

struct rows {
    struct kvd_service *service;
    struct kvd_segment_info *infos;
    uint32_t n;
    uint32_t cap;
    uint64_t highest;
};

static int rows_add(const void *key, uint32_t key_bytes, const void *value, uint32_t value_bytes,
                    void *user)
{
    struct rows *rows = user;
    struct kvd_segment_info info;
    if (segment_row_decode(value, value_bytes, &info)) {
        /* left alone: a newer version may have written it. So its number is never used */
        const uint8_t *k = key;
        uint64_t segment =
            key_bytes == 8 ? (uint64_t)kvd_get_be32(k) << 32 | kvd_get_be32(k + 4) : 0;
        rows->highest = segment > rows->highest ? segment : rows->highest;
        atomic_fetch_add(&rows->service->counts.newer_rows, 1);
        kvd_log_warn(rows->service->log,
                     "a segment's row in the index can't be read; its file will be scanned");
        return 0;
    }
    rows->highest = info.segment > rows->highest ? info.segment : rows->highest;
    boot_seen(rows->service, info.epoch);
    if (info.state == KVD_SEGMENT_DEAD &&
        info.died_s + 2 * (uint64_t)GHOST_S < kvd_wall_now_s(&rows->service->wall)) {
        return 0; /* its row only keeps its number from being used again; see forget() */
    }
    if (rows->n == rows->cap) {
        uint32_t cap = rows->cap ? 2 * rows->cap : 64;
        struct kvd_segment_info *grown = realloc(rows->infos, cap * sizeof(*grown));
        if (!grown) {
            return -ENOMEM;
        }
        rows->infos = grown;
        rows->cap = cap;
    }
    rows->infos[rows->n++] = info;
    return 0;
}

static int open_nvme(struct kvd_service *service, const struct rows *rows, struct kvd_diag *diag)
{
    const struct kvd_config *c = service->config;
    uint64_t quarter = c->dram_cap / 4; /* slots that wait to be written can't be evicted */
    struct kvd_tier_options options = {.path = c->nvme_path,
                                       .cap_bytes = c->nvme_cap,
                                       .segment_bytes = c->nvme_segment,
                                       .store = service->identity.store,
                                       .seed = service->identity.seed,
                                       .epoch = service->identity.boot,
                                       .next_segment = rows->highest + 1,
                                       .known = rows->infos,
                                       .n_known = rows->n,
                                       .queue_bytes =
                                           c->nvme_queue < quarter ? c->nvme_queue : quarter,
                                       .scenarios = c->scenarios_table,
                                       .io = service->io,
                                       .events = {.segment_changed = segment_changed,
                                                  .record_found = record_found,
                                                  .user = service},
                                       .log = service->log};
    return kvd_tier_nvme.open(&options, diag, &service->nvme);
}

int recover_open_tiers(struct kvd_service *service, struct kvd_diag *diag)
{
    if (!service->config->nvme_enabled) {
        return 0;
    }
    struct rows rows = {.service = service};
    int err = kvd_index_row_walk(service->index, KVD_INDEX_SEGMENTS, rows_add, &rows);
    err = err ? kvd_fail(diag, err, "segments in the index can't be read: %s", kvd_strerror(err))
              : kvd_identity_claim(service->io, service->config->nvme_path, &service->identity,
                                   diag, &service->nvme_lock_fd);
    if (!err && rows.highest == 0 && KVD_PROTECT(COPIES_GO_WITH_THE_INDEX)) {
        /* the index is new, and its segments will be numbered anew: what slots from before say of
           their copies is about others. Those that are found are noted again. */
        kvd_pool_walk(service->pool, forget_copy, service);
    }
    /* what the rows, the pool and the purges say of earlier starts; before the tier, whose new
       segments say of which start they are to the one that looks at their rows next */
    err = err ? err : recover_boot(service, diag);
    err = err ? err : open_nvme(service, &rows, diag);
    free(rows.infos);
    return err ? err : kvd_index_sync(service->index, false);
}

int recover_boot(struct kvd_service *service, struct kvd_diag *diag)
{
    struct kvd_pool_stat pool;
    kvd_pool_stat(service->pool, &pool);
    boot_seen(service, pool.warm_put_id >> PUT_ID_BOOT_SHIFT);
    boot_seen(service, kvd_purges_newest(service->purges) >> PUT_ID_BOOT_SHIFT);
    uint64_t newest = service->newest_boot;
    if (newest < service->identity.boot || !KVD_PROTECT(BOOT_NUMBER_GROWS)) {
        return 0;
    }
    kvd_log_warn(service->log,
                 "store %s: IDENTITY counts %llu starts, what is stored is of the %lluth: it was "
                 "restored from an older one, and is corrected",
                 service->config->dir, (unsigned long long)service->identity.boot,
                 (unsigned long long)newest);
    int err =
        kvd_identity_raise(service->io, service->config->dir, newest + 1, diag, &service->identity);
    service->put_id_base = service->identity.boot << PUT_ID_BOOT_SHIFT;
    return err;
}
