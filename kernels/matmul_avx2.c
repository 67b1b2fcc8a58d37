/*
 * matmul.h in AVX2. A panel's 8 outputs are the lanes; its 32 columns are 8 registers of weights,
 * unpacked once and used for up to 4 rows of activations. Rows are walked in bands that stay in the
 * second-level cache while several panels pass over them.
 */
#include "kernels/matmul.h"

#include <immintrin.h>
#include <string.h>

#include "kernels/versions.h"
#include "kernels/x86.h"

enum { ROWS = 4, BAND = 32, GROUPS = 8 };

/* Some rows of activations: the first, and how far it is to the next. */
struct band {
    struct kvd_qrows x;
    size_t blocks;
};

/* Four bytes in every lane. As floats: that instruction needs nothing but the load. */
static inline __m256i broadcast4(const int8_t *q)
{
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)(const void *)q));
}

static inline __m256 halves(const uint8_t *at)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)at));
}

static inline __m256 sums(const uint8_t *at)
{
    const __m128i words = _mm_load_si128((const __m128i *)(const void *)at);
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(words));
}

static inline __m256i load(const uint8_t *at)
{
    return _mm256_load_si256((const __m256i *)(const void *)at);
}

/*
 * Sums of 8 outputs over 32 columns. Weights are 0..15: a pair's sum is at most 3,810, so all eight
 * fit 16 bits (30,480) and one widening serves them all.
 */
KVD_X86_INLINE __m256i isum_q4(const __m256i w[GROUPS], const int8_t *q)
{
    __m256i words = _mm256_maddubs_epi16(w[0], broadcast4(q));
    KVD_UNROLL
    for (int g = 1; g < GROUPS; g++) {
        words = _mm256_add_epi16(words, _mm256_maddubs_epi16(w[g], broadcast4(q + (size_t)4 * g)));
    }
    return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
}

KVD_X86_INLINE void unpack_q4(const uint8_t *nibbles, __m256i w[GROUPS])
{
    const __m256i low = _mm256_set1_epi8(15);
    KVD_UNROLL
    for (int g = 0; g < GROUPS / 2; g++) {
        const __m256i bytes = load(nibbles + (size_t)32 * g);
        w[g] = _mm256_and_si256(bytes, low);
        w[g + 4] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
    }
}

/* fma(scale, isum, offset * wsum) of row r and block b. */
KVD_X86_INLINE __m256 block_term(const struct band *x, int r, size_t b, __m256i isum, __m256 wsum)
{
    const size_t at = r * x->blocks + b;
    const __m256 t = _mm256_mul_ps(_mm256_broadcast_ss(x->x.offset + at), wsum);
    return _mm256_fmadd_ps(_mm256_broadcast_ss(x->x.scale + at), _mm256_cvtepi32_ps(isum), t);
}

/* n rows against one panel. */
KVD_X86_INLINE void panel_q4(const uint8_t *head, const uint8_t *quants, const struct band *x,
                             int n, __m256 acc[ROWS])
{
    KVD_UNROLL
    for (int r = 0; r < n; r++) {
        acc[r] = _mm256_setzero_ps();
    }
    for (size_t b = 0; b < x->blocks; b++, head += KVD_Q4_1_HEAD, quants += KVD_Q4_1_QUANTS) {
        __m256i w[GROUPS];
        unpack_q4(quants, w);
        const __m256 d = halves(head);
        const __m256 m = halves(head + 16);
        const __m256 wsum = sums(head + 32);
        KVD_UNROLL
        for (int r = 0; r < n; r++) {
            const __m256i isum = isum_q4(w, x->x.q + r * (size_t)x->x.cols + b * KVD_QUANT_COLS);
            const __m256 sum = _mm256_broadcast_ss(x->x.sum + r * x->blocks + b);
            acc[r] = _mm256_fmadd_ps(m, sum, acc[r]);
            acc[r] = _mm256_fmadd_ps(d, block_term(x, r, b, isum, wsum), acc[r]);
        }
    }
}

/*
 * Signed weights: |w| times x with w's sign. |w| is at most 128 and |x| at most 127, so a pair's
 * sum is at most 32,512; each is widened by itself.
 */
KVD_X86_INLINE void panel_q8(const uint8_t *head, const uint8_t *quants, const struct band *x,
                             int n, __m256 acc[ROWS])
{
    const __m256i ones = _mm256_set1_epi16(1);
    KVD_UNROLL
    for (int r = 0; r < n; r++) {
        acc[r] = _mm256_setzero_ps();
    }
    for (size_t b = 0; b < x->blocks; b++, head += KVD_Q8_0_HEAD, quants += KVD_Q8_0_QUANTS) {
        __m256i isum[ROWS];
        KVD_UNROLL
        for (int r = 0; r < n; r++) {
            isum[r] = _mm256_setzero_si256();
        }
        KVD_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            const __m256i w = load(quants + (size_t)32 * g);
            const __m256i magnitude = _mm256_abs_epi8(w);
            KVD_UNROLL
            for (int r = 0; r < n; r++) {
                const int8_t *q =
                    x->x.q + r * (size_t)x->x.cols + b * KVD_QUANT_COLS + (size_t)4 * g;
                const __m256i signs = _mm256_sign_epi8(broadcast4(q), w);
                const __m256i words = _mm256_maddubs_epi16(magnitude, signs);
                isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(words, ones));
            }
        }
        const __m256 d = halves(head);
        const __m256 wsum = sums(head + 16);
        KVD_UNROLL
        for (int r = 0; r < n; r++) {
            acc[r] = _mm256_fmadd_ps(d, block_term(x, r, b, isum[r], wsum), acc[r]);
        }
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

/* One panel against n rows (1 to 4, a constant). */
KVD_X86_INLINE void rows_of_panel(const struct kvd_matrix *w, uint32_t panel, const struct band *x,
                                  enum kvd_weight_type type, int n, float *out, size_t stride)
{
    const uint8_t *packed = w->packed + panel * w->panel_bytes;
    __m256 acc[ROWS];
    if (type == KVD_WEIGHT_Q4_1) {
        panel_q4(packed, packed + w->head_bytes, x, n, acc);
    } else {
        panel_q8(packed, packed + w->head_bytes, x, n, acc);
    }
    KVD_UNROLL
    for (int r = 0; r < n; r++) {
        store(w, panel, acc[r], out + r * stride);
    }
}

static struct band band_at(const struct kvd_qrows *x, uint32_t row)
{
    return (struct band){.x = kvd_qrows_from(x, row), .blocks = x->cols / KVD_QUANT_COLS};
}

KVD_X86_INLINE void matmul(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                           const struct kvd_qrows *x, enum kvd_weight_type type, uint32_t n,
                           float *out, size_t stride)
{
    for (uint32_t start = 0; start < n; start += BAND) {
        const uint32_t stop = n - start < BAND ? n : start + BAND;
        for (uint32_t p = first; p < end; p++) {
            uint32_t row = start;
            for (; row + ROWS <= stop; row += ROWS) {
                const struct band four = band_at(x, row);
                rows_of_panel(w, p, &four, type, ROWS, out + row * stride, stride);
            }
            for (; row < stop; row++) {
                const struct band one = band_at(x, row);
                rows_of_panel(w, p, &one, type, 1, out + row * stride, stride);
            }
        }
    }
}

void kvd_matmul_q4_1_avx2(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                          const struct kvd_qrows *x, uint32_t n, float *out, size_t stride)
{
    matmul(w, first, end, x, KVD_WEIGHT_Q4_1, n, out, stride);
}

void kvd_matmul_q8_0_avx2(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                          const struct kvd_qrows *x, uint32_t n, float *out, size_t stride)
{
    matmul(w, first, end, x, KVD_WEIGHT_Q8_0, n, out, stride);
}
