/* A space as text and as JSON: see key_space.h. */
#include "tools/kvdepot/key_space.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/bytes.h"

static const char *const dtypes[] = {[KVD_KV_F16] = "f16",
                                     [KVD_KV_BF16] = "bf16",
                                     [KVD_KV_F32] = "f32",
                                     [KVD_KV_FP8_E4M3] = "fp8_e4m3"};
static const char *const layouts[] = {
    [KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM] = "heads", [KVD_LAYOUT_LAYER_TOKEN_LATENT] = "latent"};

enum {
    DTYPES = sizeof(dtypes) / sizeof(dtypes[0]),
    LAYOUTS = sizeof(layouts) / sizeof(layouts[0])
};

static double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

void kvd_key_space_set(struct kvd_key_space *space, const struct kvd_space_desc *desc)
{
    (void)snprintf(space->model, sizeof(space->model), "%s", desc->model);
    (void)snprintf(space->numerics, sizeof(space->numerics), "%s", desc->numerics);
    space->desc = *desc;
    space->desc.model = space->model;
    space->desc.numerics = space->numerics;
}

bool kvd_key_unhex(const char *hex, uint8_t *ret, size_t bytes)
{
    size_t n = 0;
    return strlen(hex) == 2 * bytes &&
           sodium_hex2bin(ret, bytes, hex, 2 * bytes, NULL, &n, NULL) == 0 && n == bytes;
}

/* ---- from JSON ---- */

struct reader {
    const json_t *json;
    const char *where;
    struct kvd_diag *diag;
    int err; /* the first that was met */
};

static void refuse(struct reader *r, const char *field, const char *wanted)
{
    if (!r->err) {
        r->err =
            kvd_fail(r->diag, -KVD_E_BAD_REQUEST, "%s: %s must be %s", r->where, field, wanted);
    }
}

static uint32_t take_number(struct reader *r, const char *field, uint32_t missing)
{
    const json_t *v = json_object_get(r->json, field);
    if (!v) {
        return missing;
    }
    const json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || n > UINT32_MAX) {
        refuse(r, field, "a whole number");
        return missing;
    }
    return (uint32_t)n;
}

static uint64_t take_double(struct reader *r, const char *field, double missing)
{
    const json_t *v = json_object_get(r->json, field);
    if (v && !json_is_number(v)) {
        refuse(r, field, "a number");
    }
    return bits_of(v ? json_number_value(v) : missing);
}

static uint32_t take_name(struct reader *r, const char *field, const char *const *names, uint32_t n)
{
    const char *text = json_string_value(json_object_get(r->json, field));
    for (uint32_t i = 1; text && i < n; i++) {
        if (strcmp(text, names[i]) == 0) {
            return i;
        }
    }
    refuse(r, field, n == DTYPES ? "f16, bf16, f32 or fp8_e4m3" : "heads or latent");
    return 0;
}

static void take_text(struct reader *r, const char *field, char ret[KVD_MODEL_NAME_MAX + 1])
{
    const char *text = json_string_value(json_object_get(r->json, field));
    const size_t n = text ? strlen(text) : 0;
    if (n < 1 || n > KVD_MODEL_NAME_MAX) {
        refuse(r, field, "a text of 1 to 255 bytes");
        return;
    }
    memcpy(ret, text, n + 1);
}

static void take_digest(struct reader *r, const char *field, bool needed, struct kvd_digest *ret)
{
    const json_t *v = json_object_get(r->json, field);
    if (!v && !needed) {
        return;
    }
    if (!json_is_string(v) || !kvd_key_unhex(json_string_value(v), ret->b, KVD_DIGEST_BYTES)) {
        refuse(r, field, "32 bytes in hex");
    }
}

static void refuse_unknown(struct reader *r)
{
    static const char *const known[] = {
        "model",     "weights",    "kv_dtype",   "layout",          "layers",
        "kv_heads",  "head_dim",   "latent_dim", "latent_rope_dim", "block_tokens",
        "rope_base", "rope_scale", "adapter",    "numerics",        "ranks"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)r->json, key, v)
    {
        size_t i = 0;
        while (i < sizeof(known) / sizeof(known[0]) && strcmp(key, known[i]) != 0) {
            i++;
        }
        if (i == sizeof(known) / sizeof(known[0]) && !r->err) {
            r->err = kvd_fail(r->diag, -KVD_E_BAD_REQUEST,
                              "%s: there is no field '%.64s' of a space", r->where, key);
        }
    }
}

int kvd_key_space_parse(const json_t *json, const char *where, struct kvd_diag *diag,
                        struct kvd_key_space *ret)
{
    const json_t *inner = json_object_get(json, "space");
    struct reader r = {.json = inner ? inner : json, .where = where, .diag = diag};
    if (!json_is_object(r.json)) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "%s: a JSON object with the fields of a space is "
                        "wanted, as kvdepot key --json prints it",
                        where);
    }
    memset(ret, 0, sizeof(*ret));
    struct kvd_space_desc *d = &ret->desc;
    refuse_unknown(&r);
    take_text(&r, "model", ret->model);
    take_text(&r, "numerics", ret->numerics);
    d->model = ret->model;
    d->numerics = ret->numerics;
    take_digest(&r, "weights", true, &d->weights);
    take_digest(&r, "adapter", false, &d->adapter);
    d->kv_dtype = (enum kvd_kv_dtype)take_name(&r, "kv_dtype", dtypes, DTYPES);
    d->layout = (enum kvd_kv_layout)take_name(&r, "layout", layouts, LAYOUTS);
    d->layers = take_number(&r, "layers", 0);
    d->kv_heads = take_number(&r, "kv_heads", 0);
    d->head_dim = take_number(&r, "head_dim", 0);
    d->latent_dim = take_number(&r, "latent_dim", 0);
    d->latent_rope_dim = take_number(&r, "latent_rope_dim", 0);
    d->block_tokens = take_number(&r, "block_tokens", KVD_BLOCK_TOKENS_DEFAULT);
    d->rope_base_bits = take_double(&r, "rope_base", 0);
    d->rope_scale_bits = take_double(&r, "rope_scale", 1);
    d->ranks = take_number(&r, "ranks", 1);
    d->payload_bytes = kvd_space_payload_bytes(d);
    if (r.err) {
        return r.err;
    }
    const int err = kvd_space_desc_check(d, diag);
    return err ? kvd_fail_prefix(diag, err, "%s", where) : 0;
}

/* ---- to JSON, and to text ---- */

json_t *kvd_key_space_json(const struct kvd_space_desc *d)
{
    char weights[KVD_DIGEST_HEX];
    char adapter[KVD_DIGEST_HEX];
    kvd_hex(d->weights.b, KVD_DIGEST_BYTES, weights);
    kvd_hex(d->adapter.b, KVD_DIGEST_BYTES, adapter);
    return json_pack("{s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:s,s:s,s:I}", "model",
                     d->model, "weights", weights, "kv_dtype", dtypes[d->kv_dtype], "layout",
                     layouts[d->layout], "layers", (json_int_t)d->layers, "kv_heads",
                     (json_int_t)d->kv_heads, "head_dim", (json_int_t)d->head_dim, "latent_dim",
                     (json_int_t)d->latent_dim, "latent_rope_dim", (json_int_t)d->latent_rope_dim,
                     "block_tokens", (json_int_t)d->block_tokens, "rope_base",
                     double_of(d->rope_base_bits), "rope_scale", double_of(d->rope_scale_bits),
                     "adapter", adapter, "numerics", d->numerics, "ranks", (json_int_t)d->ranks);
}

const char *kvd_key_field_text(const struct kvd_space_desc *d, const struct kvd_space_field *f,
                               char *text, size_t room)
{
    const uint64_t n = f->is_number ? kvd_get_le64(f->data) : 0;
    if (strcmp(f->name, "kv_dtype") == 0) {
        (void)snprintf(text, room, "%s", dtypes[d->kv_dtype]);
    } else if (strcmp(f->name, "layout") == 0) {
        (void)snprintf(text, room, "%s", layouts[d->layout]);
    } else if (strncmp(f->name, "rope_", 5) == 0) {
        (void)snprintf(text, room, "%.17g", double_of(n));
    } else if (f->is_number) {
        (void)snprintf(text, room, "%llu", (unsigned long long)n);
    } else if (f->data == d->adapter.b && kvd_digest_is_zero(&d->adapter)) {
        (void)snprintf(text, room, "none");
    } else if (f->data == d->adapter.b || f->data == d->weights.b) {
        (void)snprintf(text, room, "32 bytes");
    } else {
        (void)snprintf(text, room, "%s", (const char *)f->data);
    }
    return text;
}
