/*
 * Spaces: the description is the client's for good; its registration belongs to one link, and is
 * made again, when it is needed, after the daemon was reached again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "client/src/internal.h"

_Static_assert((int)KVD_DTYPE_F16 == (int)KVD_KV_F16, "numbers of the wire");
_Static_assert((int)KVD_DTYPE_BF16 == (int)KVD_KV_BF16, "numbers of the wire");
_Static_assert((int)KVD_DTYPE_F32 == (int)KVD_KV_F32, "numbers of the wire");
_Static_assert((int)KVD_DTYPE_FP8_E4M3 == (int)KVD_KV_FP8_E4M3, "numbers of the wire");
_Static_assert((int)KVD_LAYOUT_HEADS == (int)KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM,
               "numbers of the wire");
_Static_assert((int)KVD_LAYOUT_LATENT == (int)KVD_LAYOUT_LAYER_TOKEN_LATENT, "numbers of the wire");

/* ---- registration */

void kvd_space_reg_unref_locked(struct kvd_space_reg **regp)
{
    struct kvd_space_reg *reg = *regp;
    *regp = NULL;
    if (!reg || --reg->refs > 0) {
        return;
    }
    if (reg->staging) {
        (void)munmap(reg->staging, reg->staging_bytes);
    }
    free(reg);
}

static int staging_map(const Kvd__Wire__SpaceOpenReply *msg, int fd, struct kvd_space_reg *reg)
{
    struct stat st;
    if (msg->staging_bytes < 1 || fstat(fd, &st) < 0 || (uint64_t)st.st_size < msg->staging_bytes) {
        return KVD_INTERNAL;
    }
    void *map = mmap(NULL, msg->staging_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        return -errno;
    }
    (void)madvise(map, msg->staging_bytes, MADV_DONTFORK);
    reg->staging = map;
    reg->staging_bytes = msg->staging_bytes;
    reg->staging_slots = msg->staging_slots;
    return 0;
}

/* Without slots there is no descriptor: the space can be read, but not written. */
static int reg_create(const Kvd__Wire__SpaceOpenReply *msg, const int *fds, unsigned n_fds,
                      struct kvd_space_reg **ret)
{
    if (n_fds != (msg->staging_slots ? 1 : 0)) {
        return KVD_INTERNAL;
    }
    struct kvd_space_reg *reg = calloc(1, sizeof(*reg));
    if (!reg) {
        return -ENOMEM;
    }
    int err = msg->staging_slots ? staging_map(msg, fds[0], reg) : 0;
    if (err) {
        free(reg);
        return err;
    }
    reg->refs = 1;
    reg->handle = msg->space_handle;
    *ret = reg;
    return 0;
}

void kvd_space_opened_locked(struct kvd_call *call, const Kvd__Wire__SpaceOpenReply *msg, int *fds,
                             unsigned n_fds)
{
    struct kvd_space *s = call->space;
    struct kvd_space_reg *reg = NULL;
    if (s->reg && s->reg->serial == call->conn->serial) {
        return; /* another thread's call was quicker */
    }
    call->status = reg_create(msg, fds, n_fds, &reg);
    if (!reg) {
        return;
    }
    reg->serial = call->conn->serial;
    kvd_space_reg_unref_locked(&s->reg);
    s->reg = reg;
}

static int register_start_locked(struct kvd_space *s, bool wait, struct kvd_call **ret)
{
    struct kvd_client *c = s->client;
    struct kvd_call *call;
    Kvd__Wire__SpaceDesc desc;
    Kvd__Wire__SpaceOpenRequest body = KVD__WIRE__SPACE_OPEN_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    int err = kvd_call_create_locked(c->conn, KVD_CALL_SPACE_OPEN, kvd_mono_ns() + c->io_ns, 0,
                                     wait, &call);
    if (err) {
        return err;
    }
    call->space = s;
    kvd_wire_space_desc_pack(&s->desc, &desc);
    body.desc = &desc;
    req.body_case = KVD__WIRE__REQUEST__BODY_SPACE_OPEN;
    req.space_open = &body;
    err = kvd_call_send_locked(call, &req, wait);
    if (err) {
        kvd_call_free_locked(&call);
        return err;
    }
    s->opening_serial = call->conn->serial;
    *ret = call;
    return 0;
}

/* Without waiting: sends the registration once and refuses until its answer is there. */
static int register_submit_locked(struct kvd_space *s)
{
    struct kvd_call *call;
    if (s->refused && s->refused_serial == s->client->conn->serial) {
        return kvd_client_fail(s->client, s->refused, "the daemon refused the space: %s",
                               kvd_status_text(s->refused));
    }
    if (s->opening_serial != s->client->conn->serial) {
        int err = register_start_locked(s, false, &call);
        if (err) {
            return err;
        }
        call->state = KVD_CALL_ABANDONED; /* nobody waits: the reply registers */
    }
    return kvd_client_fail(s->client, KVD_UNAVAILABLE,
                           "the daemon was reached again; the space is being registered");
}

int kvd_space_ready_locked(struct kvd_space *s, bool wait)
{
    struct kvd_client *c = s->client;
    int err = kvd_client_ready_locked(c, wait, kvd_mono_ns() + c->connect_ns);
    if (err || (s->reg && s->reg->serial == c->conn->serial)) {
        return err;
    }
    if (!wait) {
        return register_submit_locked(s);
    }
    struct kvd_call *call;
    err = register_start_locked(s, true, &call);
    if (!err) {
        err = kvd_call_wait_locked(call);
        if (!err) {
            err = kvd_call_status(call);
            kvd_call_free_locked(&call);
        }
    }
    if (!err && !c->conn) {
        return kvd_client_fail(c, KVD_UNAVAILABLE, "%s", c->why.text);
    }
    return err;
}

/* ---- life */

static int desc_of(struct kvd_client *c, const struct kvd_space_config *config,
                   struct kvd_space_desc *ret)
{
    struct kvd_diag diag;
    if (config->size != sizeof(*config)) {
        return kvd_client_fail(c, KVD_BAD_REQUEST, "space.size is %zu, must be %zu", config->size,
                               sizeof(*config));
    }
    struct kvd_space_desc d = {
        .model = config->model,
        .kv_dtype = (enum kvd_kv_dtype)config->dtype,
        .layout = (enum kvd_kv_layout)config->layout,
        .layers = config->layers,
        .kv_heads = config->kv_heads,
        .head_dim = config->head_dim,
        .latent_dim = config->latent_dim,
        .latent_rope_dim = config->latent_rope_dim,
        .block_tokens = config->block_tokens,
        .numerics = config->numerics,
        .ranks = config->ranks,
    };
    memcpy(d.weights.b, config->weights, KVD_DIGEST_BYTES);
    memcpy(d.adapter.b, config->adapter, KVD_DIGEST_BYTES);
    memcpy(&d.rope_base_bits, &config->rope_base, sizeof(d.rope_base_bits));
    memcpy(&d.rope_scale_bits, &config->rope_scale, sizeof(d.rope_scale_bits));
    d.payload_bytes = kvd_space_payload_bytes(&d);
    int err = kvd_space_desc_check(&d, &diag);
    if (err) {
        return kvd_client_fail(c, KVD_BAD_REQUEST, "%s", diag.text);
    }
    *ret = d;
    return 0;
}

static struct kvd_space *space_create(struct kvd_client *c, const struct kvd_space_desc *desc)
{
    struct kvd_space *s = calloc(1, sizeof(*s));
    char *model = strdup(desc->model);
    char *numerics = strdup(desc->numerics);
    if (!s || !model || !numerics) {
        free(s);
        free(model);
        free(numerics);
        return NULL;
    }
    KVD_MAGIC_SET(s, KVD_SPACE_MAGIC);
    s->client = c;
    s->desc = *desc;
    s->desc.model = model;
    s->desc.numerics = numerics;
    kvd_cond_init(&s->turn);
    kvd_list_init(&s->link);
    return s;
}

void kvd_space_free_locked(struct kvd_space *s)
{
    kvd_list_remove(&s->link);
    kvd_space_reg_unref_locked(&s->reg);
    (void)pthread_cond_destroy(&s->turn);
    free((char *)s->desc.model);
    free((char *)s->desc.numerics);
    KVD_MAGIC_CLEAR(s);
    free(s);
}

/* What the daemon says about a space for good, as against not being reached. */
static bool is_refusal(int err)
{
    return err == KVD_CONTRADICTION || err == KVD_OVER_QUOTA || err == KVD_FULL ||
           err == KVD_BAD_REQUEST;
}

int kvd_space_open(struct kvd_client *client, const struct kvd_space_config *config,
                   struct kvd_space **ret_space)
{
    KVD_MAGIC_CHECK(client, KVD_CLIENT_MAGIC);
    struct kvd_space_desc desc;
    int err = desc_of(client, config, &desc);
    if (err) {
        return err;
    }
    struct kvd_space *s = space_create(client, &desc);
    if (!s) {
        return kvd_client_fail(client, -ENOMEM, "no memory for a space");
    }
    kvd_client_lock(client);
    kvd_list_push_back(&client->spaces, &s->link);
    err = kvd_space_ready_locked(s, true);
    if (is_refusal(err)) {
        kvd_space_free_locked(s);
    } else {
        *ret_space = s;
        err = 0;
    }
    kvd_client_unlock(client);
    return err;
}

uint64_t kvd_space_block_bytes(const struct kvd_space *space)
{
    KVD_MAGIC_CHECK(space, KVD_SPACE_MAGIC);
    return space->desc.payload_bytes;
}
