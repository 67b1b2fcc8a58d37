/* Fingerprint of a model file's weights, kept between runs by what stat says of the file. */
#ifndef ENGINE_MODEL_FINGERPRINT_H
#define ENGINE_MODEL_FINGERPRINT_H

#include <stdbool.h>
#include <sys/stat.h>

#include "engine/model/gguf.h"
#include "proto/keys/keys.h"

/* Whether two answers of stat are of one file in one state. */
bool kvd_fingerprint_same_file(const struct stat *a, const struct stat *b);

/*
 * path: the file that `gguf` maps. before: stat of it from before it was opened. cache_dir may be
 * NULL (always computed); the folder is made when it is missing. Caching is a convenience: whatever
 * goes wrong with it only costs the time to compute again, so this can't fail.
 */
void kvd_fingerprint_cached(const struct kvd_gguf *gguf, const char *path,
                            const struct stat *before, const char *cache_dir,
                            struct kvd_digest *ret);

#endif
