/* The service's life: opens one of each from the bottom up, closes them in reverse. */
#include "cachesvc/core/service.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <unistd.h>

#include "cachesvc/core/keeper.h"
#include "cachesvc/core/scrub.h"
#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

static const char index_folder[] = "index"; /* in the store's folder */

int page_buffer(struct kvd_service *service, const struct kvd_slot *slot)
{
    int index = slot->page < POOL_PAGES_MAX ? atomic_load(&service->page_buffer[slot->page])
                                            : PAGE_UNREGISTERED;
    return index < 0 ? -1 : index;
}

void ghost_submit(struct kvd_service *service, const struct kvd_slot_meta *meta, uint8_t gone)
{
    struct kvd_index_change change = {.kind = KVD_INDEX_GONE,
                                      .id = {.group = meta->group,
                                             .index = meta->index,
                                             .key = meta->addr.key,
                                             .rank = meta->addr.rank},
                                      .entry = {.scenario = meta->scenario,
                                                .last_use_day = meta->last_use_day,
                                                .created_day = meta->created_day,
                                                .put_id = meta->put_id,
                                                .gone = gone,
                                                .gone_s = kvd_wall_now_s(&service->wall)}};
    (void)kvd_index_submit(service->index, &change, 1, NULL, NULL);
}

/* lock: the pool's. */
static void evicted(const struct kvd_slot_meta *meta, void *user)
{
    if (!meta->nvme_segment) {
        ghost_submit(user, meta, KVD_GONE_EVICTED);
    }
}

/* On RocksDB's threads: an entry that explains a miss is kept for a while, then forgotten. */
static bool forget(const struct kvd_index_entry *entry, void *user)
{
    struct kvd_service *service = user;
    uint64_t now = kvd_wall_now_s(&service->wall);
    struct kvd_segment_info info = {0};
    if (entry->segment == 0) {
        return entry->gone_s + GHOST_S < now;
    }
    if (!service->nvme || service->nvme->ops->live(service->nvme, entry->segment, &info)) {
        return false;
    }
    /* of an unknown segment nothing is left to tell: it died long before this start */
    return info.segment == 0 || (info.died_s && info.died_s + GHOST_S < now);
}

static int open_pool(struct kvd_service *service, bool drop_dram, struct kvd_diag *diag)
{
    const struct kvd_config *c = service->config;
    char path[4096];
    char hex[2 * KVD_STORE_ID_BYTES + 1];
    kvd_hex(service->identity.store.b, KVD_STORE_ID_BYTES, hex);
    if (c->dram_path[0]) {
        (void)snprintf(path, sizeof(path), "%s", c->dram_path);
    } else {
        (void)snprintf(path, sizeof(path), "/dev/shm/kvdepot-%s.pool", hex);
    }
    service->staging_cap = c->dram_cap / STAGING_SHARE;
    struct kvd_pool_options options = {.path = path,
                                       .cap_bytes = c->dram_cap - service->staging_cap,
                                       .store = service->identity.store,
                                       .drop = drop_dram,
                                       .eviction = kvd_evict_by_name(c->dram_eviction),
                                       .log = service->log};
    service->pin_cap = options.cap_bytes / 100 * ALL_PIN_PERCENT;
    service->pin_cap_client = options.cap_bytes / 100 * c->client_pin_share;
    int err = kvd_pool_open(&options, diag, &service->pool);
    if (!err) {
        kvd_pool_on_evicted(service->pool, evicted, service);
    }
    return err;
}

static int open_index(struct kvd_service *service, struct kvd_diag *diag)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", service->config->dir, index_folder);
    struct kvd_index_options options = {
        .path = path, .cache_bytes = service->config->index_cache, .log = service->log};
    return kvd_index_open(&options, diag, &service->index);
}

static int open_purges(struct kvd_service *service, struct kvd_diag *diag)
{
    struct kvd_purges_options options = {.folder = service->config->dir,
                                         .store = service->identity.store,
                                         .first_put_id = service->put_id_base,
                                         .io = service->io,
                                         .log = service->log};
    return kvd_purges_open(&options, diag, &service->purges);
}

static int open_io(struct kvd_service *service, struct kvd_diag *diag)
{
    int err = kvd_io_open(service->config->io_engine, (uint32_t)service->config->io_depth, diag,
                          &service->io);
    if (!err && diag && diag->text[0]) {
        kvd_log_warn(service->log, "%s", diag->text); /* why the better engine isn't used */
        diag->text[0] = 0;
    }
    return err;
}

static int open_parts(struct kvd_service *s, bool drop_dram, struct kvd_diag *diag)
{
    int err = open_io(s, diag);
    err = err ? err
              : kvd_identity_open(s->io, s->config->dir, index_folder, diag, &s->identity,
                                  &s->lock_fd);
    s->put_id_base = s->identity.boot << PUT_ID_BOOT_SHIFT;
    err = err ? err : open_purges(s, diag);
    err = err ? err : open_index(s, diag);
    err = err ? err : kvd_counting_create(kvd_mono_ns() / KVD_NS_PER_S, &s->counting);
    err = err ? err : quarantine_open(s->index, s->log, &s->quarantine);
    err = err ? err : kvd_owners_create(&s->owners);
    err = err ? err : keeper_restore(s, diag);
    err = err ? err : open_pool(s, drop_dram, diag);
    err = err ? err : recover_open_tiers(s, diag);
    err = err ? err : recover_boot(s, diag);
    err = err ? err : kvd_workers_create(WORKER_THREADS, &s->workers);
    err = err ? err : kvd_watch_create(lease_tick, s, &s->watch);
    err = err ? err : scrub_open(s, diag);
    if (!err) {
        kvd_index_on_compaction(s->index, forget, s);
        err = keeper_start(s);
    }
    err = err ? err : scrub_start(s);
    return err;
}

static void init_locks(struct kvd_service *s)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&s->mtx, NULL);
    (void)pthread_cond_init(&s->idle, &attr);
    (void)pthread_cond_init(&s->keeper_wake, &attr);
    (void)pthread_cond_init(&s->closed_cond, &attr);
    (void)pthread_condattr_destroy(&attr);
}

/* Order matters: nobody asks any more, then the writes below end, then what they tell the index,
 * then the pins of the pool are gone. */
static void close_parts(struct kvd_service *s)
{
    (void)pthread_mutex_lock(&s->mtx);
    while (s->n_sessions > 0) { /* jobs of sessions that have ended; each ends by itself */
        (void)pthread_cond_wait(&s->idle, &s->mtx);
    }
    (void)pthread_mutex_unlock(&s->mtx);
    kvd_workers_destroy(&s->workers);
    kvd_watch_destroy(&s->watch);
    scrub_stop(s);
    keeper_stop(s);
    if (s->index) {
        kvd_index_on_compaction(s->index, NULL, NULL); /* it asks the tier, which goes next */
    }
    if (s->nvme) {
        s->nvme->ops->close(&s->nvme);
    }
    scrub_close(s);
    quarantine_close(&s->quarantine);
    kvd_index_close(&s->index);
    kvd_pool_close(&s->pool);
    kvd_purges_close(&s->purges);
    kvd_io_close(&s->io);
    kvd_owners_destroy(&s->owners);
    kvd_counting_destroy(&s->counting);
    for (uint32_t i = 0; i < s->n_spaces; i++) {
        free(s->spaces[i]);
    }
    kvd_close_fd(&s->nvme_lock_fd);
    kvd_close_fd(&s->lock_fd);
}

static void service_free(struct kvd_service *s)
{
    (void)pthread_cond_destroy(&s->keeper_wake);
    (void)pthread_cond_destroy(&s->closed_cond);
    (void)pthread_cond_destroy(&s->idle);
    (void)pthread_mutex_destroy(&s->mtx);
    KVD_MAGIC_CLEAR(s);
    free(s);
}

int kvd_service_verify(struct kvd_service *service, const char *tier, uint64_t rate,
                       struct kvd_diag *diag, uint64_t *ret_round)
{
    KVD_MAGIC_CHECK(service, SERVICE_MAGIC);
    bool all = tier[0] == 0;
    uint8_t tiers = (all || strcmp(tier, "nvme") == 0 ? SCRUB_NVME : 0) |
                    (all || strcmp(tier, "dram") == 0 ? SCRUB_DRAM : 0);
    if (!tiers) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "verify tier '%.32s': dram or nvme are known",
                        tier);
    }
    if (tiers == SCRUB_NVME && !service->nvme) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "verify: this daemon has no nvme tier");
    }
    *ret_round = scrub_ask(service->scrub, tiers, rate);
    return 0;
}

int kvd_service_open(const struct kvd_config *config, bool drop_dram, struct kvd_log *log,
                     struct kvd_diag *diag, struct kvd_service **ret)
{
    struct kvd_service *s = calloc(1, sizeof(*s));
    if (!s || sodium_init() < 0) {
        free(s);
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    KVD_MAGIC_SET(s, SERVICE_MAGIC);
    s->config = config;
    s->log = log;
    s->lock_fd = -1;
    s->nvme_lock_fd = -1;
    s->started_mono_ns = kvd_mono_ns();
    atomic_init(&s->next_id, 1);
    kvd_list_init(&s->sessions);
    init_locks(s);
    for (int i = 0; i < POOL_PAGES_MAX; i++) {
        atomic_init(&s->page_buffer[i], PAGE_UNSEEN);
    }
    int err = open_parts(s, drop_dram, diag);
    if (err) {
        if (diag && !diag->text[0]) {
            (void)kvd_fail(diag, err, "store %s: %s", config->dir, kvd_strerror(err));
        }
        close_parts(s);
        service_free(s);
        return err;
    }
    *ret = s;
    return 0;
}

static void *closer_main(void *arg)
{
    struct kvd_service *s = arg;
    close_parts(s);
    (void)pthread_mutex_lock(&s->mtx);
    s->closed = true;
    (void)pthread_cond_signal(&s->closed_cond);
    (void)pthread_mutex_unlock(&s->mtx);
    return NULL;
}

/* Lets what is queued be written down, as long as it goes on. False: the device stands still. */
static bool drain(struct kvd_service *s, uint64_t patience_ns)
{
    struct kvd_tier_stat before;
    struct kvd_tier_stat now;
    s->nvme->ops->stat(s->nvme, &now);
    do {
        before = now;
        if (s->nvme->ops->flush(s->nvme, kvd_mono_ns() + patience_ns) == 0) {
            return true;
        }
        s->nvme->ops->stat(s->nvme, &now);
    } while (now.queue_bytes < before.queue_bytes);
    return false;
}

/* False: it isn't closed by then. */
static bool wait_closed(struct kvd_service *s, uint64_t deadline_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline_ns / KVD_NS_PER_S),
                                   .tv_nsec = (long)(deadline_ns % KVD_NS_PER_S)};
    int err = 0;
    (void)pthread_mutex_lock(&s->mtx);
    while (!s->closed && err == 0) {
        err = pthread_cond_timedwait(&s->closed_cond, &s->mtx, &until);
    }
    bool closed = s->closed;
    (void)pthread_mutex_unlock(&s->mtx);
    return closed;
}

/* A device that never answers must not hold up the end of the process; its kernel may still write
 * to the memory that it was given, so nothing is freed then. */
int kvd_service_close(struct kvd_service **service)
{
    struct kvd_service *s = *service;
    if (!s) {
        return 0;
    }
    KVD_MAGIC_CHECK(s, SERVICE_MAGIC);
    const uint64_t patience_ns = KVD_PROTECT(STOP_HAS_A_DEADLINE)
                                     ? s->config->stop_patience * KVD_NS_PER_MS
                                     : UINT64_MAX / 4;
    bool good = s->closing || !s->nvme || drain(s, patience_ns);
    if (good && !s->closing) {
        s->closing = pthread_create(&s->closer, NULL, closer_main, s) == 0;
        good = s->closing;
    }
    if (!good || !wait_closed(s, kvd_mono_ns() + patience_ns)) {
        kvd_log_error(
            s->log,
            "the store could not be closed: a device has not answered for %llu ms; ending "
            "without. What was reported as stored below dram is safe, what waited to be "
            "written is not; check the device",
            (unsigned long long)s->config->stop_patience);
        return -KVD_E_DEADLINE;
    }
    (void)pthread_join(s->closer, NULL);
    service_free(s);
    *service = NULL;
    return 0;
}

struct kvd_store_id kvd_service_store_id(const struct kvd_service *service)
{
    return service->identity.store;
}

int kvd_service_pool_fd(struct kvd_service *service)
{
    return kvd_pool_fd_readonly(service->pool);
}

uint64_t kvd_service_pool_bytes(struct kvd_service *service)
{
    return kvd_pool_map_bytes(service->pool);
}
