/*
 * A space as text: the description of `kvdepot key --space FILE`, which is what its --json prints
 * under "space".
 */
#ifndef TOOLS_KVDEPOT_KEY_SPACE_H
#define TOOLS_KVDEPOT_KEY_SPACE_H

#include <jansson.h>

#include "proto/keys/keys.h"

/* A description that owns its names. */
struct kvd_key_space {
    struct kvd_space_desc desc; /* its names lie below: not to be copied */
    char model[KVD_MODEL_NAME_MAX + 1];
    char numerics[KVD_MODEL_NAME_MAX + 1];
};

/* Copies a checked description. */
void kvd_key_space_set(struct kvd_key_space *space, const struct kvd_space_desc *desc);

/* From JSON: an object of fields, or a whole answer of --json. where: for people. Fields that are
 * left out are 0, none, 64 tokens in a block, scale 1.0, 1 rank. -KVD_E_BAD_REQUEST with the field
 * in diag. */
int kvd_key_space_parse(const json_t *json, const char *where, struct kvd_diag *diag,
                        struct kvd_key_space *ret);

/* The same as JSON; NULL: no memory. */
json_t *kvd_key_space_json(const struct kvd_space_desc *desc);

/* A field's value for people: "f16", "100000", hex. Returns `text`. */
const char *kvd_key_field_text(const struct kvd_space_desc *desc, const struct kvd_space_field *f,
                               char *text, size_t room);

/* Bytes out of hex of exactly that length. */
bool kvd_key_unhex(const char *hex, uint8_t *ret, size_t bytes);

#endif
