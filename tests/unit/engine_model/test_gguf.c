/* The GGUF reader: what a good file gives, and that a bad one is refused with a message that says
 * where. */
#include "kvd_test.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blob.h"
#include "engine/model/gguf.h"
#include "tiny_gguf.h"

static struct blob b;

/* A small good file with one of each: numbers, text, arrays, two tensors. */
static void build_good(void)
{
    blob_head(&b, 2, 8);
    blob_number(&b, "a.u8", B_U8, 200, 1);
    blob_number(&b, "a.i16", B_I16, (uint64_t)-5, 2);
    blob_number(&b, "a.i64", B_I64, 77, 8);
    blob_number(&b, "a.f32", B_F32, 0x3fc00000, 4);
    blob_number(&b, "a.bool", B_BOOL, 1, 1);
    blob_key(&b, "a.text", B_STRING);
    blob_str(&b, "hello");
    blob_array(&b, "a.words", B_STRING, 3);
    blob_str(&b, "one");
    blob_str(&b, "");
    blob_str(&b, "three");
    blob_array(&b, "a.numbers", B_I32, 2);
    blob_le(&b, (uint64_t)-7, 4);
    blob_le(&b, 9, 4);
    blob_tensor(&b, "zeta", 4, 2, 0, 64);
    blob_tensor(&b, "alpha", 32, 3, 3, 0);
    blob_data(&b, 64 + 32);
}

static struct kvd_gguf *open_good(const uint8_t *bytes, size_t n)
{
    struct kvd_gguf *g = NULL;
    struct kvd_diag diag = {""};
    int r = kvd_gguf_open_memory(bytes, n, &diag, &g);
    if (r < 0) {
        fail_msg("refused: %s", diag.text);
    }
    return g;
}

/* Opens what is in b and wants it refused with this error and these words. */
static void refused(int err, const char *words)
{
    uint8_t *exact = blob_exact(b.bytes, b.n);
    struct kvd_gguf *g = (struct kvd_gguf *)&b; /* must stay as it is */
    struct kvd_diag diag = {""};
    int r = kvd_gguf_open_memory(exact, b.n, &diag, &g);
    free(exact);
    assert_int_equal(r, err);
    assert_ptr_equal(g, &b);
    if (!strstr(diag.text, words)) {
        fail_msg("'%s' doesn't say '%s'", diag.text, words);
    }
}

static void test_numbers(void **state)
{
    build_good();
    struct kvd_gguf *g = open_good(b.bytes, b.n);
    uint64_t u = 42;
    double f = 0;
    bool yes = false;
    assert_int_equal(kvd_gguf_u64(g, "a.u8", &u), 0);
    assert_int_equal(u, 200);
    assert_int_equal(kvd_gguf_u64(g, "a.i64", &u), 0);
    assert_int_equal(u, 77);
    assert_int_equal(kvd_gguf_u64(g, "a.i16", &u), -KVD_E_FORMAT); /* negative */
    assert_int_equal(kvd_gguf_u64(g, "a.f32", &u), -KVD_E_FORMAT);
    assert_int_equal(kvd_gguf_u64(g, "a.none", &u), -KVD_E_NOT_FOUND);
    assert_int_equal(u, 77);
    assert_int_equal(kvd_gguf_f64(g, "a.f32", &f), 0);
    assert_true(f == 1.5);
    assert_int_equal(kvd_gguf_f64(g, "a.u8", &f), -KVD_E_FORMAT);
    assert_int_equal(kvd_gguf_bool(g, "a.bool", &yes), 0);
    assert_true(yes);
    assert_int_equal(kvd_gguf_bool(g, "a.u8", &yes), -KVD_E_FORMAT);
    kvd_gguf_close(&g);
    assert_null(g);
    kvd_gguf_close(&g);
}

static void test_texts_and_arrays(void **state)
{
    build_good();
    struct kvd_gguf *g = open_good(b.bytes, b.n);
    struct kvd_gguf_str s;
    uint64_t n;
    int64_t v;
    assert_int_equal(kvd_gguf_str(g, "a.text", &s), 0);
    assert_int_equal(s.bytes, 5);
    assert_memory_equal(s.text, "hello", 5);
    assert_int_equal(kvd_gguf_str(g, "a.words", &s), -KVD_E_FORMAT);
    assert_int_equal(kvd_gguf_array_len(g, "a.words", &n), 0);
    assert_int_equal(n, 3);
    assert_int_equal(kvd_gguf_array_len(g, "a.text", &n), -KVD_E_FORMAT);
    assert_int_equal(kvd_gguf_array_str(g, "a.words", 2, &s), 0);
    assert_int_equal(s.bytes, 5);
    assert_memory_equal(s.text, "three", 5);
    assert_int_equal(kvd_gguf_array_str(g, "a.words", 1, &s), 0);
    assert_int_equal(s.bytes, 0);
    assert_int_equal(kvd_gguf_array_str(g, "a.words", 3, &s), -KVD_E_NOT_FOUND);
    assert_int_equal(kvd_gguf_array_str(g, "a.numbers", 0, &s), -KVD_E_FORMAT);
    assert_int_equal(kvd_gguf_array_i64(g, "a.numbers", 0, &v), 0);
    assert_int_equal(v, -7);
    assert_int_equal(kvd_gguf_array_i64(g, "a.numbers", 2, &v), -KVD_E_NOT_FOUND);
    assert_int_equal(kvd_gguf_array_i64(g, "a.words", 0, &v), -KVD_E_FORMAT);
    kvd_gguf_close(&g);
}

static void test_tensors(void **state)
{
    build_good();
    struct kvd_gguf *g = open_good(b.bytes, b.n);
    assert_int_equal(kvd_gguf_tensor_count(g), 2);
    const struct kvd_gguf_tensor *alpha = kvd_gguf_tensor(g, "alpha");
    const struct kvd_gguf_tensor *zeta = kvd_gguf_tensor(g, "zeta");
    assert_non_null(alpha);
    assert_non_null(zeta);
    assert_null(kvd_gguf_tensor(g, "alph"));
    assert_null(kvd_gguf_tensor(g, "alphab"));
    assert_ptr_equal(kvd_gguf_tensor_at(g, 0), alpha); /* name order, not the file's */
    assert_ptr_equal(kvd_gguf_tensor_at(g, 1), zeta);
    assert_int_equal(alpha->bytes, 3 * 20);
    assert_int_equal(zeta->bytes, 4 * 2 * 4);
    assert_int_equal(zeta->dims[2], 1);
    assert_int_equal((const uint8_t *)zeta->data - (const uint8_t *)alpha->data, 64);
    assert_ptr_equal((const uint8_t *)zeta->data + zeta->bytes, b.bytes + b.n);
    kvd_gguf_close(&g);
}

/* Every length that is too short is refused, and reads nothing past its end (a sanitizer would see
 * it). */
static void test_truncated_at_every_byte(void **state)
{
    build_good();
    size_t whole = b.n;
    for (size_t n = 0; n < whole; n++) {
        uint8_t *exact = blob_exact(b.bytes, n);
        struct kvd_gguf *g = NULL;
        struct kvd_diag diag = {""};
        int r = kvd_gguf_open_memory(exact, n, &diag, &g);
        free(exact);
        assert_true(r == -KVD_E_CORRUPT || (n < 4 && r == -KVD_E_FORMAT));
        assert_null(g);
        assert_true(strlen(diag.text) > 0);
    }
}

static void test_truncated_model(void **state)
{
    size_t n;
    uint8_t *bytes = kvd_tiny_gguf_build(NULL, &n);
    assert_non_null(bytes);
    for (size_t cut = 0; cut < n; cut += cut < 30000 ? 61 : 4099) {
        uint8_t *exact = blob_exact(bytes, cut);
        struct kvd_gguf *g = NULL;
        assert_true(kvd_gguf_open_memory(exact, cut, NULL, &g) < 0);
        free(exact);
    }
    struct kvd_gguf *g = open_good(bytes, n);
    kvd_gguf_close(&g);
    free(bytes);
}

static void test_header(void **state)
{
    build_good();
    b.bytes[0] = 'g';
    refused(-KVD_E_FORMAT, "not a GGUF");
    build_good();
    b.bytes[4] = 4;
    refused(-KVD_E_NEWER, "version 4");
    build_good();
    b.bytes[4] = 2;
    refused(-KVD_E_FORMAT, "version 2");
    build_good();
    b.bytes[4] = 0;
    b.bytes[7] = 3;
    refused(-KVD_E_FORMAT, "big-endian");
    blob_head(&b, UINT64_MAX, 0);
    refused(-KVD_E_CORRUPT, "tensors");
    blob_head(&b, 0, UINT64_MAX);
    refused(-KVD_E_CORRUPT, "keys");
    blob_head(&b, 0, 1);
    refused(-KVD_E_CORRUPT, "keys");
}

static void test_names(void **state)
{
    blob_head(&b, 0, 1);
    blob_number(&b, "", B_U64, 1, 8);
    refused(-KVD_E_CORRUPT, "0 bytes");
    blob_head(&b, 0, 1);
    blob_number(&b, "bad\nkey", B_U64, 1, 8);
    refused(-KVD_E_CORRUPT, "control character");
    char longest[1100];
    memset(longest, 'k', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    blob_head(&b, 0, 1);
    blob_number(&b, longest, B_U64, 1, 8);
    refused(-KVD_E_CORRUPT, "1099 bytes");
    blob_head(&b, 0, 1);
    blob_le(&b, UINT64_MAX - 3, 8); /* a key's length that would wrap around */
    blob_le(&b, 0, 8);
    refused(-KVD_E_CORRUPT, "past the end");
    blob_head(&b, 0, 2);
    blob_number(&b, "same", B_U64, 1, 8);
    blob_number(&b, "same", B_U8, 2, 1);
    refused(-KVD_E_CORRUPT, "same is there twice");
}

static void test_values(void **state)
{
    blob_head(&b, 0, 1);
    blob_key(&b, "text", B_STRING);
    blob_le(&b, 1000, 8);
    refused(-KVD_E_CORRUPT, "claims 1000 bytes");
    blob_head(&b, 0, 1);
    blob_number(&b, "odd", 13, 1, 8);
    refused(-KVD_E_FORMAT, "odd");
    blob_head(&b, 0, 1);
    blob_array(&b, "list", B_STRING, UINT64_C(1) << 61);
    refused(-KVD_E_CORRUPT, "list");
    blob_head(&b, 0, 1);
    blob_array(&b, "list", B_U64, (UINT64_C(1) << 61) + 1); /* times 8 it would be 8 */
    blob_le(&b, 0, 8);
    refused(-KVD_E_CORRUPT, "list");
    blob_head(&b, 0, 1);
    blob_array(&b, "list", B_ARRAY, 1);
    blob_le(&b, 0, 8);
    refused(-KVD_E_FORMAT, "arrays of type 9");
    blob_head(&b, 0, 1);
    blob_array(&b, "list", B_STRING, 1);
    blob_le(&b, 5, 8);
    refused(-KVD_E_CORRUPT, "an array's string");
}

/* One tensor with this description and 64 bytes of data. */
static void one_tensor(uint64_t d0, uint64_t d1, uint32_t type, uint64_t offset)
{
    blob_head(&b, 1, 0);
    blob_tensor(&b, "blk.0.w", d0, d1, type, offset);
    blob_data(&b, 64);
}

static void test_tensor_shapes(void **state)
{
    one_tensor(4, 5, 0, 0);
    refused(-KVD_E_CORRUPT, "blk.0.w: 80 bytes");
    one_tensor(UINT64_C(1) << 32, UINT64_C(1) << 32, 0, 0);
    refused(-KVD_E_CORRUPT, "overflows");
    one_tensor(UINT64_C(1) << 31, UINT64_C(1) << 31, 0, 0); /* the count fits, the bytes don't */
    refused(-KVD_E_CORRUPT, "overflows");
    one_tensor(0, 1, 0, 0);
    refused(-KVD_E_CORRUPT, "dimension 0 is 0");
    one_tensor(16, 1, 3, 0);
    refused(-KVD_E_CORRUPT, "multiple of the 32");
    one_tensor(32, 1, 2, 0);
    refused(-KVD_E_FORMAT, "blk.0.w has type 2");
    one_tensor(32, 1, UINT32_MAX, 0);
    refused(-KVD_E_FORMAT, "type 4294967295");
    one_tensor(4, 1, 0, 16);
    refused(-KVD_E_CORRUPT, "alignment 32");
    one_tensor(4, 1, 0, 64);
    refused(-KVD_E_CORRUPT, "16 bytes at offset 64");
    one_tensor(16, 1, 0, UINT64_MAX - 31); /* offset + size wraps around */
    refused(-KVD_E_CORRUPT, "data section of 64");
    for (uint32_t dims = 0; dims < 10; dims += 5) {
        one_tensor(4, 1, 0, 0);
        b.bytes[24 + 8 + 7] = (uint8_t)dims;
        refused(-KVD_E_CORRUPT, "dimensions; 1 to 4");
    }
    blob_head(&b, 2, 0);
    blob_tensor(&b, "twin", 4, 1, 0, 0);
    blob_tensor(&b, "twin", 4, 1, 0, 32);
    blob_data(&b, 64);
    refused(-KVD_E_CORRUPT, "twin is there twice");
    blob_head(&b, 2, 0);
    blob_tensor(&b, "long", 9, 1, 0, 0);
    blob_tensor(&b, "inside", 4, 1, 0, 32);
    blob_data(&b, 64);
    refused(-KVD_E_CORRUPT, "tensors long and inside share bytes");
}

static void test_alignment(void **state)
{
    static const uint64_t bad[] = {0, 3, 4, 48, 131072, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        blob_head(&b, 0, 1);
        blob_number(&b, "general.alignment", B_U64, bad[i], 8);
        refused(-KVD_E_CORRUPT, "general.alignment");
    }
    blob_head(&b, 0, 1);
    blob_number(&b, "general.alignment", B_F32, 32, 4);
    refused(-KVD_E_CORRUPT, "no integer");
    blob_head(&b, 1, 1); /* 8 is fine, and moves the data section */
    blob_number(&b, "general.alignment", B_U32, 8, 4);
    blob_tensor(&b, "t", 2, 1, 0, 8);
    while (b.n % 8 != 0) {
        b.bytes[b.n++] = 0;
    }
    size_t data = b.n;
    blob_le(&b, 0, 8);
    blob_le(&b, 0, 8);
    struct kvd_gguf *g = open_good(b.bytes, b.n);
    assert_ptr_equal(kvd_gguf_tensor(g, "t")->data, b.bytes + data + 8);
    kvd_gguf_close(&g);
}

static void path_refused(const char *path, int err)
{
    struct kvd_gguf *g = NULL;
    struct kvd_diag diag = {""};
    assert_int_equal(kvd_gguf_open(path, &diag, &g), err);
    assert_null(g);
    assert_non_null(strstr(diag.text, path));
}

static void test_files(void **state)
{
    char dir[] = "/tmp/kvd-gguf-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char path[64];
    path_refused(dir, -KVD_E_FORMAT);
    (void)snprintf(path, sizeof(path), "%s/none", dir);
    path_refused(path, -ENOENT);
    (void)snprintf(path, sizeof(path), "%s/pipe", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    path_refused(path, -KVD_E_FORMAT);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof(path), "%s/file", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fclose(f);
    path_refused(path, -KVD_E_FORMAT);
    assert_int_equal(kvd_tiny_gguf_write(path, NULL), 0);
    struct kvd_gguf *g = NULL;
    assert_int_equal(kvd_gguf_open(path, NULL, &g), 0);
    assert_non_null(kvd_gguf_tensor(g, "blk.1.ffn_down.weight"));
    kvd_gguf_close(&g);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_numbers),         cmocka_unit_test(test_texts_and_arrays),
    cmocka_unit_test(test_tensors),         cmocka_unit_test(test_truncated_at_every_byte),
    cmocka_unit_test(test_truncated_model), cmocka_unit_test(test_header),
    cmocka_unit_test(test_names),           cmocka_unit_test(test_values),
    cmocka_unit_test(test_tensor_shapes),   cmocka_unit_test(test_alignment),
    cmocka_unit_test(test_files),
};

KVD_TEST_MAIN(tests)
