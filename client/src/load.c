/*
 * Load: the daemon reads and verifies the blocks into pinned slots of the pool, the calling thread
 * copies them out of its read-only mapping and then looks whether the slot is still the one it was
 * given (its generation, which the daemon raises before a slot's bytes may change). That check
 * makes a copy safe that outlived its lease.
 *
 * A prefix may be larger than what the daemon pins for one client. Then an answer ends early with a
 * block that is "stored", not "failed": what there is was copied, and the next load asks from there
 * on, which lets the daemon go of what lies before.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/internal.h"
#include "proto/base/protect.h"

/* What the daemon may take: a little less than we wait, so that its answer comes before we give up.
 */
static uint32_t daemon_ms(uint64_t deadline_ns)
{
    uint32_t ms = (uint32_t)kvd_deadline_poll_ms(deadline_ns);
    ms -= ms / 10;
    return ms ? ms : 1;
}

static int part_call_locked(const struct kvd_part *part, bool wait, struct kvd_call **ret)
{
    struct kvd_client *c = part->lease->space->client;
    struct kvd_call *call;
    if (part->lease->conn != c->conn) {
        return kvd_client_fail(c, KVD_STALE, "the lease is of a connection that has ended");
    }
    int err = kvd_call_create_locked(c->conn, KVD_CALL_LOAD, part->deadline_ns,
                                     part->n * sizeof(struct kvd_wire_block), wait, &call);
    if (err) {
        return err;
    }
    call->lease = part->lease;
    call->first = part->first;
    call->n = part->n;
    call->before = part->before;
    call->dest = part->dest;
    call->placed = part->placed;
    call->results_offset = call->offset;
    call->n_results = part->n;
    *ret = call;
    return 0;
}

int kvd_load_start_locked(const struct kvd_part *part, bool wait, void *cookie,
                          struct kvd_call **ret)
{
    Kvd__Wire__Range results = KVD__WIRE__RANGE__INIT;
    Kvd__Wire__LoadRequest body = KVD__WIRE__LOAD_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    struct kvd_call *call;
    int err = part_call_locked(part, wait, &call);
    if (err) {
        return err;
    }
    results.offset = call->offset;
    results.bytes = part->n * sizeof(struct kvd_wire_block);
    body.lease = part->lease->id;
    body.first_block = part->first;
    body.n_blocks = part->n;
    body.results = &results;
    body.deadline_ms = daemon_ms(part->deadline_ns);
    body.place = part->placed != NULL;
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

bool kvd_load_row_right(const struct kvd_link *conn, const struct kvd_wire_block *row,
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
    if (!kvd_load_row_right(conn, row, payload_bytes)) {
        return false;
    }
    memcpy(dest, conn->pool + row->offset, payload_bytes);
    /* the payload is read before the generation is read again */
    atomic_thread_fence(memory_order_acquire);
    const uint32_t *generation =
        (const uint32_t *)(const void *)(conn->pool + row->generation_offset);
    return !KVD_PROTECT(COPY_GENERATION) ||
           __atomic_load_n(generation, __ATOMIC_ACQUIRE) == row->generation;
}

void kvd_load_stale_locked(struct kvd_lease *lease, uint32_t from)
{
    if (!lease->has_stale || from < lease->stale_from) {
        lease->has_stale = true;
        lease->stale_from = from;
    }
}

void kvd_load_failed_locked(const struct kvd_call *call)
{
    kvd_load_stale_locked(call->lease, call->first);
}

/* Copies what a DONE part brought; without the lock. True: there is more to ask for. */
static bool part_copy(struct kvd_call *call, uint32_t *ret_good)
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
    bool more = good > 0 && good == said && said < call->n &&
                kvd_call_row(call, good).state == KVD_BLOCK_STORED;
    kvd_client_lock(c);
    if (good < said) {
        kvd_load_stale_locked(lease, call->first + good);
    }
    c->stats.loaded_blocks += good;
    c->stats.failed_blocks += more ? 0 : call->n - good;
    kvd_client_unlock(c);
    *ret_good = good;
    return more;
}

static struct kvd_part part_after(const struct kvd_call *call, uint32_t good)
{
    return (struct kvd_part){.lease = call->lease,
                             .first = call->first + good,
                             .n = call->n - good,
                             .before = call->before + good,
                             .dest = call->dest + good,
                             .deadline_ns = call->deadline_ns};
}

bool kvd_load_finish(struct kvd_call *call, uint32_t *ret_good)
{
    struct kvd_client *c = call->conn->client;
    uint32_t good = 0;
    bool more = part_copy(call, &good);
    if (more) {
        struct kvd_part next = part_after(call, good);
        kvd_client_lock(c);
        int err = kvd_load_start_locked(&next, false, call->cookie, NULL);
        if (err) {
            kvd_load_stale_locked(next.lease, next.first);
        }
        kvd_client_unlock(c);
        if (!err) {
            return false;
        }
    }
    *ret_good = call->before + good;
    return true;
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

/* One part of a synchronous load. 0: *part is what there is still to do, nothing where n is 0. */
static int part_run(struct kvd_part *part)
{
    struct kvd_client *c = part->lease->space->client;
    struct kvd_call *call = NULL;
    kvd_client_lock(c);
    int err = kvd_load_start_locked(part, true, NULL, &call);
    if (err) {
        kvd_load_stale_locked(part->lease, part->first);
    }
    kvd_client_unlock(c);
    if (err) {
        return err;
    }
    uint32_t good = 0;
    bool more = part_copy(call, &good);
    *part = part_after(call, good);
    part->n = more ? part->n : 0;
    kvd_client_lock(c);
    kvd_call_free_locked(&call);
    kvd_client_unlock(c);
    return 0;
}

int kvd_load_begin(struct kvd_lease *lease, uint32_t first, uint32_t n, bool wait,
                   struct kvd_part *ret)
{
    struct kvd_client *c = lease->space->client;
    int err = load_check(lease, first, n);
    if (err) {
        return err;
    }
    kvd_client_lock(c);
    err = kvd_client_ready_locked(c, wait, kvd_mono_ns() + c->connect_ns);
    kvd_client_unlock(c);
    *ret = (struct kvd_part){
        .lease = lease, .first = first, .n = n, .deadline_ns = kvd_mono_ns() + c->io_ns};
    return err;
}

int kvd_load(struct kvd_lease *lease, uint32_t first, uint32_t n, void *const *dest,
             uint32_t *ret_good)
{
    KVD_MAGIC_CHECK(lease, KVD_LEASE_MAGIC);
    struct kvd_part part = {0};
    int err = kvd_load_begin(lease, first, n, true, &part);
    part.dest = dest;
    while (!err && part.n > 0) {
        err = part_run(&part);
    }
    if (err && part.before == 0) {
        return err;
    }
    *ret_good = part.before; /* what earlier parts copied is right, whatever became of the last */
    return 0;
}

int kvd_load_submit(struct kvd_lease *lease, uint32_t first, uint32_t n, void *const *dest,
                    const void **placed, void *cookie)
{
    KVD_MAGIC_CHECK(lease, KVD_LEASE_MAGIC);
    struct kvd_client *c = lease->space->client;
    struct kvd_part part;
    int err = kvd_load_begin(lease, first, n, false, &part);
    if (err) {
        return err;
    }
    part.dest = dest;
    part.placed = placed;
    kvd_client_lock(c);
    err = kvd_load_start_locked(&part, false, cookie, NULL);
    kvd_client_unlock(c);
    return err;
}

int kvd_submit_load(struct kvd_lease *lease, uint32_t first, uint32_t n, void *const *dest,
                    void *cookie)
{
    return kvd_load_submit(lease, first, n, dest, NULL, cookie);
}
