/* Figures: ping, this client's counts, and the daemon's reports. */
#include <errno.h>
#include <string.h>

#include "client/src/internal.h"

enum { REPORT_ARG_MAX = 64 };

/* Sends a request that carries nothing but itself and waits for its reply. */
static int simple_call_locked(struct kvd_client *c, enum kvd_call_op op, uint64_t budget_ns,
                              Kvd__Wire__Request *req, struct kvd_call **ret)
{
    struct kvd_call *call = NULL;
    int err = kvd_client_ready_locked(c, true, kvd_mono_ns() + c->connect_ns);
    err =
        err ? err : kvd_call_create_locked(c->conn, op, kvd_mono_ns() + budget_ns, 0, true, &call);
    err = err ? err : kvd_call_run_locked(&call, req);
    if (!err) {
        *ret = call;
    }
    return err;
}

int kvd_ping(struct kvd_client *client)
{
    KVD_MAGIC_CHECK(client, KVD_CLIENT_MAGIC);
    Kvd__Wire__PingRequest body = KVD__WIRE__PING_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    struct kvd_call *call = NULL;
    req.body_case = KVD__WIRE__REQUEST__BODY_PING;
    req.ping = &body;
    kvd_client_lock(client);
    int err = simple_call_locked(client, KVD_CALL_PING, client->match_ns, &req, &call);
    kvd_call_free_locked(&call);
    kvd_client_unlock(client);
    return err;
}

int kvd_report(struct kvd_client *client, const char *what, const char *by, const char *window,
               char **ret_json)
{
    KVD_MAGIC_CHECK(client, KVD_CLIENT_MAGIC);
    Kvd__Wire__AdminRequest body = KVD__WIRE__ADMIN_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    struct kvd_call *call = NULL;
    body.what = (char *)(what ? what : "");
    body.by = (char *)(by ? by : "");
    body.window = (char *)(window ? window : "");
    if (strlen(body.what) > REPORT_ARG_MAX || strlen(body.by) > REPORT_ARG_MAX ||
        strlen(body.window) > REPORT_ARG_MAX) {
        return kvd_client_fail(client, KVD_BAD_REQUEST,
                               "report: an argument is longer than %d bytes", REPORT_ARG_MAX);
    }
    req.body_case = KVD__WIRE__REQUEST__BODY_ADMIN;
    req.admin = &body;
    kvd_client_lock(client);
    int err = simple_call_locked(client, KVD_CALL_ADMIN, client->io_ns, &req, &call);
    if (!err && !call->json) {
        err = kvd_client_fail(client, -ENOMEM, "no memory for the report");
    }
    if (!err) {
        *ret_json = KVD_TAKE(call->json);
    }
    kvd_call_free_locked(&call);
    kvd_client_unlock(client);
    return err;
}

void kvd_stats(struct kvd_client *client, struct kvd_stats *ret_stats)
{
    KVD_MAGIC_CHECK(client, KVD_CLIENT_MAGIC);
    size_t size = ret_stats->size;
    kvd_client_lock(client);
    /* a program built against an older header has a shorter struct */
    memcpy(ret_stats, &client->stats, size < sizeof(client->stats) ? size : sizeof(client->stats));
    kvd_client_unlock(client);
    ret_stats->size = size;
}
