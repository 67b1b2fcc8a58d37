/*
 * Runs a fuzz target without libFuzzer, in the normal build: over its kept corpus (the folder that
 * KVD_CORPUS names), and over KVD_MUTATIONS mutations of it, always the same ones: bits and bytes
 * changed, numbers replaced by ones that like to overflow, pieces cut out, doubled, or taken from
 * another input.
 */
#include "kvd_test.h"

#include <dirent.h>

#include "fuzz.h"

enum { FILES_MAX = 4096, FILE_MAX = 1 << 20 };

struct input {
    uint8_t *bytes;
    size_t n;
};

static struct input inputs[FILES_MAX];
static unsigned n_inputs;

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void read_input(const char *folder, const char *name)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) {
        fail_msg("%s cannot be read", path);
        return;
    }
    struct input *in = &inputs[n_inputs++];
    in->bytes = malloc(FILE_MAX);
    assert_non_null(in->bytes);
    in->n = fread(in->bytes, 1, FILE_MAX, f);
    (void)fclose(f);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int read_corpus(void **state)
{
    const char *folder = getenv("KVD_CORPUS");
    struct dirent **names = NULL;
    (void)state;
    const int n = folder ? scandir(folder, &names, NULL, by_name) : -1;
    assert_true(n > 2 && n < FILES_MAX);
    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.') {
            read_input(folder, names[i]->d_name);
        }
        free(names[i]);
    }
    free(names);
    return 0;
}

static int free_corpus(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_inputs; i++) {
        free(inputs[i].bytes);
    }
    n_inputs = 0;
    return 0;
}

static void run_exact(const uint8_t *bytes, size_t n)
{
    uint8_t *exact = fuzz_exact(bytes, n);
    assert_int_equal(LLVMFuzzerTestOneInput(exact, n), 0);
    free(exact);
}

static void set_number(uint8_t *at, size_t room, uint64_t *rng)
{
    static const uint64_t numbers[] = {0,
                                       1,
                                       16,
                                       255,
                                       4096,
                                       65536,
                                       INT32_MAX,
                                       UINT32_MAX,
                                       UINT64_C(1) << 61,
                                       INT64_MAX,
                                       UINT64_MAX - 31,
                                       UINT64_MAX};
    const size_t width = (size_t)1 << random_next(rng) % 4;
    const uint64_t v = numbers[random_next(rng) % (sizeof(numbers) / sizeof(numbers[0]))];
    memcpy(at, &v, width < room ? width : room);
}

/* bytes has room for FILE_MAX. */
static size_t mutate(uint8_t *bytes, size_t n, uint64_t *rng)
{
    const size_t at = n ? random_next(rng) % n : 0;
    const size_t piece = n ? random_next(rng) % (n - at < 32 ? n - at : 32) : 0;
    const struct input *other = &inputs[random_next(rng) % n_inputs];
    switch (n ? random_next(rng) % 6 : 5) {
    case 0:
        bytes[at] ^= (uint8_t)(1U << random_next(rng) % 8);
        return n;
    case 1:
        bytes[at] = (uint8_t)random_next(rng);
        return n;
    case 2:
        set_number(bytes + at, n - at, rng);
        return n;
    case 3:
        memmove(bytes + at, bytes + at + piece, n - at - piece);
        return n - piece;
    case 4:
        if (n + piece > FILE_MAX) {
            return n;
        }
        memmove(bytes + at + piece, bytes + at, n - at);
        return n + piece;
    default: {
        const size_t take = other->n - (other->n ? random_next(rng) % other->n : 0);
        const size_t fits = take < FILE_MAX - at ? take : FILE_MAX - at;
        memcpy(bytes + at, other->bytes + other->n - take, fits);
        return at + fits;
    }
    }
}

static void test_corpus(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_inputs; i++) {
        run_exact(inputs[i].bytes, inputs[i].n);
    }
}

static void test_mutations(void **state)
{
    uint64_t rng = 88172645463325252U;
    uint8_t *bytes = malloc(FILE_MAX);
    const char *rounds = getenv("KVD_MUTATIONS");
    (void)state;
    const int n_rounds = rounds ? atoi(rounds) : 0;
    assert_true(bytes && n_rounds > 0);
    for (int round = 0; round < n_rounds; round++) {
        const struct input *seed = &inputs[random_next(&rng) % n_inputs];
        size_t n = seed->n;
        memcpy(bytes, seed->bytes, n);
        for (uint64_t i = random_next(&rng) % 4; i < 4; i++) {
            n = mutate(bytes, n, &rng);
        }
        run_exact(bytes, n);
    }
    free(bytes);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_corpus, read_corpus, free_corpus),
    cmocka_unit_test_setup_teardown(test_mutations, read_corpus, free_corpus),
};

KVD_TEST_MAIN(tests)
