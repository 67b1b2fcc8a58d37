/*
 * Write-behind: a block that was published in dram is queued to the tier below. Order: the record
 * durable, then its entry in the index, then the slot may be evicted without a trace. The slot
 * stays pinned until then.
 */
#include <stdlib.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/bytes.h"
#include "proto/base/protect.h"

struct writedown {
    struct kvd_store_request req;
    struct kvd_service *service;
    struct kvd_slot *slot;
};

static void writedown_end(struct writedown *w, bool stored)
{
    if (stored) {
        kvd_pool_set_nvme_segment(w->service->pool, w->slot, w->req.place.segment);
    } else if (KVD_PROTECT(FAILED_WRITE_IS_COUNTED)) {
        atomic_fetch_add(&w->service->counts.write_failures, 1);
    }
    __atomic_store_n(&w->slot->queued, false, __ATOMIC_RELEASE);
    kvd_pool_unpin(w->service->pool, w->slot);
    free(w);
}

static void writedown_indexed(int result, void *user)
{
    writedown_end(user, result == 0);
}

static void writedown_durable(struct kvd_store_request *req)
{
    struct writedown *w = req->user;
    struct kvd_slot_meta meta;
    kvd_pool_meta(w->service->pool, w->slot, &meta);
    struct kvd_index_change change = {.kind = KVD_INDEX_PUT,
                                      .id = {.group = meta.group,
                                             .index = meta.index,
                                             .key = meta.addr.key,
                                             .rank = meta.addr.rank},
                                      .entry = {.segment = req->place.segment,
                                                .offset = req->place.offset,
                                                .extent_bytes = req->place.extent_bytes,
                                                .scenario = meta.scenario,
                                                .last_use_day = meta.last_use_day,
                                                .created_day = meta.created_day,
                                                .put_id = meta.put_id}};
    if (req->result || kvd_index_submit(w->service->index, &change, 1, writedown_indexed, w)) {
        writedown_end(w, false);
    }
}

static bool writedown_queue(struct kvd_service *service, struct kvd_slot *slot)
{
    /* a record that the index can't point to would only push others out */
    bool indexed = kvd_index_writable(service->index) || !KVD_PROTECT(NO_RECORD_UNINDEXED);
    struct writedown *w = indexed ? calloc(1, sizeof(*w)) : NULL;
    if (!w) {
        return false;
    }
    const struct kvd_slot_meta *m = &slot->meta; /* its constant fields */
    uint64_t extent = m->header_bytes + kvd_round_up(m->payload_bytes, KVD_ALIGN_BYTES);
    struct kvd_slot_meta now;
    kvd_pool_meta(service->pool, slot, &now);
    w->service = service;
    w->slot = slot;
    w->req = (struct kvd_store_request){.extent = slot->base,
                                        .extent_bytes = extent,
                                        .buffer_index = page_buffer(service, slot),
                                        .scenario = now.scenario,
                                        .row = {.extent_bytes = (uint32_t)extent,
                                                .n_blocks = 1,
                                                .rank = m->addr.rank,
                                                .put_id = m->put_id,
                                                .index = m->index,
                                                .group = m->group,
                                                .first_key = m->addr.key},
                                        .now_s = kvd_wall_now_s(&service->wall),
                                        .done = writedown_durable,
                                        .user = w};
    if (KVD_PROTECT(WRITTEN_SLOT_STAYS)) {
        kvd_pool_pin_again(service->pool, slot);
    }
    struct kvd_store_request *req = &w->req;
    if (service->nvme->ops->store(service->nvme, &req, 1)) {
        kvd_pool_unpin(service->pool, slot);
        free(w);
        return false;
    }
    return true;
}

bool writedown_submit(struct kvd_service *service, struct kvd_slot *slot)
{
    if (__atomic_exchange_n(&slot->queued, true, __ATOMIC_ACQ_REL)) {
        return true; /* under way */
    }
    bool queued = writedown_queue(service, slot);
    if (!queued) {
        __atomic_store_n(&slot->queued, false, __ATOMIC_RELEASE);
    }
    return queued;
}

/* A copy goes with its segment: evicted, expired or lost, while the block stays in dram. */
static bool has_copy(struct kvd_service *service, const struct kvd_slot_meta *meta)
{
    return meta->nvme_segment &&
           (!KVD_PROTECT(COPY_IS_LIVE) ||
            service->nvme->ops->live(service->nvme, meta->nvme_segment, NULL));
}

void writedown_if_missing(struct kvd_service *service, struct kvd_slot *slot)
{
    struct kvd_slot_meta meta;
    kvd_pool_meta(service->pool, slot, &meta);
    const struct kvd_scenario *sc =
        kvd_scenario_by_id(service->config->scenarios_table, meta.scenario);
    if (service->nvme && sc && sc->nvme && !has_copy(service, &meta)) {
        (void)writedown_submit(service, slot); /* a full queue: the next use tries again */
    }
}
