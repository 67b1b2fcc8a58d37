/*
 * Double-precision functions of our own: plain C, no fma, so every machine gives the same bits.
 * Relative error about 1e-15.
 */
#ifndef KERNELS_KMATH_H
#define KERNELS_KMATH_H

/* |x| <= 700, else 0 or e^700. */
double kvd_math_exp(double x);
/* Finite x > 0, normal. */
double kvd_math_log(double x);
/* |x| <= 2^21. */
void kvd_math_sincos(double x, double *ret_sin, double *ret_cos);

#endif
