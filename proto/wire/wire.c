#include "proto/wire/wire.h"

#include <stdlib.h>
#include <string.h>

const char *kvd_tier_name(enum kvd_tier_id tier)
{
    static const char *const names[KVD_TIER_COUNT] = {
        [KVD_TIER_NONE] = "none", [KVD_TIER_HBM] = "hbm",       [KVD_TIER_DRAM] = "dram",
        [KVD_TIER_NVME] = "nvme", [KVD_TIER_REMOTE] = "remote", [KVD_TIER_SHARED] = "shared",
    };
    return (unsigned)tier < KVD_TIER_COUNT ? names[tier] : "unknown";
}

/* What malloc itself spends on a small piece; without it a packet of thousands of empty fields
 * would cost several times its budget. */
enum { ALLOC_OVERHEAD_BYTES = 16 };

static void *budget_alloc(void *allocator_data, size_t size)
{
    struct kvd_wire_budget *a = allocator_data;
    if (size > a->left || a->left - size < ALLOC_OVERHEAD_BYTES) {
        a->left = 0; /* nothing smaller may slip through afterwards */
        return NULL;
    }
    a->left -= size + ALLOC_OVERHEAD_BYTES;
    return malloc(size);
}

static void budget_free(void *allocator_data, void *pointer)
{
    (void)allocator_data;
    free(pointer);
}

void kvd_wire_budget_init(struct kvd_wire_budget *a, uint64_t bytes)
{
    *a = (struct kvd_wire_budget){
        .base = {.alloc = budget_alloc, .free = budget_free, .allocator_data = a},
        .left = bytes,
    };
}

void kvd_wire_space_desc_pack(const struct kvd_space_desc *desc, Kvd__Wire__SpaceDesc *ret_msg)
{
    kvd__wire__space_desc__init(ret_msg);
    ret_msg->model = (char *)desc->model;
    ret_msg->weights.data = (uint8_t *)desc->weights.b;
    ret_msg->weights.len = KVD_DIGEST_BYTES;
    ret_msg->kv_dtype = desc->kv_dtype;
    ret_msg->layout = desc->layout;
    ret_msg->layers = desc->layers;
    ret_msg->kv_heads = desc->kv_heads;
    ret_msg->head_dim = desc->head_dim;
    ret_msg->latent_dim = desc->latent_dim;
    ret_msg->latent_rope_dim = desc->latent_rope_dim;
    ret_msg->block_tokens = desc->block_tokens;
    ret_msg->rope_base_bits = desc->rope_base_bits;
    ret_msg->rope_scale_bits = desc->rope_scale_bits;
    ret_msg->adapter.data = (uint8_t *)desc->adapter.b;
    ret_msg->adapter.len = KVD_DIGEST_BYTES;
    ret_msg->numerics = (char *)desc->numerics;
    ret_msg->ranks = desc->ranks;
    ret_msg->payload_bytes = desc->payload_bytes;
}

/* A digest field: 32 bytes, or none where absent is allowed (zero). */
static int unpack_digest(const ProtobufCBinaryData *field, const char *name, bool may_be_absent,
                         struct kvd_digest *ret, struct kvd_diag *diag)
{
    if (field->len == 0 && may_be_absent) {
        memset(ret, 0, sizeof(*ret));
        return 0;
    }
    if (field->len != KVD_DIGEST_BYTES) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "space: %s has %zu bytes, must have %d", name,
                        field->len, KVD_DIGEST_BYTES);
    }
    memcpy(ret->b, field->data, KVD_DIGEST_BYTES);
    return 0;
}

int kvd_wire_space_desc_unpack(const Kvd__Wire__SpaceDesc *msg, struct kvd_space_desc *ret_desc,
                               struct kvd_diag *diag)
{
    struct kvd_space_desc d = {
        .model = msg->model,
        /* the enums are as wide as an int; kvd_space_desc_check refuses unknown values */
        .kv_dtype = (enum kvd_kv_dtype)msg->kv_dtype,
        .layout = (enum kvd_kv_layout)msg->layout,
        .layers = msg->layers,
        .kv_heads = msg->kv_heads,
        .head_dim = msg->head_dim,
        .latent_dim = msg->latent_dim,
        .latent_rope_dim = msg->latent_rope_dim,
        .block_tokens = msg->block_tokens,
        .rope_base_bits = msg->rope_base_bits,
        .rope_scale_bits = msg->rope_scale_bits,
        .numerics = msg->numerics,
        .ranks = msg->ranks,
        .payload_bytes = msg->payload_bytes,
    };
    int err = unpack_digest(&msg->weights, "weights", false, &d.weights, diag);
    err = err ? err : unpack_digest(&msg->adapter, "adapter", true, &d.adapter, diag);
    err = err ? err : kvd_space_desc_check(&d, diag);
    if (err) {
        return err;
    }
    *ret_desc = d;
    return 0;
}
