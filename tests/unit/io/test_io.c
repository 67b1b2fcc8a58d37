/*
 * File I/O: both engines go through the same tests. Files lie in the folder where the test runs, a
 * real file system as a rule.
 */
#include "kvd_test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cachesvc/io/io.h"
#include "proto/base/cleanup.h"

enum { PAGE = 4096, DEPTH = 16, MANY = 500 };

static const struct kvd_io_ops *const engines[] = {&kvd_io_uring, &kvd_io_threads};
enum { ENGINES = sizeof(engines) / sizeof(engines[0]) };

struct fixture {
    struct kvd_io *io;
    int fd;
    uint8_t *buf; /* MANY pages, aligned */
};

static void fixture_open(struct fixture *f, const struct kvd_io_ops *ops)
{
    struct kvd_diag diag = {{0}};
    int err = ops->create(DEPTH, &diag, &f->io);
    if (err == -EPERM || err == -ENOSYS) {
        KVD_SKIP("io_uring", "%s", diag.text);
    }
    assert_int_equal(err, 0);
    char path[] = "kvd_test_io.XXXXXX";
    f->fd = mkstemp(path);
    assert_true(f->fd >= 0);
    assert_int_equal(unlink(path), 0);
    f->buf =
        mmap(NULL, (size_t)MANY * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f->buf != MAP_FAILED);
}

static void fixture_close(struct fixture *f)
{
    kvd_io_close(&f->io);
    assert_null(f->io);
    assert_int_equal(close(f->fd), 0);
    assert_int_equal(munmap(f->buf, (size_t)MANY * PAGE), 0);
}

static struct kvd_io_request request(enum kvd_io_kind kind, int fd, void *buffer, uint64_t bytes,
                                     uint64_t offset)
{
    struct kvd_io_request req = {.kind = kind,
                                 .fd = fd,
                                 .buffer_index = -1,
                                 .buffer = buffer,
                                 .bytes = bytes,
                                 .offset = offset};
    return req;
}

static int run(struct fixture *f, enum kvd_io_kind kind, void *buffer, uint64_t bytes,
               uint64_t offset)
{
    struct kvd_io_request req = request(kind, f->fd, buffer, bytes, offset);
    return kvd_io_run(f->io, &req);
}

static void fill(uint8_t *p, size_t n, uint8_t seed)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = (uint8_t)(seed + i * 31 + i / 251);
    }
}

/* ---- the table of tests; each is given a fresh file and engine ---- */

static void write_then_read(struct fixture *f)
{
    fill(f->buf, 8 * PAGE, 3);
    assert_int_equal(run(f, KVD_IO_WRITE, f->buf, 8 * PAGE, 2 * PAGE), 0);
    assert_int_equal(run(f, KVD_IO_FDATASYNC, NULL, 0, 0), 0);
    memset(f->buf + 8 * PAGE, 0, 8 * PAGE);
    assert_int_equal(run(f, KVD_IO_READ, f->buf + 8 * PAGE, 8 * PAGE, 2 * PAGE), 0);
    assert_memory_equal(f->buf, f->buf + 8 * PAGE, 8 * PAGE);
}

static void nothing_to_transfer(struct fixture *f)
{
    assert_int_equal(run(f, KVD_IO_WRITE, f->buf, 0, 0), 0);
    assert_int_equal(run(f, KVD_IO_READ, f->buf, 0, 0), 0);
}

static void read_past_end(struct fixture *f)
{
    assert_int_equal(run(f, KVD_IO_WRITE, f->buf, 3 * PAGE, 0), 0);
    struct kvd_io_request req = request(KVD_IO_READ, f->fd, f->buf, 8 * PAGE, PAGE);
    assert_int_equal(kvd_io_run(f->io, &req), -KVD_E_IO);
    assert_int_equal(req.done_bytes, 2 * PAGE);
    assert_int_equal(run(f, KVD_IO_READ, f->buf, PAGE, 100 * PAGE), -KVD_E_IO);
}

/* The end lies in the middle of a page: with direct I/O going on would be refused as EINVAL. */
static void read_past_odd_end_direct(struct fixture *f)
{
    assert_int_equal(run(f, KVD_IO_WRITE, f->buf, PAGE + 100, 0), 0);
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", f->fd);
    KVD_AUTOCLOSE int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        return; /* no direct I/O here */
    }
    struct kvd_io_request req = request(KVD_IO_READ, fd, f->buf, 4 * PAGE, 0);
    assert_int_equal(kvd_io_run(f->io, &req), -KVD_E_IO);
    assert_int_equal(req.done_bytes, PAGE + 100);
}

static void bad_descriptor(struct fixture *f)
{
    int fd = f->fd;
    f->fd = 1000000;
    assert_int_equal(run(f, KVD_IO_READ, f->buf, PAGE, 0), -EBADF);
    assert_int_equal(run(f, KVD_IO_WRITE, f->buf, PAGE, 0), -EBADF);
    assert_int_equal(run(f, KVD_IO_FDATASYNC, NULL, 0, 0), -EBADF);
    f->fd = fd;
    assert_int_equal(run(f, KVD_IO_WRITE, f->buf, PAGE, 0), 0); /* and goes on */
}

static void file_too_large(struct fixture *f)
{
    struct rlimit was;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    struct rlimit small = {.rlim_cur = 4 * PAGE, .rlim_max = was.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct kvd_io_request req = request(KVD_IO_WRITE, f->fd, f->buf, 8 * PAGE, 0);
    int err = kvd_io_run(f->io, &req);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(err, -EFBIG);
    assert_int_equal(req.done_bytes, 4 * PAGE); /* the short write was continued, then failed */
}

static void full_device(struct fixture *f)
{
    KVD_AUTOCLOSE int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    struct kvd_io_request req = request(KVD_IO_WRITE, fd, f->buf, PAGE, 0);
    assert_int_equal(kvd_io_run(f->io, &req), -ENOSPC);
}

struct counter {
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    unsigned n;      /* lock: mtx */
    unsigned failed; /* lock: mtx */
};

static void counter_init(struct counter *c)
{
    memset(c, 0, sizeof(*c));
    (void)pthread_mutex_init(&c->mtx, NULL);
    (void)pthread_cond_init(&c->cond, NULL);
}

static void counter_add(struct counter *c, int result)
{
    (void)pthread_mutex_lock(&c->mtx);
    c->n++;
    c->failed += result != 0;
    (void)pthread_cond_signal(&c->cond);
    (void)pthread_mutex_unlock(&c->mtx);
}

static void counter_wait(struct counter *c, unsigned n)
{
    (void)pthread_mutex_lock(&c->mtx);
    while (c->n < n) {
        (void)pthread_cond_wait(&c->cond, &c->mtx);
    }
    (void)pthread_mutex_unlock(&c->mtx);
}

static void counted(struct kvd_io_request *req)
{
    counter_add(req->user, req->result);
}

/* Far more than the depth, in one call. */
static void many_in_flight(struct fixture *f)
{
    static struct kvd_io_request reqs[MANY];
    static struct kvd_io_request *ptrs[MANY];
    struct counter c;
    counter_init(&c);
    fill(f->buf, (size_t)MANY * PAGE, 9);
    for (int kind = 0; kind < 2; kind++) {
        for (unsigned i = 0; i < MANY; i++) {
            reqs[i] = request(kind == 0 ? KVD_IO_WRITE : KVD_IO_READ, f->fd,
                              f->buf + (size_t)i * PAGE, PAGE, (uint64_t)(MANY - 1 - i) * PAGE);
            reqs[i].done = counted;
            reqs[i].user = &c;
            ptrs[i] = &reqs[i];
        }
        if (kind == 1) {
            memset(f->buf, 0, (size_t)MANY * PAGE);
        }
        assert_int_equal(kvd_io_submit(f->io, ptrs, MANY), 0);
        counter_wait(&c, (unsigned)(kind + 1) * MANY);
        assert_int_equal(c.failed, 0);
    }
    uint8_t *want = malloc((size_t)MANY * PAGE);
    assert_non_null(want);
    fill(want, (size_t)MANY * PAGE, 9);
    assert_memory_equal(f->buf, want, (size_t)MANY * PAGE);
    free(want);
}

struct chain {
    struct kvd_io *io;
    struct counter count;
    unsigned left; /* owner: completion thread */
};

static void chain_next(struct kvd_io_request *req)
{
    struct chain *c = req->user;
    int result = req->result;
    if (result == 0 && c->left > 0) {
        c->left--;
        req->offset += PAGE;
        result = kvd_io_submit(c->io, &req, 1);
    }
    counter_add(&c->count, result);
}

/* Callbacks that submit, more of them than the ring is deep. */
static void callbacks_submit(struct fixture *f)
{
    enum { CHAINS = 2 * DEPTH, LENGTH = 50 };
    struct chain chains[CHAINS];
    struct kvd_io_request reqs[CHAINS];
    for (unsigned i = 0; i < CHAINS; i++) {
        counter_init(&chains[i].count);
        chains[i].io = f->io;
        chains[i].left = LENGTH;
        reqs[i] = request(KVD_IO_WRITE, f->fd, f->buf, PAGE, 0);
        reqs[i].done = chain_next;
        reqs[i].user = &chains[i];
        struct kvd_io_request *ptr = &reqs[i];
        assert_int_equal(kvd_io_submit(f->io, &ptr, 1), 0);
    }
    for (unsigned i = 0; i < CHAINS; i++) {
        counter_wait(&chains[i].count, LENGTH + 1);
        assert_int_equal(chains[i].count.failed, 0);
    }
}

/* Destroying waits for what is in flight: every callback has run when it returns. */
static void destroy_in_flight(struct fixture *f)
{
    enum { N = 100 };
    struct kvd_io_request reqs[N];
    struct kvd_io_request *ptrs[N];
    struct counter c;
    counter_init(&c);
    for (unsigned i = 0; i < N; i++) {
        reqs[i] = request(i % 10 == 9 ? KVD_IO_FDATASYNC : KVD_IO_WRITE, f->fd, f->buf, 2 * PAGE,
                          (uint64_t)i * 2 * PAGE);
        reqs[i].done = counted;
        reqs[i].user = &c;
        ptrs[i] = &reqs[i];
    }
    assert_int_equal(kvd_io_submit(f->io, ptrs, N), 0);
    kvd_io_close(&f->io);
    assert_int_equal(c.n, N);
    assert_int_equal(c.failed, 0);
}

struct short_lived {
    struct kvd_io *io;
    struct kvd_io_request **ptrs;
    unsigned n;
};

static void *submit_and_end(void *user)
{
    struct short_lived *s = user;
    return (void *)(intptr_t)kvd_io_submit(s->io, s->ptrs, s->n);
}

/* A thread that submits and ends at once: io_uring cancels its requests, and the engine must not.
 */
static void submitter_ends(struct fixture *f)
{
    enum { ROUNDS = 20, N = 40 };
    struct kvd_io_request reqs[N];
    struct kvd_io_request *ptrs[N];
    struct counter c;
    counter_init(&c);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < N; i++) {
            reqs[i] = request(i % 8 ? KVD_IO_FDATASYNC : KVD_IO_WRITE, f->fd, f->buf, PAGE,
                              (uint64_t)i * PAGE);
            reqs[i].done = counted;
            reqs[i].user = &c;
            ptrs[i] = &reqs[i];
        }
        struct short_lived s = {.io = f->io, .ptrs = ptrs, .n = N};
        pthread_t thread;
        void *result = NULL;
        assert_int_equal(pthread_create(&thread, NULL, submit_and_end, &s), 0);
        assert_int_equal(pthread_join(thread, &result), 0);
        assert_null(result);
        counter_wait(&c, (round + 1) * N);
        assert_int_equal(c.failed, 0);
    }
}

struct hammer {
    struct fixture *f;
    unsigned nth;
    int failed;
};

static void *hammer_thread(void *user)
{
    struct hammer *h = user;
    uint8_t *mine = h->f->buf + (size_t)h->nth * 2 * PAGE;
    for (unsigned i = 0; i < 100 && !h->failed; i++) {
        uint64_t at = (uint64_t)h->nth * PAGE;
        fill(mine, PAGE, (uint8_t)(i + h->nth));
        h->failed = run(h->f, KVD_IO_WRITE, mine, PAGE, at) ||
                    run(h->f, KVD_IO_READ, mine + PAGE, PAGE, at) ||
                    memcmp(mine, mine + PAGE, PAGE) != 0;
    }
    return NULL;
}

static void many_threads(struct fixture *f)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    struct hammer hammers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        hammers[i] = (struct hammer){.f = f, .nth = i};
        assert_int_equal(pthread_create(&threads[i], NULL, hammer_thread, &hammers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(hammers[i].failed, 0);
    }
}

/* Two regions, if the engine has them: transfers from the middle of the second are right, and one
 * that lies outside of its region is refused, not done. */
static void registered_regions(struct fixture *f)
{
    int first = f->io->ops->register_region(f->io, f->buf, 4 * PAGE);
    if (first == -ENOTSUP || first == -ENOMEM) {
        return;
    }
    assert_int_equal(first, 0);
    assert_int_equal(f->io->ops->register_region(f->io, f->buf + 4 * PAGE, 16 * PAGE), 1);
    fill(f->buf + 8 * PAGE, 2 * PAGE, 77);
    struct kvd_io_request req = request(KVD_IO_WRITE, f->fd, f->buf + 8 * PAGE, 2 * PAGE, 0);
    req.buffer_index = 1;
    assert_int_equal(kvd_io_run(f->io, &req), 0);
    req = request(KVD_IO_READ, f->fd, f->buf + 12 * PAGE, 2 * PAGE, 0);
    req.buffer_index = 1;
    assert_int_equal(kvd_io_run(f->io, &req), 0);
    assert_memory_equal(f->buf + 8 * PAGE, f->buf + 12 * PAGE, 2 * PAGE);
    req = request(KVD_IO_READ, f->fd, f->buf + 12 * PAGE, 2 * PAGE, 0);
    req.buffer_index = 0;
    assert_int_equal(kvd_io_run(f->io, &req), -EFAULT);
    assert_true(f->io->ops->register_region(f->io, f->buf, 0) < 0);
    assert_true(f->io->ops->register_region(f->io, f->buf, (UINT64_C(1) << 30) + 1) < 0);
}

typedef void case_fn(struct fixture *f);

static void with_engines(case_fn *fn)
{
    for (unsigned i = 0; i < ENGINES; i++) {
        struct fixture f = {0};
        fixture_open(&f, engines[i]);
        fn(&f);
        fixture_close(&f);
    }
}

#define CASE(name)                                                                                 \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        with_engines(name);                                                                        \
    }
CASE(write_then_read)
CASE(nothing_to_transfer)
CASE(read_past_end)
CASE(read_past_odd_end_direct)
CASE(bad_descriptor)
CASE(file_too_large)
CASE(full_device)
CASE(many_in_flight)
CASE(callbacks_submit)
CASE(destroy_in_flight)
CASE(submitter_ends)
CASE(many_threads)
CASE(registered_regions)

static void test_open_by_name(void **state)
{
    (void)state;
    struct kvd_diag diag = {{0}};
    struct kvd_io *io = NULL;
    assert_int_equal(kvd_io_open("threads", 4, &diag, &io), 0);
    assert_string_equal(io->ops->name, "threads");
    kvd_io_close(&io);
    assert_int_equal(kvd_io_open("auto", 4, &diag, &io), 0);
    kvd_io_close(&io);
    assert_null(io);
    kvd_io_close(&io); /* nothing to do */
    kvd_io_close(NULL);
    assert_int_equal(kvd_io_open("aio", 4, &diag, &io), -EINVAL);
    assert_non_null(strstr(diag.text, "aio"));
    assert_int_equal(kvd_io_open("threads", 0, &diag, &io), -EINVAL);
    assert_int_equal(kvd_io_open("threads", 1000000, &diag, &io), -EINVAL);
    assert_null(io);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_write_then_read),    cmocka_unit_test(test_nothing_to_transfer),
    cmocka_unit_test(test_read_past_end),      cmocka_unit_test(test_read_past_odd_end_direct),
    cmocka_unit_test(test_bad_descriptor),     cmocka_unit_test(test_file_too_large),
    cmocka_unit_test(test_full_device),        cmocka_unit_test(test_many_in_flight),
    cmocka_unit_test(test_callbacks_submit),   cmocka_unit_test(test_destroy_in_flight),
    cmocka_unit_test(test_submitter_ends),     cmocka_unit_test(test_many_threads),
    cmocka_unit_test(test_registered_regions), cmocka_unit_test(test_open_by_name),
};

KVD_TEST_MAIN(tests)
