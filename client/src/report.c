/* Figures: ping, this client's counts, and the daemon's reports. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/src/internal.h"

int kvd_simple_call_locked(struct kvd_client *c, enum kvd_call_op op, uint64_t budget_ns,
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
    int err = kvd_simple_call_locked(client, KVD_CALL_PING, client->match_ns, &req, &call);
    kvd_call_free_locked(&call);
    kvd_client_unlock(client);
    return err;
}

int kvd_verify(struct kvd_client *client, const char *tier, uint64_t rate_bytes_per_s,
               uint64_t *ret_round)
{
    KVD_MAGIC_CHECK(client, KVD_CLIENT_MAGIC);
    Kvd__Wire__VerifyRequest body = KVD__WIRE__VERIFY_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    struct kvd_call *call = NULL;
    body.tier = (char *)(tier ? tier : "");
    body.rate = rate_bytes_per_s;
    if (strlen(body.tier) > KVD_WIRE_REPORT_ARG_MAX) {
        return kvd_client_fail(client, KVD_BAD_REQUEST,
                               "verify: the name of a tier is longer than %d bytes",
                               KVD_WIRE_REPORT_ARG_MAX);
    }
    req.body_case = KVD__WIRE__REQUEST__BODY_VERIFY;
    req.verify = &body;
    kvd_client_lock(client);
    int err = kvd_simple_call_locked(client, KVD_CALL_VERIFY, client->io_ns, &req, &call);
    if (!err) {
        *ret_round = call->handle;
    }
    kvd_call_free_locked(&call);
    kvd_client_unlock(client);
    return err;
}

void kvd_report_take_locked(struct kvd_call *call, const Kvd__Wire__AdminReply *msg, int *fds,
                            unsigned n_fds)
{
    if (msg->json_bytes == 0) {
        /* an empty field has no data at all */
        const char *text = msg->json.len ? (const char *)msg->json.data : "";
        call->json = strndup(text, msg->json.len);
    } else if (n_fds == 1) {
        call->report_bytes = msg->json_bytes;
        call->report_fd = kvd_take_fd(&fds[0]);
    } else {
        call->status = KVD_INTERNAL;
    }
}

/* Whether the descriptor is what the daemon promises: memory of this length that nobody changes. A
 * sealed memfd, so that reading it never waits. */
static bool report_is_sealed(int fd, uint64_t bytes)
{
    const int want = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct stat st;
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & want) == want && fstat(fd, &st) == 0 &&
           (uint64_t)st.st_size == bytes;
}

/* Reads a long report out of its descriptor; without the lock. */
static int report_read(struct kvd_client *c, int fd, uint64_t bytes, char **ret_json)
{
    if (bytes < 1 || bytes > KVD_WIRE_REPORT_MAX || !report_is_sealed(fd, bytes)) {
        return kvd_client_fail(c, KVD_INTERNAL, "the daemon sent a report of a wrong form");
    }
    KVD_AUTOFREE char *json = malloc(bytes + 1);
    if (!json) {
        return kvd_client_fail(c, -ENOMEM, "no memory for the report");
    }
    uint64_t have = 0;
    while (have < bytes) {
        ssize_t n = pread(fd, json + have, bytes - have, (off_t)have);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return kvd_client_fail(c, KVD_INTERNAL, "the daemon's report cannot be read");
        }
        have += (uint64_t)n;
    }
    json[bytes] = 0;
    *ret_json = KVD_TAKE(json);
    return 0;
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
    if (strlen(body.what) > KVD_WIRE_REPORT_ARG_MAX || strlen(body.by) > KVD_WIRE_REPORT_ARG_MAX ||
        strlen(body.window) > KVD_WIRE_REPORT_ARG_MAX) {
        return kvd_client_fail(client, KVD_BAD_REQUEST,
                               "report: an argument is longer than %d bytes",
                               KVD_WIRE_REPORT_ARG_MAX);
    }
    req.body_case = KVD__WIRE__REQUEST__BODY_ADMIN;
    req.admin = &body;
    KVD_AUTOCLOSE int fd = -1;
    uint64_t bytes = 0;
    kvd_client_lock(client);
    int err = kvd_simple_call_locked(client, KVD_CALL_ADMIN, client->io_ns, &req, &call);
    if (!err && call->report_fd >= 0) {
        fd = kvd_take_fd(&call->report_fd);
        bytes = call->report_bytes;
    } else if (!err && !call->json) {
        err = kvd_client_fail(client, -ENOMEM, "no memory for the report");
    } else if (!err) {
        *ret_json = KVD_TAKE(call->json);
    }
    kvd_call_free_locked(&call);
    kvd_client_unlock(client);
    return fd >= 0 ? report_read(client, fd, bytes, ret_json) : err;
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
