/*
 * A model's space: what makes its KV bytes what they are, from the file and from how this engine
 * computes. The only place that knows it; the engine registers it, tools show it.
 */
#ifndef ENGINE_MODEL_SPACE_H
#define ENGINE_MODEL_SPACE_H

#include "engine/model/model.h"
#include "proto/keys/keys.h"

/* The numerics family: the order of the kernels' sums, and what activations are rounded to. Same
 * family, same bytes. */
#define KVD_NUMERICS "q8a32-f32-1"

enum { KVD_ENGINE_BLOCK_TOKENS = 64 };

struct kvd_model_space {
    struct kvd_space_desc desc; /* its numerics lie below: not to be copied without care */
    char numerics[64];
};

/* model_name: what it is served under, or NULL for the model's own name; borrowed as long as *ret
 * is used. -KVD_E_BAD_REQUEST with the field in diag. */
int kvd_model_space(const struct kvd_model *model, const char *model_name, struct kvd_diag *diag,
                    struct kvd_model_space *ret);

#endif
