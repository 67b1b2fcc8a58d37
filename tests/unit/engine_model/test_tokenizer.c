/*
 * The tokenizer: ids of the golden file (needs the real model), and with the small model what holds
 * for any text: pieces give the text back, long runs end, bad vocabularies are refused.
 */
#include "kvd_test.h"

#include <pthread.h>

#include "engine/model/tokenizer.h"
#include "golden.h"
#include "kvd_model_path.h"
#include "tiny_gguf.h"

enum { LINE_BYTES = 1 << 16 };

struct fixture {
    uint8_t *bytes; /* of the small model */
    struct kvd_gguf *gguf;
    struct kvd_tokenizer *tok;
};

static void open_tiny(struct fixture *f)
{
    size_t n;
    struct kvd_diag diag = {""};
    f->bytes = kvd_tiny_gguf_build(NULL, &n);
    assert_non_null(f->bytes);
    assert_int_equal(kvd_gguf_open_memory(f->bytes, n, &diag, &f->gguf), 0);
    if (kvd_tokenizer_create(f->gguf, &diag, &f->tok) < 0) {
        fail_msg("%s", diag.text);
    }
}

static void close_tiny(struct fixture *f)
{
    kvd_tokenizer_destroy(&f->tok);
    kvd_gguf_close(&f->gguf);
    free(f->bytes);
}

static void check_case(const struct kvd_tokenizer *tok, const char *line, bool special)
{
    static uint8_t text[LINE_BYTES / 2];
    const char *hex = line + 2;
    uint64_t n = golden_unhex(&hex, text);
    struct kvd_tokens got = {0};
    assert_int_equal(kvd_tokenizer_encode(tok, (const char *)text, n, special, &got), 0);
    uint32_t i = 0;
    char *end;
    for (unsigned long id = strtoul(hex, &end, 10); end != hex; id = strtoul(hex, &end, 10)) {
        if (i >= got.n || got.ids[i] != id) {
            fail_msg("token %u of '%.*s' (special %d) is %u, not %lu", i, (int)n,
                     (const char *)text, special, i < got.n ? got.ids[i] : 0, id);
        }
        i++;
        hex = end;
    }
    assert_int_equal(i, got.n);
    kvd_tokens_fini(&got);
}

static void test_golden(void **state)
{
    char path[512];
    KVD_MODEL_OR_SKIP(path);
    struct kvd_gguf *gguf = NULL;
    struct kvd_tokenizer *tok = NULL;
    struct kvd_diag diag = {""};
    assert_int_equal(kvd_gguf_open(path, &diag, &gguf), 0);
    assert_int_equal(kvd_tokenizer_create(gguf, &diag, &tok), 0);
    FILE *f = fopen(KVD_GOLDEN_DIR "/tokenizer.txt", "r");
    assert_non_null(f);
    static char line[LINE_BYTES];
    int cases = 0;
    while (fgets(line, sizeof(line), f)) {
        if (line[0] == '0' || line[0] == '*') {
            check_case(tok, line, false);
        }
        if (line[0] == '1' || line[0] == '*') {
            check_case(tok, line, true);
        }
        cases += line[0] == '0' || line[0] == '1' || line[0] == '*';
    }
    assert_true(cases > 150);
    assert_int_equal(kvd_tokenizer_vocab(tok), 49152);
    assert_true(kvd_tokenizer_is_end(tok, 2));
    assert_false(kvd_tokenizer_is_end(tok, 1));
    (void)fclose(f);
    kvd_tokenizer_destroy(&tok);
    kvd_gguf_close(&gguf);
}

/* The small vocabulary has all bytes, so the pieces of any text, also one that isn't UTF-8, are
 * that text. */
static void test_pieces_give_the_text_back(void **state)
{
    struct fixture f = {0};
    open_tiny(&f);
    uint32_t seed = 1;
    for (int round = 0; round < 300; round++) {
        char text[97];
        uint32_t n = (uint32_t)round % sizeof(text);
        for (uint32_t i = 0; i < n; i++) {
            seed = seed * 1103515245U + 12345U;
            /* half random bytes, half from few, so that merges and runs happen */
            text[i] = (seed & 0x10000) ? (char)(seed >> 24) : " thein0'\n"[(seed >> 20) % 9];
        }
        struct kvd_tokens t = {0};
        assert_int_equal(kvd_tokenizer_encode(f.tok, text, n, false, &t), 0);
        uint32_t at = 0;
        for (uint32_t i = 0; i < t.n; i++) {
            uint32_t bytes;
            const char *piece = kvd_tokenizer_piece(f.tok, t.ids[i], &bytes);
            assert_non_null(piece);
            assert_true(at + bytes <= n);
            assert_memory_equal(text + at, piece, bytes);
            at += bytes;
        }
        assert_int_equal(at, n);
        kvd_tokens_fini(&t);
    }
    close_tiny(&f);
}

static void test_specials(void **state)
{
    struct fixture f = {0};
    open_tiny(&f);
    static const char text[] = "a<|im_end|>b<|im_start|><|im_en";
    struct kvd_tokens t = {0};
    assert_int_equal(kvd_tokens_push(&t, 7), 0); /* what is there stays */
    assert_int_equal(kvd_tokenizer_encode(f.tok, text, sizeof(text) - 1, true, &t), 0);
    assert_int_equal(t.ids[0], 7);
    assert_int_equal(t.ids[2], 2);
    assert_int_equal(t.ids[4], 1);
    assert_true(t.n > 7);
    for (uint32_t i = 5; i < t.n; i++) {
        assert_false(kvd_tokenizer_is_special(f.tok, t.ids[i]));
    }
    t.n = 0;
    assert_int_equal(kvd_tokenizer_encode(f.tok, text, sizeof(text) - 1, false, &t), 0);
    for (uint32_t i = 0; i < t.n; i++) {
        assert_false(kvd_tokenizer_is_special(f.tok, t.ids[i]));
    }
    uint32_t n;
    assert_memory_equal(kvd_tokenizer_piece(f.tok, 1, &n), "<|im_start|>", 12);
    assert_int_equal(n, 12);
    assert_null(kvd_tokenizer_piece(f.tok, KVD_TINY_VOCAB, &n));
    assert_false(kvd_tokenizer_is_special(f.tok, KVD_TINY_VOCAB));
    assert_true(kvd_tokenizer_is_end(f.tok, 0));
    assert_true(kvd_tokenizer_is_end(f.tok, 2));
    assert_false(kvd_tokenizer_is_end(f.tok, 1));
    assert_int_equal(kvd_tokenizer_special_id(f.tok, "<|im_end|>"), 2);
    assert_int_equal(kvd_tokenizer_special_id(f.tok, "<|im_end"), KVD_TOKEN_NONE);
    assert_int_equal(kvd_tokenizer_special_id(f.tok, "!"), KVD_TOKEN_NONE);
    kvd_tokens_fini(&t);
    close_tiny(&f);
}

/* A quarter million bytes of one kind: one piece each, which must neither overflow a stack nor take
 * n squared. The test's time limit is the bound. */
static void test_long_runs(void **state)
{
    static const char *const units[] = {"a", " ", "\n", "!", "th", "\xff", "\xe4\xbd\xa0", "1"};
    enum { RUN = 1 << 18 };
    struct fixture f = {0};
    open_tiny(&f);
    char *text = malloc(RUN);
    assert_non_null(text);
    for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
        for (size_t i = 0; i < RUN; i++) {
            text[i] = units[u][i % strlen(units[u])];
        }
        text[RUN - 1] = 'x';
        struct kvd_tokens t = {0};
        assert_int_equal(kvd_tokenizer_encode(f.tok, text, RUN, true, &t), 0);
        assert_true(t.n > 0 && t.n <= RUN);
        kvd_tokens_fini(&t);
    }
    free(text);
    close_tiny(&f);
}

struct job {
    const struct kvd_tokenizer *tok;
    struct kvd_tokens tokens;
};

static void *encode_often(void *arg)
{
    static const char text[] = "The <|im_end|> of 12 things, isn't it?\n\n  there\xff";
    struct job *j = arg;
    for (int i = 0; i < 200; i++) {
        j->tokens.n = 0;
        if (kvd_tokenizer_encode(j->tok, text, sizeof(text) - 1, true, &j->tokens) < 0) {
            return NULL;
        }
    }
    return j;
}

/* One tokenizer, several threads: the same ids (a thread sanitizer watches the rest). */
static void test_threads(void **state)
{
    struct fixture f = {0};
    open_tiny(&f);
    pthread_t threads[3];
    struct job jobs[3];
    for (int i = 0; i < 3; i++) {
        jobs[i] = (struct job){.tok = f.tok};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *done;
        assert_int_equal(pthread_join(threads[i], &done), 0);
        assert_non_null(done);
        assert_int_equal(jobs[i].tokens.n, jobs[0].tokens.n);
        assert_memory_equal(jobs[i].tokens.ids, jobs[0].tokens.ids, jobs[0].tokens.n * 4);
    }
    for (int i = 0; i < 3; i++) {
        kvd_tokens_fini(&jobs[i].tokens);
    }
    close_tiny(&f);
}

/* The bytes of a needle inside the small model's file, where a test wants to spoil it. */
static uint8_t *find(uint8_t *bytes, size_t n, const char *needle)
{
    uint8_t *at = memmem(bytes, n, needle, strlen(needle));
    assert_non_null(at);
    return at;
}

/* Spoils one place: `shift` bytes after needle, these bytes are put. Wants a refusal that says
 * `words`. */
static void spoiled(const char *needle, size_t shift, const char *put, size_t put_bytes,
                    const char *words)
{
    size_t n;
    uint8_t *bytes = kvd_tiny_gguf_build(NULL, &n);
    assert_non_null(bytes);
    memcpy(find(bytes, n, needle) + shift, put, put_bytes);
    struct kvd_gguf *g = NULL;
    struct kvd_tokenizer *tok = NULL;
    struct kvd_diag diag = {""};
    assert_int_equal(kvd_gguf_open_memory(bytes, n, &diag, &g), 0);
    assert_int_equal(kvd_tokenizer_create(g, &diag, &tok), -KVD_E_FORMAT);
    assert_null(tok);
    if (!strstr(diag.text, words)) {
        fail_msg("'%s' doesn't say '%s'", diag.text, words);
    }
    kvd_gguf_close(&g);
    free(bytes);
}

static void test_bad_vocabularies(void **state)
{
    spoiled("tokenizer.ggml.model", 0, "X", 1, "tokenizer.ggml.model is missing");
    spoiled("gpt2", 0, "gpt3", 4, "'gpt3'; only 'gpt2'");
    spoiled("smollm", 0, "smallm", 6, "'smallm'");
    spoiled("tokenizer.ggml.tokens", 0, "X", 1, "tokens is missing");
    spoiled("tokenizer.ggml.token_type", 0, "X", 1, "token_type is missing");
    spoiled("tokenizer.ggml.merges", 0, "X", 1, "merges is missing");
    spoiled("tokenizer.ggml.add_bos_token", strlen("tokenizer.ggml.add_bos_token") + 4, "\1", 1,
            "add_bos_token");
    spoiled("tokenizer.ggml.eos_token_id", strlen("tokenizer.ggml.eos_token_id") + 4, "\0\x03", 2,
            "eos_token_id");
    /* types of the first tokens: key, array type 4 B, element type 4 B, count 8 B */
    spoiled("tokenizer.ggml.token_type", strlen("tokenizer.ggml.token_type") + 16, "\4", 1,
            "token 0 has type 4");
    spoiled("\xc4\xa0"
            "for",
            2, "was", 3, "are the same");
    spoiled("\xc4\xa0"
            "for",
            2, " or", 3, "alphabet");
    /* a merge of two tokens whose union is none */
    spoiled("\xc4\xa0 t", 3, "!", 1, "merge 0");
    spoiled("\xc4\xa0 t", 2, "!", 1, "merge 0");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_golden),   cmocka_unit_test(test_pieces_give_the_text_back),
    cmocka_unit_test(test_specials), cmocka_unit_test(test_long_runs),
    cmocka_unit_test(test_threads),  cmocka_unit_test(test_bad_vocabularies),
};

KVD_TEST_MAIN(tests)
