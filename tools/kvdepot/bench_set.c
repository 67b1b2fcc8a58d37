/* What a measurement works on: see bench_set.h. */
#include "tools/kvdepot/bench_set.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "tools/kvdepot/report.h"

enum { SETTLE_S = 60, POLL_MS = 20, PAGE = 4096 };

/* xorshift: payloads that no device or file system can make smaller. */
static void fill(uint64_t *words, size_t n, uint64_t state)
{
    for (size_t i = 0; i < n; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = state;
    }
}

static int buffers_create(struct kvd_bench_set *set)
{
    size_t n = set->n_blocks;
    size_t bytes = n * set->block_bytes;
    set->tokens = calloc(n * KVD_BENCH_BLOCK_TOKENS + 1, sizeof(*set->tokens));
    set->source = calloc(n, sizeof(*set->source));
    set->dest = calloc(n, sizeof(*set->dest));
    if (!set->tokens || !set->source || !set->dest ||
        posix_memalign(&set->source_bytes, PAGE, bytes) ||
        posix_memalign(&set->dest_bytes, PAGE, bytes)) {
        return -ENOMEM;
    }
    fill(set->source_bytes, bytes / sizeof(uint64_t), UINT64_C(0x9e3779b97f4a7c15));
    memset(set->dest_bytes, 1, bytes); /* its pages are there before anything is measured */
    for (size_t i = 0; i < n; i++) {
        set->source[i] = (char *)set->source_bytes + i * set->block_bytes;
        set->dest[i] = (char *)set->dest_bytes + i * set->block_bytes;
    }
    return 0;
}

static int space_open(struct kvd_bench_set *set, const struct kvd_bench_geometry *geometry)
{
    struct kvd_space_config config = {
        .size = sizeof(config),
        .model = geometry->name,
        .dtype = KVD_DTYPE_F16,
        .layout = KVD_LAYOUT_HEADS,
        .layers = geometry->layers,
        .kv_heads = geometry->kv_heads,
        .head_dim = geometry->head_dim,
        .block_tokens = KVD_BENCH_BLOCK_TOKENS,
        .rope_base = 10000.0,
        .rope_scale = 1.0,
        .numerics = "bench",
        .ranks = 1,
    };
    /* A model's weights come in one geometry only; the name stands for the weights here. */
    (void)snprintf((char *)config.weights, sizeof(config.weights), "%s", geometry->name);
    return kvd_space_open(set->client, &config, &set->space);
}

int kvd_bench_set_open(const char *socket_path, const struct kvd_bench_geometry *geometry,
                       struct kvd_bench_set *ret_set, struct kvd_diag *diag)
{
    struct kvd_bench_set set = {.n_blocks = geometry->n_blocks};
    struct kvd_client_options options;
    kvd_client_options_init(&options);
    options.socket_path = socket_path;
    options.program = "kvdepot bench";
    options.match_ms = 2000;
    options.io_ms = 20000;
    int err = kvd_client_open(&options, &set.client);
    if (!err) {
        err = space_open(&set, geometry);
    }
    if (err) {
        (void)kvd_fail(diag, err, "cannot open the space %s: %s", geometry->name,
                       set.client ? kvd_client_message(set.client) : kvd_status_text(err));
        kvd_client_close(&set.client);
        return err;
    }
    set.block_bytes = kvd_space_block_bytes(set.space);
    err = buffers_create(&set);
    if (err) {
        kvd_bench_set_close(&set);
        return kvd_fail(diag, err, "out of memory: the benchmark needs about 200 MB");
    }
    *ret_set = set;
    return 0;
}

void kvd_bench_set_close(struct kvd_bench_set *set)
{
    kvd_client_close(&set->client);
    free(set->tokens);
    free(set->source);
    free(set->dest);
    free(set->source_bytes);
    free(set->dest_bytes);
    memset(set, 0, sizeof(*set));
}

void kvd_bench_set_chain(struct kvd_bench_set *set, uint32_t number)
{
    uint32_t n = set->n_blocks * KVD_BENCH_BLOCK_TOKENS + 1;
    for (uint32_t i = 0; i < n; i++) {
        set->tokens[i] = (number * 7919 + i * 31) % 49152;
    }
    set->tokens[0] = number;
    set->prompt = (struct kvd_prompt){.scenario = "chat", .tokens = set->tokens, .n_tokens = n};
}

int kvd_bench_set_put(struct kvd_bench_set *set, struct kvd_diag *diag)
{
    struct kvd_put_result result = {0};
    int err = kvd_put(set->space, &set->prompt, 0, set->n_blocks, (const void *const *)set->source,
                      &result);
    if (err) {
        return kvd_fail(diag, err, "put: %s", kvd_client_message(set->client));
    }
    if (result.committed + result.stored_already != set->n_blocks) {
        return kvd_fail(diag, -KVD_E_FULL, "put: the daemon stored %u of %u blocks",
                        result.committed + result.stored_already, set->n_blocks);
    }
    return 0;
}

static int load_leased(struct kvd_bench_set *set, struct kvd_lease *lease, enum kvd_tier tier,
                       struct kvd_diag *diag)
{
    uint32_t good = 0;
    int err = kvd_load(lease, 0, set->n_blocks, set->dest, &good);
    if (err) {
        return kvd_fail(diag, err, "load: %s", kvd_client_message(set->client));
    }
    for (uint32_t i = 0; i < set->n_blocks; i++) {
        if (kvd_lease_tier(lease, i) != tier) {
            return kvd_fail(diag, -KVD_E_INTERNAL, "block %u came from another tier than wanted",
                            i);
        }
    }
    if (good != set->n_blocks) {
        return kvd_fail(diag, -KVD_E_CORRUPT, "load: %u of %u blocks were good", good,
                        set->n_blocks);
    }
    return 0;
}

int kvd_bench_set_load(struct kvd_bench_set *set, enum kvd_tier tier, struct kvd_diag *diag)
{
    struct kvd_match_result match = {0};
    int err = kvd_match(set->space, &set->prompt, &match);
    if (err) {
        return kvd_fail(diag, err, "match: %s", kvd_client_message(set->client));
    }
    if (match.hit_blocks == set->n_blocks) {
        err = load_leased(set, match.lease, tier, diag);
    } else {
        err = kvd_fail(diag, -KVD_E_NOT_FOUND, "match: the daemon has %u of %u blocks",
                       match.hit_blocks, set->n_blocks);
    }
    kvd_lease_release(&match.lease);
    return err;
}

/* The blocks in place are looked at, a byte of each: that a pointer came back proves nothing. */
static int place_leased(struct kvd_bench_set *set, struct kvd_lease *lease, struct kvd_diag *diag)
{
    KVD_AUTOFREE const void **at = calloc(set->n_blocks, sizeof(*at));
    uint32_t good = 0;
    int err = at ? kvd_place(lease, 0, set->n_blocks, at, &good) : -ENOMEM;
    for (uint32_t i = 0; i < good && !err; i++) {
        const uint64_t last = set->block_bytes - 1;
        err = ((const char *)at[i])[last] == ((const char *)set->source[i])[last] ? 0
                                                                                  : -KVD_E_CORRUPT;
    }
    err = err ? err : kvd_place_check(lease);
    if (err) {
        return kvd_fail(diag, err, "place: %s", kvd_client_message(set->client));
    }
    return good == set->n_blocks
               ? 0
               : kvd_fail(diag, -KVD_E_CORRUPT, "place: %u of %u blocks were good", good,
                          set->n_blocks);
}

int kvd_bench_set_place(struct kvd_bench_set *set, struct kvd_diag *diag)
{
    struct kvd_match_result match = {0};
    int err = kvd_match(set->space, &set->prompt, &match);
    if (err) {
        return kvd_fail(diag, err, "match: %s", kvd_client_message(set->client));
    }
    if (match.hit_blocks == set->n_blocks) {
        err = place_leased(set, match.lease, diag);
    } else {
        err = kvd_fail(diag, -KVD_E_NOT_FOUND, "match: the daemon has %u of %u blocks",
                       match.hit_blocks, set->n_blocks);
    }
    kvd_lease_release(&match.lease);
    return err;
}

int kvd_bench_set_verify(const struct kvd_bench_set *set, struct kvd_diag *diag)
{
    if (memcmp(set->source_bytes, set->dest_bytes, set->n_blocks * set->block_bytes) != 0) {
        return kvd_fail(diag, -KVD_E_CORRUPT, "the loaded bytes are not those that were put");
    }
    return 0;
}

void kvd_bench_set_copy(struct kvd_bench_set *set)
{
    for (uint32_t i = 0; i < set->n_blocks; i++) {
        memcpy(set->dest[i], set->source[i], set->block_bytes);
    }
}

/* Bytes that wait to be written down; 0 where there is no nvme tier. */
static int queue_bytes(struct kvd_bench_set *set, json_int_t *ret_bytes, struct kvd_diag *diag)
{
    KVD_AUTOFREE char *text = NULL;
    int err = kvd_report(set->client, "status", "", "", &text);
    if (err) {
        return kvd_fail(diag, err, "status: %s", kvd_client_message(set->client));
    }
    json_t *report = NULL;
    err = kvd_report_parse(text, &report, diag);
    if (err) {
        return err;
    }
    json_int_t bytes = 0;
    size_t index = 0;
    const json_t *tier = NULL;
    json_array_foreach(json_object_get(report, "tiers"), index, tier)
    {
        bytes += json_integer_value(json_object_get(tier, "queue_bytes"));
    }
    json_decref(report);
    *ret_bytes = bytes;
    return 0;
}

int kvd_bench_set_settle(struct kvd_bench_set *set, struct kvd_diag *diag)
{
    for (uint64_t end = kvd_mono_ns() + SETTLE_S * KVD_NS_PER_S; kvd_mono_ns() < end;) {
        json_int_t bytes = 0;
        int err = queue_bytes(set, &bytes, diag);
        if (err || bytes == 0) {
            return err;
        }
        struct timespec t = {.tv_nsec = POLL_MS * KVD_NS_PER_MS};
        (void)nanosleep(&t, NULL);
    }
    return kvd_fail(diag, -KVD_E_DEADLINE,
                    "the daemon still writes down after %d s: the disk is "
                    "too slow for this benchmark",
                    SETTLE_S);
}
