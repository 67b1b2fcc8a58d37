/*
 * Whose bytes: blocks are found by what made them, and by nothing else. Spaces that differ in one
 * field, tenants that are called like something else, records that only look right, and prefixes
 * with a hole, on a real store.
 */
#include "kvd_test.h"

#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/format/record.h"
#include "service_rig.h"

enum {
    N = 12,
    TOKENS = N * RIG_BLOCK_TOKENS + 5,
    LONG = 40,
    LONG_TOKENS = LONG * RIG_BLOCK_TOKENS + 1
};

static void rig_begin(struct rig *rig)
{
    rig_init(rig, "64MiB", "64MiB");
    rig_open(rig, false);
}

/* ---- weights, geometry, adapters ---- */

static void r_new_weights_under_the_same_name(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(1, TOKENS, tokens);
    rig_begin(&rig);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_connect(&rig, 2);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    rig_close(&rig);
    rig_open(&rig, false); /* warm in dram */
    rig_connect(&rig, 2);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    rig_close(&rig);
    rig_open(&rig, true); /* below only */
    rig_connect(&rig, 2);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    rig_connect(&rig, 1);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 0);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

/* Each changes one thing. `refused`: the same weights in another shape, which somebody has wrong.
 */
static const struct change {
    const char *name;
    bool refused;
} changes[] = {
    {"model", false},      {"kv_dtype", false}, {"layout", false},       {"layers", true},
    {"kv_heads", true},    {"head_dim", true},  {"block_tokens", false}, {"rope_base", false},
    {"rope_scale", false}, {"adapter", false},  {"numerics", false},     {"ranks", false},
};

enum { CHANGES = sizeof(changes) / sizeof(changes[0]) };

static struct kvd_space_desc changed(int i, uint8_t weights)
{
    struct kvd_space_desc d = rig_space(weights);
    switch (i) {
    case 0:
        d.model = "rib";
        break;
    case 1:
        d.kv_dtype = KVD_KV_BF16;
        break;
    case 2: /* the same bytes of payload in another order */
        d.layout = KVD_LAYOUT_LAYER_TOKEN_LATENT;
        d.latent_dim = 2 * d.kv_heads * d.head_dim;
        d.kv_heads = d.head_dim = 0;
        break;
    case 3:
        d.layers++;
        break;
    case 4:
        d.kv_heads *= 2;
        break;
    case 5:
        d.head_dim /= 2;
        break;
    case 6:
        d.block_tokens *= 2;
        break;
    case 7:
        d.rope_base_bits++;
        break;
    case 8:
        d.rope_scale_bits++;
        break;
    case 9:
        d.adapter.b[31] = 1;
        break;
    case 10:
        d.numerics = "tess";
        break;
    default:
        d.ranks = 2;
    }
    d.payload_bytes = kvd_space_payload_bytes(&d);
    return d;
}

static void r_other_geometry_same_tokens(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_digest base;
    struct kvd_digest digests[CHANGES];
    uint32_t tokens[TOKENS];
    struct kvd_space_desc d = rig_space(1);
    kvd_space_digest(&d, &base);
    rig_tokens(2, TOKENS, tokens);
    rig_begin(&rig);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    for (int i = 0; i < CHANGES; i++) {
        d = changed(i, 1);
        kvd_space_digest(&d, &digests[i]);
        bool same = kvd_digest_equal(&digests[i], &base);
        for (int j = 0; j < i; j++) {
            same = same || kvd_digest_equal(&digests[i], &digests[j]);
        }
        if (same) {
            fail_msg("%s does not count", changes[i].name);
        }
        /* shapes that contradict are another model's */
        d = changed(i, changes[i].refused ? (uint8_t)(10 + i) : 1);
        rig_connect_space(&rig, &d);
        if (rig_match(&rig, "", "chat", tokens, TOKENS) != 0) {
            fail_msg("a hit in spite of another %s", changes[i].name);
        }
    }
    rig_connect(&rig, 1);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static int open_space(struct rig *rig, const struct kvd_space_desc *d, struct kvd_diag *diag)
{
    struct kvd_session *session = NULL;
    struct kvd_space_opened opened;
    assert_int_equal(kvd_session_open(rig->service, &session), 0);
    const int err = kvd_service_space_open(session, d, diag, &opened);
    kvd_session_end(&session);
    return err;
}

static void says(const struct kvd_diag *diag, const char *words)
{
    if (!strstr(diag->text, words)) {
        fail_msg("\"%s\" doesn't say %s", diag->text, words);
    }
}

static void r_same_weights_in_another_shape(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag = {{0}};
    uint32_t tokens[TOKENS];
    rig_tokens(3, TOKENS, tokens);
    rig_begin(&rig);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    for (int i = 0; i < CHANGES; i++) {
        const struct kvd_space_desc d = changed(i, 1);
        const int err = open_space(&rig, &d, &diag);
        assert_int_equal(err, changes[i].refused ? -KVD_E_CONTRADICTION : 0);
    }
    says(&diag, "model 'rig'");
    says(&diag, "2 layers, KV heads 2 and head size 128");
    says(&diag, "now come with 2, 2 and 64");
    struct kvd_space_desc latent = changed(2, 1);
    latent.latent_rope_dim = 8;
    latent.payload_bytes = kvd_space_payload_bytes(&latent);
    assert_int_equal(open_space(&rig, &latent, &diag), -KVD_E_CONTRADICTION);
    says(&diag, "latent size 512 and latent rope size 0, and now come with 2, 512 and 8");
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N); /* the first goes on */
    rig_fini(&rig);
}

static void r_adapter_reloaded_under_the_same_name(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct kvd_space_desc d = rig_space(1);
    rig_tokens(4, TOKENS, tokens);
    rig_begin(&rig);
    d.adapter = (struct kvd_digest){{0xaa}};
    rig_connect_space(&rig, &d);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    d.adapter.b[31] ^= 1; /* trained a little further; nothing else has changed */
    rig_connect_space(&rig, &d);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    rig_connect(&rig, 1); /* and none at all */
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    rig_fini(&rig);
}

static void r_rank_sees_only_its_own(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct kvd_space_desc d = rig_space(1);
    d.ranks = 2;
    rig_tokens(5, TOKENS, tokens);
    rig_begin(&rig);
    rig_connect_space(&rig, &d);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig.rank = 1;
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    rig_settle(&rig);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N - 2), N - 2);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N - 2); /* payloads differ by rank */
    rig_close(&rig);
    rig_open(&rig, true);
    rig_connect_space(&rig, &d);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N - 2);
    rig.rank = 0;
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 0);
    rig_fini(&rig);
}

/* ---- tenants and extra content ---- */

/* Ann's blocks, in a space whose adapter is called like Ann, if digests had names. */
static void r_tenant_called_like_another_field(void **state)
{
    (void)state;
    struct rig rig;
    char hex[KVD_DIGEST_HEX];
    char adapter[KVD_DIGEST_BYTES + 1];
    struct kvd_digest ann;
    uint32_t tokens[TOKENS];
    struct kvd_space_desc d = rig_space(1);
    rig_tokens(6, TOKENS, tokens);
    kvd_tenant_digest("ann", 3, &ann);
    kvd_hex(ann.b, KVD_DIGEST_BYTES, hex);
    memset(adapter, 'a', sizeof(adapter));
    adapter[KVD_DIGEST_BYTES] = 0;
    memcpy(d.adapter.b, adapter, KVD_DIGEST_BYTES);
    rig_begin(&rig);
    rig_connect_space(&rig, &d);
    assert_int_equal(rig_put(&rig, "ann", "chat", tokens, N), N);
    const char *const names[] = {"", "ann ", "an", "rig", "test", adapter, hex};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(rig_hit(&rig, names[i], tokens, TOKENS), 0);
    }
    rig.extra = &ann; /* images whose digest is Ann's */
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    assert_int_equal(rig_hit(&rig, "ann", tokens, TOKENS), 0);
    rig.extra = &d.adapter;
    assert_int_equal(rig_hit(&rig, "ann", tokens, TOKENS), 0);
    rig.extra = NULL;
    assert_int_equal(rig_hit(&rig, "ann", tokens, TOKENS), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

/* ---- look-alikes ---- */

enum field { SPACE, TENANT, RANK, INDEX, PARENT, KEY, TOKEN };

/* A good record of another block: one field is another's, its header's sum is right. */
static void forge(const char *path, off_t at, enum field field)
{
    static uint32_t ids[KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX];
    uint8_t page[KVD_ALIGN_BYTES];
    struct kvd_record rec;
    uint32_t header_bytes = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, page, sizeof(page), at), sizeof(page));
    assert_int_equal(kvd_record_decode(page, sizeof(page), ids, sizeof(ids) / sizeof(ids[0]), &rec,
                                       &header_bytes),
                     0);
    rec.space.b[0] ^= field == SPACE;
    rec.tenant.b[0] ^= field == TENANT;
    rec.rank ^= field == RANK;
    rec.index ^= field == INDEX;
    rec.parent.b[15] ^= field == PARENT;
    rec.blocks[0].key.b[15] ^= field == KEY;
    ids[RIG_BLOCK_TOKENS - 1] ^= field == TOKEN;
    assert_int_equal(kvd_record_encode(&rec, page, sizeof(page)), KVD_ALIGN_BYTES);
    assert_int_equal(pwrite(fd, page, sizeof(page), at), sizeof(page));
    assert_int_equal(fsync(fd), 0);
    (void)close(fd);
}

/* In dram alone, because of the class: what is wrong there has no good copy below. */
static uint32_t hit_in_dram(struct rig *rig, const uint32_t *tokens)
{
    return rig_match(rig, "", "batch", tokens, TOKENS) ? rig_load(rig, tokens) : 0;
}

static void look_alike_in_dram(enum field field, bool warm)
{
    struct rig rig;
    char pool[300];
    uint32_t tokens[TOKENS];
    rig_tokens(7, TOKENS, tokens);
    rig_begin(&rig);
    (void)snprintf(pool, sizeof(pool), "%s/pool", rig.folder);
    assert_int_equal(rig_put(&rig, "", "batch", tokens, N), N);
    assert_int_equal(hit_in_dram(&rig, tokens), N);
    const off_t at = (off_t)rig.results[5].offset - KVD_ALIGN_BYTES;
    if (warm) {
        rig_close(&rig);
    }
    forge(pool, at, field);
    if (warm) {
        rig_open(&rig, false);
    }
    assert_int_equal(hit_in_dram(&rig, tokens), 5);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 1);
    assert_int_equal(hit_in_dram(&rig, tokens), 5); /* it is gone */
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 1);
    assert_int_equal(rig_put(&rig, "", "batch", tokens, N), N);
    assert_int_equal(hit_in_dram(&rig, tokens), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static char segment[512];

static int find_segment(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)flag;
    (void)ftw;
    if (S_ISREG(st->st_mode) && strstr(path, ".seg")) {
        (void)snprintf(segment, sizeof(segment), "%s", path);
    }
    return 0;
}

/* Offset of a record's extent; the name of its file is in `segment`. */
static off_t record_on_media(const struct rig *rig, uint32_t nth)
{
    segment[0] = 0;
    assert_int_equal(nftw(rig->folder, find_segment, 16, FTW_PHYS), 0);
    assert_true(segment[0]);
    return (off_t)(KVD_ALIGN_BYTES + nth * (KVD_ALIGN_BYTES + rig_block_bytes()));
}

static void look_alike_below(enum field field)
{
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(8, TOKENS, tokens);
    rig_begin(&rig);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_close(&rig);
    const off_t at = record_on_media(&rig, 5);
    forge(segment, at, field);
    rig_open(&rig, true);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 5);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 1);
    rig_settle(&rig);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static void look_alike(enum field field)
{
    look_alike_in_dram(field, false);
    look_alike_in_dram(field, true);
    look_alike_below(field);
}

#define LOOK_ALIKE(name, field)                                                                    \
    static void r_look_alike_##name(void **state)                                                  \
    {                                                                                              \
        (void)state;                                                                               \
        look_alike(field);                                                                         \
    }
LOOK_ALIKE(space, SPACE)
LOOK_ALIKE(tenant, TENANT)
LOOK_ALIKE(rank, RANK)
LOOK_ALIKE(index, INDEX)
LOOK_ALIKE(parent, PARENT)
LOOK_ALIKE(key, KEY)
LOOK_ALIKE(tokens, TOKEN)

/* The second block has the same tokens in both prompts: its KV depends on the first. */
static void r_same_tokens_after_another_beginning(void **state)
{
    (void)state;
    enum { TWO = 2 * RIG_BLOCK_TOKENS + 1 };
    struct rig rig;
    uint32_t a[TWO];
    uint32_t b[TWO];
    rig_tokens(9, TWO, a);
    memcpy(b, a, sizeof(a));
    b[0]++;
    rig_begin(&rig);
    assert_int_equal(rig_put(&rig, "", "chat", a, 2), 2);
    assert_int_equal(rig_put(&rig, "", "chat", b, 2), 2);
    assert_int_equal(rig_hit(&rig, "", b, TWO), 2);
    assert_int_equal(rig_hit(&rig, "", a, TWO), 2);
    assert_int_equal(rig_number(&rig, "status", "", "puts.committed_blocks"), 4);
    rig_fini(&rig);
}

/* ---- what is stored under an address ---- */

static const char *address_of(struct rig *rig, const uint32_t *tokens, uint32_t index,
                              char text[220])
{
    struct kvd_key keys[N];
    struct kvd_key root;
    struct kvd_digest none;
    struct kvd_group_id group;
    char key_hex[KVD_KEY_HEX];
    char group_hex[2 * KVD_GROUP_ID_BYTES + 1];
    char space_hex[KVD_DIGEST_HEX];
    char tenant_hex[KVD_DIGEST_HEX];
    uint64_t seed = 0;
    char *json = NULL;
    struct kvd_diag diag = {{0}};
    assert_int_equal(kvd_service_report(rig->service, "identity", "", "", &diag, &json), 0);
    const char *at = strstr(json, "\"seed\":\"");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"seed\":\"%" SCNx64, &seed), 1);
    free(json);
    kvd_tenant_digest("", 0, &none);
    kvd_key_root(seed, &rig->space.space, &none, NULL, &root);
    kvd_key_chain(seed, &root, tokens, RIG_BLOCK_TOKENS, N, keys);
    kvd_group_of(keys, index, &group);
    kvd_hex(keys[index].b, KVD_KEY_BYTES, key_hex);
    kvd_hex(group.b, KVD_GROUP_ID_BYTES, group_hex);
    kvd_hex(rig->space.space.b, KVD_DIGEST_BYTES, space_hex);
    kvd_hex(none.b, KVD_DIGEST_BYTES, tenant_hex);
    (void)snprintf(text, 220, "%s/%u/%u/%s/%s/%s", key_hex, rig->rank, index, group_hex, space_hex,
                   tenant_hex);
    return text;
}

static void block_says(struct rig *rig, const char *address, const char *words)
{
    char *json = NULL;
    struct kvd_diag diag = {{0}};
    assert_int_equal(kvd_service_report(rig->service, "block", address, "", &diag, &json), 0);
    if (!strstr(json, words)) {
        fail_msg("%s doesn't say %s", json, words);
    }
    free(json);
}

/* Asking is not using: no look-up is counted, nothing is read into dram. */
static void report_of_a_block(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "abc", "/0/0/", "zz/0/0/00"};
    struct rig rig;
    char text[220];
    uint32_t tokens[TOKENS];
    uint32_t other[TOKENS];
    rig_tokens(12, TOKENS, tokens);
    memcpy(other, tokens, sizeof(other));
    other[3 * RIG_BLOCK_TOKENS]++;
    rig_begin(&rig);
    block_says(&rig, address_of(&rig, tokens, 3, text), "\"missing\":\"never_seen\"");
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_settle(&rig);
    block_says(&rig, address_of(&rig, tokens, 3, text), "\"tier\":\"dram\"");
    block_says(&rig, text, "\"segment\":");
    block_says(&rig, text, "\"scenario\":\"chat\"");
    block_says(&rig, address_of(&rig, other, 3, text), "\"missing\":\"diverged\"");
    rig.rank = 1;
    block_says(&rig, address_of(&rig, tokens, 3, text), "\"missing\":\"never_seen\"");
    rig.rank = 0;
    rig_close(&rig);
    rig_open(&rig, true);
    for (int i = 0; i < 2; i++) {
        block_says(&rig, address_of(&rig, tokens, 3, text), "\"tier\":\"nvme\"");
        block_says(&rig, text, "\"dram\":null");
    }
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.lookups"), 0);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char *json = NULL;
        struct kvd_diag diag = {{0}};
        assert_int_equal(kvd_service_report(rig.service, "block", wrong[i], "", &diag, &json),
                         -KVD_E_BAD_REQUEST);
        says(&diag, "KEY/RANK/INDEX/GROUP/SPACE/TENANT");
    }
    rig_fini(&rig);
}

/* ---- holes ---- */

enum { IN_DRAM, BELOW, HEAD_BELOW, WAYS };

/* All blocks but one; where they lie. */
static void put_around(struct rig *rig, const uint32_t *tokens, uint32_t hole, int way)
{
    const char *class = way == IN_DRAM ? "batch" : "chat";
    assert_int_equal(rig_put(rig, "", class, tokens, hole), hole);
    if (way == HEAD_BELOW) {
        rig_close(rig);
        rig_open(rig, true);
    }
    const uint32_t rest = LONG - hole - 1;
    assert_int_equal(rig_put_range(rig, "", class, tokens, hole + 1, rest), rest);
    if (way == BELOW) {
        rig_close(rig);
        rig_open(rig, true);
    }
}

static void r_hole_in_the_prefix(void **state)
{
    (void)state;
    static const uint32_t holes[] = {1, 20, 31, 32, 33, LONG - 2}; /* groups have 32 blocks */
    for (size_t i = 0; i < sizeof(holes) / sizeof(holes[0]); i++) {
        for (int way = 0; way < WAYS; way++) {
            struct rig rig;
            uint32_t tokens[LONG_TOKENS];
            rig_tokens(10, LONG_TOKENS, tokens);
            rig_begin(&rig);
            put_around(&rig, tokens, holes[i], way);
            assert_int_equal(rig_match(&rig, "", "chat", tokens, LONG_TOKENS), holes[i]);
            assert_int_equal(rig_load(&rig, tokens), holes[i]);
            assert_int_equal(rig_put_range(&rig, "", "chat", tokens, holes[i], 1), 1);
            assert_int_equal(rig_hit(&rig, "", tokens, LONG_TOKENS), LONG);
            rig_assert_adds_up(&rig);
            rig_fini(&rig);
        }
    }
}

/* Found, but bad: what lies behind it is right and still not served, until it is put again. */
static void r_bad_block_in_the_prefix(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 20, 31, 32, 33};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct rig rig;
        uint32_t tokens[LONG_TOKENS];
        rig_tokens(11, LONG_TOKENS, tokens);
        rig_begin(&rig);
        assert_int_equal(rig_put(&rig, "", "chat", tokens, LONG), LONG);
        rig_close(&rig);
        const off_t at = record_on_media(&rig, bad[i]);
        forge(segment, at, TOKEN);
        rig_open(&rig, true);
        assert_int_equal(rig_match(&rig, "", "chat", tokens, LONG_TOKENS), LONG);
        assert_int_equal(rig_load(&rig, tokens), bad[i]);
        rig_settle(&rig);
        /* it fails once: nobody is sent there again, and the next put heals it */
        assert_int_equal(rig_match(&rig, "", "chat", tokens, LONG_TOKENS), bad[i]);
        assert_int_equal(bad[i] ? rig_load(&rig, tokens) : 0, bad[i]);
        assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 1);
        assert_int_equal(rig_put(&rig, "", "chat", tokens, LONG), LONG);
        assert_int_equal(rig_hit(&rig, "", tokens, LONG_TOKENS), LONG);
        rig_assert_adds_up(&rig);
        rig_fini(&rig);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_new_weights_under_the_same_name),
    cmocka_unit_test(r_other_geometry_same_tokens),
    cmocka_unit_test(r_same_weights_in_another_shape),
    cmocka_unit_test(r_adapter_reloaded_under_the_same_name),
    cmocka_unit_test(r_rank_sees_only_its_own),
    cmocka_unit_test(r_tenant_called_like_another_field),
    cmocka_unit_test(r_look_alike_space),
    cmocka_unit_test(r_look_alike_tenant),
    cmocka_unit_test(r_look_alike_rank),
    cmocka_unit_test(r_look_alike_index),
    cmocka_unit_test(r_look_alike_parent),
    cmocka_unit_test(r_look_alike_key),
    cmocka_unit_test(r_look_alike_tokens),
    cmocka_unit_test(r_same_tokens_after_another_beginning),
    cmocka_unit_test(report_of_a_block),
    cmocka_unit_test(r_hole_in_the_prefix),
    cmocka_unit_test(r_bad_block_in_the_prefix),
};

KVD_TEST_MAIN(tests)
