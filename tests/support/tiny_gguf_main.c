/* Writes the small test model: kvd-tiny-gguf PATH [SEED [NAME]] */
#include <stdio.h>
#include <stdlib.h>

#include "tiny_gguf.h"

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        (void)fprintf(stderr, "usage: kvd-tiny-gguf PATH [SEED [NAME]]\n");
        return 2;
    }
    struct kvd_tiny_gguf_options o = {.seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 0,
                                      .name = argc > 3 ? argv[3] : NULL};
    return kvd_tiny_gguf_write(argv[1], &o) == 0 ? 0 : 1;
}
