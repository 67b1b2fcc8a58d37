/* Opening a model: parameters and roles, what is refused, and the fingerprint with its cache. */
#include "kvd_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "engine/model/model.h"
#include "kvd_model_path.h"
#include "proto/base/clock.h"
#include "tiny_gguf.h"

struct folder {
    char dir[64];
    char model[128];
    char cache[128];
};

static void folder_make(struct folder *f)
{
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/kvd-model-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->model, sizeof(f->model), "%s/m.gguf", f->dir);
    (void)snprintf(f->cache, sizeof(f->cache), "%s/cache", f->dir);
}

/* Name of the one entry in the cache's folder; false when there is none. */
static bool cache_entry(const struct folder *f, char *ret_path, size_t cap)
{
    DIR *d = opendir(f->cache);
    int n = 0;
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        if (e->d_name[0] != '.') {
            (void)snprintf(ret_path, cap, "%s/%s", f->cache, e->d_name);
            n++;
        }
    }
    if (d) {
        (void)closedir(d);
    }
    assert_true(n <= 1);
    return n == 1;
}

static void folder_remove(struct folder *f)
{
    char entry[512];
    if (cache_entry(f, entry, sizeof(entry))) {
        (void)unlink(entry);
    }
    (void)rmdir(f->cache);
    (void)unlink(f->model);
    assert_int_equal(rmdir(f->dir), 0);
}

static struct kvd_model *open_model(const struct folder *f, const char *cache)
{
    struct kvd_model *m = NULL;
    struct kvd_diag diag = {""};
    if (kvd_model_open(f->model, cache, &diag, &m) < 0) {
        fail_msg("%s", diag.text);
    }
    return m;
}

static struct kvd_digest weights_of(const struct folder *f, const char *cache)
{
    struct kvd_model *m = open_model(f, cache);
    struct kvd_digest d = m->weights;
    kvd_model_close(&m);
    return d;
}

static void test_parameters(void **state)
{
    struct folder f;
    folder_make(&f);
    const struct kvd_tiny_gguf_options o = {.name = "small one", .layers = 3, .context = 512};
    assert_int_equal(kvd_tiny_gguf_write(f.model, &o), 0);
    struct kvd_model *m = open_model(&f, NULL);
    assert_string_equal(m->name, "small one");
    assert_int_equal(m->params.layers, 3);
    assert_int_equal(m->params.width, 64);
    assert_int_equal(m->params.heads, 4);
    assert_int_equal(m->params.kv_heads, 2);
    assert_int_equal(m->params.head_dim, 16);
    assert_int_equal(m->params.ffn, 128);
    assert_int_equal(m->params.vocab, KVD_TINY_VOCAB);
    assert_int_equal(m->params.context, 512);
    assert_true(m->params.rms_eps == 1e-5F);
    assert_true(m->params.rope_base == 10000.0);
    assert_ptr_equal(m->output, m->embedding);
    assert_int_equal(m->embedding->type, KVD_GGML_Q8_0);
    assert_int_equal(m->layers[2].down->dims[0], 128);
    assert_int_equal(m->layers[2].k->dims[1], 32);
    assert_ptr_equal(m->layers[1].gate, kvd_gguf_tensor(m->gguf, "blk.1.ffn_gate.weight"));
    kvd_model_close(&m);
    kvd_model_close(&m);
    folder_remove(&f);
}

/* Writes the small model with `put` in place of the first occurrence of `needle`, `shift` bytes
 * behind its start. */
static void write_spoiled(const char *path, const char *needle, size_t shift, const void *put,
                          size_t n_put)
{
    size_t n;
    uint8_t *bytes = kvd_tiny_gguf_build(NULL, &n);
    assert_non_null(bytes);
    uint8_t *at = memmem(bytes, n, needle, strlen(needle));
    assert_non_null(at);
    memcpy(at + shift, put, n_put);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

static void spoiled(const char *needle, size_t shift, const void *put, size_t n_put,
                    const char *words)
{
    struct folder f;
    folder_make(&f);
    write_spoiled(f.model, needle, shift, put, n_put);
    struct kvd_model *m = NULL;
    struct kvd_diag diag = {""};
    assert_int_equal(kvd_model_open(f.model, NULL, &diag, &m), -KVD_E_FORMAT);
    assert_null(m);
    if (!strstr(diag.text, words) || !strstr(diag.text, f.model)) {
        fail_msg("'%s' doesn't say '%s'", diag.text, words);
    }
    folder_remove(&f);
}

/* A number's bytes come 4 behind its key. */
static void spoiled_number(const char *key, uint32_t v, const char *words)
{
    const uint8_t le[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    spoiled(key, strlen(key) + 4, le, 4, words);
}

static void test_refused(void **state)
{
    spoiled("general.architecture", strlen("general.architecture") + 4 + 8, "lloma", 5, "'lloma'");
    spoiled("llama.block_count", 0, "X", 1, "llama.block_count is missing");
    spoiled("llama.context_length", strlen("llama.context_length"), "\6", 1, "no positive integer");
    spoiled("llama.rope.freq_base", 0, "X", 1, "llama.rope.freq_base is missing");
    spoiled_number("llama.block_count", 0, "block_count is 0");
    spoiled_number("llama.block_count", 1u << 31, "1 to 1024");
    spoiled_number("llama.block_count", 3, "blk.2.attn_norm.weight is missing");
    spoiled_number("llama.block_count", 1, "blk.1.attn_k.weight has no place");
    spoiled_number("llama.attention.head_count", 3, "can't be shared out");
    spoiled_number("llama.attention.head_count", 8, "head size 8, values 8, rotated 16");
    spoiled_number("llama.attention.head_count_kv", 0, "head_count_kv is 0");
    spoiled_number("llama.attention.head_count_kv", 4, "blk.0.attn_k.weight is 64 x 32");
    spoiled_number("llama.feed_forward_length", 100, "multiples of 32");
    spoiled_number("llama.feed_forward_length", 96, "by the file's keys");
    spoiled_number("llama.vocab_size", 767, "the tokenizer has 768");
    spoiled_number("llama.rope.freq_base", 0x7f800000, "positive number"); /* infinity */
    spoiled_number("llama.attention.layer_norm_rms_epsilon", 0xbf800000, "positive number");
    spoiled("blk.0.attn_q.weight", 6, "attn_x", 6, "blk.0.attn_q.weight is missing");
    /* type of a norm: 4 B of dimensions, one of 8 B, then the type; F16 needs less room, so only
     * the role objects */
    spoiled("output_norm.weight", strlen("output_norm.weight") + 4 + 8, "\1", 1,
            "output_norm.weight has type 1");
}

/* The generated model that golden logits are of is what the generator writes, on this machine too.
 */
static void test_generator_is_the_golden_one(void **state)
{
    const struct kvd_tiny_gguf_options o = {.seed = 7};
    size_t n;
    uint8_t *bytes = kvd_tiny_gguf_build(&o, &n);
    assert_non_null(bytes);
    uint8_t sum[crypto_hash_sha256_BYTES];
    char hex[2 * sizeof(sum) + 1];
    (void)crypto_hash_sha256(sum, bytes, n);
    kvd_hex(sum, sizeof(sum), hex);
    free(bytes);
    char text[256] = "";
    FILE *f = fopen(KVD_GOLDEN_DIR "/logits_tiny.txt", "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof(text), f));
    assert_non_null(fgets(text, sizeof(text), f));
    (void)fclose(f);
    assert_memory_equal(text, "model ", 6);
    assert_memory_equal(text + 6, hex, sizeof(hex) - 1);
}

static void test_no_file(void **state)
{
    struct kvd_model *m = NULL;
    struct kvd_diag diag = {""};
    assert_int_equal(kvd_model_open("/nonexistent/m.gguf", NULL, &diag, &m), -ENOENT);
    assert_non_null(strstr(diag.text, "/nonexistent/m.gguf"));
}

static void test_fingerprint_sees_every_part(void **state)
{
    struct folder f;
    folder_make(&f);
    const struct kvd_tiny_gguf_options a = {.seed = 1};
    const struct kvd_tiny_gguf_options b = {.seed = 2};
    const struct kvd_tiny_gguf_options renamed = {.seed = 1, .name = "other"};
    assert_int_equal(kvd_tiny_gguf_write(f.model, &a), 0);
    struct kvd_digest of_a = weights_of(&f, NULL);
    assert_int_equal(kvd_tiny_gguf_write(f.model, &renamed), 0);
    struct kvd_digest of_renamed = weights_of(&f, NULL);
    assert_true(kvd_digest_equal(&of_a, &of_renamed)); /* weights only */
    assert_int_equal(kvd_tiny_gguf_write(f.model, &b), 0);
    struct kvd_digest of_b = weights_of(&f, NULL);
    assert_false(kvd_digest_equal(&of_a, &of_b));
    /* one bit of the last byte of the file, which is the last tensor's */
    assert_int_equal(kvd_tiny_gguf_write(f.model, &a), 0);
    int fd = open(f.model, O_RDWR);
    uint8_t last;
    off_t at = lseek(fd, -1, SEEK_END);
    assert_int_equal(pread(fd, &last, 1, at), 1);
    last ^= 1;
    assert_int_equal(pwrite(fd, &last, 1, at), 1);
    (void)close(fd);
    struct kvd_digest of_flipped = weights_of(&f, NULL);
    assert_false(kvd_digest_equal(&of_a, &of_flipped));
    folder_remove(&f);
}

/* A file just written isn't cached yet (its times could still hide a change): opens until it is. */
static void open_until_cached(const struct folder *f, char *ret_entry, size_t cap)
{
    uint64_t deadline = kvd_mono_ns() + 20 * KVD_NS_PER_S;
    while (!cache_entry(f, ret_entry, cap)) {
        assert_true(kvd_mono_ns() < deadline);
        (void)weights_of(f, f->cache);
    }
}

static size_t read_file(const char *path, char *buf, size_t cap)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(buf, 1, cap, f);
    (void)fclose(f);
    return n;
}

static void write_file(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* That the cache is used shows in an entry that is well-formed and says another fingerprint: it is
 * believed. */
static void test_cache_is_used(void **state)
{
    struct folder f;
    char entry[512];
    char text[4096];
    folder_make(&f);
    assert_int_equal(kvd_tiny_gguf_write(f.model, NULL), 0);
    struct kvd_digest right = weights_of(&f, NULL);
    open_until_cached(&f, entry, sizeof(entry));
    struct kvd_digest cached = weights_of(&f, f.cache);
    assert_true(kvd_digest_equal(&right, &cached));
    size_t n = read_file(entry, text, sizeof(text));
    const size_t sum_at = n - 1 - 64;
    const size_t weights_at = sum_at - 1 - 64;
    memset(text + weights_at, 'a', 64);
    write_file(entry, text, n); /* the sum doesn't fit: ignored, and made again */
    cached = weights_of(&f, f.cache);
    assert_true(kvd_digest_equal(&right, &cached));
    char again[4096];
    assert_int_equal(read_file(entry, again, sizeof(again)), n);
    assert_memory_not_equal(again, text, n);
    struct kvd_digest sum;
    (void)crypto_generichash_blake2b(sum.b, sizeof(sum.b), (const uint8_t *)text, sum_at, NULL, 0);
    kvd_hex(sum.b, sizeof(sum.b), text + sum_at);
    text[n - 1] = '\n';
    write_file(entry, text, n);
    cached = weights_of(&f, f.cache);
    assert_int_equal(cached.b[0], 0xaa);
    /* another change of the file: its times differ, so the entry is not about it any more */
    assert_int_equal(kvd_tiny_gguf_write(f.model, NULL), 0);
    cached = weights_of(&f, f.cache);
    assert_true(kvd_digest_equal(&right, &cached));
    folder_remove(&f);
}

/* Flips a byte of the last tensor and puts the times that a program can set back. */
static void change_in_place(const char *path)
{
    struct stat st;
    uint8_t b = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(pread(fd, &b, 1, st.st_size - 1), 1);
    b ^= 1;
    assert_int_equal(pwrite(fd, &b, 1, st.st_size - 1), 1);
    const struct timespec times[] = {st.st_atim, st.st_mtim};
    assert_int_equal(futimens(fd, times), 0);
    (void)close(fd);
}

/* Other weights under the same name, folder, size and mtime: written into the file, or put in its
 * place. */
static void r_weights_changed_in_place(void **state)
{
    struct folder f;
    char entry[512];
    char other[160];
    struct stat st;
    folder_make(&f);
    (void)snprintf(other, sizeof(other), "%s.new", f.model);
    assert_int_equal(kvd_tiny_gguf_write(f.model, NULL), 0);
    open_until_cached(&f, entry, sizeof(entry));
    const struct kvd_digest was = weights_of(&f, f.cache);
    change_in_place(f.model);
    const struct kvd_digest changed = weights_of(&f, f.cache);
    assert_false(kvd_digest_equal(&was, &changed));
    assert_int_equal(unlink(entry), 0);
    open_until_cached(&f, entry, sizeof(entry));
    const struct kvd_tiny_gguf_options options = {.seed = 7};
    assert_int_equal(kvd_tiny_gguf_write(other, &options), 0);
    assert_int_equal(stat(f.model, &st), 0);
    const struct timespec times[] = {st.st_atim, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, other, times, 0), 0);
    assert_int_equal(rename(other, f.model), 0);
    const off_t bytes = st.st_size;
    assert_int_equal(stat(f.model, &st), 0);
    assert_int_equal(st.st_size, bytes);
    const struct kvd_digest replaced = weights_of(&f, f.cache);
    assert_false(kvd_digest_equal(&changed, &replaced));
    folder_remove(&f);
}

/* Broken entries of every length, and a folder that can't be made: only slower, never wrong. */
static void test_cache_is_not_trusted(void **state)
{
    struct folder f;
    char entry[512];
    char text[4096];
    folder_make(&f);
    assert_int_equal(kvd_tiny_gguf_write(f.model, NULL), 0);
    struct kvd_digest right = weights_of(&f, NULL);
    open_until_cached(&f, entry, sizeof(entry));
    size_t n = read_file(entry, text, sizeof(text));
    for (size_t cut = 0; cut < n; cut += 13) {
        write_file(entry, text, cut);
        struct kvd_digest d = weights_of(&f, f.cache);
        assert_true(kvd_digest_equal(&right, &d));
    }
    for (size_t at = 0; at < n; at += 17) {
        text[at] ^= 1;
        write_file(entry, text, n);
        text[at] ^= 1;
        struct kvd_digest d = weights_of(&f, f.cache);
        assert_true(kvd_digest_equal(&right, &d));
    }
    struct kvd_digest d = weights_of(&f, f.model); /* the cache's folder is a file */
    assert_true(kvd_digest_equal(&right, &d));
    folder_remove(&f);
}

static void test_real_model(void **state)
{
    char path[512];
    KVD_MODEL_OR_SKIP(path);
    struct kvd_model *m = NULL;
    struct kvd_diag diag = {""};
    if (kvd_model_open(path, NULL, &diag, &m) < 0) {
        fail_msg("%s", diag.text);
    }
    assert_int_equal(m->params.layers, 30);
    assert_int_equal(m->params.width, 576);
    assert_int_equal(m->params.heads, 9);
    assert_int_equal(m->params.kv_heads, 3);
    assert_int_equal(m->params.head_dim, 64);
    assert_int_equal(m->params.ffn, 1536);
    assert_int_equal(m->params.vocab, 49152);
    assert_int_equal(m->params.context, 8192);
    assert_true(m->params.rope_base == 100000.0);
    assert_int_equal(kvd_gguf_tensor_count(m->gguf), 272);
    char hex[KVD_DIGEST_HEX];
    kvd_hex(m->weights.b, sizeof(m->weights.b), hex);
    assert_string_equal(hex, "f2e6d12cb738cff8b243a8b278e21346f079884cbe3181d47dcd80cfba4e8976");
    kvd_model_close(&m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_parameters),
    cmocka_unit_test(test_refused),
    cmocka_unit_test(test_generator_is_the_golden_one),
    cmocka_unit_test(test_no_file),
    cmocka_unit_test(test_fingerprint_sees_every_part),
    cmocka_unit_test(r_weights_changed_in_place),
    cmocka_unit_test(test_cache_is_used),
    cmocka_unit_test(test_cache_is_not_trusted),
    cmocka_unit_test(test_real_model),
};

KVD_TEST_MAIN(tests)
