#include "proto/keys/keys.h"

#include <errno.h>
#include <sodium.h>
#include <xxhash.h>

#include "proto/base/assert.h"
#include "proto/base/bytes.h"

/* Tags of the identity's fields. Numbers are part of the identity: never used again, never
 * reordered. */
enum field_tag {
    TAG_MODEL = 1,
    TAG_WEIGHTS = 2,
    TAG_KV_DTYPE = 3,
    TAG_LAYOUT = 4,
    TAG_LAYERS = 5,
    TAG_KV_HEADS = 6,
    TAG_HEAD_DIM = 7,
    TAG_LATENT_DIM = 8,
    TAG_LATENT_ROPE_DIM = 9,
    TAG_BLOCK_TOKENS = 10,
    TAG_ROPE_BASE = 11,
    TAG_ROPE_SCALE = 12,
    TAG_ADAPTER = 13,
    TAG_NUMERICS = 14,
    TAG_RANKS = 15,
    TAG_TENANT_NAME = 32,
    TAG_ROOT_SPACE = 48,
    TAG_ROOT_TENANT = 49,
    TAG_ROOT_EXTRA = 50,
};

static void field_header(uint16_t tag, uint64_t bytes, uint8_t ret[10])
{
    kvd_put_le16(ret, tag);
    kvd_put_le64(ret + 2, bytes);
}

static void blake_field(crypto_generichash_state *st, uint16_t tag, const void *data, size_t bytes)
{
    uint8_t head[10];
    field_header(tag, bytes, head);
    (void)crypto_generichash_update(st, head, sizeof(head));
    (void)crypto_generichash_update(st, data, bytes);
}

static void blake_u64(crypto_generichash_state *st, uint16_t tag, uint64_t v)
{
    uint8_t le[8];
    kvd_put_le64(le, v);
    blake_field(st, tag, le, sizeof(le));
}

static uint32_t dtype_bytes(enum kvd_kv_dtype dtype)
{
    switch (dtype) {
    case KVD_KV_F16:
    case KVD_KV_BF16:
        return 2;
    case KVD_KV_F32:
        return 4;
    case KVD_KV_FP8_E4M3:
        return 1;
    }
    return 0;
}

static int check_range(struct kvd_diag *diag, const char *name, uint64_t v, uint64_t min,
                       uint64_t max)
{
    if (v >= min && v <= max) {
        return 0;
    }
    return kvd_fail(diag, -KVD_E_BAD_REQUEST, "space: %s is %llu, must be %llu to %llu", name,
                    (unsigned long long)v, (unsigned long long)min, (unsigned long long)max);
}

static int check_name(struct kvd_diag *diag, const char *field, const char *name)
{
    size_t n = name ? strlen(name) : 0;
    return check_range(diag, field, n, 1, KVD_MODEL_NAME_MAX);
}

static uint64_t scale_bytes(const struct kvd_space_desc *d)
{
    bool heads = d->layout == KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM;
    return d->kv_dtype != KVD_KV_FP8_E4M3 ? 0
           : heads                        ? UINT64_C(8) * d->layers * d->kv_heads
                                          : UINT64_C(4) * d->layers;
}

uint64_t kvd_space_payload_bytes(const struct kvd_space_desc *d)
{
    bool heads = d->layout == KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM;
    uint64_t row = heads ? UINT64_C(2) * d->kv_heads * d->head_dim
                         : (uint64_t)d->latent_dim + d->latent_rope_dim;
    return row * d->layers * d->block_tokens * dtype_bytes(d->kv_dtype) + scale_bytes(d);
}

static int check_geometry(const struct kvd_space_desc *d, struct kvd_diag *diag)
{
    bool heads = d->layout == KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM;
    int err = check_range(diag, "layers", d->layers, 1, 1024);
    err = err ? err : check_range(diag, "kv_heads", d->kv_heads, heads, heads ? 1024 : 0);
    err = err ? err : check_range(diag, "head_dim", d->head_dim, heads, heads ? 1024 : 0);
    err = err ? err : check_range(diag, "latent_dim", d->latent_dim, !heads, heads ? 0 : 8192);
    err = err ? err : check_range(diag, "latent_rope_dim", d->latent_rope_dim, 0, heads ? 0 : 1024);
    err = err ? err : check_range(diag, "block_tokens", d->block_tokens, 1, KVD_BLOCK_TOKENS_MAX);
    err = err ? err : check_range(diag, "ranks", d->ranks, 1, 1024);
    if (err) {
        return err;
    }
    uint64_t want = kvd_space_payload_bytes(d);
    return check_range(diag, "payload_bytes", d->payload_bytes, want, want);
}

int kvd_space_desc_check(const struct kvd_space_desc *d, struct kvd_diag *diag)
{
    int err = check_name(diag, "length of model", d->model);
    err = err ? err : check_name(diag, "length of numerics", d->numerics);
    err = err ? err : check_range(diag, "kv_dtype", d->kv_dtype, KVD_KV_F16, KVD_KV_FP8_E4M3);
    err = err ? err
              : check_range(diag, "layout", d->layout, KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM,
                            KVD_LAYOUT_LAYER_TOKEN_LATENT);
    err = err ? err : check_geometry(d, diag);
    /* a record's header and one block's payload must fit the largest record */
    return err ? err : check_range(diag, "payload_bytes", d->payload_bytes, 1, 64u << 20);
}

void kvd_space_digest(const struct kvd_space_desc *d, struct kvd_digest *ret_space)
{
    crypto_generichash_state st;
    (void)crypto_generichash_init(&st, (const uint8_t *)"kvdepot space 1", 15, KVD_DIGEST_BYTES);
    blake_field(&st, TAG_MODEL, d->model, strlen(d->model));
    blake_field(&st, TAG_WEIGHTS, d->weights.b, KVD_DIGEST_BYTES);
    blake_u64(&st, TAG_KV_DTYPE, d->kv_dtype);
    blake_u64(&st, TAG_LAYOUT, d->layout);
    blake_u64(&st, TAG_LAYERS, d->layers);
    blake_u64(&st, TAG_KV_HEADS, d->kv_heads);
    blake_u64(&st, TAG_HEAD_DIM, d->head_dim);
    blake_u64(&st, TAG_LATENT_DIM, d->latent_dim);
    blake_u64(&st, TAG_LATENT_ROPE_DIM, d->latent_rope_dim);
    blake_u64(&st, TAG_BLOCK_TOKENS, d->block_tokens);
    blake_u64(&st, TAG_ROPE_BASE, d->rope_base_bits);
    blake_u64(&st, TAG_ROPE_SCALE, d->rope_scale_bits);
    blake_field(&st, TAG_ADAPTER, d->adapter.b, KVD_DIGEST_BYTES);
    blake_field(&st, TAG_NUMERICS, d->numerics, strlen(d->numerics));
    blake_u64(&st, TAG_RANKS, d->ranks);
    (void)crypto_generichash_final(&st, ret_space->b, KVD_DIGEST_BYTES);
}

void kvd_tenant_digest(const char *name, size_t name_bytes, struct kvd_digest *ret_tenant)
{
    memset(ret_tenant, 0, sizeof(*ret_tenant));
    if (name_bytes == 0) {
        return;
    }
    crypto_generichash_state st;
    (void)crypto_generichash_init(&st, (const uint8_t *)"kvdepot tenant 1", 16, KVD_DIGEST_BYTES);
    blake_field(&st, TAG_TENANT_NAME, name, name_bytes);
    (void)crypto_generichash_final(&st, ret_tenant->b, KVD_DIGEST_BYTES);
}

static void xxh_key(const void *data, size_t bytes, uint64_t seed, struct kvd_key *ret_key)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(data, bytes, seed));
    memcpy(ret_key->b, canonical.digest, KVD_KEY_BYTES);
}

void kvd_key_root(uint64_t seed, const struct kvd_digest *space, const struct kvd_digest *tenant,
                  const struct kvd_digest *extra, struct kvd_key *ret_root)
{
    static const struct kvd_digest none;
    const struct kvd_digest *const fields[] = {space, tenant, extra ? extra : &none};
    uint8_t buf[3 * (10 + KVD_DIGEST_BYTES)];
    uint8_t *at = buf;
    for (uint16_t i = 0; i < 3; i++) {
        field_header((uint16_t)(TAG_ROOT_SPACE + i), KVD_DIGEST_BYTES, at);
        memcpy(at + 10, fields[i]->b, KVD_DIGEST_BYTES);
        at += 10 + KVD_DIGEST_BYTES;
    }
    xxh_key(buf, sizeof(buf), seed, ret_root);
}

void kvd_key_block(uint64_t seed, const struct kvd_key *parent, const uint32_t *tokens,
                   uint32_t n_tokens, struct kvd_key *ret_key)
{
    KVD_ASSERT(n_tokens <= KVD_BLOCK_TOKENS_MAX);
    uint8_t buf[KVD_KEY_BYTES + 4 * KVD_BLOCK_TOKENS_MAX];
    memcpy(buf, parent->b, KVD_KEY_BYTES);
    for (uint32_t i = 0; i < n_tokens; i++) {
        kvd_put_le32(buf + KVD_KEY_BYTES + (size_t)4 * i, tokens[i]);
    }
    xxh_key(buf, KVD_KEY_BYTES + (size_t)4 * n_tokens, seed, ret_key);
}

void kvd_key_chain(uint64_t seed, const struct kvd_key *root, const uint32_t *tokens,
                   uint32_t block_tokens, uint32_t n_blocks, struct kvd_key *ret_keys)
{
    const struct kvd_key *parent = root;
    for (uint32_t i = 0; i < n_blocks; i++) {
        kvd_key_block(seed, parent, tokens + (size_t)i * block_tokens, block_tokens, &ret_keys[i]);
        parent = &ret_keys[i];
    }
}

void kvd_group_of(const struct kvd_key *keys, uint32_t index, struct kvd_group_id *ret_group)
{
    memcpy(ret_group->b, keys[index - index % KVD_GROUP_BLOCKS].b, KVD_GROUP_ID_BYTES);
}

void kvd_hex(const uint8_t *bytes, size_t n, char *ret_text)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        ret_text[2 * i] = digits[bytes[i] >> 4];
        ret_text[2 * i + 1] = digits[bytes[i] & 15];
    }
    ret_text[2 * n] = 0;
}
