/*
 * Put: begin asks which blocks are wanted and gets room in staging for them, the payload is written
 * there, commit publishes.
 *
 * kvd_put works in batches of 4 blocks, or of half the staging area where that is less: while the
 * daemon copies one out of staging into the pool, the next one is written; smaller batches begin to
 * overlap earlier and were faster (see README.md). A block that finds no room in staging while a
 * batch before it is being committed is begun again after that. Within one client and space only
 * one kvd_put runs at a time, the others wait for their turn: two of them would take each other's
 * staging away.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/internal.h"

static int put_check(struct kvd_space *s, const struct kvd_prompt *prompt, uint32_t first,
                     uint32_t n, uint32_t max)
{
    int err = kvd_prompt_check(s, prompt);
    if (err) {
        return err;
    }
    uint32_t full = prompt->n_tokens / s->desc.block_tokens;
    if (n < 1 || n > max || first >= full || n > full - first) {
        return kvd_client_fail(s->client, KVD_BAD_REQUEST,
                               "put: %u blocks from %u, the prompt has %u full blocks", n, first,
                               full);
    }
    return 0;
}

/* ---- begin */

void kvd_put_free_locked(struct kvd_put *put)
{
    kvd_list_remove(&put->link);
    kvd_space_reg_unref_locked(&put->reg);
    kvd_link_unref_locked(put->conn);
    KVD_MAGIC_CLEAR(put);
    free(put);
}

static struct kvd_put *put_create_locked(struct kvd_call *call)
{
    struct kvd_put *put = calloc(1, sizeof(*put));
    if (!put) {
        return NULL;
    }
    KVD_MAGIC_SET(put, KVD_PUT_MAGIC);
    put->space = call->space;
    put->conn = call->conn;
    put->conn->refs++;
    put->reg = call->space->reg;
    put->reg->refs++;
    put->id = call->handle;
    put->n = call->n;
    kvd_list_push_back(&call->conn->client->puts, &put->link);
    return put;
}

/* Takes the rows of a begun put; false where the daemon grants what is not in staging. */
static bool rows_take(struct kvd_put *put, const struct kvd_call *call,
                      struct kvd_put_result *ret_result)
{
    const struct kvd_space_reg *reg = put->reg;
    for (uint32_t i = 0; i < put->n; i++) {
        struct kvd_wire_block row = kvd_call_row(call, i);
        put->state[i] = row.state;
        ret_result->stored_already += row.state == KVD_BLOCK_STORED;
        ret_result->refused += row.state != KVD_BLOCK_STORED && row.state != KVD_BLOCK_GRANTED;
        if (row.state != KVD_BLOCK_GRANTED) {
            continue;
        }
        if (put->id == 0 || row.bytes != put->space->desc.payload_bytes ||
            row.bytes > reg->staging_bytes || row.offset > reg->staging_bytes - row.bytes) {
            return false;
        }
        put->buffer[i] = reg->staging + row.offset;
        put->granted++;
    }
    return true;
}

static void put_give_up_locked(struct kvd_put *put)
{
    if (put->id) {
        kvd_link_note_locked(put->conn, (struct kvd_note){.is_put = true, .id = put->id});
    }
    kvd_put_free_locked(put);
}

static int begin_call_locked(struct kvd_space *s, const struct kvd_prompt *prompt, uint32_t first,
                             uint32_t n, struct kvd_call **ret)
{
    Kvd__Wire__Prompt msg;
    Kvd__Wire__Range tokens;
    Kvd__Wire__Range results = KVD__WIRE__RANGE__INIT;
    Kvd__Wire__PutBeginRequest body = KVD__WIRE__PUT_BEGIN_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    struct kvd_call *call;
    int err =
        kvd_prompt_call_locked(s, KVD_CALL_PUT_BEGIN, prompt, (first + n) * s->desc.block_tokens, n,
                               true, s->client->io_ns, &msg, &tokens, &call);
    if (err) {
        return err;
    }
    call->n = n;
    results.offset = call->results_offset;
    results.bytes = n * sizeof(struct kvd_wire_block);
    body.prompt = &msg;
    body.first_block = first;
    body.n_blocks = n;
    body.results = &results;
    req.body_case = KVD__WIRE__REQUEST__BODY_PUT_BEGIN;
    req.put_begin = &body;
    err = kvd_call_run_locked(&call, &req);
    if (!err) {
        *ret = call;
    }
    return err;
}

/* A put whose id is 0 was granted nothing, but has the blocks' states. */
static int begin_locked(struct kvd_space *s, const struct kvd_prompt *prompt, uint32_t first,
                        uint32_t n, struct kvd_put **ret, struct kvd_put_result *ret_result)
{
    struct kvd_client *c = s->client;
    struct kvd_put_result result = {0};
    struct kvd_call *call;
    int err = begin_call_locked(s, prompt, first, n, &call);
    if (err) {
        return err;
    }
    struct kvd_put *put =
        s->reg && s->reg->serial == call->conn->serial ? put_create_locked(call) : NULL;
    if (!put) {
        kvd_link_note_locked(call->conn, (struct kvd_note){.is_put = true, .id = call->handle});
        kvd_call_free_locked(&call);
        return kvd_client_fail(c, -ENOMEM, "no memory for a put");
    }
    bool right = rows_take(put, call, &result);
    kvd_call_free_locked(&call);
    if (!right) {
        put_give_up_locked(put);
        return kvd_client_fail(c, KVD_INTERNAL, "the daemon granted room outside of staging");
    }
    *ret = put;
    *ret_result = result;
    return 0;
}

int kvd_put_begin(struct kvd_space *space, const struct kvd_prompt *prompt, uint32_t first,
                  uint32_t n, struct kvd_put **ret_put, struct kvd_put_result *ret_result)
{
    KVD_MAGIC_CHECK(space, KVD_SPACE_MAGIC);
    struct kvd_put *put = NULL;
    struct kvd_put_result result;
    int err = put_check(space, prompt, first, n, KVD_WIRE_STAGING_SLOTS);
    if (err) {
        return err;
    }
    kvd_client_lock(space->client);
    err = begin_locked(space, prompt, first, n, &put, &result);
    if (!err) {
        space->client->stats.refused_blocks += result.refused;
    }
    if (!err && put->granted == 0) {
        put_give_up_locked(put);
        put = NULL;
    }
    kvd_client_unlock(space->client);
    if (err) {
        return err;
    }
    *ret_put = put;
    if (ret_result) {
        *ret_result = result;
    }
    return 0;
}

void *kvd_put_buffer(struct kvd_put *put, uint32_t nth)
{
    KVD_MAGIC_CHECK(put, KVD_PUT_MAGIC);
    return nth < put->n ? put->buffer[nth] : NULL;
}

/* ---- commit */

/* Sends the commit; the put is taken in every case. */
static int commit_start_locked(struct kvd_put *put, bool wait, void *cookie, struct kvd_call **ret)
{
    struct kvd_client *c = put->space->client;
    Kvd__Wire__PutCommitRequest body = KVD__WIRE__PUT_COMMIT_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    struct kvd_call *call;
    int err = kvd_client_ready_locked(c, wait, kvd_mono_ns() + c->connect_ns);
    if (!err && put->conn != c->conn) {
        err = kvd_client_fail(c, KVD_STALE, "the put is of a connection that has ended");
    }
    err = err ? err
              : kvd_call_create_locked(put->conn, KVD_CALL_PUT_COMMIT, kvd_mono_ns() + c->io_ns, 0,
                                       wait, &call);
    if (err) {
        put_give_up_locked(put);
        return err;
    }
    call->space = put->space;
    call->n = put->granted;
    body.put = put->id;
    req.body_case = KVD__WIRE__REQUEST__BODY_PUT_COMMIT;
    req.put_commit = &body;
    if (wait) {
        err = kvd_call_send_locked(call, &req, true);
        if (err) {
            kvd_call_free_locked(&call);
        }
    } else {
        err = kvd_submit_send_locked(call, &req, cookie);
    }
    if (err) {
        put_give_up_locked(put);
        return err;
    }
    kvd_put_free_locked(put); /* the daemon has all it needs */
    if (wait) {
        *ret = call;
    }
    return 0;
}

int kvd_put_commit_finish_locked(struct kvd_call *call, struct kvd_put_result *ret)
{
    struct kvd_client *c = call->conn->client;
    uint32_t committed = call->count[0];
    if (committed > call->n || call->count[1] > committed) {
        return kvd_client_fail(c, KVD_INTERNAL, "the daemon committed more than was put");
    }
    ret->committed += committed;
    ret->not_written_down += call->count[1];
    ret->refused += call->n - committed;
    c->stats.put_blocks += committed;
    c->stats.refused_blocks += call->n - committed;
    return 0;
}

/* Waits for a commit that was started and adds its result. */
static int commit_wait_locked(struct kvd_call **callp, struct kvd_put_result *result)
{
    struct kvd_call *call = *callp;
    *callp = NULL;
    if (!call) {
        return 0;
    }
    int err = kvd_call_wait_locked(call);
    if (err) {
        return err;
    }
    err = kvd_call_status(call);
    err = err ? err : kvd_put_commit_finish_locked(call, result);
    kvd_call_free_locked(&call);
    return err;
}

int kvd_put_commit(struct kvd_put **putp, struct kvd_put_result *ret_result)
{
    struct kvd_put *put = *putp;
    KVD_MAGIC_CHECK(put, KVD_PUT_MAGIC);
    struct kvd_client *c = put->space->client;
    struct kvd_put_result result = {0};
    struct kvd_call *call = NULL;
    *putp = NULL;
    kvd_client_lock(c);
    int err = commit_start_locked(put, true, NULL, &call);
    err = err ? err : commit_wait_locked(&call, &result);
    kvd_client_unlock(c);
    if (!err && ret_result) {
        *ret_result = result;
    }
    return err;
}

int kvd_submit_put_commit(struct kvd_put **putp, void *cookie)
{
    struct kvd_put *put = *putp;
    KVD_MAGIC_CHECK(put, KVD_PUT_MAGIC);
    struct kvd_client *c = put->space->client;
    *putp = NULL;
    kvd_client_lock(c);
    int err = commit_start_locked(put, false, cookie, NULL);
    kvd_client_unlock(c);
    return err;
}

void kvd_put_abort(struct kvd_put **putp)
{
    struct kvd_put *put = putp ? *putp : NULL;
    if (!put) {
        return;
    }
    KVD_MAGIC_CHECK(put, KVD_PUT_MAGIC);
    struct kvd_client *c = put->space->client;
    *putp = NULL;
    kvd_client_lock(c);
    put_give_up_locked(put);
    kvd_client_unlock(c);
}

/* ---- put: begin, copy, commit in batches */

struct put_run {
    struct kvd_space *space;
    const struct kvd_prompt *prompt;
    const void *const *src;
    struct kvd_put_result result;
    struct kvd_call *commit; /* of the batch before, under way */
    bool full;               /* a block found no room: those after it would be of no use */
};

/* Two batches fit into staging at once, so that one is written while the other is committed. */
static uint32_t batch_blocks(const struct kvd_space *s, uint32_t left)
{
    uint32_t most = KVD_CLIENT_PUT_BATCH;
    if (s->reg && s->reg->staging_slots > 0 && s->reg->staging_slots / 2 < most) {
        most = s->reg->staging_slots / 2;
    }
    most = most ? most : 1;
    return left < most ? left : most;
}

/* Blocks of a begun batch up to the first that found no room; n where all did. What is granted is
 * committed in any case, so a grant behind a gap counts too. */
static uint32_t blocks_begun(const struct kvd_put *put)
{
    uint32_t begun = put->n;
    for (uint32_t i = put->n; i-- > 0 && put->state[i] != KVD_BLOCK_GRANTED;) {
        begun = put->state[i] == KVD_BLOCK_ABSENT ? i : begun;
    }
    return begun;
}

static void count_locked(struct put_run *run, const struct kvd_put *put, uint32_t n)
{
    uint32_t refused = 0;
    for (uint32_t i = 0; i < n; i++) {
        run->result.stored_already += put->state[i] == KVD_BLOCK_STORED;
        refused += put->state[i] != KVD_BLOCK_STORED && put->state[i] != KVD_BLOCK_GRANTED;
    }
    run->result.refused += refused;
    run->space->client->stats.refused_blocks += refused;
}

static void payload_copy(const struct put_run *run, const struct kvd_put *put)
{
    for (uint32_t i = 0; i < put->n; i++) {
        if (put->buffer[i]) {
            memcpy(put->buffer[i], run->src[i], run->space->desc.payload_bytes);
        }
    }
}

/* Puts the n blocks from first on, or the first of them: *ret_n have been dealt with. Where there
 * is no room for all, but a batch is being committed, the rest is worth another attempt after that.
 */
static int batch_locked(struct put_run *run, uint32_t first, uint32_t n, uint32_t *ret_n)
{
    struct kvd_client *c = run->space->client;
    struct kvd_put *put;
    struct kvd_put_result unused;
    struct kvd_call *commit = NULL;
    int err = begin_locked(run->space, run->prompt, first, n, &put, &unused);
    if (err) {
        return err;
    }
    uint32_t begun = blocks_begun(put);
    run->full = begun < n && put->granted == 0 && !run->commit;
    *ret_n = run->full ? n : begun;
    count_locked(run, put, *ret_n);
    if (put->granted == 0) {
        put_give_up_locked(put);
        return begun < n ? commit_wait_locked(&run->commit, &run->result) : 0;
    }
    kvd_client_unlock(c);
    payload_copy(run, put);
    kvd_client_lock(c);
    err = commit_start_locked(put, true, NULL, &commit);
    if (err) {
        return err;
    }
    err = commit_wait_locked(&run->commit, &run->result);
    run->commit = commit;
    return err;
}

static int turn_take_locked(struct kvd_space *s)
{
    struct kvd_client *c = s->client;
    uint64_t deadline_ns = kvd_mono_ns() + c->io_ns;
    while (s->putting) {
        if (!kvd_client_wait_locked(c, &s->turn, deadline_ns)) {
            return kvd_client_fail(c, KVD_DEADLINE, "other puts of this space took too long");
        }
    }
    s->putting = true;
    return 0;
}

static int run_locked(struct put_run *run, uint32_t first, uint32_t n)
{
    int err = 0;
    uint32_t left = n;
    while (left > 0 && !run->full && !err) {
        uint32_t done = 0;
        err = batch_locked(run, first, batch_blocks(run->space, left), &done);
        first += done;
        run->src += done;
        left -= done;
    }
    int last = commit_wait_locked(&run->commit, &run->result);
    run->result.refused += left;
    return err ? err : last;
}

int kvd_put(struct kvd_space *space, const struct kvd_prompt *prompt, uint32_t first, uint32_t n,
            const void *const *src, struct kvd_put_result *ret_result)
{
    KVD_MAGIC_CHECK(space, KVD_SPACE_MAGIC);
    struct kvd_client *c = space->client;
    struct put_run run = {.space = space, .prompt = prompt, .src = src};
    int err = put_check(space, prompt, first, n, UINT32_MAX);
    if (err) {
        return err;
    }
    kvd_client_lock(c);
    err = turn_take_locked(space);
    if (!err) {
        err = run_locked(&run, first, n);
        space->putting = false;
        (void)pthread_cond_signal(&space->turn);
    }
    kvd_client_unlock(c);
    if (!err && ret_result) {
        *ret_result = run.result;
    }
    return err;
}
