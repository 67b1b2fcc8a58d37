/*
 * Identity: spaces, tenants and the keys of blocks. The one implementation; every other must
 * reproduce proto/keys/golden_vectors.txt.
 *
 * space   BLAKE2b-256 over tagged, length-prefixed fields that say everything that makes KV bytes
 * what they are. tenant  BLAKE2b-256 of the user's name, tagged; the default tenant (no name, or an
 * empty one) is 32 zero bytes. key     XXH3-128 with the store's seed, in canonical (big-endian)
 * byte order: root = H(space, tenant, extra: tagged fields), block = H(parent's key (16 B) | token
 * ids (u32 little-endian each)). XXH3 does not resist an attacker, so a key is only an address: a
 * record says which space, tenant, parent and tokens it holds, and whoever reads it compares them
 * all. group   32 consecutive blocks of a chain; its id is the first 12 bytes of the key of its
 * first block.
 *
 * Pure functions; safe from any thread.
 */
#ifndef PROTO_KEYS_KEYS_H
#define PROTO_KEYS_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/base/error.h"

enum {
    KVD_KEY_BYTES = 16,
    KVD_DIGEST_BYTES = 32,
    KVD_GROUP_ID_BYTES = 12,
    KVD_GROUP_BLOCKS = 32,
    KVD_BLOCK_TOKENS_DEFAULT = 64,
    KVD_BLOCK_TOKENS_MAX = 1024,
    KVD_MODEL_NAME_MAX = 255, /* bytes, without the terminator */
    KVD_TENANT_NAME_MAX = 512,
};

struct kvd_key {
    uint8_t b[KVD_KEY_BYTES];
};

struct kvd_digest {
    uint8_t b[KVD_DIGEST_BYTES];
};

struct kvd_group_id {
    uint8_t b[KVD_GROUP_ID_BYTES];
};

enum kvd_kv_dtype { KVD_KV_F16 = 1, KVD_KV_BF16 = 2, KVD_KV_F32 = 3, KVD_KV_FP8_E4M3 = 4 };

/* Order of a block's payload. LAYER_KV_HEAD_TOKEN_DIM: [layer][K, V][kv head][token][dim]. */
enum kvd_kv_layout { KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM = 1, KVD_LAYOUT_LAYER_TOKEN_LATENT = 2 };

/* Everything that makes KV bytes what they are. Names are borrowed, at most KVD_MODEL_NAME_MAX
 * bytes. */
struct kvd_space_desc {
    const char *model;         /* a name for people; counts in the identity too */
    struct kvd_digest weights; /* fingerprint of every tensor */
    enum kvd_kv_dtype kv_dtype;
    enum kvd_kv_layout layout;
    uint32_t layers;
    uint32_t kv_heads; /* 0 for latent layouts */
    uint32_t head_dim;
    uint32_t latent_dim;      /* 0 for head layouts */
    uint32_t latent_rope_dim; /* 0 for head layouts */
    uint32_t block_tokens;
    uint64_t rope_base_bits;   /* IEEE-754 double bits of the rope base */
    uint64_t rope_scale_bits;  /* IEEE-754 double bits of the rope scale; 1.0 when there is none */
    struct kvd_digest adapter; /* digest of the adapter's content; zero when there is none */
    const char *numerics;      /* numerics family, for example "q8a-f32-1" */
    uint32_t ranks;            /* number of parallel ranks, at least 1 */
    uint64_t payload_bytes;    /* raw bytes of one block of one rank */
};

/* Checks ranges and that payload_bytes agrees with the geometry. 0, or -KVD_E_BAD_REQUEST with the
 * field in diag. */
int kvd_space_desc_check(const struct kvd_space_desc *desc, struct kvd_diag *diag);

/* What payload_bytes must be for the geometry in desc (whose own payload_bytes isn't read). Says
 * nothing about ranges: check them. */
uint64_t kvd_space_payload_bytes(const struct kvd_space_desc *desc);

/* One of the fields that are hashed into a space's digest, as it is hashed: tag (u16), length of
 * data (u64), data. name is the one that golden_vectors.txt uses. data points into desc, into what
 * desc points to, or to `number`. */
struct kvd_space_field {
    uint16_t tag;
    const char *name;
    const void *data;
    uint32_t bytes;
    bool is_number;
    uint8_t number[8]; /* little-endian */
};

enum { KVD_SPACE_FIELDS = 15 };

/* Field `at` (below KVD_SPACE_FIELDS) of a space, in the order of hashing. desc outlives *ret. */
void kvd_space_field_at(const struct kvd_space_desc *desc, unsigned at,
                        struct kvd_space_field *ret);

/* Digest of a space. desc has passed kvd_space_desc_check. */
void kvd_space_digest(const struct kvd_space_desc *desc, struct kvd_digest *ret_space);

/* Tenant of a user's name (length 0: the default tenant). */
void kvd_tenant_digest(const char *name, size_t name_bytes, struct kvd_digest *ret_tenant);

/* Parent of a chain's first block. extra may be NULL (none): digest of images and the like. */
void kvd_key_root(uint64_t seed, const struct kvd_digest *space, const struct kvd_digest *tenant,
                  const struct kvd_digest *extra, struct kvd_key *ret_root);

/* Key of a block from its parent's key and its tokens. */
void kvd_key_block(uint64_t seed, const struct kvd_key *parent, const uint32_t *tokens,
                   uint32_t n_tokens, struct kvd_key *ret_key);

/* Keys of n_blocks consecutive full blocks that follow `root`. tokens holds n_blocks * block_tokens
 * ids. */
void kvd_key_chain(uint64_t seed, const struct kvd_key *root, const uint32_t *tokens,
                   uint32_t block_tokens, uint32_t n_blocks, struct kvd_key *ret_keys);

/* Id of the group that holds block `index`, from the keys of its chain: keys[0] is the chain's
 * first block. */
void kvd_group_of(const struct kvd_key *keys, uint32_t index, struct kvd_group_id *ret_group);

static inline bool kvd_key_equal(const struct kvd_key *a, const struct kvd_key *b)
{
    return memcmp(a->b, b->b, KVD_KEY_BYTES) == 0;
}

static inline bool kvd_digest_equal(const struct kvd_digest *a, const struct kvd_digest *b)
{
    return memcmp(a->b, b->b, KVD_DIGEST_BYTES) == 0;
}

static inline bool kvd_digest_is_zero(const struct kvd_digest *d)
{
    static const struct kvd_digest zero;
    return kvd_digest_equal(d, &zero);
}

enum { KVD_KEY_HEX = 2 * KVD_KEY_BYTES + 1, KVD_DIGEST_HEX = 2 * KVD_DIGEST_BYTES + 1 };
void kvd_hex(const uint8_t *bytes, size_t n, char *ret_text /* 2 * n + 1 */);

#endif
