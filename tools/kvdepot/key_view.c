/* The identity of a prompt, shown: see key_view.h. */
#include "tools/kvdepot/key_view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "tools/kvdepot/table.h"
#include "tools/kvdepot/units.h"

enum { HEX_MAX = 2 * KVD_MODEL_NAME_MAX + 1, VALUE_MAX = KVD_MODEL_NAME_MAX + 1 };

int kvd_key_derive(struct kvd_key_answer *a)
{
    const uint32_t block_tokens = a->space.desc.block_tokens;
    a->n_blocks = a->n_tokens / block_tokens;
    a->keys = calloc(a->n_blocks + 1, sizeof(*a->keys));
    if (!a->keys) {
        return -ENOMEM;
    }
    kvd_space_digest(&a->space.desc, &a->space_digest);
    kvd_tenant_digest(a->tenant_name, strlen(a->tenant_name), &a->tenant);
    kvd_key_root(a->seed, &a->space_digest, &a->tenant, a->has_extra ? &a->extra : NULL, &a->root);
    kvd_key_chain(a->seed, &a->root, a->tokens, block_tokens, a->n_blocks, a->keys);
    return 0;
}

void kvd_key_answer_fini(struct kvd_key_answer *a)
{
    for (uint32_t i = 0; a->stored && i < a->n_blocks; i++) {
        json_decref(a->stored[i]);
    }
    free((void *)a->stored);
    free(a->keys);
    free(a->tokens);
}

static const char *group_hex(const struct kvd_key_answer *a, uint32_t index, char text[HEX_MAX])
{
    struct kvd_group_id group;
    kvd_group_of(a->keys, index, &group);
    kvd_hex(group.b, KVD_GROUP_ID_BYTES, text);
    return text;
}

static const char *hex(const uint8_t *bytes, size_t n, char text[HEX_MAX])
{
    kvd_hex(bytes, n, text);
    return text;
}

const char *kvd_key_address(const struct kvd_key_answer *a, uint32_t index,
                            char text[KVD_KEY_ADDRESS_MAX])
{
    char key[HEX_MAX];
    char group[HEX_MAX];
    (void)snprintf(text, KVD_KEY_ADDRESS_MAX, "%s/%u/%u/%s",
                   hex(a->keys[index].b, KVD_KEY_BYTES, key), a->rank, index,
                   group_hex(a, index, group));
    return text;
}

const char *kvd_key_name(const struct kvd_key_answer *a, uint32_t index,
                         char text[KVD_KEY_NAME_MAX])
{
    char address[KVD_KEY_ADDRESS_MAX];
    char space[HEX_MAX];
    char tenant[HEX_MAX];
    (void)snprintf(text, KVD_KEY_NAME_MAX, "%s/%.64s/%.64s", kvd_key_address(a, index, address),
                   hex(a->space_digest.b, KVD_DIGEST_BYTES, space),
                   hex(a->tenant.b, KVD_DIGEST_BYTES, tenant));
    return text;
}

/* ---- text ---- */

static int view_space(const struct kvd_key_answer *a, FILE *out)
{
    KVD_CLEANUP(kvd_table_destroy) struct kvd_table *table = NULL;
    int err = kvd_table_create("rlll", &table);
    if (err) {
        return err;
    }
    const char *const head[] = {"tag", "field", "value", "bytes"};
    for (int i = 0; i < 4; i++) {
        (void)kvd_table_cell(table, "%s", head[i]);
    }
    for (unsigned i = 0; i < KVD_SPACE_FIELDS; i++) {
        char value[VALUE_MAX];
        char text[HEX_MAX];
        struct kvd_space_field f;
        kvd_space_field_at(&a->space.desc, i, &f);
        (void)kvd_table_cell(table, "%u", f.tag);
        (void)kvd_table_cell(table, "%s", f.name);
        (void)kvd_table_cell(table, "%s",
                             kvd_key_field_text(&a->space.desc, &f, value, sizeof(value)));
        (void)kvd_table_cell(table, "%s", hex(f.data, f.bytes, text));
    }
    return kvd_table_print(table, 2, out);
}

static int view_root(const struct kvd_key_answer *a, FILE *out)
{
    KVD_CLEANUP(kvd_table_destroy) struct kvd_table *table = NULL;
    char text[HEX_MAX];
    char number[KVD_TEXT_BYTES];
    int err = kvd_table_create("lll", &table);
    if (err) {
        return err;
    }
    (void)kvd_table_cell(table, "space");
    (void)kvd_table_cell(table, "%s", hex(a->space_digest.b, KVD_DIGEST_BYTES, text));
    (void)kvd_table_cell(table, "%s bytes a block",
                         kvd_units_count(number, a->space.desc.payload_bytes));
    (void)kvd_table_cell(table, "tenant");
    (void)kvd_table_cell(table, "%s", hex(a->tenant.b, KVD_DIGEST_BYTES, text));
    (void)kvd_table_cell(table, "%s", a->tenant_name[0] ? a->tenant_name : "the default one");
    (void)kvd_table_cell(table, "extra");
    (void)kvd_table_cell(table, "%s", hex(a->extra.b, KVD_DIGEST_BYTES, text));
    (void)kvd_table_cell(table, a->has_extra ? "" : "none");
    (void)kvd_table_cell(table, "seed");
    (void)kvd_table_cell(table, "%016" PRIx64, a->seed);
    (void)kvd_table_cell(table, "%s", a->seed_from);
    (void)kvd_table_cell(table, "root");
    (void)kvd_table_cell(table, "%s", hex(a->root.b, KVD_KEY_BYTES, text));
    (void)kvd_table_cell(table, "parent of block 0");
    return kvd_table_print(table, 0, out);
}

/* Where a block is: "dram nvme", or why it is nowhere. */
static void stored_text(const json_t *report, char *ret, size_t room)
{
    const bool dram = json_is_object(json_object_get(report, "dram"));
    const bool nvme = json_is_object(json_object_get(report, "nvme"));
    const char *missing = json_string_value(json_object_get(report, "missing"));
    (void)snprintf(ret, room, "%s%s%s%s", dram ? "dram" : "", dram && nvme ? " " : "",
                   nvme ? "nvme" : "", !dram && !nvme && missing ? missing : "");
}

static int view_blocks(const struct kvd_key_answer *a, FILE *out)
{
    KVD_CLEANUP(kvd_table_destroy) struct kvd_table *table = NULL;
    int err = kvd_table_create(a->stored ? "rrlll" : "rrll", &table);
    if (err) {
        return err;
    }
    (void)kvd_table_cell(table, "block");
    (void)kvd_table_cell(table, "tokens");
    (void)kvd_table_cell(table, "key");
    (void)kvd_table_cell(table, "group");
    if (a->stored) {
        (void)kvd_table_cell(table, "stored");
    }
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        char text[HEX_MAX];
        char stored[64];
        (void)kvd_table_cell(table, "%u", i);
        (void)kvd_table_cell(table, "%u", a->space.desc.block_tokens);
        (void)kvd_table_cell(table, "%s", hex(a->keys[i].b, KVD_KEY_BYTES, text));
        (void)kvd_table_cell(table, "%s", group_hex(a, i, text));
        if (a->stored) {
            stored_text(a->stored[i], stored, sizeof(stored));
            (void)kvd_table_cell(table, "%s", stored);
        }
    }
    return kvd_table_print(table, 0, out);
}

int kvd_key_view_text(const struct kvd_key_answer *a, FILE *out)
{
    int err = view_space(a, out);
    if (!err) {
        (void)fputc('\n', out);
        err = view_root(a, out);
    }
    if (err || a->n_tokens == 0) {
        return err;
    }
    const uint32_t block_tokens = a->space.desc.block_tokens;
    const uint32_t asked = (a->n_tokens - 1) / block_tokens;
    (void)fprintf(out, "\n%u tokens: %u blocks of %u, %u tokens behind them; rank %u of %u\n",
                  a->n_tokens, a->n_blocks, block_tokens, a->n_tokens % block_tokens, a->rank,
                  a->space.desc.ranks);
    if (asked < a->n_blocks) {
        (void)fprintf(out, "A look-up asks for %u: the last token is always computed.\n", asked);
    }
    (void)fputc('\n', out);
    return view_blocks(a, out);
}

/* ---- JSON ---- */

static json_t *hex_json(const uint8_t *bytes, size_t n)
{
    char text[HEX_MAX];
    return json_string(hex(bytes, n, text));
}

static json_t *fields_json(const struct kvd_key_answer *a)
{
    json_t *rows = json_array();
    for (unsigned i = 0; i < KVD_SPACE_FIELDS; i++) {
        char value[VALUE_MAX];
        struct kvd_space_field f;
        kvd_space_field_at(&a->space.desc, i, &f);
        (void)json_array_append_new(
            rows, json_pack("{s:i,s:s,s:s,s:o}", "tag", f.tag, "name", f.name, "value",
                            kvd_key_field_text(&a->space.desc, &f, value, sizeof(value)), "bytes",
                            hex_json(f.data, f.bytes)));
    }
    return rows;
}

static json_t *blocks_json(const struct kvd_key_answer *a)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        char group[HEX_MAX];
        char address[KVD_KEY_ADDRESS_MAX];
        json_t *row = json_pack("{s:I,s:I,s:o,s:s,s:s}", "index", (json_int_t)i, "tokens",
                                (json_int_t)a->space.desc.block_tokens, "key",
                                hex_json(a->keys[i].b, KVD_KEY_BYTES), "group",
                                group_hex(a, i, group), "address", kvd_key_address(a, i, address));
        if (a->stored) {
            (void)json_object_del(a->stored[i], "schema");
            (void)json_object_set(row, "stored", a->stored[i]);
        }
        (void)json_array_append_new(rows, row);
    }
    return rows;
}

int kvd_key_view_json(const struct kvd_key_answer *a, FILE *out)
{
    char seed[20];
    (void)snprintf(seed, sizeof(seed), "%016" PRIx64, a->seed);
    json_t *tokens = json_array();
    for (uint32_t i = 0; i < a->n_tokens; i++) {
        (void)json_array_append_new(tokens, json_integer((json_int_t)a->tokens[i]));
    }
    json_t *name = json_string(a->tenant_name); /* NULL where its bytes are no UTF-8 */
    json_t *root =
        json_pack("{s:i,s:o,s:o,s:I,s:o,s:{s:o,s:o},s:o,s:s,s:o,s:I,s:o,s:o}", "schema", 1, "space",
                  kvd_key_space_json(&a->space.desc), "fields", fields_json(a), "payload_bytes",
                  (json_int_t)a->space.desc.payload_bytes, "space_digest",
                  hex_json(a->space_digest.b, KVD_DIGEST_BYTES), "tenant", "name",
                  name ? name : json_null(), "digest", hex_json(a->tenant.b, KVD_DIGEST_BYTES),
                  "extra", a->has_extra ? hex_json(a->extra.b, KVD_DIGEST_BYTES) : json_null(),
                  "seed", seed, "root", hex_json(a->root.b, KVD_KEY_BYTES), "rank",
                  (json_int_t)a->rank, "tokens", tokens, "blocks", blocks_json(a));
    if (!root) {
        return -ENOMEM;
    }
    (void)json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    (void)fputc('\n', out);
    json_decref(root);
    return 0;
}

/* ---- vectors ---- */

static void print_hex(FILE *out, const char *name, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    (void)fprintf(out, " %s=%s", name, n ? "" : "-");
    for (size_t i = 0; i < n; i++) {
        (void)fprintf(out, "%02x", at[i]);
    }
}

static void vector_space(const struct kvd_key_answer *a, FILE *out)
{
    (void)fputs("space", out);
    for (unsigned i = 0; i < KVD_SPACE_FIELDS; i++) {
        struct kvd_space_field f;
        kvd_space_field_at(&a->space.desc, i, &f);
        if (f.is_number) {
            (void)fprintf(out, " %s=%" PRIu64, f.name, kvd_get_le64(f.data));
        } else {
            print_hex(out, f.name, f.data, f.bytes);
        }
    }
    (void)fprintf(out, " payload_bytes=%" PRIu64, a->space.desc.payload_bytes);
    print_hex(out, "out", a->space_digest.b, KVD_DIGEST_BYTES);
    (void)fputc('\n', out);
}

static void vector_root(const struct kvd_key_answer *a, FILE *out)
{
    (void)fputs("tenant", out);
    print_hex(out, "name", a->tenant_name, strlen(a->tenant_name));
    print_hex(out, "out", a->tenant.b, KVD_DIGEST_BYTES);
    (void)fprintf(out, "\nroot seed=%" PRIu64, a->seed);
    print_hex(out, "space", a->space_digest.b, KVD_DIGEST_BYTES);
    print_hex(out, "tenant", a->tenant.b, KVD_DIGEST_BYTES);
    print_hex(out, "extra", a->extra.b, a->has_extra ? KVD_DIGEST_BYTES : 0);
    print_hex(out, "out", a->root.b, KVD_KEY_BYTES);
    (void)fputc('\n', out);
}

static void vector_tokens(const struct kvd_key_answer *a, uint32_t first, uint32_t n, FILE *out)
{
    (void)fputs(" tokens=", out);
    for (uint32_t i = 0; i < n; i++) {
        (void)fprintf(out, "%s%u", i ? "," : "", a->tokens[first + i]);
    }
}

static void vector_chain(const struct kvd_key_answer *a, FILE *out)
{
    const uint32_t block_tokens = a->space.desc.block_tokens;
    char text[HEX_MAX];
    (void)fprintf(out, "block seed=%" PRIu64, a->seed);
    print_hex(out, "parent", a->root.b, KVD_KEY_BYTES);
    vector_tokens(a, 0, block_tokens, out);
    print_hex(out, "out", a->keys[0].b, KVD_KEY_BYTES);
    (void)fprintf(out, "\nchain seed=%" PRIu64, a->seed);
    print_hex(out, "root", a->root.b, KVD_KEY_BYTES);
    (void)fprintf(out, " block_tokens=%u", block_tokens);
    vector_tokens(a, 0, a->n_blocks * block_tokens, out);
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        (void)fprintf(out, "%s%s", i ? "," : " out=", hex(a->keys[i].b, KVD_KEY_BYTES, text));
    }
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        (void)fprintf(out, "%s%s", i ? "," : " groups=", group_hex(a, i, text));
    }
    (void)fputc('\n', out);
}

int kvd_key_view_vectors(const struct kvd_key_answer *a, FILE *out)
{
    vector_space(a, out);
    vector_root(a, out);
    if (a->n_blocks) {
        vector_chain(a, out);
    }
    return 0;
}
