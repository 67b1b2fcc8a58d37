/* The wire's pure part: unpacking under a budget, spaces, names, the layout of result rows. */
#include "kvd_test.h"

#include <stddef.h>

#include "proto/wire/wire.h"

static struct kvd_space_desc some_space(void)
{
    struct kvd_space_desc d = {
        .model = "model",
        .kv_dtype = KVD_KV_F16,
        .layout = KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM,
        .layers = 30,
        .kv_heads = 3,
        .head_dim = 64,
        .block_tokens = 64,
        .rope_base_bits = 0x40f86a0000000000,
        .rope_scale_bits = 0x3ff0000000000000,
        .numerics = "q8a-f32-1",
        .ranks = 2,
    };
    memset(d.weights.b, 0xab, sizeof(d.weights.b));
    d.adapter.b[31] = 1;
    d.payload_bytes = kvd_space_payload_bytes(&d);
    return d;
}

static size_t pack_space_open(const struct kvd_space_desc *desc, uint8_t *buf)
{
    Kvd__Wire__SpaceDesc msg;
    Kvd__Wire__SpaceOpenRequest open = KVD__WIRE__SPACE_OPEN_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    kvd_wire_space_desc_pack(desc, &msg);
    open.desc = &msg;
    req.id = 7;
    req.body_case = KVD__WIRE__REQUEST__BODY_SPACE_OPEN;
    req.space_open = &open;
    return kvd__wire__request__pack(&req, buf);
}

static void test_space_round_trip(void **state)
{
    (void)state;
    uint8_t buf[1024];
    struct kvd_wire_budget budget;
    struct kvd_diag diag;
    struct kvd_space_desc in = some_space();
    struct kvd_space_desc out;
    struct kvd_digest a;
    struct kvd_digest b;
    size_t n = pack_space_open(&in, buf);
    kvd_wire_budget_init(&budget, KVD_WIRE_UNPACK_BUDGET);
    Kvd__Wire__Request *req = kvd__wire__request__unpack(&budget.base, n, buf);
    assert_non_null(req);
    assert_int_equal(kvd_wire_space_desc_unpack(req->space_open->desc, &out, &diag), 0);
    kvd_space_digest(&in, &a);
    kvd_space_digest(&out, &b);
    assert_memory_equal(a.b, b.b, sizeof(a.b));
    assert_int_equal(out.payload_bytes, 64 * 23040);
    kvd__wire__request__free_unpacked(req, &budget.base);
}

static void test_space_refusals(void **state)
{
    (void)state;
    struct kvd_space_desc good = some_space();
    struct kvd_space_desc out;
    struct kvd_diag diag;
    Kvd__Wire__SpaceDesc msg;
    uint8_t digest[33] = {0};
    char long_name[300];
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = 0;
    for (int i = 0; i < 9; i++) {
        kvd_wire_space_desc_pack(&good, &msg);
        switch (i) {
        case 0:
            msg.weights = (ProtobufCBinaryData){.len = 31, .data = digest};
            break;
        case 1:
            msg.weights = (ProtobufCBinaryData){.len = 0, .data = NULL};
            break;
        case 2:
            msg.adapter = (ProtobufCBinaryData){.len = 33, .data = digest};
            break;
        case 3:
            msg.model = "";
            break;
        case 4:
            msg.numerics = long_name;
            break;
        case 5:
            msg.kv_dtype = UINT32_MAX;
            break;
        case 6:
            msg.layout = 0;
            break;
        case 7:
            msg.payload_bytes++;
            break;
        default:
            msg.block_tokens = 0;
            break;
        }
        diag.text[0] = 0;
        assert_int_equal(kvd_wire_space_desc_unpack(&msg, &out, &diag), -KVD_E_BAD_REQUEST);
        assert_true(strstr(diag.text, "space: ") == diag.text);
    }
    kvd_wire_space_desc_pack(&good, &msg);
    msg.adapter = (ProtobufCBinaryData){.len = 0, .data = NULL};
    assert_int_equal(kvd_wire_space_desc_unpack(&msg, &out, &diag), 0);
    assert_true(kvd_digest_is_zero(&out.adapter));
}

/* ---- budget */

struct counted {
    uint64_t bytes;
};

static void *counted_alloc(void *user, size_t n)
{
    ((struct counted *)user)->bytes += n;
    return malloc(n);
}

static void counted_free(void *user, void *p)
{
    (void)user;
    free(p);
}

/* A packet of nothing but tiny fields that nobody knows: each costs a struct when unpacked. */
static size_t tiny_fields(uint8_t *buf)
{
    size_t n = 0;
    while (n + 3 <= KVD_WIRE_PACKET_MAX) {
        buf[n++] = 0xa0; /* field 100, varint */
        buf[n++] = 0x06;
        buf[n++] = 1;
    }
    return n;
}

static void test_budget_holds(void **state)
{
    (void)state;
    uint8_t *buf = malloc(KVD_WIRE_PACKET_MAX);
    size_t n = tiny_fields(buf);
    struct counted counted = {0};
    ProtobufCAllocator plain = {
        .alloc = counted_alloc, .free = counted_free, .allocator_data = &counted};
    Kvd__Wire__Request *req = kvd__wire__request__unpack(&plain, n, buf);
    assert_non_null(req);
    kvd__wire__request__free_unpacked(req, &plain);
    /* the packet is one that the budget is for */
    assert_true(counted.bytes > 2 * KVD_WIRE_UNPACK_BUDGET);

    struct kvd_wire_budget budget;
    kvd_wire_budget_init(&budget, KVD_WIRE_UNPACK_BUDGET);
    assert_null(kvd__wire__request__unpack(&budget.base, n, buf));
    /* and what was refused once stays refused: nothing smaller slips through */
    assert_null(budget.base.alloc(budget.base.allocator_data, 1));
    free(buf);
}

static void test_budget_counts_to_the_byte(void **state)
{
    (void)state;
    struct kvd_wire_budget budget;
    kvd_wire_budget_init(&budget, 2 * (100 + 16));
    void *a = budget.base.alloc(&budget, 100);
    void *b = budget.base.alloc(&budget, 100);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(budget.base.alloc(&budget, 0));
    budget.base.free(&budget, a);
    budget.base.free(&budget, b);
    kvd_wire_budget_init(&budget, UINT64_C(1) << 20);
    assert_null(budget.base.alloc(&budget, SIZE_MAX));
    assert_null(budget.base.alloc(&budget, SIZE_MAX - 8));
}

/* Each beginning of a good packet, and each packet with one byte changed, is refused or read;
 * sanitizers watch. */
static void test_damaged_packets(void **state)
{
    (void)state;
    uint8_t buf[1024];
    struct kvd_space_desc desc = some_space();
    struct kvd_space_desc out;
    struct kvd_wire_budget budget;
    size_t n = pack_space_open(&desc, buf);
    unsigned refused = 0;
    for (size_t i = 0; i < n * 9; i++) {
        size_t at = i / 9;
        uint8_t was = buf[at];
        size_t len = i % 9 == 8 ? at : n;
        if (i % 9 < 8) {
            buf[at] ^= (uint8_t)(1u << i % 9);
        }
        kvd_wire_budget_init(&budget, KVD_WIRE_UNPACK_BUDGET);
        Kvd__Wire__Request *req = kvd__wire__request__unpack(&budget.base, len, buf);
        if (req && req->body_case == KVD__WIRE__REQUEST__BODY_SPACE_OPEN && req->space_open->desc) {
            (void)kvd_wire_space_desc_unpack(req->space_open->desc, &out, NULL);
        }
        refused += req == NULL;
        if (req) {
            kvd__wire__request__free_unpacked(req, &budget.base);
        }
        buf[at] = was;
    }
    assert_true(refused > 0);
}

static void test_row_layout(void **state)
{
    (void)state;
    assert_int_equal(offsetof(struct kvd_wire_block, generation), 4);
    assert_int_equal(offsetof(struct kvd_wire_block, offset), 8);
    assert_int_equal(offsetof(struct kvd_wire_block, generation_offset), 16);
    assert_int_equal(offsetof(struct kvd_wire_block, bytes), 24);
}

static void test_tier_names(void **state)
{
    (void)state;
    static const char *const names[] = {"none", "hbm", "dram", "nvme", "remote", "shared"};
    for (int i = 0; i < KVD_TIER_COUNT; i++) {
        assert_string_equal(kvd_tier_name((enum kvd_tier_id)i), names[i]);
    }
    assert_string_equal(kvd_tier_name(KVD_TIER_COUNT), "unknown");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_space_round_trip), cmocka_unit_test(test_space_refusals),
    cmocka_unit_test(test_budget_holds),     cmocka_unit_test(test_budget_counts_to_the_byte),
    cmocka_unit_test(test_damaged_packets),  cmocka_unit_test(test_row_layout),
    cmocka_unit_test(test_tier_names),
};

KVD_TEST_MAIN(tests)
