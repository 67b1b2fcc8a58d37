#include "proto/keys/keys.h"

#include <errno.h>
#include <sodium.h>
#include <xxhash.h>

#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/protect.h"

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
    if (KVD_PROTECT(FIELD_TAGS)) {
        (void)crypto_generichash_update(st, head, sizeof(head));
    }
    (void)crypto_generichash_update(st, data, bytes);
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

/* The fields of a space by order of hashing: X(tag, name, kind, value). */
#define SPACE_FIELDS(X)                                                                            \
    X(TAG_MODEL, "model", name, d->model)                                                          \
    X(TAG_WEIGHTS, "weights", digest, &d->weights)                                                 \
    X(TAG_KV_DTYPE, "kv_dtype", number, d->kv_dtype)                                               \
    X(TAG_LAYOUT, "layout", number, d->layout)                                                     \
    X(TAG_LAYERS, "layers", number, d->layers)                                                     \
    X(TAG_KV_HEADS, "kv_heads", number, d->kv_heads)                                               \
    X(TAG_HEAD_DIM, "head_dim", number, d->head_dim)                                               \
    X(TAG_LATENT_DIM, "latent_dim", number, d->latent_dim)                                         \
    X(TAG_LATENT_ROPE_DIM, "latent_rope_dim", number, d->latent_rope_dim)                          \
    X(TAG_BLOCK_TOKENS, "block_tokens", number, d->block_tokens)                                   \
    X(TAG_ROPE_BASE, "rope_base_bits", number, d->rope_base_bits)                                  \
    X(TAG_ROPE_SCALE, "rope_scale_bits", number, d->rope_scale_bits)                               \
    X(TAG_ADAPTER, "adapter", digest, &d->adapter)                                                 \
    X(TAG_NUMERICS, "numerics", name, d->numerics)                                                 \
    X(TAG_RANKS, "ranks", number, d->ranks)

static void field_name(struct kvd_space_field *f, const char *name)
{
    f->data = name;
    f->bytes = (uint32_t)strlen(name);
}

static void field_digest(struct kvd_space_field *f, const struct kvd_digest *digest)
{
    f->data = digest->b;
    f->bytes = KVD_DIGEST_BYTES;
}

static void field_number(struct kvd_space_field *f, uint64_t v)
{
    kvd_put_le64(f->number, v);
    f->is_number = true;
    f->data = f->number;
    f->bytes = sizeof(f->number);
}

void kvd_space_field_at(const struct kvd_space_desc *d, unsigned at, struct kvd_space_field *ret)
{
    static const struct {
        uint16_t tag;
        const char *name;
    } rows[] = {
#define ROW(tag, name, kind, value) {tag, name},
        SPACE_FIELDS(ROW)
#undef ROW
    };
    _Static_assert(sizeof(rows) / sizeof(rows[0]) == KVD_SPACE_FIELDS, "one row a field");
    KVD_ASSERT(at < KVD_SPACE_FIELDS);
    *ret = (struct kvd_space_field){.tag = rows[at].tag, .name = rows[at].name};
    switch (rows[at].tag) {
#define CASE(tag, name, kind, value)                                                               \
    case tag:                                                                                      \
        field_##kind(ret, value);                                                                  \
        break;
        SPACE_FIELDS(CASE)
#undef CASE
    }
}

/* Whether a field is hashed at all: each is, but for what a test takes out. */
static bool field_counts(uint16_t tag)
{
    const bool by_itself =
        tag == TAG_MODEL || tag == TAG_WEIGHTS || tag == TAG_ADAPTER || tag == TAG_NUMERICS;
    return (tag != TAG_WEIGHTS || KVD_PROTECT(SPACE_WEIGHTS)) &&
           (tag != TAG_ADAPTER || KVD_PROTECT(SPACE_ADAPTER)) &&
           (tag != TAG_NUMERICS || KVD_PROTECT(SPACE_NUMERICS)) &&
           (by_itself || KVD_PROTECT(SPACE_GEOMETRY));
}

void kvd_space_digest(const struct kvd_space_desc *d, struct kvd_digest *ret_space)
{
    crypto_generichash_state st;
    (void)crypto_generichash_init(&st, (const uint8_t *)"kvdepot space 1", 15, KVD_DIGEST_BYTES);
    for (unsigned i = 0; i < KVD_SPACE_FIELDS; i++) {
        struct kvd_space_field f;
        kvd_space_field_at(d, i, &f);
        if (field_counts(f.tag)) {
            blake_field(&st, f.tag, f.data, f.bytes);
        }
    }
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
    const struct kvd_digest *const fields[] = {space, KVD_PROTECT(TENANT_IN_ROOT) ? tenant : &none,
                                               KVD_PROTECT(EXTRA_IN_ROOT) && extra ? extra : &none};
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
    static const struct kvd_key none;
    memcpy(buf, KVD_PROTECT(PARENT_IN_KEY) ? parent->b : none.b, KVD_KEY_BYTES);
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
