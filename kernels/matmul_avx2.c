/*
 * matmul.h in AVX2. A panel's 8 outputs are the lanes; its 32 columns are 8 registers of weights,
 * unpacked once and used for up to 4 rows of activations. Rows are walked in bands that stay in the
 * second-level cache while several panels pass over them.
 */
#include "kernels/matmul.h"

#include <immintrin.h>
#include <string.h>

#include "kernels/versions.h"

enum { ROWS = 4, BAND = 32, GROUPS = 8 };

/* Four rows of activations at one block. */
struct cursor {
    const int8_t *q[ROWS];
    const float *scale[ROWS];
    const float *sum[ROWS];
};

static inline __m256i broadcast4(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof(four));
    return _mm256_set1_epi32(four);
}

/*
 * Sums of 8 outputs over 32 columns. Weights are 0..15: a pair's sum is at most 3,810, so all eight
 * fit 16 bits (30,480) and one widening serves them all.
 */
static inline __m256i isum_q4(const __m256i w[GROUPS], const int8_t *q)
{
    __m256i words = _mm256_maddubs_epi16(w[0], broadcast4(q));
    for (int g = 1; g < GROUPS; g++) {
        words = _mm256_add_epi16(words, _mm256_maddubs_epi16(w[g], broadcast4(q + (size_t)4 * g)));
    }
    return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
}

static inline void unpack_q4(const uint8_t *block, __m256i w[GROUPS])
{
    const __m256i low = _mm256_set1_epi8(15);
    for (int g = 0; g < GROUPS / 2; g++) {
        const __m256i bytes =
            _mm256_load_si256((const __m256i *)(const void *)(block + 32 + (size_t)32 * g));
        w[g] = _mm256_and_si256(bytes, low);
        w[g + 4] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
    }
}

static inline __m256 halves(const uint8_t *at)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)at));
}

/* n rows (1 to 4, known to the compiler where it is inlined) against one panel. */
static inline __attribute__((always_inline)) void
panel_q4(const uint8_t *block, uint32_t blocks, const struct cursor *x, int n, __m256 acc[ROWS])
{
    for (int r = 0; r < n; r++) {
        acc[r] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < blocks; b++, block += KVD_Q4_1_PANEL_BYTES) {
        __m256i w[GROUPS];
        unpack_q4(block, w);
        const __m256 d = halves(block);
        const __m256 m = halves(block + 16);
        for (int r = 0; r < n; r++) {
            const __m256i isum = isum_q4(w, x->q[r] + (size_t)b * KVD_QUANT_COLS);
            const __m256 t =
                _mm256_mul_ps(_mm256_broadcast_ss(x->scale[r] + b), _mm256_cvtepi32_ps(isum));
            acc[r] = _mm256_fmadd_ps(m, _mm256_broadcast_ss(x->sum[r] + b), acc[r]);
            acc[r] = _mm256_fmadd_ps(d, t, acc[r]);
        }
    }
}

/*
 * Signed weights: |w| times x with w's sign. |w| is at most 128 and |x| at most 127, so a pair's
 * sum is at most 32,512; each is widened by itself.
 */
static inline __m256i isum_q8(const __m256i *w, const int8_t *q)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    for (int g = 0; g < GROUPS; g++) {
        const __m256i weights = _mm256_load_si256(w + g);
        const __m256i x = _mm256_sign_epi8(broadcast4(q + (size_t)4 * g), weights);
        const __m256i words = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), x);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, ones));
    }
    return sum;
}

static inline __attribute__((always_inline)) void panel_q8(const uint8_t *scales,
                                                           const uint8_t *quants, uint32_t blocks,
                                                           const struct cursor *x, int n,
                                                           __m256 acc[ROWS])
{
    for (int r = 0; r < n; r++) {
        acc[r] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < blocks; b++) {
        const __m256i *w =
            (const __m256i *)(const void *)(quants + (size_t)b * KVD_Q8_0_PANEL_BYTES);
        const __m256 d = halves(scales + (size_t)b * 16);
        for (int r = 0; r < n; r++) {
            const __m256i isum = isum_q8(w, x->q[r] + (size_t)b * KVD_QUANT_COLS);
            const __m256 t =
                _mm256_mul_ps(_mm256_broadcast_ss(x->scale[r] + b), _mm256_cvtepi32_ps(isum));
            acc[r] = _mm256_fmadd_ps(d, t, acc[r]);
        }
    }
}

static inline __attribute__((always_inline)) void panel_any(const struct kvd_matrix *w,
                                                            const uint8_t *panel, uint32_t blocks,
                                                            const struct cursor *x, int n,
                                                            __m256 acc[ROWS])
{
    if (w->type == KVD_WEIGHT_Q4_1) {
        panel_q4(panel, blocks, x, n, acc);
    } else {
        panel_q8(panel, panel + w->panel_bytes - (size_t)blocks * KVD_Q8_0_PANEL_BYTES, blocks, x,
                 n, acc);
    }
}

static void store(const struct kvd_matrix *w, uint32_t panel, __m256 acc, float *row)
{
    const uint32_t first = panel * KVD_PANEL_ROWS;
    if (w->rows - first >= KVD_PANEL_ROWS) {
        _mm256_storeu_ps(row + first, acc);
        return;
    }
    float lanes[KVD_PANEL_ROWS];
    _mm256_storeu_ps(lanes, acc);
    memcpy(row + first, lanes, (w->rows - first) * sizeof(float));
}

static struct cursor cursor_at(const struct kvd_qrows *x, uint32_t row, uint32_t n)
{
    const uint32_t blocks = x->cols / KVD_QUANT_COLS;
    struct cursor c = {0};
    for (uint32_t r = 0; r < n; r++) {
        c.q[r] = x->q + (size_t)(row + r) * x->cols;
        c.scale[r] = x->scale + (size_t)(row + r) * blocks;
        c.sum[r] = x->sum + (size_t)(row + r) * blocks;
    }
    return c;
}

/* One panel against rows [row, row + n), n of 1 to 4. */
static void rows_of_panel(const struct kvd_matrix *w, uint32_t panel, const struct kvd_qrows *x,
                          uint32_t row, uint32_t n, float *out, size_t stride)
{
    const uint8_t *packed = w->packed + panel * w->panel_bytes;
    const uint32_t blocks = w->cols / KVD_QUANT_COLS;
    const struct cursor c = cursor_at(x, row, n);
    __m256 acc[ROWS];
    switch (n) {
    case 1:
        panel_any(w, packed, blocks, &c, 1, acc);
        break;
    case 2:
        panel_any(w, packed, blocks, &c, 2, acc);
        break;
    case 3:
        panel_any(w, packed, blocks, &c, 3, acc);
        break;
    default:
        panel_any(w, packed, blocks, &c, 4, acc);
        break;
    }
    for (uint32_t r = 0; r < n; r++) {
        store(w, panel, acc[r], out + (row + r) * stride);
    }
}

static void matmul(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                   const struct kvd_qrows *x, uint32_t n, float *out, size_t stride)
{
    for (uint32_t band = 0; band < n; band += BAND) {
        const uint32_t band_end = n - band < BAND ? n : band + BAND;
        for (uint32_t p = first; p < end; p++) {
            for (uint32_t row = band; row < band_end; row += ROWS) {
                const uint32_t left = band_end - row;
                rows_of_panel(w, p, x, row, left < ROWS ? left : ROWS, out, stride);
            }
        }
    }
}

void kvd_matmul_q4_1_avx2(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                          const struct kvd_qrows *x, uint32_t n, float *out, size_t stride)
{
    matmul(w, first, end, x, n, out, stride);
}

void kvd_matmul_q8_0_avx2(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                          const struct kvd_qrows *x, uint32_t n, float *out, size_t stride)
{
    matmul(w, first, end, x, n, out, stride);
}
