/*
 * Load: the daemon reads and verifies the blocks into pinned slots of the pool, the calling thread
 * copies them out of its read-only mapping and then looks whether the slot is still the one it was
 * given (its generation, which the daemon raises before a slot's bytes may change). That check
 * makes a copy safe that outlived its lease.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/internal.h"

static int load_start_locked(struct kvd_lease *lease, uint32_t first, uint32_t n, void *const *dest,
                             bool wait, void *cookie, struct kvd_call **ret)
{
    struct kvd_client *c = lease->space->client;
    Kvd__Wire__Range results = KVD__WIRE__RANGE__INIT;
    Kvd__Wire__LoadRequest body = KVD__WIRE__LOAD_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    struct kvd_call *call;
    int err = kvd_client_ready_locked(c, wait, kvd_mono_ns() + c->connect_ns);
    if (err) {
        return err;
    }
    if (lease->conn != c->conn) {
        return kvd_client_fail(c, KVD_STALE, "the lease is of a connection that has ended");
    }
    err = kvd_call_create_locked(lease->conn, KVD_CALL_LOAD, kvd_mono_ns() + c->io_ns,
                                 n * sizeof(struct kvd_wire_block), wait, &call);
    if (err) {
        return err;
    }
    call->lease = lease;
    call->first = first;
    call->n = n;
    call->dest = dest;
    call->results_offset = call->offset;
    call->n_results = n;
    results.offset = call->offset;
    results.bytes = n * sizeof(struct kvd_wire_block);
    body.lease = lease->id;
    body.first_block = first;
    body.n_blocks = n;
    body.results = &results;
    /* a little earlier than ours, so that its answer comes before we give up */
    body.deadline_ms = (uint32_t)(c->io_ns / KVD_NS_PER_MS - c->io_ns / KVD_NS_PER_MS / 10);
    body.deadline_ms = body.deadline_ms ? body.deadline_ms : 1;
    req.body_case = KVD__WIRE__REQUEST__BODY_LOAD;
    req.load = &body;
    if (!wait) {
        return kvd_submit_send_locked(call, &req, cookie);
    }
    err = kvd_call_run_locked(&call, &req);
    if (!err) {
        *ret = call;
    }
    return err;
}

static bool row_is_right(const struct kvd_link *conn, const struct kvd_wire_block *row,
                         uint64_t payload_bytes)
{
    return row->state == KVD_BLOCK_LOADED && row->bytes == payload_bytes &&
           row->offset <= conn->pool_bytes && row->bytes <= conn->pool_bytes - row->offset &&
           row->generation_offset % sizeof(uint32_t) == 0 &&
           row->generation_offset <= conn->pool_bytes - sizeof(uint32_t);
}

/* Copies one block; false where it could not be had or changed under the copy. */
static bool block_copy(const struct kvd_link *conn, const struct kvd_wire_block *row,
                       uint64_t payload_bytes, void *dest)
{
    if (!row_is_right(conn, row, payload_bytes)) {
        return false;
    }
    memcpy(dest, conn->pool + row->offset, payload_bytes);
    /* the payload is read before the generation is read again */
    atomic_thread_fence(memory_order_acquire);
    const uint32_t *generation =
        (const uint32_t *)(const void *)(conn->pool + row->generation_offset);
    return __atomic_load_n(generation, __ATOMIC_ACQUIRE) == row->generation;
}

int kvd_load_finish(struct kvd_call *call, uint32_t *ret_good)
{
    struct kvd_lease *lease = call->lease;
    struct kvd_client *c = lease->space->client;
    uint32_t said = call->count[0] < call->n ? call->count[0] : call->n;
    uint32_t good = 0;
    while (good < said) {
        struct kvd_wire_block row = kvd_call_row(call, good);
        if (!block_copy(call->conn, &row, lease->space->desc.payload_bytes, call->dest[good])) {
            break;
        }
        good++;
    }
    kvd_client_lock(c);
    uint32_t stale_from = call->first + good;
    if (good < said && (!lease->has_stale || stale_from < lease->stale_from)) {
        lease->has_stale = true;
        lease->stale_from = stale_from;
    }
    c->stats.loaded_blocks += good;
    c->stats.failed_blocks += call->n - good;
    kvd_client_unlock(c);
    *ret_good = good;
    return 0;
}

static int load_check(struct kvd_lease *lease, uint32_t first, uint32_t n)
{
    if (n < 1 || first >= lease->hit_blocks || n > lease->hit_blocks - first) {
        return kvd_client_fail(lease->space->client, KVD_BAD_REQUEST,
                               "load: %u blocks from %u, the lease has %u", n, first,
                               lease->hit_blocks);
    }
    return 0;
}

int kvd_load(struct kvd_lease *lease, uint32_t first, uint32_t n, void *const *dest,
             uint32_t *ret_good)
{
    KVD_MAGIC_CHECK(lease, KVD_LEASE_MAGIC);
    struct kvd_client *c = lease->space->client;
    struct kvd_call *call = NULL;
    int err = load_check(lease, first, n);
    if (err) {
        return err;
    }
    kvd_client_lock(c);
    err = load_start_locked(lease, first, n, dest, true, NULL, &call);
    kvd_client_unlock(c);
    if (err) {
        return err;
    }
    err = kvd_load_finish(call, ret_good);
    kvd_client_lock(c);
    kvd_call_free_locked(&call);
    kvd_client_unlock(c);
    return err;
}

int kvd_submit_load(struct kvd_lease *lease, uint32_t first, uint32_t n, void *const *dest,
                    void *cookie)
{
    KVD_MAGIC_CHECK(lease, KVD_LEASE_MAGIC);
    int err = load_check(lease, first, n);
    if (err) {
        return err;
    }
    kvd_client_lock(lease->space->client);
    err = load_start_locked(lease, first, n, dest, false, cookie, NULL);
    kvd_client_unlock(lease->space->client);
    return err;
}
