/* Series on a reduced range; see kmath.h. */
#include "kernels/kmath.h"

#include <stdint.h>
#include <string.h>

#define ROUND 6755399441055744.0 /* 1.5 * 2^52: adding it leaves an integer in the low bits */
#define LN2_HIGH 0x1.62e42feep-1 /* 33 bits: n * this is exact for |n| < 2^20 */
#define LN2_LOW 0x1.a39ef35793c76p-33
#define PIO2_HIGH 0x1.921fb544p+0 /* 33 bits of pi / 2, as above */
#define PIO2_LOW 0x1.0b4611a626331p-34

static double from_bits(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof(d));
    return d;
}

static uint64_t to_bits(double d)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof(bits));
    return bits;
}

double kvd_math_exp(double x)
{
    if (!(x >= -700.0)) {
        return 0.0;
    }
    x = x < 700.0 ? x : 700.0;
    const double t = x * 1.4426950408889634 + ROUND;
    const double n = t - ROUND;
    const double r = (x - n * LN2_HIGH) - n * LN2_LOW;
    double p = 1.0;
    for (int i = 14; i >= 1; i--) {
        p = 1.0 + p * r / i;
    }
    return from_bits(to_bits(p) + (to_bits(t) << 52));
}

/* x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m - 1) / (m + 1)). */
double kvd_math_log(double x)
{
    uint64_t bits = to_bits(x);
    int e = (int)(bits >> 52) - 1023;
    double m = from_bits((bits & 0xfffffffffffffu) | (UINT64_C(1023) << 52));
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    const double z = (m - 1.0) / (m + 1.0);
    const double zz = z * z;
    double sum = 0.0;
    for (int k = 21; k >= 1; k -= 2) {
        sum = sum * zz + 1.0 / k;
    }
    return e * LN2_HIGH + (2.0 * z * sum + e * LN2_LOW);
}

static double sin_series(double r)
{
    const double rr = r * r;
    double p = 1.0;
    for (int k = 18; k >= 2; k -= 2) {
        p = 1.0 - p * rr / (k * (k + 1));
    }
    return r * p;
}

static double cos_series(double r)
{
    const double rr = r * r;
    double p = 1.0;
    for (int k = 17; k >= 1; k -= 2) {
        p = 1.0 - p * rr / (k * (k + 1));
    }
    return p;
}

void kvd_math_sincos(double x, double *ret_sin, double *ret_cos)
{
    const double t = x * 0.6366197723675814 + ROUND;
    const double n = t - ROUND;
    const double r = (x - n * PIO2_HIGH) - n * PIO2_LOW;
    const double s = sin_series(r);
    const double c = cos_series(r);
    const unsigned quadrant = (unsigned)(to_bits(t) & 3);
    const double sin_part = quadrant & 1 ? c : s;
    const double cos_part = quadrant & 1 ? s : c;
    *ret_sin = quadrant & 2 ? -sin_part : sin_part;
    *ret_cos = quadrant == 1 || quadrant == 2 ? -cos_part : cos_part;
}
