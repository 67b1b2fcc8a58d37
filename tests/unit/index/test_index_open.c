/* Folders that the index must refuse, and those that it must take. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "index_test.h"

static void write_file(const struct bench *b, const char *name, const char *text)
{
    char path[PATH_MAX];
    (void)mkdir(b->path, 0700);
    (void)snprintf(path, sizeof(path), "%s/%s", b->path, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void expect_refusal(struct bench *b, int err, const char *word)
{
    struct kvd_diag diag = {""};
    assert_int_equal(bench_open_index(b, &diag), err);
    assert_null(b->index);
    assert_non_null(strstr(diag.text, b->path));
    if (!strstr(diag.text, word)) {
        fail_msg("no \"%s\" in: %s", word, diag.text);
    }
}

static void test_makes_the_folder(void **state)
{
    struct bench *b = *state;
    struct stat st;
    bench_must_open(b);
    assert_int_equal(stat(b->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    kvd_index_close(&b->index);
    kvd_index_close(&b->index); /* nothing there: no harm */
}

static void test_no_parent(void **state)
{
    struct bench *b = *state;
    (void)snprintf(b->path, sizeof(b->path), "%s/none/index", b->folder);
    expect_refusal(b, -ENOENT, "cannot make the folder");
}

static void test_a_file_in_its_place(void **state)
{
    struct bench *b = *state;
    (void)snprintf(b->path, sizeof(b->path), "%s/file", b->folder);
    FILE *f = fopen(b->path, "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    expect_refusal(b, -ENOTDIR, "cannot read the folder");
}

static void test_other_peoples_folder(void **state)
{
    struct bench *b = *state;
    write_file(b, "holiday.jpg", "x");
    expect_refusal(b, -KVD_E_WRONG_STORE, "holiday.jpg");
}

static void test_cut_off_while_being_made(void **state)
{
    struct bench *b = *state;
    write_file(b, "LOCK", "");
    write_file(b, "LOG", "");
    write_file(b, "IDENTITY", "x");
    write_file(b, "MANIFEST-000001", "");
    write_file(b, "000001.dbtmp", "");
    bench_must_open(b);
}

static void test_rubbish_as_current(void **state)
{
    struct bench *b = *state;
    write_file(b, "CURRENT", "rubbish");
    expect_refusal(b, -KVD_E_CORRUPT, "move the folder away");
}

static void test_lost_manifest(void **state)
{
    struct bench *b = *state;
    bench_must_open(b);
    kvd_index_close(&b->index);
    write_file(b, "CURRENT", "MANIFEST-999999\n");
    expect_refusal(b, -KVD_E_IO, "MANIFEST-999999");
}

static void test_of_a_newer_version(void **state)
{
    struct bench *b = *state;
    char *error = NULL;
    bench_must_open(b);
    rocksdb_column_family_handle_t *more = rocksdb_create_column_family(
        b->index->store.db, b->index->store.family_options[FAMILY_META], "directory", &error);
    assert_null(error);
    rocksdb_column_family_handle_destroy(more);
    kvd_index_close(&b->index);
    expect_refusal(b, -KVD_E_NEWER, "newer version");
}

static void test_second_open_here(void **state)
{
    struct bench *b = *state;
    struct bench other = *b;
    bench_must_open(b);
    expect_refusal(&other, -KVD_E_IN_USE, "in use by another process");
}

/* Another process has it: a child opens the index, says so, and holds it until told to end. */
static void test_second_open_elsewhere(void **state)
{
    struct bench *b = *state;
    int opened[2];
    int end[2];
    char byte = 0;
    int status = 0;
    assert_int_equal(pipe(opened), 0);
    assert_int_equal(pipe(end), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct kvd_diag diag = {""};
        (void)close(end[1]);
        byte = bench_open_index(b, &diag) == 0;
        bool told = write(opened[1], &byte, 1) == 1;
        _exit(told && read(end[0], &byte, 1) == 0 ? 0 : 1);
    }
    (void)close(end[0]);
    (void)close(opened[1]);
    assert_int_equal(read(opened[0], &byte, 1), 1);
    assert_int_equal(byte, 1);
    expect_refusal(b, -KVD_E_IN_USE, "in use by another process");
    (void)close(end[1]);
    (void)close(opened[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    bench_must_open(b); /* its end set it free, without a close */
}

#define WITH_FOLDER(fn) cmocka_unit_test_setup_teardown(fn, bench_setup_closed, bench_teardown)

static const struct CMUnitTest tests[] = {
    /* forks, so it comes before this process opens RocksDB itself */
    WITH_FOLDER(test_second_open_elsewhere),
    WITH_FOLDER(test_makes_the_folder),
    WITH_FOLDER(test_no_parent),
    WITH_FOLDER(test_a_file_in_its_place),
    WITH_FOLDER(test_other_peoples_folder),
    WITH_FOLDER(test_cut_off_while_being_made),
    WITH_FOLDER(test_rubbish_as_current),
    WITH_FOLDER(test_lost_manifest),
    WITH_FOLDER(test_of_a_newer_version),
    WITH_FOLDER(test_second_open_here),
};
KVD_TEST_MAIN(tests)
