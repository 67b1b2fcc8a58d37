/*
 * Where tests find the real model: KVDEPOT_MODEL names the file; else it is looked for in the
 * user's cache folder, where tools/dev puts it.
 */
#ifndef TESTS_SUPPORT_KVD_MODEL_PATH_H
#define TESTS_SUPPORT_KVD_MODEL_PATH_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KVD_MODEL_FILE "SmolLM2-135M-Instruct.Q4_1.gguf"

/* Writes the path and says whether such a file can be read. The path names where it was looked for
 * either way. */
static inline bool kvd_model_path(char *ret_path, size_t cap)
{
    const char *file = getenv("KVDEPOT_MODEL");
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int n;
    if (file && *file) {
        n = snprintf(ret_path, cap, "%s", file);
    } else if (cache && *cache) {
        n = snprintf(ret_path, cap, "%s/kvdepot/" KVD_MODEL_FILE, cache);
    } else {
        n = snprintf(ret_path, cap, "%s/.cache/kvdepot/" KVD_MODEL_FILE, home ? home : "");
    }
    return n >= 0 && (size_t)n < cap && access(ret_path, R_OK) == 0;
}

/* For use inside a test: path of the real model, or the test is skipped (needs kvd_test.h). */
#define KVD_MODEL_OR_SKIP(path)                                                                    \
    do {                                                                                           \
        if (!kvd_model_path((path), sizeof(path))) {                                               \
            KVD_SKIP("model", "no model at %s; tools/dev setup fetches it", (path));               \
        }                                                                                          \
    } while (0)

#endif
