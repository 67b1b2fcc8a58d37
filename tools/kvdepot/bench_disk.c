/* What the disk itself does: see bench_disk.h. */
#include "tools/kvdepot/bench_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/cleanup.h"
#include "proto/base/clock.h"

enum { ALIGN = 4096, DEPTH_MAX = 64, FIO_OUTPUT_MAX = 1 << 20 };

int kvd_bench_disk_largest(const char *folder, char **ret_path)
{
    char *const roots[] = {(char *)folder, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!walk) {
        return -errno;
    }
    char *largest = NULL;
    off_t bytes = 0;
    for (FTSENT *entry = fts_read(walk); entry; entry = fts_read(walk)) {
        if (entry->fts_info == FTS_F && entry->fts_statp->st_size > bytes) {
            free(largest);
            largest = strdup(entry->fts_path);
            bytes = entry->fts_statp->st_size;
        }
    }
    (void)fts_close(walk);
    if (!largest) {
        return -ENOENT;
    }
    *ret_path = largest;
    return 0;
}

bool kvd_bench_disk_has_fio(void)
{
    return access("/usr/bin/fio", X_OK) == 0;
}

/* Runs fio with its output into a pipe, whose reading end is *ret_fd. */
static int fio_start(const char *path, uint64_t record_bytes, uint32_t n, uint32_t depth,
                     const char *engine, pid_t *ret_pid, int *ret_fd)
{
    char filename[4200], bs[64], size[64], iodepth[64], ioengine[64];
    (void)snprintf(filename, sizeof(filename), "--filename=%s", path);
    (void)snprintf(bs, sizeof(bs), "--bs=%llu", (unsigned long long)record_bytes);
    (void)snprintf(size, sizeof(size), "--io_size=%llu", (unsigned long long)record_bytes * n);
    (void)snprintf(iodepth, sizeof(iodepth), "--iodepth=%u", depth);
    (void)snprintf(ioengine, sizeof(ioengine), "--ioengine=%s", engine);
    const char *argv[] = {"fio",
                          "--name=limit",
                          filename,
                          bs,
                          size,
                          iodepth,
                          ioengine,
                          "--rw=read",
                          "--direct=1",
                          "--readonly",
                          "--output-format=json",
                          NULL};
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) {
        return -errno;
    }
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (dup2(ends[1], STDOUT_FILENO) >= 0 && dup2(null, STDERR_FILENO) >= 0) {
            (void)execv("/usr/bin/fio", (char **)argv);
        }
        _exit(127);
    }
    int err = pid < 0 ? -errno : 0;
    (void)close(ends[1]);
    if (err) {
        (void)close(ends[0]);
        return err;
    }
    *ret_pid = pid;
    *ret_fd = ends[0];
    return 0;
}

static double fio_bytes_per_s(const char *text)
{
    /* fio may print notes before its JSON. */
    const char *start = strchr(text, '{');
    json_t *root = start ? json_loads(start, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    const json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    double bw = json_number_value(json_object_get(json_object_get(job, "read"), "bw_bytes"));
    json_decref(root);
    return bw;
}

int kvd_bench_disk_fio(const char *path, uint64_t record_bytes, uint32_t n, uint32_t depth,
                       double *ret_seconds, struct kvd_diag *diag)
{
    static const char *const engines[] = {"io_uring", "libaio"};
    KVD_AUTOFREE char *text = malloc(FIO_OUTPUT_MAX);
    for (int i = 0; text && i < 2; i++) {
        pid_t pid = 0;
        KVD_AUTOCLOSE int fd = -1;
        int err = fio_start(path, record_bytes, n, depth, engines[i], &pid, &fd);
        if (err) {
            return kvd_fail(diag, err, "cannot start fio: %s", kvd_strerror(err));
        }
        size_t at = 0;
        for (ssize_t got = 1; got > 0 && at<FIO_OUTPUT_MAX - 1; at += got> 0 ? (size_t)got : 0) {
            got = read(fd, text + at, FIO_OUTPUT_MAX - 1 - at);
        }
        text[at] = '\0';
        int status = 0;
        (void)waitpid(pid, &status, 0);
        double bw = status == 0 ? fio_bytes_per_s(text) : 0;
        if (bw > 0) {
            *ret_seconds = (double)(record_bytes * n) / bw;
            return 0;
        }
    }
    return kvd_fail(diag, -KVD_E_IO, "fio does not work here: it failed with io_uring and libaio");
}

struct reader {
    int fd;
    uint64_t record_bytes;
    uint64_t in_file; /* records that the file holds */
    uint32_t n;
    atomic_uint next;
    atomic_int err;
};

static void *reader_run(void *user)
{
    struct reader *reader = user;
    void *buffer = NULL;
    if (posix_memalign(&buffer, ALIGN, reader->record_bytes)) {
        atomic_store(&reader->err, -ENOMEM);
        return NULL;
    }
    for (uint32_t i = atomic_fetch_add(&reader->next, 1); i < reader->n;
         i = atomic_fetch_add(&reader->next, 1)) {
        off_t at = (off_t)(i % reader->in_file * reader->record_bytes);
        ssize_t got = pread(reader->fd, buffer, reader->record_bytes, at);
        if (got != (ssize_t)reader->record_bytes) {
            atomic_store(&reader->err, got < 0 ? -errno : -EIO);
        }
    }
    free(buffer);
    return NULL;
}

int kvd_bench_disk_read(const char *path, uint64_t record_bytes, uint32_t n, uint32_t depth,
                        double *ret_seconds, struct kvd_diag *diag)
{
    KVD_AUTOCLOSE int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) {
        return kvd_fail(diag, -errno, "cannot read %s past the page cache: %s", path,
                        kvd_strerror(-errno));
    }
    struct reader reader = {.fd = fd,
                            .record_bytes = record_bytes,
                            .in_file = (uint64_t)st.st_size / record_bytes,
                            .n = n};
    if (reader.in_file == 0) {
        return kvd_fail(diag, -KVD_E_FORMAT, "%s is smaller than one record", path);
    }
    pthread_t threads[DEPTH_MAX];
    uint32_t started = 0;
    depth = depth < DEPTH_MAX ? depth : DEPTH_MAX;
    uint64_t start = kvd_mono_ns();
    while (started < depth && pthread_create(&threads[started], NULL, reader_run, &reader) == 0) {
        started++;
    }
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    double seconds = (double)(kvd_mono_ns() - start) / (double)KVD_NS_PER_S;
    int err = started == 0 ? -EAGAIN : atomic_load(&reader.err);
    if (err) {
        return kvd_fail(diag, err, "cannot read %s: %s", path, kvd_strerror(err));
    }
    *ret_seconds = seconds;
    return 0;
}
