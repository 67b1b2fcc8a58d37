/* What is still there after the index was closed, and after its process was killed. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "index_test.h"

enum { CHAIN = 500 };

static void check_all(struct bench *b)
{
    struct kvd_key keys[CHAIN];
    struct kvd_index_entry *got = calloc(CHAIN, sizeof(*got));
    uint8_t found[CHAIN];
    void *value = NULL;
    uint32_t bytes = 0;
    chain_make(CHAIN, 0, CHAIN, keys);
    assert_int_equal(kvd_index_lookup(b->index, keys, 0, CHAIN, 0, got, found), 0);
    for (uint32_t i = 0; i < CHAIN; i++) {
        struct kvd_index_entry want = entry_at(7, (uint64_t)i * 4096);
        assert_int_equal(found[i], KVD_INDEX_FOUND);
        assert_entry_equal(&got[i], &want);
    }
    assert_int_equal(kvd_index_row_get(b->index, KVD_INDEX_SEGMENTS, "s", 1, &value, &bytes), 0);
    assert_true(bytes == 3 && memcmp(value, "row", 3) == 0);
    free(value);
    free(got);
}

static void queue_all(struct bench *b)
{
    struct kvd_key keys[CHAIN];
    chain_make(CHAIN, 0, CHAIN, keys);
    assert_int_equal(kvd_index_row_put(b->index, KVD_INDEX_SEGMENTS, "s", 1, "row", 3, false), 0);
    for (uint32_t i = 0; i < CHAIN; i++) {
        struct kvd_index_change c = {.kind = KVD_INDEX_PUT,
                                     .id = id_of(keys, i, 0),
                                     .entry = entry_at(7, (uint64_t)i * 4096)};
        submit(b, &c, 1);
    }
}

/* Runs fn in a process of its own that ends without any cleaning up. This process itself must not
 * have opened RocksDB: its threads would be missing in the child. */
static void in_child(struct bench *b, void (*fn)(struct bench *b))
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        fn(b);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void write_synced_and_die(struct bench *b)
{
    bench_must_open(b);
    queue_all(b);
    assert_int_equal(kvd_index_sync(b->index, true), 0);
}

static void write_unsynced_and_die(struct bench *b)
{
    bench_must_open(b);
    queue_all(b);
    assert_int_equal(kvd_index_sync(b->index, false), 0);
}

static void open_and_check(struct bench *b)
{
    bench_must_open(b);
    check_all(b);
}

static void test_kill_after_sync(void **state)
{
    in_child(*state, write_synced_and_die);
    in_child(*state, open_and_check);
}

/* Not synced: a killed process loses nothing either, the system has it. */
static void test_kill_with_an_unsynced_wal(void **state)
{
    in_child(*state, write_unsynced_and_die);
    in_child(*state, open_and_check);
    in_child(*state, open_and_check); /* and what was recovered stays, after another kill */
}

static void test_close_writes_what_is_queued(void **state)
{
    struct bench *b = *state;
    bench_must_open(b);
    queue_all(b);
    kvd_index_close(&b->index);
    bench_must_open(b);
    check_all(b);
}

static void keep_result(int result, void *user)
{
    *(int *)user = result;
}

/* No file may grow any more, as on a full disk: those who ask are told, and reading goes on. */
static void write_to_a_full_disk(struct bench *b)
{
    static const struct rlimit none = {0, 0};
    struct kvd_key keys[2];
    struct kvd_index_entry got;
    struct kvd_index_stat stat;
    int result = 99;
    bench_must_open(b);
    chain_make(2, 0, 2, keys);
    put_chain(b, keys, 0, 1, 0);
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    struct kvd_index_change c = {
        .kind = KVD_INDEX_PUT, .id = id_of(keys, 1, 0), .entry = entry_at(7, 4096)};
    assert_int_equal(kvd_index_submit(b->index, &c, 1, keep_result, &result), 0);
    assert_int_equal(kvd_index_sync(b->index, false), -KVD_E_IO);
    assert_int_equal(result, -KVD_E_IO);
    assert_int_equal(kvd_index_sync(b->index, false), -KVD_E_IO); /* until it is mended */
    assert_false(kvd_index_writable(b->index));
    assert_int_equal(kvd_index_row_put(b->index, KVD_INDEX_META, "k", 1, "v", 1, true), -KVD_E_IO);
    kvd_index_stat(b->index, &stat);
    assert_true(stat.failed_writes >= 2);
    assert_int_equal(find(b, keys, 0, 0, &got), KVD_INDEX_FOUND);
    assert_int_equal(find(b, keys, 1, 0, &got), KVD_INDEX_ABSENT);
}

static void open_and_check_first(struct bench *b)
{
    struct kvd_key keys[2];
    struct kvd_index_entry got;
    bench_must_open(b);
    chain_make(2, 0, 2, keys);
    assert_int_equal(find(b, keys, 0, 0, &got), KVD_INDEX_FOUND);
    assert_int_equal(find(b, keys, 1, 0, &got), KVD_INDEX_ABSENT);
    put_chain(b, keys, 1, 1, 0); /* writing works again */
    assert_int_equal(find(b, keys, 1, 0, &got), KVD_INDEX_FOUND);
}

static void test_full_disk(void **state)
{
    in_child(*state, write_to_a_full_disk);
    in_child(*state, open_and_check_first);
}

#define WITH_FOLDER(fn) cmocka_unit_test_setup_teardown(fn, bench_setup_closed, bench_teardown)

static const struct CMUnitTest tests[] = {
    /* those that fork come before this process opens RocksDB itself */
    WITH_FOLDER(test_kill_after_sync),
    WITH_FOLDER(test_kill_with_an_unsynced_wal),
    WITH_FOLDER(test_full_disk),
    WITH_FOLDER(test_close_writes_what_is_queued),
};
KVD_TEST_MAIN(tests)
