/*
 * A loaded model: parameters, tensors by role, tokenizer, fingerprint. Shared and read-only; safe
 * from any thread. Architecture `llama` of GGUF; RoPE rotates pairs (2i, 2i+1); query head h reads
 * KV head h / (n_heads / n_kv_heads).
 */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include <stdint.h>
#include <sys/stat.h>

#include "engine/model/gguf.h"
#include "engine/model/tokenizer.h"
#include "proto/base/error.h"
#include "proto/keys/keys.h"

struct kvd_model_params {
    uint32_t layers;
    uint32_t width; /* of the residual stream */
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t ffn;
    uint32_t vocab;
    uint32_t context;
    float rms_eps;
    double rope_base;
};

struct kvd_model_layer {
    const struct kvd_gguf_tensor *attn_norm, *q, *k, *v, *o, *ffn_norm, *gate, *up, *down;
};

struct kvd_model {
    struct kvd_gguf *gguf;
    struct kvd_model_params params;
    const struct kvd_gguf_tensor *embedding; /* [vocab][width] */
    const struct kvd_gguf_tensor *output_norm;
    const struct kvd_gguf_tensor *output; /* the embedding where tied */
    struct kvd_model_layer *layers;       /* params.layers rows */
    struct kvd_tokenizer *tokenizer;
    struct kvd_digest weights; /* fingerprint */
    char *path;                /* of the file */
    struct stat file;          /* what stat said of it before it was read */
    char name[256];            /* general.name, or the file's name */
};

/* Opens and checks: shapes against parameters, types against what the kernels take (F32, F16, Q4_1,
 * Q8_0). cache_dir: where fingerprints are kept by path, inode, size, mtime and ctime (NULL: always
 * computed). */
int kvd_model_open(const char *path, const char *cache_dir, struct kvd_diag *diag,
                   struct kvd_model **ret);
void kvd_model_close(struct kvd_model **model);

/* Whether the file is still the one that was fingerprinted, as far as stat tells: whoever has
 * copied the weights out of the mapping asks afterwards. -KVD_E_STALE where it was written to or
 * replaced. */
int kvd_model_check_file(const struct kvd_model *model, struct kvd_diag *diag);

/* BLAKE2b-256 over names, types, shapes and bytes of all tensors, in name order. */
void kvd_model_fingerprint(const struct kvd_gguf *gguf, struct kvd_digest *ret);

#endif
