#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvd_test.h"
#include "proto/base/clock.h"

enum { DEADLINE_S = 60 };

const char *proc_program(const char *relative)
{
    static char paths[8][512];
    static int next;
    const char *build = getenv("KVD_BUILD");
    char *path = paths[next++ % 8];
    assert_non_null(build);
    (void)snprintf(path, sizeof(paths[0]), "%s/%s", build, relative);
    return path;
}

void proc_start(struct proc *p, const char *const *argv)
{
    int fds[2];
    memset(p, 0, sizeof(*p));
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        (void)dup2(fds[1], STDOUT_FILENO);
        (void)dup2(fds[1], STDERR_FILENO);
        (void)execv(argv[0], (char *const *)argv);
        (void)fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    (void)close(fds[1]);
    p->fd = fds[0];
}

/* KVD_PATIENCE in the environment: so many times slower a sanitizer may make a program. */
static uint64_t deadline_s(void)
{
    const char *patience = getenv("KVD_PATIENCE");
    const int times = patience ? atoi(patience) : 1;
    return (uint64_t)DEADLINE_S * (uint64_t)(times > 1 ? times : 1);
}

/* Reads once. false at the end of the output. */
static bool read_some(struct proc *p, uint64_t deadline_ns)
{
    struct pollfd pfd = {.fd = p->fd, .events = POLLIN};
    if (poll(&pfd, 1, kvd_deadline_poll_ms(deadline_ns)) == 0) {
        (void)kill(p->pid, SIGKILL);
        fail_msg("pid %d said nothing more for %d s; so far: %s", (int)p->pid, (int)deadline_s(),
                 p->output);
    }
    char buf[4096];
    ssize_t got = read(p->fd, buf, sizeof(buf));
    if (got <= 0) {
        return got < 0 && errno == EINTR;
    }
    size_t room = sizeof(p->output) - 1 - p->n;
    size_t take = (size_t)got < room ? (size_t)got : room;
    memcpy(p->output + p->n, buf, take);
    p->n += take;
    p->output[p->n] = 0;
    return true;
}

void proc_expect(struct proc *p, const char *text)
{
    uint64_t deadline = kvd_mono_ns() + deadline_s() * KVD_NS_PER_S;
    while (!strstr(p->output, text)) {
        if (!read_some(p, deadline)) {
            (void)proc_end(p, SIGKILL);
            fail_msg("expected '%s', but it ended with: %s", text, p->output);
        }
    }
}

int proc_end(struct proc *p, int sig)
{
    uint64_t deadline = kvd_mono_ns() + deadline_s() * KVD_NS_PER_S;
    int status = 0;
    if (sig) {
        assert_int_equal(kill(p->pid, sig), 0);
    }
    while (read_some(p, deadline)) {
    }
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    (void)close(p->fd);
    p->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int proc_run(struct proc *p, const char *const *argv)
{
    proc_start(p, argv);
    return proc_end(p, 0);
}

void proc_folder(char *ret_path, size_t n)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(ret_path, n, "%s/kvdepot-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(ret_path));
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void proc_remove_folder(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
