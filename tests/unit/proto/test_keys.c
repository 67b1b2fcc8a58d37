/* Keys: what an independent implementation computed, and what must never be equal. */
#include "kvd_test.h"

#include <errno.h>
#include <stdio.h>

#include "proto/base/cleanup.h"
#include "proto/keys/keys.h"

/* ---- lines of golden_vectors.txt: a word, then name=value ---- */

enum { FIELDS_MAX = 24, BYTES_MAX = 1024, TOKENS_MAX = 2048, BLOCKS_MAX = 128 };

struct line {
    char *word;
    unsigned n;
    char *name[FIELDS_MAX];
    char *value[FIELDS_MAX];
};

static void line_split(char *text, struct line *ret)
{
    char *save = NULL;
    ret->n = 0;
    ret->word = strtok_r(text, " \n", &save);
    for (char *at; (at = strtok_r(NULL, " \n", &save));) {
        char *equals = strchr(at, '=');
        assert_non_null(equals);
        assert_true(ret->n < FIELDS_MAX);
        *equals = 0;
        ret->name[ret->n] = at;
        ret->value[ret->n++] = equals + 1;
    }
}

static char *text_of(const struct line *l, const char *name)
{
    for (unsigned i = 0; i < l->n; i++) {
        if (strcmp(l->name[i], name) == 0) {
            return l->value[i];
        }
    }
    fail_msg("%s lacks %s", l->word, name);
    return NULL;
}

static uint64_t number_of(const struct line *l, const char *name)
{
    char *end;
    errno = 0;
    const char *text = text_of(l, name);
    const uint64_t v = strtoull(text, &end, 10);
    assert_true(errno == 0 && end != text && *end == 0);
    return v;
}

static size_t hex_read(const char *hex, uint8_t *ret, size_t room)
{
    size_t n = 0;
    for (; strcmp(hex, "-") != 0 && hex[2 * n]; n++) {
        unsigned byte;
        assert_true(n < room);
        assert_int_equal(sscanf(hex + 2 * n, "%2x", &byte), 1);
        ret[n] = (uint8_t)byte;
    }
    return n;
}

static size_t bytes_of(const struct line *l, const char *name, uint8_t *ret, size_t room)
{
    return hex_read(text_of(l, name), ret, room);
}

static struct kvd_digest digest_of(const struct line *l, const char *name)
{
    struct kvd_digest d = {{0}};
    assert_int_equal(bytes_of(l, name, d.b, sizeof(d.b)), sizeof(d.b));
    return d;
}

static struct kvd_key key_of(const struct line *l, const char *name)
{
    struct kvd_key k = {{0}};
    assert_int_equal(bytes_of(l, name, k.b, sizeof(k.b)), sizeof(k.b));
    return k;
}

static uint32_t tokens_of(const struct line *l, uint32_t *ret)
{
    uint32_t n = 0;
    char *save = NULL;
    for (char *at = strtok_r(text_of(l, "tokens"), ",", &save); at;
         at = strtok_r(NULL, ",", &save)) {
        assert_true(n < TOKENS_MAX);
        ret[n++] = (uint32_t)strtoul(at, NULL, 10);
    }
    return n;
}

/* ---- each kind of line ---- */

static void check_space(const struct line *l)
{
    char model[BYTES_MAX] = {0};
    char numerics[BYTES_MAX] = {0};
    struct kvd_digest got;
    struct kvd_diag diag = {{0}};
    (void)bytes_of(l, "model", (uint8_t *)model, sizeof(model) - 1);
    (void)bytes_of(l, "numerics", (uint8_t *)numerics, sizeof(numerics) - 1);
    const struct kvd_space_desc d = {
        .model = model,
        .weights = digest_of(l, "weights"),
        .kv_dtype = (enum kvd_kv_dtype)number_of(l, "kv_dtype"),
        .layout = (enum kvd_kv_layout)number_of(l, "layout"),
        .layers = (uint32_t)number_of(l, "layers"),
        .kv_heads = (uint32_t)number_of(l, "kv_heads"),
        .head_dim = (uint32_t)number_of(l, "head_dim"),
        .latent_dim = (uint32_t)number_of(l, "latent_dim"),
        .latent_rope_dim = (uint32_t)number_of(l, "latent_rope_dim"),
        .block_tokens = (uint32_t)number_of(l, "block_tokens"),
        .rope_base_bits = number_of(l, "rope_base_bits"),
        .rope_scale_bits = number_of(l, "rope_scale_bits"),
        .adapter = digest_of(l, "adapter"),
        .numerics = numerics,
        .ranks = (uint32_t)number_of(l, "ranks"),
        .payload_bytes = number_of(l, "payload_bytes"),
    };
    if (kvd_space_desc_check(&d, &diag) != 0) {
        fail_msg("%s", diag.text);
    }
    assert_int_equal(kvd_space_payload_bytes(&d), d.payload_bytes);
    kvd_space_digest(&d, &got);
    const struct kvd_digest want = digest_of(l, "out");
    assert_memory_equal(&got, &want, sizeof(got));
}

static void check_tenant(const struct line *l)
{
    uint8_t name[BYTES_MAX];
    struct kvd_digest got;
    kvd_tenant_digest((const char *)name, bytes_of(l, "name", name, sizeof(name)), &got);
    const struct kvd_digest want = digest_of(l, "out");
    assert_memory_equal(&got, &want, sizeof(got));
}

static void check_root(const struct line *l)
{
    struct kvd_digest extra;
    struct kvd_key got;
    const struct kvd_digest space = digest_of(l, "space");
    const struct kvd_digest tenant = digest_of(l, "tenant");
    const size_t n = bytes_of(l, "extra", extra.b, sizeof(extra.b));
    kvd_key_root(number_of(l, "seed"), &space, &tenant, n ? &extra : NULL, &got);
    const struct kvd_key want = key_of(l, "out");
    assert_memory_equal(&got, &want, sizeof(got));
}

static void check_block(const struct line *l)
{
    static uint32_t tokens[TOKENS_MAX];
    struct kvd_key got;
    const struct kvd_key parent = key_of(l, "parent");
    const uint32_t n = tokens_of(l, tokens);
    kvd_key_block(number_of(l, "seed"), &parent, tokens, n, &got);
    const struct kvd_key want = key_of(l, "out");
    assert_memory_equal(&got, &want, sizeof(got));
}

static void check_chain(const struct line *l)
{
    static uint32_t tokens[TOKENS_MAX];
    struct kvd_key keys[BLOCKS_MAX];
    const struct kvd_key root = key_of(l, "root");
    const uint32_t block_tokens = (uint32_t)number_of(l, "block_tokens");
    const uint32_t n = tokens_of(l, tokens) / block_tokens;
    assert_true(n <= BLOCKS_MAX);
    kvd_key_chain(number_of(l, "seed"), &root, tokens, block_tokens, n, keys);
    char *save_key = NULL;
    char *save_group = NULL;
    char *key = strtok_r(text_of(l, "out"), ",", &save_key);
    char *group = strtok_r(text_of(l, "groups"), ",", &save_group);
    for (uint32_t i = 0; i < n; i++) {
        struct kvd_key want;
        struct kvd_group_id want_group;
        struct kvd_group_id got_group;
        assert_int_equal(hex_read(key, want.b, sizeof(want.b)), sizeof(want.b));
        assert_int_equal(hex_read(group, want_group.b, sizeof(want_group.b)), 12);
        assert_memory_equal(&keys[i], &want, sizeof(want));
        kvd_group_of(keys, i, &got_group);
        assert_memory_equal(&got_group, &want_group, sizeof(want_group));
        key = strtok_r(NULL, ",", &save_key);
        group = strtok_r(NULL, ",", &save_group);
    }
    assert_null(key);
}

static void test_golden_vectors(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        void (*check)(const struct line *l);
    } kinds[] = {{"space", check_space},
                 {"tenant", check_tenant},
                 {"root", check_root},
                 {"block", check_block},
                 {"chain", check_chain}};
    enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };
    unsigned seen[KINDS] = {0};
    KVD_AUTOFCLOSE FILE *f = fopen(KVD_GOLDEN_KEYS, "re");
    KVD_AUTOFREE char *text = NULL;
    size_t room = 0;
    assert_non_null(f);
    while (getline(&text, &room, f) > 0) {
        struct line l;
        unsigned k = 0;
        if (text[0] == '#') {
            continue;
        }
        line_split(text, &l);
        while (k < KINDS && strcmp(kinds[k].word, l.word) != 0) {
            k++;
        }
        assert_true(k < KINDS);
        kinds[k].check(&l);
        seen[k]++;
    }
    for (unsigned k = 0; k < KINDS; k++) {
        assert_true(seen[k] >= 2);
    }
}

/* ---- what must differ ---- */

static struct kvd_space_desc some_space(void)
{
    return (struct kvd_space_desc){
        .model = "model",
        .weights = {{1}},
        .kv_dtype = KVD_KV_F16,
        .layout = KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM,
        .layers = 30,
        .kv_heads = 3,
        .head_dim = 64,
        .block_tokens = 64,
        .rope_base_bits = 7,
        .rope_scale_bits = 8,
        .numerics = "q8a-f32-1",
        .ranks = 1,
        .payload_bytes = 1474560,
    };
}

static void test_every_field_of_a_space_counts(void **state)
{
    (void)state;
    struct kvd_space_desc d[24];
    struct kvd_digest digests[24];
    unsigned n = 0;
    const struct kvd_space_desc base = some_space();
    struct kvd_digest again;
    for (unsigned i = 0; i < 24; i++) {
        d[i] = base;
    }
    d[++n].model = "modem";
    d[++n].model = "";
    d[++n].weights.b[31] ^= 1;
    d[++n].kv_dtype = KVD_KV_BF16;
    d[++n].layout = KVD_LAYOUT_LAYER_TOKEN_LATENT;
    d[++n].layers++;
    d[++n].kv_heads++;
    d[++n].head_dim++;
    d[++n].latent_dim++;
    d[++n].latent_rope_dim++;
    d[++n].block_tokens++;
    d[++n].rope_base_bits ^= UINT64_C(1) << 63;
    d[++n].rope_scale_bits++;
    d[++n].adapter.b[0] ^= 1;
    d[++n].numerics = "q8a-f32-2";
    d[++n].ranks++;
    /* the same numbers in each other's place */
    d[++n].layers = base.kv_heads;
    d[n].kv_heads = base.layers;
    d[++n].rope_base_bits = base.rope_scale_bits;
    d[n].rope_scale_bits = base.rope_base_bits;
    d[++n].adapter = base.weights;
    d[n].weights = base.adapter;
    d[++n].model = base.numerics;
    d[n].numerics = base.model;
    for (unsigned i = 0; i <= n; i++) {
        kvd_space_digest(&d[i], &digests[i]);
        for (unsigned j = 0; j < i; j++) {
            assert_false(kvd_digest_equal(&digests[i], &digests[j]));
        }
    }
    kvd_space_digest(&base, &again);
    assert_true(kvd_digest_equal(&again, &digests[0]));
}

/* The fields of a space as they are, in a row, without what says where one ends. */
static size_t bare_fields(const struct kvd_space_desc *d, uint8_t *ret, size_t room)
{
    size_t n = 0;
    for (unsigned i = 0; i < KVD_SPACE_FIELDS; i++) {
        struct kvd_space_field f;
        kvd_space_field_at(d, i, &f);
        assert_true(n + f.bytes <= room);
        memcpy(ret + n, f.data, f.bytes);
        n += f.bytes;
    }
    return n;
}

/* The space whose bare fields are those of `d` with every border moved one byte to the left, from
 * the model's name to the numerics family. Names of `d` have two letters, its adapter ends in one.
 */
static struct kvd_space_desc moved_borders(const struct kvd_space_desc *d, char model[2],
                                           char numerics[4])
{
    struct kvd_space_desc m = *d;
    model[0] = d->model[0];
    model[1] = 0;
    numerics[0] = (char)d->adapter.b[31];
    (void)snprintf(numerics + 1, 3, "%s", d->numerics);
    m.model = model;
    m.numerics = numerics;
    m.weights.b[0] = (uint8_t)d->model[1];
    memcpy(m.weights.b + 1, d->weights.b, 31);
    m.kv_dtype = (enum kvd_kv_dtype)(d->weights.b[31] | (unsigned)d->kv_dtype << 8);
    m.layout = (enum kvd_kv_layout)((unsigned)d->layout << 8);
    m.layers = d->layers << 8;
    m.kv_heads = d->kv_heads << 8;
    m.head_dim = d->head_dim << 8;
    m.block_tokens = d->block_tokens << 8;
    m.rope_base_bits = d->rope_base_bits << 8;
    m.rope_scale_bits = d->rope_scale_bits << 8 | d->rope_base_bits >> 56;
    m.adapter.b[0] = (uint8_t)(d->rope_scale_bits >> 56);
    memcpy(m.adapter.b + 1, d->adapter.b, 31);
    return m;
}

/* "ab" and "c" are not "a" and "bc": whatever moves from one field into its neighbour is another
 * identity, for every border that there is. */
static void r_salt_equal_to_another_field(void **state)
{
    (void)state;
    uint8_t bytes[2][512];
    char model[2];
    char numerics[4];
    struct kvd_digest a;
    struct kvd_digest b;
    struct kvd_space_desc d = some_space();
    d.model = "ab";
    d.numerics = "no";
    d.adapter.b[31] = 'A';
    const struct kvd_space_desc m = moved_borders(&d, model, numerics);
    const size_t n = bare_fields(&d, bytes[0], sizeof(bytes[0]));
    assert_int_equal(bare_fields(&m, bytes[1], sizeof(bytes[1])), n);
    assert_memory_equal(bytes[0], bytes[1], n); /* the same row of bytes */
    kvd_space_digest(&d, &a);
    kvd_space_digest(&m, &b);
    assert_false(kvd_digest_equal(&a, &b));
    /* a tenant that is called as the fields of a space is not that space */
    kvd_tenant_digest((const char *)bytes[0], n, &b);
    assert_false(kvd_digest_equal(&a, &b));
}

/* One field after the other: its name and its bytes as README.md lists them. */
static void test_fields_by_name(void **state)
{
    (void)state;
    static const char *const names[KVD_SPACE_FIELDS] = {
        "model",          "weights",         "kv_dtype",   "layout",          "layers",
        "kv_heads",       "head_dim",        "latent_dim", "latent_rope_dim", "block_tokens",
        "rope_base_bits", "rope_scale_bits", "adapter",    "numerics",        "ranks"};
    const struct kvd_space_desc d = some_space();
    for (unsigned i = 0; i < KVD_SPACE_FIELDS; i++) {
        struct kvd_space_field f;
        kvd_space_field_at(&d, i, &f);
        assert_string_equal(f.name, names[i]);
        assert_int_equal(f.tag, i + 1);
        assert_int_equal(f.is_number, f.data == f.number);
        assert_int_equal(f.bytes, i == 0 ? 5 : i == 13 ? 9 : f.is_number ? 8 : KVD_DIGEST_BYTES);
    }
}

/* A user's salt that equals another field's content must not land on its keys. */
static void test_fields_of_a_root_do_not_mix(void **state)
{
    (void)state;
    const struct kvd_digest a = {{1}};
    const struct kvd_digest b = {{2}};
    const struct kvd_digest zero = {{0}};
    const struct {
        uint64_t seed;
        struct kvd_digest space;
        struct kvd_digest tenant;
        struct kvd_digest extra;
    } rows[] = {{5, a, b, zero}, {5, a, zero, b}, {5, b, a, zero},
                {5, zero, a, b}, {5, a, b, a},    {6, a, b, zero},
                {5, a, a, zero}, {5, a, zero, a}, {5, zero, zero, zero}};
    enum { ROWS = sizeof(rows) / sizeof(rows[0]) };
    struct kvd_key keys[ROWS];
    struct kvd_key none;
    for (int i = 0; i < ROWS; i++) {
        kvd_key_root(rows[i].seed, &rows[i].space, &rows[i].tenant, &rows[i].extra, &keys[i]);
        for (int j = 0; j < i; j++) {
            assert_false(kvd_key_equal(&keys[i], &keys[j]));
        }
    }
    kvd_key_root(5, &a, &b, NULL, &none); /* no extra content is zeros */
    assert_true(kvd_key_equal(&none, &keys[0]));
}

static void test_tenants(void **state)
{
    (void)state;
    struct kvd_digest none;
    struct kvd_digest nul;
    struct kvd_digest a;
    struct kvd_digest ab;
    kvd_tenant_digest(NULL, 0, &none);
    assert_true(kvd_digest_is_zero(&none));
    kvd_tenant_digest("\0", 1, &nul); /* a name, though an odd one */
    kvd_tenant_digest("ab", 1, &a);
    kvd_tenant_digest("ab", 2, &ab);
    assert_false(kvd_digest_is_zero(&nul));
    assert_false(kvd_digest_equal(&a, &ab));
}

/* One other token changes its block's key and all after it, none before. */
static void test_chain_depends_on_all_before(void **state)
{
    (void)state;
    enum { TOKENS = 8, BLOCKS = 40 };
    uint32_t tokens[TOKENS * BLOCKS];
    struct kvd_key a[BLOCKS];
    struct kvd_key b[BLOCKS];
    struct kvd_group_id ga;
    struct kvd_group_id gb;
    const struct kvd_key root = {{9}};
    for (uint32_t i = 0; i < TOKENS * BLOCKS; i++) {
        tokens[i] = i % 5;
    }
    kvd_key_chain(3, &root, tokens, TOKENS, BLOCKS, a);
    tokens[33 * TOKENS + 7] ^= 1u << 31;
    kvd_key_chain(3, &root, tokens, TOKENS, BLOCKS, b);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        assert_int_equal(kvd_key_equal(&a[i], &b[i]), i < 33);
    }
    kvd_group_of(a, 31, &ga);
    kvd_group_of(b, 0, &gb);
    assert_memory_equal(&ga, &gb, sizeof(ga));
    kvd_group_of(a, 32, &gb);
    assert_memory_not_equal(&ga, &gb, sizeof(ga));
    assert_memory_equal(&gb, &a[32], sizeof(gb));
}

/* ---- descriptions that are refused ---- */

static char long_name[KVD_MODEL_NAME_MAX + 2];

static void refused(const struct kvd_space_desc *d, const char *word)
{
    struct kvd_diag diag = {{0}};
    assert_int_equal(kvd_space_desc_check(d, &diag), -KVD_E_BAD_REQUEST);
    if (!strstr(diag.text, word)) {
        fail_msg("\"%s\" doesn't name %s", diag.text, word);
    }
    assert_int_equal(kvd_space_desc_check(d, NULL), -KVD_E_BAD_REQUEST);
}

#define REFUSED(word, change)                                                                      \
    do {                                                                                           \
        struct kvd_space_desc d = some_space();                                                    \
        change;                                                                                    \
        refused(&d, (word));                                                                       \
    } while (0)

static void test_contradictions_refused(void **state)
{
    (void)state;
    struct kvd_space_desc good = some_space();
    struct kvd_diag diag;
    assert_int_equal(kvd_space_desc_check(&good, &diag), 0);
    memset(long_name, 'a', KVD_MODEL_NAME_MAX + 1);
    REFUSED("model", d.model = "");
    REFUSED("model", d.model = NULL);
    REFUSED("model", d.model = long_name);
    REFUSED("numerics", d.numerics = "");
    REFUSED("kv_dtype", d.kv_dtype = (enum kvd_kv_dtype)0);
    REFUSED("kv_dtype", d.kv_dtype = (enum kvd_kv_dtype)5);
    REFUSED("layout", d.layout = (enum kvd_kv_layout)3);
    REFUSED("layers", d.layers = 0);
    REFUSED("layers", d.layers = UINT32_MAX);
    REFUSED("kv_heads", d.kv_heads = 0);
    REFUSED("head_dim", d.head_dim = UINT32_MAX);
    REFUSED("block_tokens", d.block_tokens = KVD_BLOCK_TOKENS_MAX + 1);
    REFUSED("ranks", d.ranks = 0);
    /* heads and latents at once */
    REFUSED("latent_dim", d.latent_dim = 512);
    REFUSED("latent_rope_dim", d.latent_rope_dim = 64);
    REFUSED("kv_heads", d.layout = KVD_LAYOUT_LAYER_TOKEN_LATENT);
    /* a payload that isn't the geometry's */
    REFUSED("payload_bytes", d.payload_bytes++);
    REFUSED("payload_bytes", d.payload_bytes = 0);
    REFUSED("payload_bytes", d.layers++);
    REFUSED("payload_bytes", d.kv_dtype = KVD_KV_F32);
    REFUSED("payload_bytes", d.layers = 1024; d.kv_heads = 1024; d.head_dim = 1024;
            d.payload_bytes = kvd_space_payload_bytes(&d));
    good.numerics = long_name + 1; /* 255 bytes are allowed */
    assert_int_equal(kvd_space_desc_check(&good, &diag), 0);
}

static void test_hex(void **state)
{
    (void)state;
    char text[9];
    const uint8_t bytes[] = {0x00, 0x7f, 0x80, 0xff};
    kvd_hex(bytes, 4, text);
    assert_string_equal(text, "007f80ff");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_golden_vectors),
    cmocka_unit_test(test_every_field_of_a_space_counts),
    cmocka_unit_test(r_salt_equal_to_another_field),
    cmocka_unit_test(test_fields_by_name),
    cmocka_unit_test(test_fields_of_a_root_do_not_mix),
    cmocka_unit_test(test_tenants),
    cmocka_unit_test(test_chain_depends_on_all_before),
    cmocka_unit_test(test_contradictions_refused),
    cmocka_unit_test(test_hex),
};
KVD_TEST_MAIN(tests)
