#include "kills_load.h"

#include <stdlib.h>
#include <string.h>

#include "kvd_test.h"
#include "proto/base/clock.h"
#include "proto/format/record.h"

enum { WAIT_S = 60, IDLE_MS = 20, MATCH_MS = 10000, IO_MS = 30000 };

/* Three sizes, so that pages of the pool change their class; one that is no multiple of 4 KiB. */
static const struct kvd_space_config spaces[KILLS_SPACES] = {
#define SPACE(n, n_layers, n_tokens)                                                               \
    {                                                                                              \
        .size = sizeof(struct kvd_space_config), .model = "kills", .weights = {(n) + 1},           \
        .dtype = KVD_DTYPE_F16, .layout = KVD_LAYOUT_HEADS, .layers = (n_layers), .kv_heads = 2,   \
        .head_dim = 128, .block_tokens = (n_tokens), .rope_base = 10000, .rope_scale = 1,          \
        .numerics = "kills-1", .ranks = 1                                                          \
    }
    SPACE(0, 2, 8),
    SPACE(1, 9, 7),
    SPACE(2, 32, 8),
#undef SPACE
};

uint64_t kills_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint32_t kills_block_tokens(uint32_t space)
{
    return spaces[space].block_tokens;
}

uint64_t kills_block_bytes(uint32_t space)
{
    const struct kvd_space_config *s = &spaces[space];
    return (uint64_t)s->block_tokens * s->layers * 2 * s->kv_heads * s->head_dim * 2;
}

/* ---- conversations ---- */

static void conv_init(struct kills_conv *c, uint32_t number, uint64_t seed)
{
    static const char *const scenarios[] = {"chat", "agent", "batch"};
    uint32_t family = number / KILLS_FAMILY;
    uint64_t family_random = seed + family;
    uint64_t own_random = seed + 1000 + number;
    c->number = number;
    c->never = number >= KILLS_CONVS;
    c->space = family % KILLS_SPACES;
    c->tenant = family / KILLS_SPACES % KILLS_TENANTS;
    c->scenario = scenarios[number % 3];
    c->below = number % 3 != 2;
    uint32_t bt = kills_block_tokens(c->space);
    uint32_t shared = c->never ? 0 : KILLS_SHARED;
    uint64_t digest[2] = {c->space, c->tenant};
    uint64_t chain = kvd_sum(digest, sizeof(digest));
    for (uint32_t b = 0; b < KILLS_BLOCKS; b++) {
        uint64_t *random = b < shared ? &family_random : &own_random;
        for (uint32_t t = 0; t < bt; t++) {
            c->tokens[b * bt + t] = (uint32_t)kills_random(random) & 0xffff;
        }
        chain ^= kvd_sum(c->tokens + (size_t)b * bt, bt * sizeof(uint32_t));
        chain = kills_random(&chain);
        c->digest[b] = chain;
    }
    c->tokens[KILLS_BLOCKS * bt] = 1; /* the last token is always left to compute */
}

static const char *tenant_name(uint32_t tenant)
{
    static const char *const names[KILLS_TENANTS] = {"", "alice", "bob"};
    return names[tenant];
}

struct kvd_prompt kills_prompt(const struct kills_conv *conv, uint32_t blocks, bool one_more)
{
    return (struct kvd_prompt){.scenario = conv->scenario,
                               .tenant = tenant_name(conv->tenant),
                               .tokens = conv->tokens,
                               .n_tokens =
                                   blocks * kills_block_tokens(conv->space) + (one_more ? 1 : 0)};
}

void kills_payload_make(const struct kills_conv *conv, uint32_t block, uint8_t *payload)
{
    uint64_t random = conv->digest[block];
    uint64_t n = kills_block_bytes(conv->space);
    for (uint64_t at = 0; at < n; at += sizeof(uint64_t)) {
        uint64_t v = kills_random(&random);
        memcpy(payload + at, &v, sizeof(v)); /* all sizes are multiples of 8 */
    }
}

bool kills_payload_right(const struct kills_conv *conv, uint32_t block, const uint8_t *payload,
                         uint64_t *ret_at)
{
    uint64_t random = conv->digest[block];
    uint64_t n = kills_block_bytes(conv->space);
    for (uint64_t at = 0; at < n; at += sizeof(uint64_t)) {
        uint64_t v = kills_random(&random);
        if (memcmp(payload + at, &v, sizeof(v)) != 0) {
            *ret_at = at;
            return false;
        }
    }
    return true;
}

/* ---- what workers tell ---- */

static void note_failure(struct kills_load *load, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void note_failure(struct kills_load *load, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)pthread_mutex_lock(&load->mtx);
    if (!load->failure[0]) {
        (void)vsnprintf(load->failure, sizeof(load->failure), format, args);
    }
    (void)pthread_cond_broadcast(&load->changed);
    (void)pthread_mutex_unlock(&load->mtx);
    va_end(args);
}

void kills_load_check(struct kills_load *load)
{
    char failure[sizeof(load->failure)];
    (void)pthread_mutex_lock(&load->mtx);
    memcpy(failure, load->failure, sizeof(failure));
    (void)pthread_mutex_unlock(&load->mtx);
    if (failure[0]) {
        fail_msg("%s", failure);
    }
}

/* ---- a client ---- */

void kills_client_close(struct kills_client *c)
{
    kvd_client_close(&c->client);
    for (uint32_t i = 0; i < KILLS_BLOCKS; i++) {
        free(c->memory[i]);
        c->memory[i] = NULL;
    }
}

bool kills_client_open(struct kills_client *c, const char *socket)
{
    struct kvd_client_options options;
    memset(c, 0, sizeof(*c));
    kvd_client_options_init(&options);
    options.socket_path = socket;
    options.program = "kills";
    options.connect_ms = MATCH_MS; /* the machine may be busy: nothing here is about deadlines */
    options.match_ms = MATCH_MS;
    options.io_ms = IO_MS;
    bool ok = kvd_client_open(&options, &c->client) == 0;
    for (uint32_t i = 0; ok && i < KILLS_BLOCKS; i++) {
        c->memory[i] = malloc(kills_block_bytes(KILLS_SPACES - 1));
        ok = c->memory[i] != NULL;
    }
    for (uint32_t i = 0; ok && i < KILLS_SPACES; i++) {
        ok = kvd_space_open(c->client, &spaces[i], &c->spaces[i]) == 0;
    }
    if (!ok || !kvd_client_connected(c->client)) {
        kills_client_close(c);
        return false;
    }
    return true;
}

int kills_match(struct kills_load *load, struct kills_client *c, const struct kills_conv *conv,
                uint32_t blocks, struct kvd_match_result *ret)
{
    struct kvd_prompt prompt = kills_prompt(conv, blocks, true);
    struct kills_lookups *l = &load->lookups;
    atomic_fetch_add(&l->attempted, 1);
    int err = kvd_match(c->spaces[conv->space], &prompt, ret);
    if (!err) {
        uint64_t n = atomic_fetch_add(&l->answered, 1);
        if (n < KILLS_LOOKUPS_MAX) {
            atomic_store(&l->at_ns[n], kvd_mono_ns());
        }
    }
    return err;
}

int kills_load_blocks(struct kills_load *load, struct kills_client *c,
                      const struct kills_conv *conv, struct kvd_lease *lease, uint32_t n,
                      uint32_t *ret_good)
{
    void *dest[KILLS_BLOCKS];
    for (uint32_t i = 0; i < n; i++) {
        dest[i] = c->memory[i];
    }
    int err = kvd_load(lease, 0, n, dest, ret_good);
    for (uint32_t i = 0; !err && i < *ret_good; i++) {
        uint64_t at = 0;
        if (!kills_payload_right(conv, i, c->memory[i], &at)) {
            note_failure(load,
                         "a wrong byte: conversation %u, space %u, tenant %u, block %u at %llu",
                         conv->number, conv->space, conv->tenant, i, (unsigned long long)at);
            return 1;
        }
    }
    return err;
}

static void raise_acked(struct kills_conv *conv, uint32_t blocks)
{
    uint32_t was = atomic_load(&conv->acked);
    while (was < blocks && !atomic_compare_exchange_weak(&conv->acked, &was, blocks)) {
    }
}

int kills_put(struct kills_client *c, struct kills_conv *conv, uint32_t first, uint32_t n,
              struct kvd_put_result *ret)
{
    const void *src[KILLS_BLOCKS];
    struct kvd_prompt prompt = kills_prompt(conv, n, false);
    for (uint32_t i = first; i < n; i++) {
        kills_payload_make(conv, i, c->memory[i]);
        src[i - first] = c->memory[i];
    }
    int err = kvd_put(c->spaces[conv->space], &prompt, first, n - first, src, ret);
    if (!err && ret->refused == 0) {
        atomic_fetch_add(&conv->kept_above, ret->not_written_down);
        raise_acked(conv, n);
    }
    return err;
}

/* ---- what workers do. Each returns what the daemon said; below 0 it may be gone ---- */

/* What an engine does with a prompt: match, load, compute the rest, put it. */
static int do_serve(struct kills_worker *w, struct kills_conv *conv, bool put)
{
    struct kvd_match_result m;
    uint32_t n = atomic_load(&w->load->limit);
    struct kvd_put_result result;
    uint32_t good = 0;
    int err = kills_match(w->load, &w->client, conv, n, &m);
    if (err) {
        return err;
    }
    if (m.hit_blocks > 0) {
        err = kills_load_blocks(w->load, &w->client, conv, m.lease, m.hit_blocks, &good);
        kvd_lease_release(&m.lease);
    }
    if (!err && good < m.hit_blocks && !w->load->gaps_allowed) {
        note_failure(w->load, "conversation %u: %u blocks found, %u loaded", conv->number,
                     m.hit_blocks, good);
    }
    if (!err) {
        raise_acked(conv, good);
    }
    return err || !put || good == n ? err : kills_put(&w->client, conv, good, n, &result);
}

/* A look-up that nobody follows up. */
static int do_match(struct kills_worker *w, struct kills_conv *conv)
{
    struct kvd_match_result m;
    int err = kills_match(w->load, &w->client, conv, KILLS_BLOCKS, &m);
    if (!err) {
        kvd_lease_release(&m.lease);
    }
    return err;
}

static int do_touch(struct kills_worker *w, struct kills_conv *conv)
{
    uint32_t n = atomic_load(&w->load->limit);
    struct kvd_prompt prompt = kills_prompt(conv, n, false);
    return kvd_touch(w->client.spaces[conv->space], &prompt, n);
}

/* Garbage into staging, then given up. */
static int do_half_put(struct kills_worker *w, struct kills_conv *conv)
{
    struct kvd_prompt prompt = kills_prompt(conv, KILLS_BLOCKS, false);
    struct kvd_put *put = NULL;
    int err = kvd_put_begin(w->client.spaces[conv->space], &prompt, 0, KILLS_BLOCKS, &put, NULL);
    for (uint32_t i = 0; !err && put && i < KILLS_BLOCKS; i++) {
        void *to = kvd_put_buffer(put, i);
        if (to) {
            memset(to, (int)kills_random(&w->random), kills_block_bytes(conv->space));
        }
    }
    kvd_put_abort(&put);
    return err;
}

/* The same, and the client goes away in the middle of it, with a lease open. */
static int do_leave(struct kills_worker *w, struct kills_conv *half, struct kills_conv *conv)
{
    struct kvd_prompt prompt = kills_prompt(half, KILLS_BLOCKS, false);
    struct kvd_put *put = NULL;
    struct kvd_match_result m;
    int err = kills_match(w->load, &w->client, conv, KILLS_BLOCKS, &m);
    if (!err) {
        err = kvd_put_begin(w->client.spaces[half->space], &prompt, 0, 2, &put, NULL);
        if (put && kvd_put_buffer(put, 0)) {
            memset(kvd_put_buffer(put, 0), 0xee, kills_block_bytes(half->space));
        }
    }
    kills_client_close(&w->client);
    return err;
}

static int work(struct kills_worker *w)
{
    struct kills_load *load = w->load;
    if (!w->client.client && !kills_client_open(&w->client, load->socket)) {
        return KVD_UNAVAILABLE;
    }
    struct kills_conv *conv = &load->convs[kills_random(&w->random) % KILLS_CONVS];
    struct kills_conv *never = &load->convs[KILLS_CONVS + kills_random(&w->random) % KILLS_NEVER];
    uint64_t dice = kills_random(&w->random) % 100;
    return dice < 60   ? do_serve(w, conv, true)
           : dice < 75 ? do_serve(w, conv, false)
           : dice < 85 ? do_match(w, conv)
           : dice < 92 ? do_touch(w, conv)
           : dice < 98 ? do_half_put(w, never)
                       : do_leave(w, never, conv);
}

/* ---- threads ---- */

static void deadline_in(uint64_t ns, struct timespec *ret)
{
    uint64_t at = kvd_mono_ns() + ns;
    ret->tv_sec = (time_t)(at / KVD_NS_PER_S);
    ret->tv_nsec = (long)(at % KVD_NS_PER_S);
}

/* Waits while paused. False: it is over. */
static bool may_go_on(struct kills_load *load)
{
    (void)pthread_mutex_lock(&load->mtx);
    if (load->state == KILLS_PAUSED) {
        load->paused++;
        (void)pthread_cond_broadcast(&load->changed);
        while (load->state == KILLS_PAUSED) {
            (void)pthread_cond_wait(&load->changed, &load->mtx);
        }
        load->paused--;
    }
    bool go_on = load->state == KILLS_RUNNING;
    (void)pthread_mutex_unlock(&load->mtx);
    return go_on;
}

/* No daemon: tries again a little later, or when something changes. */
static void wait_a_little(struct kills_load *load)
{
    struct timespec until;
    deadline_in((uint64_t)IDLE_MS * KVD_NS_PER_MS, &until);
    (void)pthread_mutex_lock(&load->mtx);
    if (load->state == KILLS_RUNNING) {
        (void)pthread_cond_timedwait(&load->changed, &load->mtx, &until);
    }
    (void)pthread_mutex_unlock(&load->mtx);
}

static void *worker_main(void *arg)
{
    struct kills_worker *w = arg;
    while (may_go_on(w->load)) {
        int err = work(w);
        if (err < 0) {
            wait_a_little(w->load);
        } else if (atomic_fetch_add(&w->done, 1) == 0) {
            (void)pthread_mutex_lock(&w->load->mtx);
            (void)pthread_cond_broadcast(&w->load->changed);
            (void)pthread_mutex_unlock(&w->load->mtx);
        }
    }
    kills_client_close(&w->client);
    return NULL;
}

void kills_load_talk(struct kills_load *load, uint64_t seed)
{
    memset(load->convs, 0, sizeof(load->convs));
    for (uint32_t i = 0; i < KILLS_CONVS + KILLS_NEVER; i++) {
        conv_init(&load->convs[i], i, seed);
    }
}

void kills_load_init(struct kills_load *load, const char *socket, uint64_t seed)
{
    pthread_condattr_t attr;
    load->socket = socket;
    load->state = KILLS_PAUSED;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&load->mtx, NULL);
    (void)pthread_cond_init(&load->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    kills_load_talk(load, seed);
}

void kills_load_start(struct kills_load *load, uint64_t seed)
{
    for (uint32_t i = 0; i < KILLS_WORKERS; i++) {
        struct kills_worker *w = &load->workers[i];
        w->load = load;
        w->random = seed + 5000 + i;
        assert_int_equal(pthread_create(&w->thread, NULL, worker_main, w), 0);
        w->runs = true;
    }
    kills_load_pause(load);
}

void kills_load_fini(struct kills_load *load)
{
    kills_load_end(load);
    (void)pthread_cond_destroy(&load->changed);
    (void)pthread_mutex_destroy(&load->mtx);
}

static void set_state(struct kills_load *load, enum kills_state state)
{
    (void)pthread_mutex_lock(&load->mtx);
    load->state = state;
    (void)pthread_cond_broadcast(&load->changed);
    (void)pthread_mutex_unlock(&load->mtx);
}

void kills_load_resume(struct kills_load *load)
{
    for (uint32_t i = 0; i < KILLS_WORKERS; i++) {
        atomic_store(&load->workers[i].done, 0);
    }
    set_state(load, KILLS_RUNNING);
}

void kills_load_pause(struct kills_load *load)
{
    set_state(load, KILLS_PAUSED);
    (void)pthread_mutex_lock(&load->mtx);
    while (load->paused < KILLS_WORKERS) { /* every operation has a deadline of its own */
        (void)pthread_cond_wait(&load->changed, &load->mtx);
    }
    (void)pthread_mutex_unlock(&load->mtx);
}

void kills_load_end(struct kills_load *load)
{
    set_state(load, KILLS_ENDING);
    for (uint32_t i = 0; i < KILLS_WORKERS; i++) {
        if (load->workers[i].runs) {
            (void)pthread_join(load->workers[i].thread, NULL);
            load->workers[i].runs = false;
        }
    }
}

static bool all_answered(struct kills_load *load)
{
    for (uint32_t i = 0; i < KILLS_WORKERS; i++) {
        if (atomic_load(&load->workers[i].done) == 0) {
            return false;
        }
    }
    return true;
}

void kills_load_all_answered(struct kills_load *load)
{
    struct timespec until;
    int err = 0;
    deadline_in(WAIT_S * KVD_NS_PER_S, &until);
    (void)pthread_mutex_lock(&load->mtx);
    while (!all_answered(load) && !load->failure[0] && !err) {
        err = pthread_cond_timedwait(&load->changed, &load->mtx, &until);
    }
    (void)pthread_mutex_unlock(&load->mtx);
    kills_load_check(load);
    if (err) {
        fail_msg("a client did not find its daemon again in %d s", WAIT_S);
    }
}

void kills_load_run_for(struct kills_load *load, uint64_t ns)
{
    struct timespec until;
    int err = 0;
    deadline_in(ns, &until);
    (void)pthread_mutex_lock(&load->mtx);
    while (!load->failure[0] && !err) {
        err = pthread_cond_timedwait(&load->changed, &load->mtx, &until);
    }
    (void)pthread_mutex_unlock(&load->mtx);
    kills_load_check(load);
}
