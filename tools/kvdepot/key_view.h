/*
 * What `kvdepot key` shows: the identity of a prompt, field by field, and its chain of blocks; as
 * text, as JSON, and as lines of golden vectors (proto/keys/README.md).
 */
#ifndef TOOLS_KVDEPOT_KEY_VIEW_H
#define TOOLS_KVDEPOT_KEY_VIEW_H

#include <stdio.h>

#include "tools/kvdepot/key_space.h"

enum { KVD_KEY_ADDRESS_MAX = 80, KVD_KEY_NAME_MAX = 220 };

struct kvd_key_answer {
    struct kvd_key_space space;
    struct kvd_digest space_digest;
    const char *tenant_name; /* borrowed; "" for the default tenant */
    struct kvd_digest tenant;
    bool has_extra;
    struct kvd_digest extra;
    uint64_t seed;
    const char *seed_from; /* borrowed: for people */
    struct kvd_key root;
    uint32_t rank;
    uint32_t *tokens; /* the answer's own, as below */
    uint32_t n_tokens;
    struct kvd_key *keys;
    json_t **stored; /* reports on the blocks, or NULL: no daemon was asked */
    uint32_t n_blocks;
};

/* Derives all keys from the space, the tenant's name, extra, seed and tokens. -ENOMEM. */
int kvd_key_derive(struct kvd_key_answer *answer);
void kvd_key_answer_fini(struct kvd_key_answer *answer);

/* Where a block is, KEY/RANK/INDEX/GROUP; and whose too, as the report "block" wants to know:
 * …/SPACE/TENANT. Return `text`. */
const char *kvd_key_address(const struct kvd_key_answer *answer, uint32_t index,
                            char text[KVD_KEY_ADDRESS_MAX]);
const char *kvd_key_name(const struct kvd_key_answer *answer, uint32_t index,
                         char text[KVD_KEY_NAME_MAX]);

/* Each prints all. -ENOMEM. */
int kvd_key_view_text(const struct kvd_key_answer *answer, FILE *out);
int kvd_key_view_json(const struct kvd_key_answer *answer, FILE *out);
int kvd_key_view_vectors(const struct kvd_key_answer *answer, FILE *out);

#endif
