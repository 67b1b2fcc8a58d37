/* The socket file: whose it is, what is left behind, what is refused. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "cachesvc/local/local.h"
#include "kvd_test.h"
#include "rig.h"

static int start(struct rig *rig, struct kvd_diag *diag)
{
    diag->text[0] = 0;
    int err = kvd_config_finish(&rig->config, diag);
    return err ? err : kvd_daemon_start(&rig->config, false, true, NULL, diag, &rig->daemon);
}

/* A socket file that nobody listens on, as a killed daemon leaves it. */
static void leave_socket(const char *path, bool listening, int *ret_fd)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s", path);
    *ret_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*ret_fd, (const struct sockaddr *)&addr, sizeof(addr)), 0);
    if (listening) {
        assert_int_equal(listen(*ret_fd, 1), 0);
    }
}

static void test_stale_file_is_replaced(void **state)
{
    (void)state;
    struct rig rig;
    int fd;
    rig_init(&rig);
    leave_socket(rig.socket, false, &fd);
    (void)close(fd);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    assert_int_equal(kvd_ping(c), 0);
    kvd_client_close(&c);
    rig_stop(&rig);
    struct stat st;
    char lock[200];
    (void)snprintf(lock, sizeof(lock), "%s.lock", rig.socket);
    assert_int_equal(lstat(rig.socket, &st), -1); /* nothing is left behind */
    assert_int_equal(lstat(lock, &st), -1);
    rig_fini(&rig);
}

static void test_other_program_listens(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag;
    struct stat st;
    int fd;
    rig_init(&rig);
    leave_socket(rig.socket, true, &fd);
    assert_int_equal(start(&rig, &diag), -KVD_E_IN_USE);
    assert_non_null(strstr(diag.text, rig.socket));
    assert_int_equal(lstat(rig.socket, &st), 0);
    (void)close(fd);
    rig_fini(&rig);
}

static void test_second_daemon(void **state)
{
    (void)state;
    struct rig a;
    struct rig b;
    struct kvd_diag diag;
    rig_init(&a);
    rig_init(&b);
    rig_set(&b, "socket", a.socket);
    rig_start(&a);
    assert_int_equal(start(&b, &diag), -KVD_E_IN_USE);
    assert_non_null(strstr(diag.text, a.socket));
    struct kvd_client *c = rig_client(&a); /* the first one is as it was */
    assert_int_equal(kvd_ping(c), 0);
    rig_stop(&a);
    assert_int_equal(start(&b, &diag), 0); /* and once it has stopped, the other may */
    assert_int_equal(kvd_ping(c), KVD_UNAVAILABLE);
    kvd_client_close(&c);
    rig_fini(&b);
    rig_fini(&a);
}

static void test_other_file_is_kept(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag;
    char text[16] = {0};
    rig_init(&rig);
    int fd = open(rig.socket, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "precious", 8), 8);
    assert_int_equal(start(&rig, &diag), -EEXIST);
    assert_non_null(strstr(diag.text, "is not a socket"));
    assert_int_equal(pread(fd, text, 8, 0), 8);
    assert_string_equal(text, "precious");
    (void)close(fd);
    rig_fini(&rig);
}

static void test_path_and_folder(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag;
    char path[300];
    rig_init(&rig);
    (void)snprintf(path, sizeof(path), "%s/none/sock", rig.folder);
    rig_set(&rig, "socket", path);
    assert_int_equal(start(&rig, &diag), -ENOENT);
    assert_non_null(strstr(diag.text, path));
    (void)snprintf(path, sizeof(path), "%s/%0120d", rig.folder, 1);
    assert_true(kvd_config_set(&rig.config, "socket", path, "socket", &diag) < 0);
    assert_non_null(strstr(diag.text, "107"));
    /* the door doesn't rely on the configuration's check; it refuses before it needs a service */
    struct kvd_local_options options = {.socket_path = path};
    struct kvd_local *local = NULL;
    assert_int_equal(kvd_local_start(NULL, &options, &diag, &local), -KVD_E_TOO_LONG);
    assert_non_null(strstr(diag.text, "107"));
    assert_null(local);
    rig_fini(&rig);
}

static void test_mode(void **state)
{
    (void)state;
    struct rig rig;
    struct stat st;
    rig_init(&rig);
    rig_set(&rig, "socket-mode", "0600");
    rig_start(&rig);
    assert_int_equal(lstat(rig.socket, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    rig_fini(&rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_stale_file_is_replaced), cmocka_unit_test(test_other_program_listens),
    cmocka_unit_test(test_second_daemon),          cmocka_unit_test(test_other_file_is_kept),
    cmocka_unit_test(test_path_and_folder),        cmocka_unit_test(test_mode),
};

KVD_TEST_MAIN(tests)
