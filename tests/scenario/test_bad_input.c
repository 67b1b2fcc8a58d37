/* Bad input to the real programs: each is refused with a message that says what, where and what to
 * do; nobody crashes. */
#include "kvd_test.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proc.h"
#include "tiny_gguf.h"

/* Runs a program that must end with `status` and say `text`. */
static void assert_refused(const char *const *argv, int status, const char *text)
{
    struct proc p;
    int got = proc_run(&p, argv);
    if (got != status || !strstr(p.output, text)) {
        fail_msg("%s %s: expected status %d and '%s', got %d and: %s", argv[0], argv[1], status,
                 text, got, p.output);
    }
}

static void options_of_the_daemon(void **state)
{
    (void)state;
    const char *d = proc_program("cachesvc/kvdepotd");
    char folder[256];
    char config[300];
    char path[200];
    proc_folder(folder, sizeof(folder));
    memset(path, 'x', sizeof(path));
    path[0] = '/';
    path[150] = 0;
    (void)snprintf(config, sizeof(config), "%s/config.yaml", folder);
    FILE *f = fopen(config, "w");
    assert_non_null(f);
    assert_true(fprintf(f, "dram:\n  cap: 12k\n") > 0);
    assert_int_equal(fclose(f), 0);
    const char *const unknown[] = {d, "--dram.cup", "1GiB", NULL};
    const char *const disk[] = {d, "--dir", folder, "--nvme.cap", "60000TiB", NULL};
    const char *const memory[] = {d, "--dir", folder, "--dram.cap", "900TiB", NULL};
    const char *const longer[] = {d, "--dir", folder, "--socket", path, NULL};
    const char *const unit[] = {d, "--config", config, NULL};
    const char *const policy[] = {d, "--dir", folder, "--dram.eviction", "mru", NULL};
    assert_refused(unknown, 2, "dram.cup");
    assert_refused(disk, 2, "nvme.cap");
    assert_refused(memory, 2, "dram.cap");
    assert_refused(longer, 2, "107");
    assert_refused(unit, 2, "config.yaml:2:");
    assert_refused(policy, 2, "lru");
    proc_remove_folder(folder);
}

/* The other side of refusing: the configuration that is shipped is taken, and flags come after it.
 */
static void shipped_configuration_is_taken(void **state)
{
    (void)state;
    struct proc p;
    char folder[256];
    proc_folder(folder, sizeof(folder));
    const char *const argv[] = {proc_program("cachesvc/kvdepotd"),
                                "--config",
                                getenv("KVD_CONFIG"),
                                "--dir",
                                folder,
                                "--nvme.path",
                                folder,
                                "--dram.cap",
                                "64MiB",
                                "--nvme.cap",
                                "64MiB",
                                "--check-config",
                                NULL};
    if (proc_run(&p, argv)) {
        fail_msg("%s", p.output);
    }
    assert_non_null(strstr(p.output, "/run/kvdepot/kvdepotd.sock"));
    assert_non_null(strstr(p.output, folder));
    proc_remove_folder(folder);
}

static void folder_without_rights(void **state)
{
    (void)state;
    char folder[256];
    char file[300];
    proc_folder(folder, sizeof(folder));
    (void)snprintf(file, sizeof(file), "%s/file", folder);
    FILE *f = fopen(file, "w"); /* root may write everywhere, but not below a file */
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    char store[320];
    char socket[320];
    (void)snprintf(store, sizeof(store), "%s/store", file);
    (void)snprintf(socket, sizeof(socket), "%s/s", folder);
    const char *const argv[] = {proc_program("cachesvc/kvdepotd"),
                                "--dir",
                                store,
                                "--socket",
                                socket,
                                "--dram.cap",
                                "64MiB",
                                "--nvme.cap",
                                "64MiB",
                                NULL};
    struct proc p;
    assert_int_not_equal(proc_run(&p, argv), 0);
    assert_non_null(strstr(p.output, file));
    assert_int_equal(chmod(folder, 0500), 0);
    if (geteuid() != 0) {
        (void)snprintf(store, sizeof(store), "%s/store", folder);
        assert_int_not_equal(proc_run(&p, argv), 0);
        assert_non_null(strstr(p.output, folder));
    }
    assert_int_equal(chmod(folder, 0700), 0);
    proc_remove_folder(folder);
}

static void garbage_on_the_socket(void **state)
{
    (void)state;
    char folder[256];
    char store[300];
    char pool[300];
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    proc_folder(folder, sizeof(folder));
    (void)snprintf(store, sizeof(store), "%s/store", folder);
    (void)snprintf(pool, sizeof(pool), "%s/pool", folder);
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%.90s/s", folder);
    const char *const argv[] = {proc_program("cachesvc/kvdepotd"),
                                "--dir",
                                store,
                                "--socket",
                                addr.sun_path,
                                "--dram.cap",
                                "64MiB",
                                "--nvme.cap",
                                "64MiB",
                                "--dram.path",
                                pool,
                                NULL};
    struct proc daemon;
    proc_start(&daemon, argv);
    proc_expect(&daemon, "ready");
    for (int i = 0; i < 100; i++) {
        uint8_t junk[1024];
        for (size_t k = 0; k < sizeof(junk); k++) {
            junk[k] = (uint8_t)((uint32_t)(i * 7919 + (int)k * 104729) >> 3);
        }
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
        (void)send(fd, junk, (size_t)(i * 10 + 1), MSG_NOSIGNAL);
        (void)recv(fd, junk, sizeof(junk), 0); /* an error or the end; the daemon closes */
        (void)close(fd);
    }
    struct proc p;
    const char *const status[] = {proc_program("tools/kvdepot"), "status", "--socket",
                                  addr.sun_path, NULL};
    assert_int_equal(proc_run(&p, status), 0);
    assert_int_equal(proc_end(&daemon, SIGTERM), 0);
    proc_remove_folder(folder);
}

static void prompts_and_models(void **state)
{
    (void)state;
    const char *e = proc_program("engine/kvdepot-engine");
    char folder[256];
    char model[300];
    char prompt[300];
    char cut[300];
    proc_folder(folder, sizeof(folder));
    (void)snprintf(model, sizeof(model), "%s/model.gguf", folder);
    (void)snprintf(prompt, sizeof(prompt), "%s/prompt", folder);
    (void)snprintf(cut, sizeof(cut), "%s/cut.gguf", folder);
    struct kvd_tiny_gguf_options small = {.context = 128};
    assert_int_equal(kvd_tiny_gguf_write(model, &small), 0);
    assert_int_equal(kvd_tiny_gguf_write(cut, &small), 0);
    assert_int_equal(truncate(cut, 5000), 0);
    FILE *f = fopen(prompt, "w");
    assert_non_null(f);
    for (int i = 0; i < 300; i++) {
        assert_true(fprintf(f, "%d ", i) > 0);
    }
    assert_int_equal(fclose(f), 0);
    const char *const too_long[] = {e,      "--model", model, "--no-cache", "--prompt-file",
                                    prompt, "--raw",   NULL};
    const char *const truncated[] = {e, "--model", cut, "--no-cache", "--prompt", "x", NULL};
    const char *const missing[] = {e,   "--model", "/nonexistent.gguf", "--no-cache", "--prompt",
                                   "x", NULL};
    const char *const unknown[] = {e, "--model", model, "--promt", "x", NULL};
    const char *const not_gguf[] = {e, "--model", prompt, "--no-cache", "--prompt", "x", NULL};
    assert_refused(too_long, 1, "128");
    assert_refused(truncated, 1, "cut.gguf");
    assert_refused(missing, 1, "/nonexistent.gguf");
    assert_refused(unknown, 2, "promt");
    assert_refused(not_gguf, 1, "prompt");
    proc_remove_folder(folder);
}

static void nobody_listens(void **state)
{
    (void)state;
    const char *const status[] = {proc_program("tools/kvdepot"), "status", "--socket",
                                  "/nonexistent/socket", NULL};
    const char *const hitrate[] = {proc_program("tools/kvdepot"), "hitrate", "--socket",
                                   "/nonexistent/socket", NULL};
    const char *const unknown[] = {proc_program("tools/kvdepot"), "hitrat", NULL};
    assert_refused(status, 2, "/nonexistent/socket");
    assert_refused(hitrate, 2, "/nonexistent/socket");
    assert_refused(unknown, 3, "hitrat");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(options_of_the_daemon), cmocka_unit_test(shipped_configuration_is_taken),
    cmocka_unit_test(folder_without_rights), cmocka_unit_test(garbage_on_the_socket),
    cmocka_unit_test(prompts_and_models),    cmocka_unit_test(nobody_listens),
};

KVD_TEST_MAIN(tests)
