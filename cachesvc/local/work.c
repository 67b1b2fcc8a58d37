/*
 * Loads, commits, drops and purges: begun on the door thread, answered from a worker of the
 * service. The connection is kept by a reference until the callback has run, so a late result of a
 * client that has left finds memory to be dropped into. Its session may have ended by then.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/local/door.h"

enum { LOAD_DEADLINE_MS_MAX = 3600000 };

struct work {
    struct local_conn *conn; /* a reference, given back by the callback */
    uint64_t id;
    uint64_t results_offset; /* checked */
    uint32_t n_rows;
    bool place;
};

static int work_begin(struct local_conn *conn, uint64_t id, struct work **ret)
{
    struct work *w = calloc(1, sizeof(*w));
    if (!w) {
        return -ENOMEM;
    }
    if (!local_conn_begin_work(conn)) {
        free(w);
        return -KVD_E_BUSY;
    }
    *w = (struct work){.conn = conn, .id = id};
    *ret = w;
    return 0;
}

static void work_end(struct work *w)
{
    struct local_conn *conn = w->conn;
    free(w);
    local_conn_end_work(conn);
}

static void load_done(int result, const struct kvd_wire_block *results, uint32_t n, uint32_t good,
                      void *user)
{
    struct work *w = user;
    if (result) {
        local_conn_reply_error(w->conn, w->id, result, NULL);
        work_end(w);
        return;
    }
    KVD_ASSERT(n <= w->n_rows && good <= n);
    memcpy(w->conn->area + w->results_offset, results, n * sizeof(*results));
    Kvd__Wire__LoadReply body = KVD__WIRE__LOAD_REPLY__INIT;
    body.good_blocks = good;
    body.placed = w->place;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = w->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_LOAD;
    reply.load = &body;
    local_conn_reply(w->conn, &reply, NULL, 0);
    work_end(w);
}

static int load_check(const Kvd__Wire__LoadRequest *msg, struct kvd_diag *diag)
{
    uint32_t rows;
    int err = local_range_check(msg->results, sizeof(struct kvd_wire_block),
                                KVD_WIRE_PROMPT_TOKENS_MAX, "results", diag, &rows);
    if (err) {
        return err;
    }
    if (rows != msg->n_blocks || msg->first_block > UINT32_MAX - msg->n_blocks) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "load: %u blocks from %u, but results for %u",
                        msg->n_blocks, msg->first_block, rows);
    }
    if (msg->deadline_ms < 1 || msg->deadline_ms > LOAD_DEADLINE_MS_MAX) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "load: deadline of %u ms, must be 1 to %d",
                        msg->deadline_ms, LOAD_DEADLINE_MS_MAX);
    }
    return 0;
}

void local_load_handle(struct local_conn *conn, uint64_t id, const Kvd__Wire__LoadRequest *msg)
{
    struct kvd_diag diag = {{0}};
    struct work *w = NULL;
    int err = load_check(msg, &diag);
    err = err ? err : work_begin(conn, id, &w);
    if (err) {
        local_conn_reply_error(conn, id, err, &diag);
        return;
    }
    w->results_offset = msg->results->offset;
    w->n_rows = msg->n_blocks;
    w->place = msg->place;
    const struct kvd_load_ask ask = {.lease = msg->lease,
                                     .first = msg->first_block,
                                     .n = msg->n_blocks,
                                     .deadline_ns =
                                         kvd_mono_ns() + (uint64_t)msg->deadline_ms * KVD_NS_PER_MS,
                                     .place = msg->place};
    kvd_service_load(conn->session, &ask, load_done, w);
}

static void put_done(int result, uint32_t committed, uint32_t not_written_down, void *user)
{
    struct work *w = user;
    if (result) {
        local_conn_reply_error(w->conn, w->id, result, NULL);
        work_end(w);
        return;
    }
    Kvd__Wire__PutCommitReply body = KVD__WIRE__PUT_COMMIT_REPLY__INIT;
    body.committed_blocks = committed;
    body.not_written_down = not_written_down;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = w->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_PUT_COMMIT;
    reply.put_commit = &body;
    local_conn_reply(w->conn, &reply, NULL, 0);
    work_end(w);
}

struct abort_reply {
    struct local_conn *conn;
    uint64_t id;
};

static void abort_done(int result, uint32_t committed, uint32_t not_written_down, void *user)
{
    const struct abort_reply *a = user;
    (void)committed;
    (void)not_written_down;
    Kvd__Wire__PutCommitReply body = KVD__WIRE__PUT_COMMIT_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    if (result) {
        local_conn_reply_error(a->conn, a->id, result, NULL);
        return;
    }
    reply.id = a->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_PUT_COMMIT;
    reply.put_commit = &body;
    local_conn_reply(a->conn, &reply, NULL, 0);
}

void local_put_commit_handle(struct local_conn *conn, uint64_t id,
                             const Kvd__Wire__PutCommitRequest *msg)
{
    struct work *w = NULL;
    if (msg->abort) {
        /* The service answers before it returns. No place among the works and no memory is needed:
         * an abort that is refused would keep its staging until the client leaves. */
        struct abort_reply a = {conn, id};
        kvd_service_put_commit(conn->session, msg->put, true, abort_done, &a);
        return;
    }
    int err = work_begin(conn, id, &w);
    if (err) {
        local_conn_reply_error(conn, id, err, NULL);
        return;
    }
    kvd_service_put_commit(conn->session, msg->put, false, put_done, w);
}

static void drop_done(int result, const struct kvd_diag *diag, uint32_t dropped, void *user)
{
    struct work *w = user;
    if (result) {
        local_conn_reply_error(w->conn, w->id, result, diag);
        work_end(w);
        return;
    }
    Kvd__Wire__DropReply body = KVD__WIRE__DROP_REPLY__INIT;
    body.dropped_blocks = dropped;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = w->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_DROP;
    reply.drop = &body;
    local_conn_reply(w->conn, &reply, NULL, 0);
    work_end(w);
}

void local_drop_handle(struct local_conn *conn, uint64_t id, const struct kvd_prompt_ref *prompt,
                       const Kvd__Wire__DropRequest *msg)
{
    struct work *w = NULL;
    int err = work_begin(conn, id, &w);
    if (err) {
        local_conn_reply_error(conn, id, err, NULL);
        return;
    }
    kvd_service_drop(conn->session, prompt, msg->first_block, msg->n_blocks, drop_done, w);
}

static void purge_done(int result, const struct kvd_diag *diag, const struct kvd_purge_out *out,
                       void *user)
{
    struct work *w = user;
    if (result) {
        local_conn_reply_error(w->conn, w->id, result, diag);
        work_end(w);
        return;
    }
    Kvd__Wire__PurgeReply body = KVD__WIRE__PURGE_REPLY__INIT;
    body.dram_blocks = out->dram_blocks;
    body.dram_bytes = out->dram_bytes;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = w->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_PURGE;
    reply.purge = &body;
    local_conn_reply(w->conn, &reply, NULL, 0);
    work_end(w);
}

void local_purge_handle(struct local_conn *conn, uint64_t id, const Kvd__Wire__PurgeRequest *msg)
{
    struct work *w = NULL;
    int err = work_begin(conn, id, &w);
    if (err) {
        local_conn_reply_error(conn, id, err, NULL);
        return;
    }
    const struct kvd_purge_ask ask = {
        .all = msg->all,
        .tenant = !msg->has_tenant        ? NULL
                  : msg->tenant_name.data ? (const char *)msg->tenant_name.data
                                          : "", /* an empty field has no data at all */
        .tenant_bytes = (uint32_t)msg->tenant_name.len,
        .space = msg->space[0] ? msg->space : NULL,
    };
    kvd_service_purge(conn->session, &ask, purge_done, w);
}
