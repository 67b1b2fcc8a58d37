/* Random input for the kernels' tests; see check.h. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"
#include "proto/base/bytes.h"

uint64_t check_u64(struct check_rng *rng)
{
    uint64_t z = (rng->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint32_t check_below(struct check_rng *rng, uint32_t n)
{
    return (uint32_t)(check_u64(rng) % n);
}

float check_unit(struct check_rng *rng)
{
    return (float)((double)(check_u64(rng) >> 11) * 0x1p-52 - 1.0);
}

float check_normal(struct check_rng *rng)
{
    float sum = 0.0f;
    for (int i = 0; i < 12; i++) {
        sum += check_unit(rng);
    }
    return sum * 0.5f;
}

void *check_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, kvd_round_up(bytes ? bytes : 1, 64));
    KVD_ASSERT(p != NULL);
    memset(p, 0, bytes);
    return p;
}

static float mixed(struct check_rng *rng)
{
    return check_unit(rng) * powf(10.0f, 20.0f * check_unit(rng));
}

void check_fill(struct check_rng *rng, enum check_fill kind, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        switch (kind) {
        case CHECK_ZERO:
            x[i] = check_below(rng, 2) ? 0.0f : -0.0f;
            break;
        case CHECK_DENORMAL:
            x[i] = check_unit(rng) * 1e-38f;
            break;
        case CHECK_HUGE:
            x[i] = check_unit(rng) * 3.4e38f;
            break;
        case CHECK_MIXED:
            x[i] = mixed(rng);
            break;
        case CHECK_NARROW:
            x[i] = 1000.0f + 1e-4f * check_unit(rng);
            break;
        case CHECK_HALVES: /* a range of exactly -127..127 in each block, so the scale is 1 */
            x[i] = i % 32 < 2 ? (i % 2 ? 127.0f : -127.0f)
                              : (float)((int)check_below(rng, 509) - 254) * 0.5f;
            break;
        default:
            x[i] = check_normal(rng);
            break;
        }
    }
}

static void fill_block(struct check_rng *rng, enum kvd_weight_type type, bool extreme, uint8_t *at)
{
    const uint32_t heads = type == KVD_WEIGHT_Q4_1 ? 4 : 2;
    const uint32_t bytes = type == KVD_WEIGHT_Q4_1 ? KVD_Q4_1_BYTES : KVD_Q8_0_BYTES;
    for (uint32_t i = 0; i < heads; i += 2) {
        kvd_put_le16(at + i, kvd_f32_to_f16(check_unit(rng) * (extreme ? 60000.0f : 0.05f)));
    }
    for (uint32_t i = heads; i < bytes; i++) {
        const uint8_t ends[] = {0x80, 0x7f};
        const uint8_t end = type == KVD_WEIGHT_Q4_1 ? 0xff : ends[check_below(rng, 2)];
        at[i] = extreme ? end : (uint8_t)check_u64(rng);
    }
}

void check_matrix_make(struct check_rng *rng, enum kvd_weight_type type, uint32_t rows,
                       uint32_t cols, bool extreme, struct check_matrix *ret)
{
    const uint32_t bytes = type == KVD_WEIGHT_Q4_1 ? KVD_Q4_1_BYTES : KVD_Q8_0_BYTES;
    const size_t blocks = (size_t)rows * (cols / KVD_QUANT_COLS);
    ret->blocks = check_alloc(blocks * bytes);
    for (size_t i = 0; i < blocks; i++) {
        fill_block(rng, type, extreme, ret->blocks + i * bytes);
    }
    kvd_matrix_init(&ret->m, type, rows, cols);
    ret->m.packed = check_alloc(kvd_matrix_bytes(&ret->m));
    kvd_matrix_pack(&ret->m, ret->blocks);
}

void check_matrix_free(struct check_matrix *m)
{
    free(m->blocks);
    free(m->m.packed);
}

double check_weight(const struct check_matrix *m, uint32_t row, uint32_t col)
{
    const size_t block = (size_t)row * (m->m.cols / KVD_QUANT_COLS) + col / KVD_QUANT_COLS;
    const uint32_t c = col % KVD_QUANT_COLS;
    if (m->m.type == KVD_WEIGHT_Q8_0) {
        const uint8_t *at = m->blocks + block * KVD_Q8_0_BYTES;
        return (double)kvd_f16_to_f32(kvd_get_le16(at)) * (int8_t)at[2 + c];
    }
    const uint8_t *at = m->blocks + block * KVD_Q4_1_BYTES;
    const uint8_t byte = at[4 + c % 16];
    const int q = c < 16 ? byte & 15 : byte >> 4;
    return (double)kvd_f16_to_f32(kvd_get_le16(at)) * q +
           (double)kvd_f16_to_f32(kvd_get_le16(at + 2));
}

struct kvd_qrows check_qrows(uint32_t rows, uint32_t cols)
{
    const size_t blocks = (size_t)rows * (cols / KVD_QUANT_COLS);
    return (struct kvd_qrows){.q = check_alloc((size_t)rows * cols),
                              .scale = check_alloc(blocks * sizeof(float)),
                              .offset = check_alloc(blocks * sizeof(float)),
                              .sum = check_alloc(blocks * sizeof(float)),
                              .cols = cols};
}

void check_qrows_free(struct kvd_qrows *q)
{
    free(q->q);
    free(q->scale);
    free(q->offset);
    free(q->sum);
}

void check_quantise(const struct kvd_kernels *k, const float *x, uint32_t n,
                    const struct kvd_qrows *q)
{
    for (uint32_t r = 0; r < n; r++) {
        const struct kvd_qrows row = kvd_qrows_from(q, r);
        k->quantise(x + (size_t)r * q->cols, &row);
    }
}

static void fill_page(struct check_rng *rng, uint16_t *kv, size_t known, size_t all, float spread)
{
    for (size_t i = 0; i < all; i++) {
        kv[i] = i < known ? kvd_f32_to_f16(check_normal(rng) * spread) : 0x7fff;
    }
}

void check_attention_make(struct check_rng *rng, struct check_attention_size size, float spread,
                          struct check_attention *ret)
{
    const size_t half = (size_t)size.tile * size.dim;
    const size_t floats = (size_t)size.rows * size.group * size.dim;
    const uint32_t keys = size.position + size.rows;
    ret->n_pages = (keys + size.tile - 1) / size.tile;
    ret->pages = check_alloc(ret->n_pages * sizeof(*ret->pages));
    for (uint32_t t = 0; t < ret->n_pages; t++) {
        const uint32_t left = keys - t * size.tile;
        const size_t known = (size_t)(left < size.tile ? left : size.tile) * size.dim;
        ret->pages[t] = check_alloc(2 * half * sizeof(uint16_t));
        uint16_t *page = (uint16_t *)(void *)ret->pages[t];
        fill_page(rng, page, known, half, spread);
        fill_page(rng, page + half, known, half, 1.0f);
    }
    ret->q = check_alloc(floats * sizeof(float));
    ret->out = check_alloc(floats * sizeof(float));
    check_fill(rng, CHECK_NORMAL, ret->q, floats);
    ret->a = (struct kvd_attention){
        .head_dim = size.dim,
        .tile_tokens = size.tile,
        .group = size.group,
        .rows = size.rows,
        .position = size.position,
        .scale = 1.0f / sqrtf((float)size.dim),
        .q = ret->q,
        .out = ret->out,
        .stride = (size_t)size.group * size.dim,
        .pages = (const uint8_t *const *)ret->pages,
        .v_offset = half * sizeof(uint16_t),
        .scratch =
            check_alloc(kvd_attention_scratch(size.dim, size.tile, size.group) * sizeof(float)),
    };
}

void check_attention_free(struct check_attention *c)
{
    for (uint32_t t = 0; t < c->n_pages; t++) {
        free(c->pages[t]);
    }
    free((void *)c->pages);
    free(c->q);
    free(c->out);
    free(c->a.scratch);
}

double check_nmse(const float *got, const double *want, size_t n)
{
    double error = 0.0;
    double power = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)got[i] - want[i];
        error += d * d;
        power += want[i] * want[i];
    }
    return power > 0.0 ? error / power : error;
}
