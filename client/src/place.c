/*
 * Place: blocks used where they lie. The daemon pins them without a deadline; the lease remembers
 * the generation of each slot, which is looked at again after the use. Only a daemon that has gone,
 * or one that has cut this client off, lets go of such a slot: then its successor may fill it anew,
 * and the generation in the mapping, which is the same file, shows it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/internal.h"
#include "proto/base/protect.h"

static bool generation_holds(const struct kvd_placed *placed)
{
    return !KVD_PROTECT(PLACE_GENERATION) ||
           __atomic_load_n(placed->generation_at, __ATOMIC_ACQUIRE) == placed->generation;
}

/* Takes one block; false where it could not be had. */
static bool block_take(struct kvd_call *call, uint32_t i)
{
    struct kvd_lease *lease = call->lease;
    const struct kvd_link *conn = call->conn;
    const struct kvd_wire_block row = kvd_call_row(call, i);
    if (!kvd_load_row_right(conn, &row, lease->space->desc.payload_bytes)) {
        return false;
    }
    const struct kvd_placed placed = {
        .generation_at = (const uint32_t *)(const void *)(conn->pool + row.generation_offset),
        .generation = row.generation};
    if (!generation_holds(&placed)) {
        return false;
    }
    lease->placed[call->first + i] = placed;
    call->placed[i] = conn->pool + row.offset;
    return true;
}

int kvd_place_finish_locked(struct kvd_call *call, uint32_t *ret_good)
{
    struct kvd_lease *lease = call->lease;
    struct kvd_client *c = lease->space->client;
    const uint32_t said = call->count[0] < call->n ? call->count[0] : call->n;
    uint32_t good = 0;
    if (!call->count[1]) {
        return kvd_client_fail(c, KVD_INTERNAL,
                               "the daemon is too old to hold blocks in place: use kvd_load");
    }
    if (!lease->placed) {
        lease->placed = calloc(lease->hit_blocks, sizeof(*lease->placed));
        if (!lease->placed) {
            return kvd_client_fail(c, -ENOMEM, "no memory to place blocks");
        }
    }
    while (good < said && block_take(call, good)) {
        good++;
    }
    memset(call->placed + good, 0, (call->n - good) * sizeof(*call->placed));
    if (good < said) {
        kvd_load_stale_locked(lease, call->first + good);
    }
    const bool refused = good == said && said < call->n &&
                         kvd_call_row(call, good).state == KVD_BLOCK_STORED; /* kvd_load may do */
    c->stats.loaded_blocks += good;
    c->stats.failed_blocks += refused ? 0 : call->n - good;
    *ret_good = good;
    return 0;
}

int kvd_place(struct kvd_lease *lease, uint32_t first, uint32_t n, const void **ret_blocks,
              uint32_t *ret_good)
{
    KVD_MAGIC_CHECK(lease, KVD_LEASE_MAGIC);
    struct kvd_client *c = lease->space->client;
    struct kvd_call *call = NULL;
    struct kvd_part part;
    int err = kvd_load_begin(lease, first, n, true, &part);
    if (err) {
        return err;
    }
    part.placed = ret_blocks;
    kvd_client_lock(c);
    err = kvd_load_start_locked(&part, true, NULL, &call);
    if (!err) {
        err = kvd_place_finish_locked(call, ret_good);
    } else {
        kvd_load_stale_locked(lease, first);
    }
    kvd_call_free_locked(&call);
    kvd_client_unlock(c);
    return err;
}

int kvd_submit_place(struct kvd_lease *lease, uint32_t first, uint32_t n, const void **ret_blocks,
                     void *cookie)
{
    return kvd_load_submit(lease, first, n, NULL, ret_blocks, cookie);
}

int kvd_place_check(struct kvd_lease *lease)
{
    KVD_MAGIC_CHECK(lease, KVD_LEASE_MAGIC);
    struct kvd_client *c = lease->space->client;
    int err = 0;
    /* what was read of the blocks was read before their generations are read again */
    atomic_thread_fence(memory_order_acquire);
    kvd_client_lock(c);
    for (uint32_t i = 0; lease->placed && i < lease->hit_blocks && !err; i++) {
        if (lease->placed[i].generation_at && !generation_holds(&lease->placed[i])) {
            kvd_load_stale_locked(lease, i);
            err = kvd_client_fail(c, KVD_STALE,
                                  "block %u was filled anew while it was in use in place: the "
                                  "daemon ended or was restarted; compute without it",
                                  i);
        }
    }
    kvd_client_unlock(c);
    return err;
}
