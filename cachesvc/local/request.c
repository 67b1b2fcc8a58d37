/*
 * What packets ask for, one function a message. Runs on the door thread. A request that is wrong in
 * itself gets an error as its reply; bytes that are no request, and anything before hello, cost the
 * connection.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/local/door.h"
#include "proto/base/cleanup.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "token ids are little-endian in the request area and copied as they are");

enum { SCENARIO_NAME_MAX = 255, REPLY_OVERHEAD_BYTES = 256 };

/* ---- hello */

static void program_copy(struct local_conn *conn, const char *name)
{
    size_t i = 0;
    for (; name[i] && i + 1 < sizeof(conn->program); i++) {
        conn->program[i] = isprint((unsigned char)name[i]) ? name[i] : '?';
    }
    (void)snprintf(conn->program + i, sizeof(conn->program) - i, "%s", i ? "" : "unnamed");
}

static int hello_check(const Kvd__Wire__HelloRequest *msg, struct kvd_diag *diag)
{
    if (msg->version >= KVD_WIRE_VERSION && msg->min_version <= KVD_WIRE_VERSION) {
        return 0;
    }
    return kvd_fail(diag, msg->version < KVD_WIRE_VERSION ? -KVD_E_FORMAT : -KVD_E_NEWER,
                    "the client speaks versions %u to %u of the protocol, this daemon %d: use a "
                    "client library of the daemon's version",
                    msg->min_version, msg->version, KVD_WIRE_VERSION);
}

static void hello_reply(struct local_conn *conn, uint64_t id, int area_fd)
{
    struct kvd_service *service = conn->local->service;
    struct kvd_store_id store = kvd_service_store_id(service);
    Kvd__Wire__HelloReply hello = KVD__WIRE__HELLO_REPLY__INIT;
    hello.version = KVD_WIRE_VERSION;
    hello.store_id.data = (uint8_t *)&store;
    hello.store_id.len = sizeof(store);
    hello.request_area_bytes = KVD_WIRE_REQUEST_AREA_BYTES;
    hello.pool_bytes = kvd_service_pool_bytes(service);
    hello.daemon_version = (char *)KVD_PROJECT_VERSION;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = id;
    reply.body_case = KVD__WIRE__REPLY__BODY_HELLO;
    reply.hello = &hello;
    const int fds[] = {area_fd, kvd_service_pool_fd(service)};
    local_conn_reply(conn, &reply, fds, 2);
}

static const char *hello_handle(struct local_conn *conn, uint64_t id,
                                const Kvd__Wire__HelloRequest *msg)
{
    struct kvd_diag diag = {{0}};
    KVD_AUTOCLOSE int area_fd = -1;
    program_copy(conn, msg->program);
    int err = hello_check(msg, &diag);
    if (err) {
        local_conn_reply_error(conn, id, err, &diag);
        return "speaks another version of the protocol";
    }
    err = local_area_create(&area_fd, &conn->area);
    err = err ? err : kvd_session_open(conn->local->service, &conn->session);
    if (err) {
        local_conn_reply_error(conn, id, err, &diag);
        return err == -KVD_E_OVER_QUOTA ? "too many clients (client.max)"
                                        : "no memory or descriptors for another client";
    }
    char who[sizeof(conn->program) + 32];
    (void)snprintf(who, sizeof(who), "%s (pid %d)",
                   conn->program[0] ? conn->program : "without a name", (int)conn->pid);
    kvd_session_name(conn->session, who);
    conn->greeted = true;
    conn->local->n_ungreeted--;
    kvd_log_info(conn->local->log, "client %s (pid %d, uid %u): connected", conn->program,
                 (int)conn->pid, (unsigned)conn->uid);
    hello_reply(conn, id, area_fd);
    return NULL;
}

/* ---- prompts */

/* A prompt with its tokens copied into the door's memory. Borrows the message and the door. */
struct prompt_copy {
    struct kvd_prompt_ref ref;
    struct kvd_digest extra;
};

static int prompt_fields_check(const Kvd__Wire__Prompt *msg, struct kvd_diag *diag)
{
    if (!msg) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "no prompt given");
    }
    if (msg->tenant_name.len > KVD_TENANT_NAME_MAX) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "tenant has %zu bytes, may have %d",
                        msg->tenant_name.len, KVD_TENANT_NAME_MAX);
    }
    if (msg->extra.len != 0 && msg->extra.len != KVD_DIGEST_BYTES) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "extra has %zu bytes, must have 0 or %d",
                        msg->extra.len, KVD_DIGEST_BYTES);
    }
    size_t n = strlen(msg->scenario);
    if (n < 1 || n > SCENARIO_NAME_MAX) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "scenario has %zu bytes, must have 1 to %d", n,
                        SCENARIO_NAME_MAX);
    }
    return 0;
}

static int prompt_copy_in(struct local_conn *conn, const Kvd__Wire__Prompt *msg,
                          struct prompt_copy *ret, struct kvd_diag *diag)
{
    struct local_scratch *s = &conn->local->tokens;
    uint32_t n = 0;
    int err = prompt_fields_check(msg, diag);
    err = err ? err
              : local_range_check(msg->tokens, sizeof(uint32_t), KVD_WIRE_PROMPT_TOKENS_MAX,
                                  "tokens", diag, &n);
    err = err ? err : local_scratch_room(s, (size_t)n * sizeof(uint32_t));
    if (err) {
        return err;
    }
    memcpy(s->bytes, conn->area + msg->tokens->offset, (size_t)n * sizeof(uint32_t));
    if (msg->extra.len) {
        memcpy(ret->extra.b, msg->extra.data, KVD_DIGEST_BYTES);
    }
    ret->ref = (struct kvd_prompt_ref){
        .space_handle = msg->space_handle,
        .rank = msg->rank,
        .tenant = (const char *)msg->tenant_name.data,
        .tenant_bytes = (uint32_t)msg->tenant_name.len,
        .extra = msg->extra.len ? &ret->extra : NULL,
        .scenario = msg->scenario,
        .tokens = s->bytes,
        .n_tokens = n,
    };
    return 0;
}

/* Zeroed rows in the door's memory: what the service leaves out must not show another client's
 * results. */
static int rows_prepare(struct local_conn *conn, const Kvd__Wire__Range *range, uint64_t max,
                        struct kvd_wire_block **ret_rows, uint32_t *ret_n, struct kvd_diag *diag)
{
    struct local_scratch *s = &conn->local->rows;
    int err = local_range_check(range, sizeof(struct kvd_wire_block), max, "results", diag, ret_n);
    err = err ? err : local_scratch_room(s, *ret_n * sizeof(struct kvd_wire_block));
    if (err) {
        return err;
    }
    memset(s->bytes, 0, *ret_n * sizeof(struct kvd_wire_block));
    *ret_rows = s->bytes;
    return 0;
}

/* ---- requests that are answered at once */

static int space_open_handle(struct local_conn *conn, uint64_t id,
                             const Kvd__Wire__SpaceOpenRequest *msg, struct kvd_diag *diag)
{
    struct kvd_space_desc desc;
    struct kvd_space_opened opened;
    if (!msg->desc) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "space: no description given");
    }
    int err = kvd_wire_space_desc_unpack(msg->desc, &desc, diag);
    err = err ? err : kvd_service_space_open(conn->session, &desc, diag, &opened);
    if (err) {
        return err;
    }
    Kvd__Wire__SpaceOpenReply body = KVD__WIRE__SPACE_OPEN_REPLY__INIT;
    body.space_handle = opened.handle;
    body.space.data = opened.space.b;
    body.space.len = KVD_DIGEST_BYTES;
    body.staging_bytes = opened.staging_bytes;
    body.staging_slots = opened.staging_slots;
    body.slot_bytes = opened.slot_bytes;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = id;
    reply.body_case = KVD__WIRE__REPLY__BODY_SPACE_OPEN;
    reply.space_open = &body;
    /* no room for staging: the client can still match and load */
    local_conn_reply(conn, &reply, &opened.staging_fd, opened.staging_fd >= 0 ? 1 : 0);
    return 0;
}

static int match_handle(struct local_conn *conn, uint64_t id, const Kvd__Wire__MatchRequest *msg,
                        struct kvd_diag *diag)
{
    struct prompt_copy prompt;
    struct kvd_wire_block *rows;
    uint32_t cap;
    struct kvd_match_out out;
    int err = prompt_copy_in(conn, msg->prompt, &prompt, diag);
    err = err ? err : rows_prepare(conn, msg->results, prompt.ref.n_tokens, &rows, &cap, diag);
    err = err ? err : kvd_service_match(conn->session, &prompt.ref, diag, rows, cap, &out);
    if (err) {
        return err;
    }
    KVD_ASSERT(out.hit_blocks <= out.asked_blocks && out.asked_blocks <= cap);
    memcpy(conn->area + msg->results->offset, rows, out.asked_blocks * sizeof(*rows));
    Kvd__Wire__MatchReply body = KVD__WIRE__MATCH_REPLY__INIT;
    body.lease = out.lease;
    body.asked_blocks = out.asked_blocks;
    body.hit_blocks = out.hit_blocks;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = id;
    reply.body_case = KVD__WIRE__REPLY__BODY_MATCH;
    reply.match = &body;
    local_conn_reply(conn, &reply, NULL, 0);
    return 0;
}

static int put_begin_handle(struct local_conn *conn, uint64_t id,
                            const Kvd__Wire__PutBeginRequest *msg, struct kvd_diag *diag)
{
    struct prompt_copy prompt;
    struct kvd_wire_block *rows;
    uint32_t cap;
    struct kvd_put_out out;
    int err = prompt_copy_in(conn, msg->prompt, &prompt, diag);
    err = err ? err : rows_prepare(conn, msg->results, KVD_WIRE_STAGING_SLOTS, &rows, &cap, diag);
    if (!err && cap != msg->n_blocks) {
        err = kvd_fail(diag, -KVD_E_BAD_REQUEST, "put: %u blocks, but results for %u",
                       msg->n_blocks, cap);
    }
    err = err ? err
              : kvd_service_put_begin(conn->session, &prompt.ref, msg->first_block, msg->n_blocks,
                                      diag, rows, &out);
    if (err) {
        return err;
    }
    memcpy(conn->area + msg->results->offset, rows, cap * sizeof(*rows));
    Kvd__Wire__PutBeginReply body = KVD__WIRE__PUT_BEGIN_REPLY__INIT;
    body.put = out.put;
    body.granted_blocks = out.granted_blocks;
    body.stored_blocks = out.stored_blocks;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = id;
    reply.body_case = KVD__WIRE__REPLY__BODY_PUT_BEGIN;
    reply.put_begin = &body;
    local_conn_reply(conn, &reply, NULL, 0);
    return 0;
}

static void reply_empty(struct local_conn *conn, uint64_t id)
{
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = id;
    local_conn_reply(conn, &reply, NULL, 0);
}

static int touch_handle(struct local_conn *conn, uint64_t id, const Kvd__Wire__TouchRequest *msg,
                        struct kvd_diag *diag)
{
    struct prompt_copy prompt;
    int err = prompt_copy_in(conn, msg->prompt, &prompt, diag);
    err = err ? err : kvd_service_touch(conn->session, &prompt.ref, msg->n_blocks, diag);
    if (!err) {
        reply_empty(conn, id);
    }
    return err;
}

static int drop_handle(struct local_conn *conn, uint64_t id, const Kvd__Wire__DropRequest *msg,
                       struct kvd_diag *diag)
{
    struct prompt_copy prompt;
    int err = prompt_copy_in(conn, msg->prompt, &prompt, diag);
    if (!err) {
        local_drop_handle(conn, id, &prompt.ref, msg);
    }
    return err;
}

static void release_handle(struct local_conn *conn, uint64_t id,
                           const Kvd__Wire__ReleaseRequest *msg)
{
    kvd_service_release(conn->session, msg->lease,
                        msg->has_stale ? msg->stale_from_block : UINT32_MAX);
    reply_empty(conn, id);
}

/* A report goes in the packet where it fits, else in a memory of its own. */
static int report_reply(struct local_conn *conn, uint64_t id, char *json, struct kvd_diag *diag)
{
    const size_t n = strlen(json);
    KVD_AUTOCLOSE int fd = -1;
    Kvd__Wire__AdminReply body = KVD__WIRE__ADMIN_REPLY__INIT;
    if (n > KVD_WIRE_REPORT_MAX) {
        return kvd_fail(diag, -KVD_E_TOO_LONG, "report: %zu bytes, may have %d; ask for less", n,
                        KVD_WIRE_REPORT_MAX);
    }
    if (n > KVD_WIRE_PACKET_MAX - REPLY_OVERHEAD_BYTES) {
        int err = local_text_create(json, n, &fd);
        if (err) {
            return kvd_fail(diag, err, "report: no memory for %zu bytes: %s", n, kvd_strerror(err));
        }
        body.json_bytes = n;
    } else {
        body.json.data = (uint8_t *)json;
        body.json.len = n;
    }
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = id;
    reply.body_case = KVD__WIRE__REPLY__BODY_ADMIN;
    reply.admin = &body;
    local_conn_reply(conn, &reply, &fd, fd >= 0 ? 1 : 0);
    return 0;
}

static int admin_handle(struct local_conn *conn, uint64_t id, const Kvd__Wire__AdminRequest *msg,
                        struct kvd_diag *diag)
{
    KVD_AUTOFREE char *json = NULL;
    if (strlen(msg->what) > KVD_WIRE_REPORT_ARG_MAX || strlen(msg->by) > KVD_WIRE_REPORT_ARG_MAX ||
        strlen(msg->window) > KVD_WIRE_REPORT_ARG_MAX) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "report: an argument is longer than %d bytes",
                        KVD_WIRE_REPORT_ARG_MAX);
    }
    int err =
        kvd_service_report(conn->local->service, msg->what, msg->by, msg->window, diag, &json);
    if (err) {
        return err;
    }
    return report_reply(conn, id, json, diag);
}

static int verify_handle(struct local_conn *conn, uint64_t id, const Kvd__Wire__VerifyRequest *msg,
                         struct kvd_diag *diag)
{
    Kvd__Wire__VerifyReply body = KVD__WIRE__VERIFY_REPLY__INIT;
    int err = kvd_service_verify(conn->local->service, msg->tier, msg->rate, diag, &body.round);
    if (err) {
        return err;
    }
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = id;
    reply.body_case = KVD__WIRE__REPLY__BODY_VERIFY;
    reply.verify = &body;
    local_conn_reply(conn, &reply, NULL, 0);
    return 0;
}

/* ---- the way in */

static const char *greeted_handle(struct local_conn *conn, const Kvd__Wire__Request *req)
{
    struct kvd_diag diag = {{0}};
    int err = 0;
    switch (req->body_case) {
    case KVD__WIRE__REQUEST__BODY_SPACE_OPEN:
        err = space_open_handle(conn, req->id, req->space_open, &diag);
        break;
    case KVD__WIRE__REQUEST__BODY_MATCH:
        err = match_handle(conn, req->id, req->match, &diag);
        break;
    case KVD__WIRE__REQUEST__BODY_LOAD:
        local_load_handle(conn, req->id, req->load);
        break;
    case KVD__WIRE__REQUEST__BODY_RELEASE:
        release_handle(conn, req->id, req->release);
        break;
    case KVD__WIRE__REQUEST__BODY_PUT_BEGIN:
        err = put_begin_handle(conn, req->id, req->put_begin, &diag);
        break;
    case KVD__WIRE__REQUEST__BODY_PUT_COMMIT:
        local_put_commit_handle(conn, req->id, req->put_commit);
        break;
    case KVD__WIRE__REQUEST__BODY_TOUCH:
        err = touch_handle(conn, req->id, req->touch, &diag);
        break;
    case KVD__WIRE__REQUEST__BODY_DROP:
        err = drop_handle(conn, req->id, req->drop, &diag);
        break;
    case KVD__WIRE__REQUEST__BODY_PURGE:
        local_purge_handle(conn, req->id, req->purge);
        break;
    case KVD__WIRE__REQUEST__BODY_PING:
        reply_empty(conn, req->id);
        break;
    case KVD__WIRE__REQUEST__BODY_ADMIN:
        err = admin_handle(conn, req->id, req->admin, &diag);
        break;
    case KVD__WIRE__REQUEST__BODY_VERIFY:
        err = verify_handle(conn, req->id, req->verify, &diag);
        break;
    case KVD__WIRE__REQUEST__BODY_HELLO:
        return "said hello twice";
    default:
        err = kvd_fail(&diag, -KVD_E_BAD_REQUEST, "the request has no body that this daemon knows");
        break;
    }
    if (err) {
        local_conn_reply_error(conn, req->id, err, &diag);
    }
    return NULL;
}

/* A reply is the only way to learn of these: without one a lease or put would leak until the end.
 */
static bool reply_is_needed(const Kvd__Wire__Request *req)
{
    return req->body_case != KVD__WIRE__REQUEST__BODY_RELEASE &&
           req->body_case != KVD__WIRE__REQUEST__BODY_PUT_COMMIT;
}

const char *local_packet_handle(struct local_conn *conn, const uint8_t *bytes, size_t n)
{
    struct kvd_wire_budget budget;
    kvd_wire_budget_init(&budget, KVD_WIRE_UNPACK_BUDGET);
    Kvd__Wire__Request *req = kvd__wire__request__unpack(&budget.base, n, bytes);
    if (!req) {
        return "sent a packet that is no request";
    }
    const char *why;
    if (req->id == 0 && reply_is_needed(req)) {
        why = "sent a request without an id";
    } else if (conn->greeted) {
        why = greeted_handle(conn, req);
    } else if (req->body_case == KVD__WIRE__REQUEST__BODY_HELLO) {
        why = hello_handle(conn, req->id, req->hello);
    } else {
        struct kvd_diag diag;
        (void)kvd_fail(&diag, 0, "hello comes first");
        local_conn_reply_error(conn, req->id, -KVD_E_BAD_REQUEST, &diag);
        why = "did not say hello first";
    }
    kvd__wire__request__free_unpacked(req, &budget.base);
    return why;
}
