/* The faults that other tests inject: each does what it says, on both engines. */
#include "kvd_test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cachesvc/io/io.h"
#include "fault_io.h"

enum { PAGE = 4096, BYTES = 4 * PAGE };

struct fixture {
    struct kvd_io *io;
    char path[64];
    int fd;
    uint8_t *buf;
};

static int setup(void **state, const char *engine)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct kvd_diag diag = {{0}};
    assert_non_null(f);
    assert_int_equal(kvd_io_open(engine, 8, &diag, &f->io), 0);
    (void)snprintf(f->path, sizeof(f->path), "kvd_fault_io.XXXXXX");
    f->fd = mkstemp(f->path);
    assert_true(f->fd >= 0);
    f->buf = aligned_alloc(PAGE, BYTES);
    assert_non_null(f->buf);
    memset(f->buf, 0x5a, BYTES);
    *state = f;
    return 0;
}

static int setup_auto(void **state)
{
    return setup(state, "auto");
}

static int setup_threads(void **state)
{
    return setup(state, "threads");
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    fault_clear();
    kvd_io_close(&f->io);
    (void)close(f->fd);
    (void)unlink(f->path);
    free(f->buf);
    free(f);
    return 0;
}

static int transfer(struct fixture *f, enum kvd_io_kind kind)
{
    return kvd_io_transfer(f->io, kind, f->fd, f->buf, kind == KVD_IO_FDATASYNC ? 0 : BYTES, 0);
}

static uint64_t size_of(struct fixture *f)
{
    struct stat st;
    assert_int_equal(fstat(f->fd, &st), 0);
    return (uint64_t)st.st_size;
}

static void test_nothing_is_spoilt_without_a_program(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(transfer(f, KVD_IO_WRITE), 0);
    memset(f->buf, 0, BYTES);
    assert_int_equal(transfer(f, KVD_IO_READ), 0);
    assert_int_equal(f->buf[BYTES - 1], 0x5a);
    assert_int_equal(transfer(f, KVD_IO_FDATASYNC), 0);
    assert_int_equal(fault_asked(FAULT_ANY), 3);
    assert_int_equal(fault_asked(FAULT_WRITE), 1);
}

static void test_chosen_by_kind_file_and_count(void **state)
{
    struct fixture *f = *state;
    int other = fault_fail(FAULT_WRITE, "another-file", -EIO);
    int id = fault_add(&(struct fault){.op = FAULT_WRITE,
                                       .kind = FAULT_FAIL,
                                       .file = f->path,
                                       .skip = 1,
                                       .times = 2,
                                       .err = -ENOSPC});
    assert_int_equal(transfer(f, KVD_IO_WRITE), 0);
    assert_int_equal(transfer(f, KVD_IO_WRITE), -ENOSPC);
    assert_int_equal(transfer(f, KVD_IO_READ), 0);
    assert_int_equal(transfer(f, KVD_IO_WRITE), -ENOSPC);
    assert_int_equal(transfer(f, KVD_IO_WRITE), 0);
    assert_int_equal(fault_hits(id), 2);
    assert_int_equal(fault_hits(other), 0);
    assert_int_equal(fault_fail(FAULT_FDATASYNC, NULL, 0), 2);
    assert_int_equal(transfer(f, KVD_IO_FDATASYNC), -EIO);
    fault_release(2);
    assert_int_equal(transfer(f, KVD_IO_FDATASYNC), 0);
}

static void test_short(void **state)
{
    struct fixture *f = *state;
    struct kvd_io_request req = {
        .kind = KVD_IO_WRITE, .fd = f->fd, .buffer_index = -1, .buffer = f->buf, .bytes = BYTES};
    (void)fault_add(&(struct fault){.op = FAULT_WRITE, .kind = FAULT_SHORT, .bytes = PAGE});
    assert_int_equal(kvd_io_run(f->io, &req), -EIO);
    assert_int_equal(req.done_bytes, PAGE);
    assert_int_equal(size_of(f), PAGE);
}

static void test_flip(void **state)
{
    struct fixture *f = *state;
    int id = fault_add(
        &(struct fault){.op = FAULT_WRITE, .kind = FAULT_FLIP, .times = 1, .bit = 8 * PAGE + 3});
    assert_int_equal(transfer(f, KVD_IO_WRITE), 0);
    assert_int_equal(f->buf[PAGE], 0x5a); /* the caller's own is as it was */
    assert_int_equal(transfer(f, KVD_IO_READ), 0);
    assert_int_equal(f->buf[PAGE], 0x5a ^ 8);
    assert_int_equal(fault_hits(id), 1);
    (void)fault_add(&(struct fault){.op = FAULT_READ, .kind = FAULT_FLIP, .times = 1, .bit = 0});
    assert_int_equal(transfer(f, KVD_IO_READ), 0);
    assert_int_equal(f->buf[0], 0x5b);
    assert_int_equal(transfer(f, KVD_IO_READ), 0);
    assert_int_equal(f->buf[0], 0x5a);
}

/* ---- holding ---- */

struct held {
    struct kvd_io_request req;
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    bool done; /* lock: mtx */
};

static void held_done(struct kvd_io_request *req)
{
    struct held *h = req->user;
    (void)pthread_mutex_lock(&h->mtx);
    h->done = true;
    (void)pthread_cond_signal(&h->cond);
    (void)pthread_mutex_unlock(&h->mtx);
}

static void held_begin(struct fixture *f, struct held *h)
{
    *h = (struct held){.mtx = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    h->req = (struct kvd_io_request){.kind = KVD_IO_WRITE,
                                     .fd = f->fd,
                                     .buffer_index = -1,
                                     .buffer = f->buf,
                                     .bytes = BYTES,
                                     .done = held_done,
                                     .user = h};
    struct kvd_io_request *req = &h->req;
    assert_int_equal(kvd_io_submit(f->io, &req, 1), 0);
}

static void held_end(struct held *h)
{
    (void)pthread_mutex_lock(&h->mtx);
    while (!h->done) {
        (void)pthread_cond_wait(&h->cond, &h->mtx);
    }
    (void)pthread_mutex_unlock(&h->mtx);
}

static void test_hold(void **state)
{
    struct fixture *f = *state;
    struct held h;
    int id = fault_hold(FAULT_WRITE, NULL);
    held_begin(f, &h);
    assert_true(fault_wait_held(id, 1));
    assert_int_equal(transfer(f, KVD_IO_FDATASYNC), 0);
    assert_int_equal(size_of(f), 0); /* the device has not seen it */
    assert_false(h.done);
    fault_release(id);
    held_end(&h);
    assert_int_equal(h.req.result, 0);
    assert_int_equal(size_of(f), BYTES);
    id = fault_add(&(struct fault){.op = FAULT_WRITE, .kind = FAULT_HOLD, .err = -ENODEV});
    held_begin(f, &h);
    assert_true(fault_wait_held(id, 1));
    fault_clear();
    held_end(&h);
    assert_int_equal(h.req.result, -ENODEV);
}

static void *opener(void *user)
{
    struct fixture *f = user;
    int fd = f->io->files->open(f->io, AT_FDCWD, f->path, O_RDONLY);
    assert_true(fd >= 0);
    (void)close(fd);
    return NULL;
}

static void test_hold_of_a_file_operation(void **state)
{
    struct fixture *f = *state;
    pthread_t thread;
    int id = fault_hold(FAULT_OPEN, f->path);
    assert_int_equal(pthread_create(&thread, NULL, opener, f), 0);
    assert_true(fault_wait_held(id, 1));
    fault_release(id);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void test_names_sizes_folders(void **state)
{
    struct fixture *f = *state;
    const struct kvd_file_ops *files = f->io->files;
    int folder = files->open(f->io, AT_FDCWD, ".", O_RDONLY | O_DIRECTORY);
    assert_true(folder >= 0);
    for (int op = FAULT_OPEN; op <= FAULT_SYNC_FOLDER; op++) {
        (void)fault_fail((enum fault_op)op, op == FAULT_SYNC_FOLDER ? NULL : "kvd_fault", -EROFS);
    }
    assert_int_equal(files->open(f->io, folder, f->path, O_RDONLY), -EROFS);
    assert_int_equal(files->mkdir(f->io, folder, "kvd_fault_folder"), -EROFS);
    assert_int_equal(files->unlink(f->io, folder, f->path), -EROFS);
    assert_int_equal(files->rename(f->io, folder, f->path, "kvd_fault_to"), -EROFS);
    assert_int_equal(files->allocate(f->io, f->fd, BYTES), -EROFS);
    assert_int_equal(files->truncate(f->io, f->fd, BYTES), -EROFS);
    assert_int_equal(files->sync_folder(f->io, folder), -EROFS);
    assert_int_equal(size_of(f), 0);
    assert_int_equal(access(f->path, F_OK), 0);
    fault_clear();
    assert_int_equal(files->truncate(f->io, f->fd, BYTES), 0);
    assert_int_equal(size_of(f), BYTES);
    assert_int_equal(files->sync_folder(f->io, folder), 0);
    (void)close(folder);
}

/* ---- the test's own moments ---- */

struct seen {
    struct fixture *f;
    uint64_t size;
    uint64_t bytes;
    unsigned times;
};

static void look(const struct fault_hit *hit, void *user)
{
    struct seen *seen = user;
    seen->size = size_of(seen->f);
    seen->bytes = hit->bytes;
    seen->times += strstr(hit->path, seen->f->path) != NULL;
}

static void test_call(void **state)
{
    static const uint64_t sizes[] = {
        [FAULT_BEFORE] = 0, [FAULT_MIDDLE] = BYTES / 2, [FAULT_AFTER] = BYTES};
    struct fixture *f = *state;
    for (int when = FAULT_BEFORE; when <= FAULT_AFTER; when++) {
        struct seen seen = {.f = f};
        assert_int_equal(ftruncate(f->fd, 0), 0);
        int id = fault_add(&(struct fault){.op = FAULT_WRITE,
                                           .kind = FAULT_CALL,
                                           .when = (enum fault_when)when,
                                           .call = look,
                                           .user = &seen});
        assert_int_equal(transfer(f, KVD_IO_WRITE), 0);
        assert_int_equal(seen.times, 1);
        assert_int_equal(seen.size, sizes[when]);
        assert_int_equal(seen.bytes, BYTES);
        assert_int_equal(size_of(f), BYTES);
        fault_release(id);
    }
}

/* A child, whose program comes as a text, is killed at its second write. */
static void test_kill(void **state)
{
    struct fixture *f = *state;
    const char *text[] = {"kill@write:kvd_fault:2", "kill@write:kvd_fault:2:middle",
                          "kill@write:*:2-2:after"};
    static const uint64_t sizes[] = {PAGE, PAGE + BYTES / 2, PAGE + BYTES};
    kvd_io_close(&f->io); /* nobody has threads when it forks */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ftruncate(f->fd, 0), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            const char *at = NULL;
            struct kvd_diag diag = {{0}};
            if (kvd_io_open("threads", 1, &diag, &f->io) != 0 || !fault_add_text(text[i], &at)) {
                _exit(1);
            }
            (void)kvd_io_transfer(f->io, KVD_IO_WRITE, f->fd, f->buf, PAGE, 0);
            (void)kvd_io_transfer(f->io, KVD_IO_WRITE, f->fd, f->buf, BYTES, PAGE);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_equal(size_of(f), sizes[i]);
    }
}

static void test_text(void **state)
{
    struct fixture *f = *state;
    const char *at = NULL;
    static const char *const wrong[] = {
        "eio",           "eio@read",    "eio@read:x",      "eio@read:x:0", "eio@read:x:3-2",
        "boom@read:x:1", "eio@eat:x:1", "kill@read:x:1:x", "eio@read::*",  "eio@read:x:1:2:3"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_false(fault_add_text(wrong[i], &at));
        assert_ptr_equal(at, wrong[i]);
    }
    assert_true(fault_add_text("short@write:kvd_fault:1:8192;enospc@write:kvd_fault:2-3;"
                               "flip@write:kvd_fault:5:1;eio@fdatasync:*:2+",
                               &at));
    assert_int_equal(transfer(f, KVD_IO_WRITE), -EIO);
    assert_int_equal(size_of(f), 2 * PAGE);
    assert_int_equal(transfer(f, KVD_IO_WRITE), -ENOSPC);
    assert_int_equal(transfer(f, KVD_IO_WRITE), -ENOSPC);
    assert_int_equal(transfer(f, KVD_IO_WRITE), 0);
    assert_int_equal(transfer(f, KVD_IO_READ), 0);
    assert_int_equal(f->buf[0], 0x5a);
    assert_int_equal(transfer(f, KVD_IO_WRITE), 0); /* flipped */
    assert_int_equal(transfer(f, KVD_IO_READ), 0);
    assert_int_equal(f->buf[0], 0x58);
    assert_int_equal(transfer(f, KVD_IO_FDATASYNC), 0);
    assert_int_equal(transfer(f, KVD_IO_FDATASYNC), -EIO);
    assert_int_equal(transfer(f, KVD_IO_FDATASYNC), -EIO);
}

#define BOTH(name)                                                                                 \
    {#name " (threads)", name, setup_threads, teardown, NULL},                                     \
    {                                                                                              \
#name, name, setup_auto, teardown, NULL                                                    \
    }

static const struct CMUnitTest tests[] = {
    BOTH(test_nothing_is_spoilt_without_a_program),
    BOTH(test_chosen_by_kind_file_and_count),
    BOTH(test_short),
    BOTH(test_flip),
    BOTH(test_hold),
    BOTH(test_hold_of_a_file_operation),
    BOTH(test_names_sizes_folders),
    BOTH(test_call),
    BOTH(test_kill),
    BOTH(test_text),
};

KVD_TEST_MAIN(tests)
