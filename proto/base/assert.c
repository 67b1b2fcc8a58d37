#include "proto/base/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void kvd_assert_failed(const char *expr, const char *file, int line)
{
    (void)fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, expr);
    abort();
}
