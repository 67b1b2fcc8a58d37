/*
 * What the graph promises: a row's keys, values and logits depend on its prefix alone. Everything
 * is compared by memcmp with one plain run: other chunks, other thread counts, other kernels, pages
 * in another order. And what it refuses.
 */
#include <unistd.h>

#include "kernels/f16.h"
#include "kvd_model_path.h"
#include "kvd_test.h"
#include "rig.h"

struct variant {
    const char *kernels;
    uint32_t threads;
    uint64_t shuffle_seed;
    uint32_t chunk;
};

/* Ids that repeat nothing soon, from a fixed rule. */
static void make_ids(uint32_t *ids, uint32_t n, uint32_t vocab)
{
    uint64_t state = 12345;
    for (uint32_t i = 0; i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ids[i] = (uint32_t)(state >> 33) % vocab;
    }
}

struct result {
    uint16_t *kv;
    size_t kv_bytes;
    float *logits;
    size_t logits_bytes;
};

static struct result compute(const struct kvd_model *model, const struct variant *v,
                             const uint32_t *ids, uint32_t n)
{
    struct rig rig;
    struct result r = {.logits_bytes = (size_t)n * model->params.vocab * sizeof(float)};
    rig_open(&rig, model, (struct rig_options){v->kernels, v->threads, v->shuffle_seed, 0}, n);
    r.logits = malloc(r.logits_bytes);
    assert_non_null(r.logits);
    rig_run(&rig, ids, 0, n, v->chunk, r.logits);
    r.kv = rig_kv(&rig, n, &r.kv_bytes);
    rig_close(&rig);
    return r;
}

static void result_free(struct result *r)
{
    free(r->kv);
    free(r->logits);
}

static void compare_variants(const struct kvd_model *model, const struct variant *variants,
                             size_t n_variants, const uint32_t *ids, uint32_t n)
{
    struct result want = compute(model, &variants[0], ids, n);
    for (size_t i = 1; i < n_variants; i++) {
        struct result got = compute(model, &variants[i], ids, n);
        assert_int_equal(got.kv_bytes, want.kv_bytes);
        assert_memory_equal(got.kv, want.kv, want.kv_bytes);
        assert_memory_equal(got.logits, want.logits, want.logits_bytes);
        result_free(&got);
    }
    result_free(&want);
}

static void tiny_is_the_same_however_it_is_computed(void **state)
{
    (void)state;
    enum { N = 300 };
    const struct variant variants[] = {
        {"ref", 1, 0, 512},  {"auto", 1, 0, 512}, {"auto", 2, 0, 512},
        {"auto", 3, 9, 100}, {"auto", 2, 5, 1},   {"auto", 1, 0, 64},
        {"auto", 2, 3, 7},   {"ref", 2, 4, 77},   {"auto", 3, 0, 3},
    };
    struct kvd_model *model = rig_tiny_model();
    uint32_t ids[N];
    make_ids(ids, N, model->params.vocab);
    compare_variants(model, variants, sizeof(variants) / sizeof(variants[0]), ids, N);
    kvd_model_close(&model);
}

static void real_is_the_same_however_it_is_computed(void **state)
{
    (void)state;
    enum { N = 83, FEW = 5 };
    char path[512];
    KVD_MODEL_OR_SKIP(path);
    const struct variant variants[] = {{"auto", 1, 0, 512},
                                       {"auto", 2, 0, 512},
                                       {"auto", 2, 7, 1},
                                       {"auto", 2, 0, 64},
                                       {"auto", 1, 3, 30}};
    const struct variant few[] = {{"auto", 2, 0, 512}, {"ref", 2, 0, 512}};
    struct kvd_model *model = rig_open_model(path);
    uint32_t ids[N];
    make_ids(ids, N, model->params.vocab);
    compare_variants(model, variants, sizeof(variants) / sizeof(variants[0]), ids, N);
    compare_variants(model, few, 2, ids, FEW); /* the reference is slow */
    kvd_model_close(&model);
}

/* Computes ids[from, n) with logits of the last n_logits only, and compares with `want`, the result
 * of all. */
static void check_fewer(const struct kvd_model *model, const struct result *want,
                        const uint32_t *ids, uint32_t from, uint32_t n, uint32_t n_logits)
{
    const size_t vocab = model->params.vocab;
    struct rig rig;
    size_t bytes;
    rig_open(&rig, model, (struct rig_options){"auto", 2, 0, 0}, n);
    rig_run(&rig, ids, 0, from, KVD_GRAPH_CHUNK_MAX, NULL);
    float *logits = calloc(n_logits + 1, vocab * sizeof(float));
    assert_non_null(logits);
    const struct kvd_kv_view view = {rig.arena, rig.pages};
    assert_int_equal(
        kvd_graph_forward(rig.graph, &view, from, ids + from, n - from, logits, n_logits), 0);
    uint16_t *kv = rig_kv(&rig, n, &bytes);
    assert_memory_equal(kv, want->kv, bytes);
    assert_memory_equal(logits, want->logits + (n - n_logits) * vocab,
                        n_logits * vocab * sizeof(float));
    free(kv);
    free(logits);
    rig_close(&rig);
}

/* Logits of the last rows only, or of none: the same keys and values, the same logits; with many
 * rows and with few. */
static void fewer_logits_change_nothing(void **state)
{
    (void)state;
    enum { N = 100 };
    struct kvd_model *model = rig_tiny_model();
    uint32_t ids[N];
    make_ids(ids, N, model->params.vocab);
    const struct variant plain = {"auto", 2, 0, N};
    struct result want = compute(model, &plain, ids, N);
    for (uint32_t n_logits = 0; n_logits <= 3; n_logits++) {
        check_fewer(model, &want, ids, 0, N, n_logits);
        check_fewer(model, &want, ids, N - 4, N, n_logits);
    }
    result_free(&want);
    kvd_model_close(&model);
}

/* A prefix whose pages come from elsewhere, as a hit's do. */
static void copied_pages_continue_alike(void **state)
{
    (void)state;
    enum { N = 200, HIT = 128 };
    struct kvd_model *model = rig_tiny_model();
    uint32_t ids[N];
    make_ids(ids, N, model->params.vocab);
    const struct variant plain = {"auto", 1, 0, N};
    struct result want = compute(model, &plain, ids, N);
    struct rig first;
    struct rig second;
    rig_open(&first, model, (struct rig_options){"auto", 2, 0, 0}, N);
    rig_open(&second, model, (struct rig_options){"auto", 2, 11, 0}, N);
    rig_run(&first, ids, 0, N, 50, NULL);
    for (uint32_t i = 0; i < HIT / 64; i++) {
        memcpy(kvd_arena_page(second.arena, second.pages[i]),
               kvd_arena_page(first.arena, first.pages[i]), kvd_graph_page_bytes(first.graph));
    }
    const size_t vocab = model->params.vocab;
    float *logits = malloc((N - HIT) * vocab * sizeof(float));
    assert_non_null(logits);
    rig_run(&second, ids, HIT, N, 512, logits);
    assert_memory_equal(logits, want.logits + HIT * vocab, (N - HIT) * vocab * sizeof(float));
    free(logits);
    rig_close(&first);
    rig_close(&second);
    result_free(&want);
    kvd_model_close(&model);
}

/* Smaller pages are another numerics (their tiles differ), but have the same promises. */
static void smaller_pages_work(void **state)
{
    (void)state;
    enum { N = 70 };
    struct kvd_model *model = rig_tiny_model();
    uint32_t ids[N];
    make_ids(ids, N, model->params.vocab);
    const size_t bytes = N * (size_t)model->params.vocab * sizeof(float);
    float *whole = malloc(bytes);
    float *single = malloc(bytes);
    assert_true(whole && single);
    struct rig a;
    struct rig b;
    rig_open(&a, model, (struct rig_options){"auto", 2, 0, 16}, N);
    rig_open(&b, model, (struct rig_options){"ref", 1, 2, 16}, N);
    rig_run(&a, ids, 0, N, N, whole);
    rig_run(&b, ids, 0, N, 1, single);
    assert_memory_equal(whole, single, bytes);
    rig_close(&a);
    rig_close(&b);
    free(whole);
    free(single);
    kvd_model_close(&model);
}

static void bad_requests_are_refused_and_write_nothing(void **state)
{
    (void)state;
    struct kvd_model *model = rig_tiny_model();
    struct rig rig;
    rig_open(&rig, model, (struct rig_options){"auto", 2, 0, 0}, model->params.context);
    const struct kvd_kv_view view = {rig.arena, rig.pages};
    const uint32_t context = model->params.context;
    uint32_t ids[KVD_GRAPH_CHUNK_MAX + 1] = {0};
    float logits[2];
    const struct {
        uint32_t pos, n, n_logits, last_id;
    } bad[] = {
        {0, 0, 0, 0},           {0, KVD_GRAPH_CHUNK_MAX + 1, 0, 0},
        {0, 1, 2, 0},           {context, 1, 0, 0},
        {context - 1, 2, 0, 0}, {UINT32_MAX, 1, 0, 0},
        {UINT32_MAX, 2, 0, 0},  {0, 4, 0, model->params.vocab},
        {0, 4, 0, UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ids[bad[i].n ? bad[i].n - 1 : 0] = bad[i].last_id;
        assert_int_equal(
            kvd_graph_forward(rig.graph, &view, bad[i].pos, ids, bad[i].n, logits, bad[i].n_logits),
            -KVD_E_BAD_REQUEST);
        ids[bad[i].n ? bad[i].n - 1 : 0] = 0;
    }
    for (uint32_t i = 0; i < rig.n_pages; i++) {
        const uint8_t *page = kvd_arena_page(rig.arena, rig.pages[i]);
        assert_int_equal(page[0], 0xff);
        assert_memory_equal(page, page + 1, kvd_graph_page_bytes(rig.graph) - 1);
    }
    for (uint32_t i = 0; i < rig.n_pages; i++) {
        memset(kvd_arena_page(rig.arena, rig.pages[i]), 0, kvd_graph_page_bytes(rig.graph));
    }
    assert_int_equal(kvd_graph_forward(rig.graph, &view, context - 1, ids, 1, NULL, 0), 0);
    rig_close(&rig);
    kvd_model_close(&model);
}

static void bad_options_are_refused(void **state)
{
    (void)state;
    struct kvd_model *model = rig_tiny_model();
    const struct kvd_graph_options bad[] = {
        {0, 64, NULL}, {65, 64, NULL}, {1, 0, NULL}, {1, 7, NULL}, {1, 72, NULL}, {1, 64, "sse9"},
    };
    struct kvd_graph *graph = NULL;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kvd_diag diag = {0};
        assert_int_equal(kvd_graph_create(model, &bad[i], &diag, &graph), -KVD_E_CONFIG);
        assert_true(diag.text[0] != '\0');
        assert_null(graph);
    }
    kvd_model_close(&model);
}

/* A model whose tensors are changed after it was opened; the tensors are the test's own copies. */
static void models_that_cannot_be_computed_are_refused(void **state)
{
    (void)state;
    struct kvd_model *model = rig_tiny_model();
    const struct kvd_graph_options options = {1, 64, NULL};
    struct kvd_graph *graph = NULL;
    struct kvd_diag diag = {0};
    struct kvd_model changed = *model;
    struct kvd_gguf_tensor output = *model->output;
    output.type = KVD_GGML_F16;
    changed.output = &output;
    assert_int_equal(kvd_graph_create(&changed, &options, &diag, &graph), -KVD_E_FORMAT);
    assert_non_null(strstr(diag.text, "token_embd.weight"));
    changed = *model;
    changed.params.context = (1 << 20) + 1;
    assert_int_equal(kvd_graph_create(&changed, &options, &diag, &graph), -KVD_E_FORMAT);
    changed = *model;
    changed.params.rope_base = 0.5;
    assert_int_equal(kvd_graph_create(&changed, &options, &diag, &graph), -KVD_E_FORMAT);
    changed = *model;
    changed.params.head_dim = 20;
    assert_int_equal(kvd_graph_create(&changed, &options, &diag, &graph), -KVD_E_FORMAT);
    kvd_model_close(&model);
}

/* Weights that are no numbers give an error, not an answer. */
static void weights_that_are_no_numbers_are_an_error(void **state)
{
    (void)state;
    struct kvd_model *model = rig_tiny_model();
    float *norm = malloc(model->params.width * sizeof(float));
    assert_non_null(norm);
    memcpy(norm, model->output_norm->data, model->params.width * sizeof(float));
    norm[3] = kvd_f32_of_bits(0x7fc00000u);
    struct kvd_gguf_tensor tensor = *model->output_norm;
    tensor.data = norm;
    for (int where = 0; where < 2; where++) {
        struct kvd_model changed = *model;
        struct kvd_model_layer layers[2] = {model->layers[0], model->layers[1]};
        changed.layers = layers;
        if (where == 0) {
            changed.output_norm = &tensor;
        } else {
            layers[0].ffn_norm = &tensor;
        }
        struct rig rig;
        rig_open(&rig, &changed, (struct rig_options){"auto", 2, 0, 0}, 64);
        const struct kvd_kv_view view = {rig.arena, rig.pages};
        const uint32_t ids[2] = {1, 2};
        float logits[1024];
        assert_int_equal(kvd_graph_forward(rig.graph, &view, 0, ids, 2, logits, 1), -KVD_E_CORRUPT);
        rig_close(&rig);
    }
    free(norm);
    kvd_model_close(&model);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tiny_is_the_same_however_it_is_computed),
    cmocka_unit_test(real_is_the_same_however_it_is_computed),
    cmocka_unit_test(fewer_logits_change_nothing),
    cmocka_unit_test(copied_pages_continue_alike),
    cmocka_unit_test(smaller_pages_work),
    cmocka_unit_test(bad_requests_are_refused_and_write_nothing),
    cmocka_unit_test(bad_options_are_refused),
    cmocka_unit_test(models_that_cannot_be_computed_are_refused),
    cmocka_unit_test(weights_that_are_no_numbers_are_an_error),
};

KVD_TEST_MAIN(tests)
