#include "engine/model/space.h"

#include <stdio.h>

static uint64_t double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

int kvd_model_space(const struct kvd_model *model, const char *model_name, struct kvd_diag *diag,
                    struct kvd_model_space *ret)
{
    const struct kvd_model_params *p = &model->params;
    /* what shapes KV besides the weights, and stands nowhere in the geometry */
    (void)snprintf(ret->numerics, sizeof(ret->numerics), "%s rms-eps=%a", KVD_NUMERICS,
                   (double)p->rms_eps);
    ret->desc = (struct kvd_space_desc){
        .model = model_name ? model_name : model->name,
        .weights = model->weights,
        .kv_dtype = KVD_KV_F16,
        .layout = KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM,
        .layers = p->layers,
        .kv_heads = p->kv_heads,
        .head_dim = p->head_dim,
        .block_tokens = KVD_ENGINE_BLOCK_TOKENS,
        .rope_base_bits = double_bits(p->rope_base),
        .rope_scale_bits = double_bits(1.0),
        .numerics = ret->numerics,
        .ranks = 1,
    };
    ret->desc.payload_bytes = kvd_space_payload_bytes(&ret->desc);
    return kvd_space_desc_check(&ret->desc, diag);
}
