#include "cachesvc/core/keeper.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "proto/base/bytes.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

enum {
    RECLAIM_EVERY_S = 600,
    /* an entry must have been expired for so long that a last use, noted before that, has reached
       the index */
    RECLAIM_MARGIN_S = 60,
};

static const char row_wall[] = "wall";
static const char row_counters[] = "counters";
static const char row_since[] = "counted-since";

/* ---- what is written down ---- */

static void persist(struct kvd_service *service)
{
    uint8_t wall[8];
    void *counters = NULL;
    uint32_t n = 0;
    kvd_put_le64(wall, kvd_wall_now_s(&service->wall));
    int err = kvd_index_row_put(service->index, KVD_INDEX_META, row_wall, sizeof(row_wall) - 1,
                                wall, sizeof(wall), false);
    err = err ? err : kvd_counting_encode(service->counting, &counters, &n);
    if (!err && KVD_PROTECT(COUNTERS_EVERY_SECOND)) {
        err = kvd_index_row_put(service->index, KVD_INDEX_META, row_counters,
                                sizeof(row_counters) - 1, counters, n, false);
    }
    free(counters);
    if (err) {
        kvd_log_error(service->log, "counters can't be written down: %s", kvd_strerror(err));
    }
}

/* Counting begins now. */
static int count_from_now(struct kvd_service *service, struct kvd_diag *diag)
{
    uint8_t value[8];
    service->counted_since_s = kvd_wall_now_s(&service->wall);
    kvd_put_le64(value, service->counted_since_s);
    int err = kvd_index_row_put(service->index, KVD_INDEX_META, row_since, sizeof(row_since) - 1,
                                value, sizeof(value), false);
    return err ? kvd_fail(diag, err, "counters can't be begun: %s", kvd_strerror(err)) : 0;
}

static int restore_since(struct kvd_service *service, struct kvd_diag *diag)
{
    void *value = NULL;
    uint32_t n = 0;
    int err = kvd_index_row_get(service->index, KVD_INDEX_META, row_since, sizeof(row_since) - 1,
                                &value, &n);
    if (!err && n == 8) {
        service->counted_since_s = kvd_get_le64(value);
    }
    free(value);
    return err && err != -KVD_E_NOT_FOUND
               ? kvd_fail(diag, err, "counters can't be read: %s", kvd_strerror(err))
               : 0;
}

/* Totals that are damaged are no reason to serve nobody: counting begins anew, and says so. */
static int counters_lost(struct kvd_service *service, struct kvd_diag *diag)
{
    kvd_log_error(service->log, "%s; counting begins anew",
                  diag ? diag->text : "the stored counters are damaged");
    service->counters_damaged = "the stored counters were damaged: counting began anew at this "
                                "start; check the device below the index";
    if (diag) {
        diag->text[0] = 0;
    }
    return count_from_now(service, diag);
}

static int restore_counters(struct kvd_service *service, struct kvd_diag *diag)
{
    void *value = NULL;
    uint32_t n = 0;
    int err = kvd_index_row_get(service->index, KVD_INDEX_META, row_counters,
                                sizeof(row_counters) - 1, &value, &n);
    if (err == -KVD_E_NOT_FOUND || !KVD_PROTECT(COUNTERS_RESTORED)) {
        free(value);
        return count_from_now(service, diag);
    }
    err = err ? kvd_fail(diag, err, "counters can't be read: %s", kvd_strerror(err))
              : kvd_counting_decode(service->counting, value, n, diag);
    free(value);
    return err == -KVD_E_CORRUPT || err == -KVD_E_FORMAT ? counters_lost(service, diag)
           : err                                         ? err
                                                         : restore_since(service, diag);
}

int keeper_restore(struct kvd_service *service, struct kvd_diag *diag)
{
    void *value = NULL;
    uint32_t n = 0;
    uint64_t persisted_s = 0;
    int err = kvd_index_row_get(service->index, KVD_INDEX_META, row_wall, sizeof(row_wall) - 1,
                                &value, &n);
    if (!err && n == 8) {
        persisted_s = kvd_get_le64(value);
    }
    free(value);
    if (err && err != -KVD_E_NOT_FOUND) {
        return kvd_fail(diag, err, "the clock can't be read: %s", kvd_strerror(err));
    }
    kvd_wall_init(&service->wall, persisted_s);
    return restore_counters(service, diag);
}

/* ---- registered pages ---- */

static void register_pages(struct kvd_service *service)
{
    void *base = NULL;
    uint64_t bytes = 0;
    for (int page = 0; page < POOL_PAGES_MAX; page++) {
        if (!kvd_pool_page(service->pool, page, &base, &bytes)) {
            return; /* pages are handed out in order */
        }
        if (atomic_load(&service->page_buffer[page]) == PAGE_UNSEEN) {
            int index = service->io->ops->register_region(service->io, base, bytes);
            atomic_store(&service->page_buffer[page], index < 0 ? PAGE_UNREGISTERED : index);
        }
    }
}

/* ---- expiry, and what a purge left behind ---- */

static void expire_slot(struct kvd_slot *slot, void *user)
{
    struct kvd_service *service = user;
    struct kvd_slot_meta meta;
    kvd_pool_meta(service->pool, slot, &meta);
    if (purge_hides_slot(service, slot)) { /* a purge that was cut short before it got here */
        purge_slot(service, slot);
        return;
    }
    if (!class_expired(service, expiry_clock(service), meta.scenario, meta.last_use_day,
                       meta.created_day)) {
        return;
    }
    kvd_pool_remove(service->pool, slot);
    if (!meta.nvme_segment) {
        ghost_submit(service, &meta, KVD_GONE_EXPIRED);
    }
}

/* When the last entry of each segment expires; index: segment number - base. */
struct expiries {
    struct kvd_service *service;
    uint64_t *at_s;
    uint64_t n;
    uint64_t all_purged;   /* the cut of the whole store: nobody wants what it hides */
    uint64_t oldest_epoch; /* of the segments that stay */
};

static int expiries_grow(struct expiries *x, uint64_t segment)
{
    if (segment < x->n) {
        return 0;
    }
    uint64_t n = 2 * segment + 64;
    uint64_t *grown = realloc(x->at_s, n * sizeof(*grown));
    if (!grown) {
        return -ENOMEM;
    }
    memset(grown + x->n, 0, (n - x->n) * sizeof(*grown));
    x->at_s = grown;
    x->n = n;
    return 0;
}

static int expiries_add(const struct kvd_index_id *id, const struct kvd_index_entry *entry,
                        void *user)
{
    struct expiries *x = user;
    const struct kvd_scenario *sc =
        kvd_scenario_by_id(x->service->config->scenarios_table, entry->scenario);
    int err = expiries_grow(x, entry->segment);
    if (!err && sc && entry->put_id > x->all_purged) {
        uint64_t at = kvd_retention_expiry_s(sc, entry->last_use_day, entry->created_day);
        x->at_s[entry->segment] = at > x->at_s[entry->segment] ? at : x->at_s[entry->segment];
    }
    return err;
}

static bool segment_expired(const struct kvd_segment_info *info, void *user)
{
    struct expiries *x = user;
    uint64_t now = kvd_wall_now_s(&x->service->wall);
    /* a segment without any entry is one whose entries have all moved or gone */
    bool expired = info->created_s + RECLAIM_EVERY_S < now &&
                   (info->segment >= x->n || x->at_s[info->segment] + RECLAIM_MARGIN_S <= now);
    if (!expired && info->epoch < x->oldest_epoch) {
        x->oldest_epoch = info->epoch;
    }
    return expired;
}

/* Purges whose records are all gone need no row any more. Files that were left alone may hold some.
 */
static void forget_purges(struct kvd_service *service, uint64_t oldest_epoch)
{
    struct kvd_tier_stat st;
    service->nvme->ops->stat(service->nvme, &st);
    if (st.foreign_files == 0 && st.newer_files == 0) {
        purge_forget(service, oldest_epoch);
    }
}

static uint64_t undecodable(struct kvd_service *service)
{
    struct kvd_index_stat st;
    kvd_index_stat(service->index, &st);
    return st.undecodable;
}

int keeper_reclaim(struct kvd_service *service)
{
    if (expiry_clock(service).frozen) {
        return 0;
    }
    kvd_pool_walk(service->pool, expire_slot, service);
    if (!service->nvme) {
        return 0;
    }
    struct expiries x = {.service = service,
                         .all_purged = kvd_purges_all(service->purges),
                         .oldest_epoch = UINT64_MAX};
    uint64_t unread = undecodable(service);
    int err = kvd_index_sync(service->index, false);
    err = err ? err : kvd_index_walk(service->index, expiries_add, &x);
    /* entries that a newer version wrote don't say until when their segments are wanted */
    bool all_read = undecodable(service) == unread || !KVD_PROTECT(NEWER_ENTRIES_KEPT);
    if (!err && all_read) {
        err = service->nvme->ops->reclaim(service->nvme, kvd_wall_now_s(&service->wall),
                                          segment_expired, &x);
        if (!err) {
            forget_purges(service, x.oldest_epoch);
        }
    }
    free(x.at_s);
    return err;
}

/* ---- the thread ---- */

static bool wait_a_second(struct kvd_service *service)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    (void)pthread_mutex_lock(&service->mtx);
    int err = 0;
    while (!service->stopping && err != ETIMEDOUT) {
        err = pthread_cond_timedwait(&service->keeper_wake, &service->mtx, &until);
    }
    bool go_on = !service->stopping;
    (void)pthread_mutex_unlock(&service->mtx);
    return go_on;
}

static void *keeper_main(void *arg)
{
    struct kvd_service *service = arg;
    uint64_t reclaim_at_ns = kvd_mono_ns() + RECLAIM_EVERY_S * KVD_NS_PER_S;
    do {
        uint64_t now_ns = kvd_mono_ns();
        atomic_store(&service->keeper_beat_ns, now_ns);
        register_pages(service);
        persist(service);
        if (now_ns >= reclaim_at_ns) {
            reclaim_at_ns = now_ns + RECLAIM_EVERY_S * KVD_NS_PER_S;
            int err = keeper_reclaim(service);
            if (err) {
                kvd_log_error(service->log, "what has expired can't be removed: %s",
                              kvd_strerror(err));
            }
        }
    } while (wait_a_second(service));
    return NULL;
}

int keeper_start(struct kvd_service *service)
{
    atomic_store(&service->keeper_beat_ns, kvd_mono_ns());
    int err = pthread_create(&service->keeper, NULL, keeper_main, service);
    service->keeper_runs = err == 0;
    return -err;
}

void keeper_stop(struct kvd_service *service)
{
    if (!service->keeper_runs) {
        return;
    }
    (void)pthread_mutex_lock(&service->mtx);
    service->stopping = true;
    (void)pthread_cond_broadcast(&service->keeper_wake);
    (void)pthread_mutex_unlock(&service->mtx);
    (void)pthread_join(service->keeper, NULL);
    service->keeper_runs = false;
    if (KVD_PROTECT(COUNTERS_AT_END)) {
        persist(service);
    }
}
