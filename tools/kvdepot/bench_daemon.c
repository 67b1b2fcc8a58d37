/* A daemon of the benchmark's own: see bench_daemon.h. */
#include "tools/kvdepot/bench_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvdepot/kvdepot.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"

enum { WAIT_MS = 20000, POLL_MS = 20 };

struct kvd_bench_daemon {
    char program[PATH_MAX];
    char dir[PATH_MAX - 64];
    char socket[PATH_MAX];
    char nvme[PATH_MAX];
    char pool[64]; /* on tmpfs, so not in dir */
    pid_t pid;     /* 0 while none runs */
};

static uint64_t now_ms(void)
{
    return kvd_mono_ns() / KVD_NS_PER_MS;
}

static void pause_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

int kvd_bench_daemon_create(const char *program, const char *parent,
                            struct kvd_bench_daemon **ret_daemon, struct kvd_diag *diag)
{
    struct kvd_bench_daemon *daemon = calloc(1, sizeof(*daemon));
    if (!daemon) {
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    int length = snprintf(daemon->dir, sizeof(daemon->dir), "%s/kvdepot-bench-XXXXXX", parent);
    if (length >= (int)sizeof(daemon->dir) || strlen(program) >= sizeof(daemon->program)) {
        free(daemon);
        return kvd_fail(diag, -ENAMETOOLONG, "the folder's or the program's path is too long");
    }
    (void)snprintf(daemon->program, sizeof(daemon->program), "%s", program);
    if (!mkdtemp(daemon->dir)) {
        int err = -errno;
        free(daemon);
        return kvd_fail(diag, err, "cannot make a folder in %s (%s): name another one with --dir",
                        parent, kvd_strerror(err));
    }
    (void)snprintf(daemon->socket, sizeof(daemon->socket), "%s/s", daemon->dir);
    (void)snprintf(daemon->nvme, sizeof(daemon->nvme), "%s/nvme", daemon->dir);
    (void)snprintf(daemon->pool, sizeof(daemon->pool), "/dev/shm/kvdepot-bench-%d.pool",
                   (int)getpid());
    *ret_daemon = daemon;
    return 0;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    (void)remove(path);
    return 0;
}

void kvd_bench_daemon_destroy(struct kvd_bench_daemon **daemon)
{
    if (!daemon || !*daemon) {
        return;
    }
    if ((*daemon)->pid > 0) {
        (void)kvd_bench_daemon_stop(*daemon, NULL);
    }
    (void)nftw((*daemon)->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    (void)unlink((*daemon)->pool);
    free(*daemon);
    *daemon = NULL;
}

/* In the child: its own process group, so that Ctrl-C reaches only the benchmark, which then stops
 * it; and no orphan, should the benchmark be killed. */
static void child_exec(const struct kvd_bench_daemon *daemon, bool drop_dram)
{
    char dram_path[96];
    char log_path[PATH_MAX];
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)snprintf(dram_path, sizeof(dram_path), "--dram.path=%s", daemon->pool);
    (void)snprintf(log_path, sizeof(log_path), "%s/log", daemon->dir);
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log < 0 || dup2(log, STDERR_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0) {
        _exit(127);
    }
    const char *argv[] = {daemon->program,
                          "--dir",
                          daemon->dir,
                          "--socket",
                          daemon->socket,
                          KVD_BENCH_DRAM_CAP,
                          "--nvme.cap=4GiB",
                          dram_path,
                          drop_dram ? "--drop-dram" : NULL,
                          NULL};
    (void)execv(daemon->program, (char **)argv);
    (void)dprintf(STDERR_FILENO, "cannot run %s: %s\n", daemon->program, strerror(errno));
    _exit(127);
}

static bool answers(const struct kvd_bench_daemon *daemon)
{
    struct kvd_client_options options;
    kvd_client_options_init(&options);
    options.socket_path = daemon->socket;
    options.program = "kvdepot bench";
    struct kvd_client *client = NULL;
    if (kvd_client_open(&options, &client)) {
        return false;
    }
    bool answered = kvd_ping(client) == 0;
    kvd_client_close(&client);
    return answered;
}

/* Last bytes of the daemon's log, for a message. */
static int fail_with_log(const struct kvd_bench_daemon *daemon, const char *what,
                         struct kvd_diag *diag)
{
    char path[PATH_MAX];
    char tail[400] = "";
    (void)snprintf(path, sizeof(path), "%s/log", daemon->dir);
    KVD_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        off_t size = lseek(fd, 0, SEEK_END);
        off_t from = size > (off_t)sizeof(tail) - 1 ? size - (off_t)sizeof(tail) + 1 : 0;
        ssize_t n = pread(fd, tail, sizeof(tail) - 1, from);
        tail[n > 0 ? n : 0] = '\0';
    }
    return kvd_fail(diag, -KVD_E_UNAVAILABLE, "%s %s; the end of its log:\n%s", daemon->program,
                    what, tail);
}

int kvd_bench_daemon_start(struct kvd_bench_daemon *daemon, bool drop_dram, struct kvd_diag *diag)
{
    pid_t pid = fork();
    if (pid < 0) {
        return kvd_fail(diag, -errno, "cannot start a process: %s", kvd_strerror(-errno));
    }
    if (pid == 0) {
        child_exec(daemon, drop_dram);
    }
    daemon->pid = pid;
    for (uint64_t end = now_ms() + WAIT_MS; now_ms() < end;) {
        if (waitpid(pid, NULL, WNOHANG) == pid) {
            daemon->pid = 0;
            return fail_with_log(daemon, "ended at once", diag);
        }
        if (answers(daemon)) {
            return 0;
        }
        pause_ms(POLL_MS);
    }
    return fail_with_log(daemon, "does not answer", diag);
}

int kvd_bench_daemon_stop(struct kvd_bench_daemon *daemon, struct kvd_diag *diag)
{
    pid_t pid = daemon->pid;
    daemon->pid = 0;
    (void)kill(pid, SIGTERM);
    for (uint64_t end = now_ms() + WAIT_MS; now_ms() < end;) {
        int status = 0;
        if (waitpid(pid, &status, WNOHANG) == pid) {
            return status == 0 ? 0 : fail_with_log(daemon, "did not end well", diag);
        }
        pause_ms(POLL_MS);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    return fail_with_log(daemon, "did not end on SIGTERM within 20 s and was killed", diag);
}

const char *kvd_bench_daemon_socket(const struct kvd_bench_daemon *daemon)
{
    return daemon->socket;
}

const char *kvd_bench_daemon_nvme(const struct kvd_bench_daemon *daemon)
{
    return daemon->nvme;
}
