/* See rig.h. */
#include "rig.h"

#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tiny_gguf.h"

void rig_open(struct rig *rig, const struct kvd_model *model, struct rig_options options,
              uint32_t tokens)
{
    struct kvd_diag diag = {0};
    const uint32_t block_tokens = options.block_tokens ? options.block_tokens : 64;
    const struct kvd_graph_options graph = {
        .threads = options.threads, .block_tokens = block_tokens, .kernels = options.kernels};
    *rig = (struct rig){.p = &model->params, .block_tokens = block_tokens};
    if (kvd_graph_create(model, &graph, &diag, &rig->graph) < 0) {
        fail_msg("%s", diag.text);
    }
    rig->n_pages = (tokens + block_tokens - 1) / block_tokens;
    const struct kvd_arena_options arena = {.page_bytes = kvd_graph_page_bytes(rig->graph),
                                            .pages = rig->n_pages + 3,
                                            .shuffle_seed = options.shuffle_seed};
    assert_int_equal(kvd_arena_create(&arena, &rig->arena), 0);
    rig->pages = calloc(rig->n_pages, sizeof(*rig->pages));
    assert_non_null(rig->pages);
    for (uint32_t i = 0; i < rig->n_pages; i++) {
        rig->pages[i] = kvd_arena_get(rig->arena);
        assert_true(rig->pages[i] >= 0);
        memset(kvd_arena_page(rig->arena, rig->pages[i]), 0xff, arena.page_bytes);
    }
}

void rig_close(struct rig *rig)
{
    kvd_graph_destroy(&rig->graph);
    kvd_arena_destroy(&rig->arena);
    free(rig->pages);
}

void rig_run(struct rig *rig, const uint32_t *ids, uint32_t from, uint32_t to, uint32_t chunk,
             float *logits)
{
    const struct kvd_kv_view view = {rig->arena, rig->pages};
    for (uint32_t pos = from; pos < to; pos += chunk) {
        const uint32_t n = to - pos < chunk ? to - pos : chunk;
        float *rows = logits ? logits + (size_t)(pos - from) * rig->p->vocab : NULL;
        assert_int_equal(
            kvd_graph_forward(rig->graph, &view, pos, ids + pos, n, rows, rows ? n : 0), 0);
    }
}

uint16_t *rig_kv(const struct rig *rig, uint32_t n, size_t *ret_bytes)
{
    const size_t heads = (size_t)rig->p->layers * 2 * rig->p->kv_heads;
    const size_t row = rig->p->head_dim;
    uint16_t *kv = malloc(heads * n * row * sizeof(uint16_t));
    assert_non_null(kv);
    for (size_t h = 0; h < heads; h++) {
        for (uint32_t t = 0; t < n; t++) {
            const uint16_t *page = kvd_arena_page(rig->arena, rig->pages[t / rig->block_tokens]);
            memcpy(kv + (h * n + t) * row,
                   page + (h * rig->block_tokens + t % rig->block_tokens) * row,
                   row * sizeof(uint16_t));
        }
    }
    *ret_bytes = heads * n * row * sizeof(uint16_t);
    return kv;
}

struct kvd_model *rig_open_model(const char *path)
{
    struct kvd_diag diag = {0};
    struct kvd_model *model = NULL;
    if (kvd_model_open(path, NULL, &diag, &model) < 0) {
        fail_msg("%s", diag.text);
    }
    return model;
}

struct kvd_model *rig_tiny_model(void)
{
    char path[] = "/tmp/kvd-test-tiny-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    const struct kvd_tiny_gguf_options options = {.seed = 7};
    assert_int_equal(kvd_tiny_gguf_write(path, &options), 0);
    struct kvd_model *model = rig_open_model(path);
    (void)unlink(path);
    return model;
}
