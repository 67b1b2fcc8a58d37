/*
 * Prompts on their way to the daemon; match, leases, touch.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/internal.h"

_Static_assert((int)KVD_IN_NONE == (int)KVD_TIER_NONE, "numbers of the wire");
_Static_assert((int)KVD_IN_HBM == (int)KVD_TIER_HBM, "numbers of the wire");
_Static_assert((int)KVD_IN_DRAM == (int)KVD_TIER_DRAM, "numbers of the wire");
_Static_assert((int)KVD_IN_NVME == (int)KVD_TIER_NVME, "numbers of the wire");
_Static_assert((int)KVD_IN_REMOTE == (int)KVD_TIER_REMOTE, "numbers of the wire");
_Static_assert((int)KVD_IN_SHARED == (int)KVD_TIER_SHARED, "numbers of the wire");

/* ---- prompts */

int kvd_prompt_check(struct kvd_space *s, const struct kvd_prompt *prompt)
{
    struct kvd_client *c = s->client;
    size_t scenario = prompt->scenario ? strlen(prompt->scenario) : 0;
    size_t tenant = prompt->tenant ? strlen(prompt->tenant) : 0;
    if (scenario < 1 || scenario > KVD_CLIENT_SCENARIO_MAX) {
        return kvd_client_fail(c, KVD_BAD_REQUEST,
                               "prompt: the scenario has %zu bytes, must have 1 to %d", scenario,
                               KVD_CLIENT_SCENARIO_MAX);
    }
    if (tenant > KVD_TENANT_NAME_MAX) {
        return kvd_client_fail(c, KVD_BAD_REQUEST, "prompt: the tenant has %zu bytes, may have %d",
                               tenant, KVD_TENANT_NAME_MAX);
    }
    if (!prompt->tokens || prompt->n_tokens < 1 || prompt->n_tokens > KVD_WIRE_PROMPT_TOKENS_MAX) {
        return kvd_client_fail(c, KVD_BAD_REQUEST, "prompt: %u tokens, must be 1 to %d",
                               prompt->tokens ? prompt->n_tokens : 0, KVD_WIRE_PROMPT_TOKENS_MAX);
    }
    if (prompt->rank >= s->desc.ranks) {
        return kvd_client_fail(c, KVD_BAD_REQUEST, "prompt: rank %u, the space has %u ranks",
                               prompt->rank, s->desc.ranks);
    }
    return 0;
}

static void prompt_pack(const struct kvd_space *s, const struct kvd_prompt *prompt,
                        Kvd__Wire__Prompt *ret_msg)
{
    kvd__wire__prompt__init(ret_msg);
    ret_msg->space_handle = s->reg->handle;
    ret_msg->rank = prompt->rank;
    ret_msg->scenario = (char *)prompt->scenario;
    ret_msg->tenant_name.data = (uint8_t *)prompt->tenant;
    ret_msg->tenant_name.len = prompt->tenant ? strlen(prompt->tenant) : 0;
    ret_msg->extra.data = (uint8_t *)prompt->extra;
    ret_msg->extra.len = prompt->extra ? KVD_DIGEST_BYTES : 0;
}

int kvd_prompt_call_locked(struct kvd_space *s, enum kvd_call_op op,
                           const struct kvd_prompt *prompt, uint32_t n_tokens, uint32_t n_results,
                           bool wait, uint64_t budget_ns, Kvd__Wire__Prompt *ret_msg,
                           Kvd__Wire__Range *ret_tokens, struct kvd_call **ret)
{
    struct kvd_client *c = s->client;
    int err = kvd_space_ready_locked(s, wait);
    if (err) {
        return err;
    }
    uint64_t tokens_bytes = (uint64_t)n_tokens * sizeof(uint32_t);
    uint64_t results_at = (tokens_bytes + 63) & ~UINT64_C(63);
    uint64_t bytes = results_at + n_results * sizeof(struct kvd_wire_block);
    struct kvd_call *call;
    err = kvd_call_create_locked(c->conn, op, kvd_mono_ns() + budget_ns, bytes, wait, &call);
    if (err) {
        return err;
    }
    if (c->conn != call->conn || s->reg->serial != call->conn->serial) {
        kvd_call_free_locked(&call);
        return kvd_client_fail(c, KVD_UNAVAILABLE, "%s", c->why.text);
    }
    call->space = s;
    call->results_offset = call->offset + results_at;
    call->n_results = n_results;
    prompt_pack(s, prompt, ret_msg);
    kvd__wire__range__init(ret_tokens);
    ret_tokens->offset = call->offset;
    ret_tokens->bytes = tokens_bytes;
    ret_msg->tokens = ret_tokens;
    uint8_t *to = call->conn->area + call->offset;
    kvd_client_unlock(c); /* the range is ours, and the call keeps the mapping */
    memcpy(to, prompt->tokens, tokens_bytes);
    kvd_client_lock(c);
    *ret = call;
    return 0;
}

struct kvd_wire_block kvd_call_row(const struct kvd_call *call, uint32_t i)
{
    struct kvd_wire_block row;
    KVD_ASSERT(i < call->n_results);
    memcpy(&row, call->conn->area + call->results_offset + i * sizeof(row), sizeof(row));
    return row;
}

/* ---- match */

static int match_start_locked(struct kvd_space *s, const struct kvd_prompt *prompt, bool wait,
                              void *cookie, struct kvd_call **ret)
{
    Kvd__Wire__Prompt msg;
    Kvd__Wire__Range tokens;
    Kvd__Wire__Range results = KVD__WIRE__RANGE__INIT;
    Kvd__Wire__MatchRequest body = KVD__WIRE__MATCH_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    struct kvd_call *call;
    uint32_t asked = (prompt->n_tokens - 1) / s->desc.block_tokens;
    int err = kvd_prompt_call_locked(s, KVD_CALL_MATCH, prompt, prompt->n_tokens, asked ? asked : 1,
                                     wait, s->client->match_ns, &msg, &tokens, &call);
    if (err) {
        return err;
    }
    call->n = asked;
    results.offset = call->results_offset;
    results.bytes = call->n_results * sizeof(struct kvd_wire_block);
    body.prompt = &msg;
    body.results = &results;
    req.body_case = KVD__WIRE__REQUEST__BODY_MATCH;
    req.match = &body;
    if (!wait) {
        return kvd_submit_send_locked(call, &req, cookie);
    }
    err = kvd_call_run_locked(&call, &req);
    if (!err) {
        *ret = call;
    }
    return err;
}

static int lease_create_locked(struct kvd_call *call, uint32_t hit, struct kvd_lease **ret)
{
    struct kvd_lease *lease = calloc(1, sizeof(*lease) + hit);
    if (!lease) {
        return kvd_client_fail(call->conn->client, -ENOMEM, "no memory for a lease");
    }
    KVD_MAGIC_SET(lease, KVD_LEASE_MAGIC);
    lease->space = call->space;
    lease->conn = call->conn;
    lease->conn->refs++;
    lease->id = call->handle;
    lease->hit_blocks = hit;
    for (uint32_t i = 0; i < hit; i++) {
        uint8_t tier = kvd_call_row(call, i).tier;
        lease->tiers[i] = tier < KVD_TIER_COUNT ? tier : KVD_TIER_NONE;
    }
    kvd_list_push_back(&call->conn->client->leases, &lease->link);
    *ret = lease;
    return 0;
}

int kvd_match_finish_locked(struct kvd_call *call, struct kvd_match_result *ret)
{
    struct kvd_client *c = call->conn->client;
    struct kvd_match_result r = {.asked_blocks = call->n, .hit_blocks = call->count[1]};
    if (call->count[0] != call->n || r.hit_blocks > r.asked_blocks ||
        (r.hit_blocks > 0 && call->handle == 0)) {
        return kvd_client_fail(c, KVD_INTERNAL, "the daemon counts other blocks than were asked");
    }
    int err = r.hit_blocks ? lease_create_locked(call, r.hit_blocks, &r.lease) : 0;
    if (err) {
        kvd_link_note_locked(call->conn, (struct kvd_note){.id = call->handle});
        return err;
    }
    c->stats.matches++;
    c->stats.asked_blocks += r.asked_blocks;
    c->stats.hit_blocks += r.hit_blocks;
    *ret = r;
    return 0;
}

int kvd_match(struct kvd_space *space, const struct kvd_prompt *prompt,
              struct kvd_match_result *ret_result)
{
    KVD_MAGIC_CHECK(space, KVD_SPACE_MAGIC);
    struct kvd_client *c = space->client;
    struct kvd_call *call = NULL;
    int err = kvd_prompt_check(space, prompt);
    if (err) {
        return err;
    }
    kvd_client_lock(c);
    err = match_start_locked(space, prompt, true, NULL, &call);
    err = err ? err : kvd_match_finish_locked(call, ret_result);
    kvd_call_free_locked(&call);
    kvd_client_unlock(c);
    return err;
}

int kvd_submit_match(struct kvd_space *space, const struct kvd_prompt *prompt, void *cookie)
{
    KVD_MAGIC_CHECK(space, KVD_SPACE_MAGIC);
    int err = kvd_prompt_check(space, prompt);
    if (err) {
        return err;
    }
    kvd_client_lock(space->client);
    err = match_start_locked(space, prompt, false, cookie, NULL);
    kvd_client_unlock(space->client);
    return err;
}

/* ---- leases */

enum kvd_tier kvd_lease_tier(const struct kvd_lease *lease, uint32_t index)
{
    KVD_MAGIC_CHECK(lease, KVD_LEASE_MAGIC);
    return index < lease->hit_blocks ? (enum kvd_tier)lease->tiers[index] : KVD_IN_NONE;
}

void kvd_lease_free_locked(struct kvd_lease *lease)
{
    kvd_list_remove(&lease->link);
    kvd_link_unref_locked(lease->conn);
    free(lease->placed);
    KVD_MAGIC_CLEAR(lease);
    free(lease);
}

void kvd_lease_release(struct kvd_lease **leasep)
{
    struct kvd_lease *lease = leasep ? *leasep : NULL;
    if (!lease) {
        return;
    }
    KVD_MAGIC_CHECK(lease, KVD_LEASE_MAGIC);
    *leasep = NULL;
    struct kvd_client *c = lease->space->client;
    kvd_client_lock(c);
    kvd_link_note_locked(lease->conn, (struct kvd_note){.id = lease->id,
                                                        .has_stale = lease->has_stale,
                                                        .stale_from = lease->stale_from});
    kvd_lease_free_locked(lease);
    kvd_client_unlock(c);
}

/* ---- touch */

static int touch(struct kvd_space *s, const struct kvd_prompt *prompt, uint32_t n, bool wait,
                 void *cookie)
{
    Kvd__Wire__Prompt msg;
    Kvd__Wire__Range tokens;
    Kvd__Wire__TouchRequest body = KVD__WIRE__TOUCH_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    struct kvd_call *call = NULL;
    int err = kvd_prompt_check(s, prompt);
    if (!err && (n < 1 || n > prompt->n_tokens / s->desc.block_tokens)) {
        err = kvd_client_fail(s->client, KVD_BAD_REQUEST, "touch: %u blocks, the prompt has %u", n,
                              prompt->n_tokens / s->desc.block_tokens);
    }
    if (err) {
        return err;
    }
    kvd_client_lock(s->client);
    err = kvd_prompt_call_locked(s, KVD_CALL_TOUCH, prompt, n * s->desc.block_tokens, 0, wait,
                                 s->client->match_ns, &msg, &tokens, &call);
    if (!err) {
        body.prompt = &msg;
        body.n_blocks = n;
        req.body_case = KVD__WIRE__REQUEST__BODY_TOUCH;
        req.touch = &body;
        err = wait ? kvd_call_run_locked(&call, &req) : kvd_submit_send_locked(call, &req, cookie);
        if (wait) {
            kvd_call_free_locked(&call);
        }
    }
    kvd_client_unlock(s->client);
    return err;
}

int kvd_touch(struct kvd_space *space, const struct kvd_prompt *prompt, uint32_t n)
{
    KVD_MAGIC_CHECK(space, KVD_SPACE_MAGIC);
    return touch(space, prompt, n, true, NULL);
}

int kvd_submit_touch(struct kvd_space *space, const struct kvd_prompt *prompt, uint32_t n,
                     void *cookie)
{
    KVD_MAGIC_CHECK(space, KVD_SPACE_MAGIC);
    return touch(space, prompt, n, false, cookie);
}
