/* Limits of cgroups, on made-up /proc folders and hierarchies, and sizes of file systems. */
#include <errno.h>
#include <sys/statvfs.h>

#include "cachesvc/config/machine.h"
#include "config_test.h"

static struct folder made; /* of the running test */

static int setup(void **state)
{
    (void)state;
    folder_make(&made);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_remove(&made);
    return 0;
}

/* Writes a file below the folder, and makes the folders that lead to it. */
static void put(const char *name, const char *text)
{
    char path[PATH_MAX];
    for (const char *p = strchr(name, '/'); p; p = strchr(p + 1, '/')) {
        (void)snprintf(path, sizeof(path), "%s/%.*s", made.path, (int)(p - name), name);
        (void)mkdir(path, 0700);
    }
    folder_write(&made, name, text, path);
}

/* /proc with the given cgroup file; %s in mountinfo is the folder. */
static void put_proc(const char *cgroup, const char *mountinfo)
{
    char text[1024];
    size_t n = 0;
    for (const char *p = mountinfo; *p; p++) {
        bool folder = *p == '@';
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%.*s", folder ? 64 : 1,
                              folder ? made.path : p);
    }
    put("proc/self/cgroup", cgroup);
    put("proc/self/mountinfo", text);
}

static uint64_t limit(char ret_file[KVD_MACHINE_FILE_MAX])
{
    char proc[PATH_MAX];
    (void)snprintf(proc, sizeof(proc), "%s/proc", made.path);
    return kvd_machine_cgroup_memory(proc, ret_file);
}

static void expect(uint64_t want, const char *want_file)
{
    char file[KVD_MACHINE_FILE_MAX];
    char full[PATH_MAX];
    (void)snprintf(full, sizeof(full), "%s/%s", made.path, want_file);
    assert_int_equal(limit(file), want);
    assert_string_equal(file, want_file[0] ? full : "");
}

#define MOUNT_V2 "30 23 0:28 / @/cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

static void test_v2_takes_the_smallest_on_the_way_up(void **state)
{
    (void)state;
    put_proc("0::/a/b\n", "22 1 8:1 / / rw - ext4 /dev/x rw\n" MOUNT_V2);
    put("cg/a/b/memory.max", "max\n");
    expect(UINT64_MAX, "");
    put("cg/a/memory.max", "2147483648\n");
    expect(2147483648, "cg/a/memory.max");
    put("cg/a/b/memory.max", "1073741824\n");
    expect(1073741824, "cg/a/b/memory.max");
    put("cg/a/b/memory.max", "3221225472\n");
    expect(2147483648, "cg/a/memory.max");
}

static void test_v2_in_a_container(void **state)
{
    (void)state;
    /* the mount's root is the container's group: what is above it can't be seen */
    put_proc("0::/docker/x/sub\n", "30 23 0:28 /docker/x @/cg rw - cgroup2 cgroup2 rw\n");
    put("cg/sub/memory.max", "5000000\n");
    expect(5000000, "cg/sub/memory.max");
    /* a group outside the mount's root: the root is all there is */
    put_proc("0::/docker/xy\n", "30 23 0:28 /docker/x @/cg rw - cgroup2 cgroup2 rw\n");
    put("cg/memory.max", "7000000\n");
    expect(7000000, "cg/memory.max");
}

static void test_v1(void **state)
{
    (void)state;
    put_proc("5:cpu,cpuacct:/z\n4:hugetlb,memory:/a/b\n0::/\n",
             "35 31 0:32 / @/cpu rw - cgroup cgroup rw,cpu\n"
             "36 31 0:33 / @/m\\040m rw - cgroup cgroup rw,memory\n");
    put("m m/a/b/memory.limit_in_bytes", "9223372036854771712\n"); /* how it says none */
    expect(UINT64_MAX, "");
    put("m m/a/memory.limit_in_bytes", "4000000\n");
    expect(4000000, "m m/a/memory.limit_in_bytes");
}

static void test_both_versions_at_once(void **state)
{
    (void)state;
    put_proc("4:memory:/a\n0::/b\n", MOUNT_V2 "36 31 0:33 / @/v1 rw - cgroup cgroup rw,memory\n");
    put("v1/a/memory.limit_in_bytes", "4000000\n");
    put("cg/b/memory.max", "3000000\n");
    expect(3000000, "cg/b/memory.max");
}

static void test_nothing_to_read(void **state)
{
    (void)state;
    expect(UINT64_MAX, "");
    put_proc("", "");
    expect(UINT64_MAX, "");
    put_proc("0::/a\nrubbish\n:\n::::\n", "rubbish\n - \n1 2 3 - cgroup2\n" MOUNT_V2);
    put("cg/a/memory.max", "lots\n");
    expect(UINT64_MAX, "");
}

static void test_file_system_of_the_nearest_folder(void **state)
{
    (void)state;
    struct statvfs vfs;
    char at[PATH_MAX];
    char path[PATH_MAX];
    uint64_t bytes = 0;
    assert_int_equal(statvfs(made.path, &vfs), 0);
    (void)snprintf(path, sizeof(path), "%s/x//y/z/", made.path);
    assert_int_equal(kvd_machine_file_system(path, at, &bytes), 0);
    assert_string_equal(at, made.path);
    assert_int_equal(bytes, (uint64_t)vfs.f_blocks * vfs.f_frsize);
    assert_int_equal(kvd_machine_file_system("no/such/relative", at, &bytes), 0);
    assert_string_equal(at, ".");
    assert_int_equal(kvd_machine_file_system("/no/such", at, &bytes), 0);
    assert_string_equal(at, "/");
    assert_int_equal(kvd_machine_file_system("/dev/null/x", at, &bytes), -ENOTDIR);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_v2_takes_the_smallest_on_the_way_up, setup, teardown),
    cmocka_unit_test_setup_teardown(test_v2_in_a_container, setup, teardown),
    cmocka_unit_test_setup_teardown(test_v1, setup, teardown),
    cmocka_unit_test_setup_teardown(test_both_versions_at_once, setup, teardown),
    cmocka_unit_test_setup_teardown(test_nothing_to_read, setup, teardown),
    cmocka_unit_test_setup_teardown(test_file_system_of_the_nearest_folder, setup, teardown),
};
KVD_TEST_MAIN(tests)
