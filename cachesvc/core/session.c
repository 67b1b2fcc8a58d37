/* Clients: sessions, the spaces they open, their staging areas. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

int kvd_session_open(struct kvd_service *service, struct kvd_session **ret)
{
    KVD_MAGIC_CHECK(service, SERVICE_MAGIC);
    struct kvd_session *s = calloc(1, sizeof(*s));
    if (!s) {
        return -ENOMEM;
    }
    KVD_MAGIC_SET(s, SESSION_MAGIC);
    (void)snprintf(s->name, sizeof(s->name), "without a name");
    s->service = service;
    s->refs = 1;
    kvd_list_init(&s->leases);
    kvd_list_init(&s->puts);
    (void)pthread_mutex_lock(&service->mtx);
    bool room = service->n_clients < service->config->client_max;
    if (room) {
        service->n_clients++;
        service->n_sessions++;
        kvd_list_push_back(&service->sessions, &s->link);
    }
    (void)pthread_mutex_unlock(&service->mtx);
    if (!room) {
        free(s);
        return -KVD_E_OVER_QUOTA;
    }
    *ret = s;
    return 0;
}

void kvd_session_name(struct kvd_session *session, const char *name)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    (void)pthread_mutex_lock(&session->service->mtx);
    (void)snprintf(session->name, sizeof(session->name), "%s", name);
    (void)pthread_mutex_unlock(&session->service->mtx);
}

static void staging_fini(struct kvd_service *service, struct session_space *sp)
{
    if (sp->staging) {
        (void)munmap(sp->staging, sp->staging_bytes);
    }
    if (sp->staging_fd >= 0) {
        (void)close(sp->staging_fd);
    }
    (void)pthread_mutex_lock(&service->mtx);
    service->staging_bytes -= sp->staging_bytes;
    (void)pthread_mutex_unlock(&service->mtx);
    *sp = (struct session_space){.staging_fd = -1};
}

static void staging_fini_all(struct kvd_session *s)
{
    for (uint32_t i = 0; i < s->n_spaces; i++) {
        staging_fini(s->service, &s->spaces[i]);
    }
}

static void session_free(struct kvd_session *s)
{
    struct kvd_service *service = s->service;
    staging_fini_all(s);
    KVD_ASSERT(s->pinned_bytes == 0 && s->n_leases == 0 && s->n_puts == 0);
    pin_table_fini(&s->pins);
    KVD_MAGIC_CLEAR(s);
    free(s);
    (void)pthread_mutex_lock(&service->mtx);
    service->n_sessions--;
    (void)pthread_cond_broadcast(&service->idle);
    (void)pthread_mutex_unlock(&service->mtx);
}

void session_ref_locked(struct kvd_session *session)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    session->refs++;
}

void session_unref(struct kvd_session *session)
{
    struct kvd_service *service = session->service;
    (void)pthread_mutex_lock(&service->mtx);
    bool last = --session->refs == 0;
    (void)pthread_mutex_unlock(&service->mtx);
    if (last) {
        session_free(session);
    }
}

void kvd_session_end(struct kvd_session **session)
{
    struct kvd_session *s = *session;
    if (!s) {
        return;
    }
    KVD_MAGIC_CHECK(s, SESSION_MAGIC);
    *session = NULL;
    (void)pthread_mutex_lock(&s->service->mtx);
    kvd_list_remove(&s->link);
    s->service->n_clients--;
    (void)pthread_mutex_unlock(&s->service->mtx);
    lease_end_session(s);
    put_end_session(s);
    /* loads may wait for a hung device: what the client had beside them is given back now */
    (void)pthread_mutex_lock(&s->service->mtx);
    bool committing = s->n_puts > 0;
    (void)pthread_mutex_unlock(&s->service->mtx);
    if (!committing) {
        staging_fini_all(s);
    }
    session_unref(s);
}

struct session_space *session_space_of(struct kvd_session *session, uint32_t handle)
{
    return handle >= 1 && handle <= session->n_spaces ? &session->spaces[handle - 1] : NULL;
}

/* ---- registering spaces ---- */

/* One set of weights has one shape: another claim under the same fingerprint is somebody's mistake.
 */
static bool contradicts(const struct kvd_space_desc *a, const struct kvd_space_desc *b)
{
    return kvd_digest_equal(&a->weights, &b->weights) && a->layout == b->layout &&
           (a->layers != b->layers || a->kv_heads != b->kv_heads || a->head_dim != b->head_dim ||
            a->latent_dim != b->latent_dim || a->latent_rope_dim != b->latent_rope_dim);
}

static int space_contradicts(const struct kvd_space_desc *had, const struct kvd_space_desc *now,
                             struct kvd_diag *diag)
{
    bool heads = had->layout == KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM;
    return kvd_fail(
        diag, -KVD_E_CONTRADICTION,
        "space of model '%s': the same weights were registered with %u layers, %s %u and %s %u, "
        "and "
        "now come with %u, %u and %u; one of the engines reads the model wrongly",
        now->model, had->layers, heads ? "KV heads" : "latent size",
        heads ? had->kv_heads : had->latent_dim, heads ? "head size" : "latent rope size",
        heads ? had->head_dim : had->latent_rope_dim, now->layers,
        heads ? now->kv_heads : now->latent_dim, heads ? now->head_dim : now->latent_rope_dim);
}

static struct service_space *space_create(const struct kvd_space_desc *desc,
                                          const struct kvd_digest *digest)
{
    struct service_space *sp = calloc(1, sizeof(*sp));
    if (!sp) {
        return NULL;
    }
    sp->digest = *digest;
    sp->desc = *desc;
    (void)snprintf(sp->model, sizeof(sp->model), "%s", desc->model);
    (void)snprintf(sp->numerics, sizeof(sp->numerics), "%s", desc->numerics);
    sp->desc.model = sp->model;
    sp->desc.numerics = sp->numerics;
    sp->header_bytes = kvd_record_header_bytes(1, desc->block_tokens, 1);
    sp->extent_bytes = sp->header_bytes + kvd_round_up(desc->payload_bytes, KVD_ALIGN_BYTES);
    return sp;
}

static int space_register_locked(struct kvd_service *service, const struct kvd_space_desc *desc,
                                 const struct kvd_digest *digest, struct kvd_diag *diag,
                                 struct service_space **ret)
{
    for (uint32_t i = 0; i < service->n_spaces; i++) {
        struct service_space *sp = service->spaces[i];
        if (kvd_digest_equal(&sp->digest, digest)) {
            *ret = sp;
            return 0;
        }
        if (KVD_PROTECT(SPACE_CONTRADICTION) && contradicts(&sp->desc, desc)) {
            return space_contradicts(&sp->desc, desc, diag);
        }
    }
    if (service->n_spaces == SPACES_MAX) {
        return kvd_fail(diag, -KVD_E_OVER_QUOTA,
                        "%d spaces are registered, which is the limit; restart the daemon to "
                        "forget unused ones",
                        SPACES_MAX);
    }
    struct service_space *sp = space_create(desc, digest);
    if (!sp) {
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    service->spaces[service->n_spaces++] = sp;
    *ret = sp;
    return 0;
}

static int space_register(struct kvd_service *service, const struct kvd_space_desc *desc,
                          const struct kvd_digest *digest, struct kvd_diag *diag,
                          struct service_space **ret)
{
    (void)pthread_mutex_lock(&service->mtx);
    uint32_t before = service->n_spaces;
    int err = space_register_locked(service, desc, digest, diag, ret);
    bool fresh = service->n_spaces != before;
    (void)pthread_mutex_unlock(&service->mtx);
    if (fresh) {
        kvd_log_info(service->log, "space registered: model %s, %llu bytes a block of %u tokens",
                     desc->model, (unsigned long long)desc->payload_bytes, desc->block_tokens);
    }
    return err;
}

/* ---- staging ---- */

/* Takes bytes for the usual number of slots, or for a quarter of what is left, so that many clients
 * share; 0 slots where not even two are left. */
static uint32_t staging_charge(struct kvd_service *service, uint64_t slot_bytes)
{
    (void)pthread_mutex_lock(&service->mtx);
    uint64_t left = service->staging_cap - service->staging_bytes;
    uint64_t fit = left / slot_bytes;
    uint64_t slots = fit / 4 > KVD_WIRE_STAGING_SLOTS ? KVD_WIRE_STAGING_SLOTS : fit / 4;
    slots = slots < 2 && fit >= 2 ? 2 : slots;
    service->staging_bytes += slots * slot_bytes;
    (void)pthread_mutex_unlock(&service->mtx);
    return (uint32_t)slots;
}

static int staging_init(struct session_space *sp)
{
    sp->staging_fd = memfd_create("kvdepot-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (sp->staging_fd < 0 || ftruncate(sp->staging_fd, (off_t)sp->staging_bytes) ||
        (KVD_PROTECT(STAGING_SEALED) &&
         fcntl(sp->staging_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))) {
        return -errno;
    }
    void *map =
        mmap(NULL, sp->staging_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, sp->staging_fd, 0);
    if (map == MAP_FAILED) {
        return -errno;
    }
    sp->staging = map;
    return 0;
}

static int session_space_add(struct kvd_session *session, struct service_space *space,
                             struct kvd_diag *diag)
{
    struct kvd_service *service = session->service;
    if (session->n_spaces == SESSION_SPACES_MAX) {
        return kvd_fail(diag, -KVD_E_OVER_QUOTA,
                        "a client may open %d spaces; open another connection", SESSION_SPACES_MAX);
    }
    struct session_space sp = {.space = space, .staging_fd = -1};
    sp.slot_bytes = kvd_round_up(space->desc.payload_bytes, KVD_ALIGN_BYTES);
    sp.slots = staging_charge(service, sp.slot_bytes);
    sp.staging_bytes = sp.slots * sp.slot_bytes;
    /* without staging a client can't put, but it can look up and load */
    int err = sp.slots ? staging_init(&sp) : 0;
    if (err) {
        staging_fini(service, &sp);
        return kvd_fail(diag, err, "staging area: %s", kvd_strerror(err));
    }
    session->spaces[session->n_spaces++] = sp;
    return 0;
}

int kvd_service_space_open(struct kvd_session *session, const struct kvd_space_desc *desc,
                           struct kvd_diag *diag, struct kvd_space_opened *ret)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    struct kvd_digest digest;
    kvd_space_digest(desc, &digest);
    struct service_space *space = NULL;
    int err = space_register(session->service, desc, &digest, diag, &space);
    if (err) {
        return err;
    }
    uint32_t at = 0;
    while (at < session->n_spaces && session->spaces[at].space != space) {
        at++;
    }
    if (at == session->n_spaces) {
        err = session_space_add(session, space, diag);
        if (err) {
            return err;
        }
    }
    const struct session_space *sp = &session->spaces[at];
    *ret = (struct kvd_space_opened){.handle = at + 1,
                                     .space = digest,
                                     .staging_fd = sp->staging_fd,
                                     .staging_bytes = sp->staging_bytes,
                                     .staging_slots = sp->slots,
                                     .slot_bytes = sp->slot_bytes};
    return 0;
}
