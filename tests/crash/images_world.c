#include "images_world.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kvd_test.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"

enum { WORLD_NVME_CAP = 3 << 20, WORLD_SEGMENT = 256 << 10 };

/* In the place of the C library's, for RocksDB: it keeps room for its log ahead, megabytes at each
 * opening, which costs more than all else that is done with an image in memory. */
int world_fallocate(int fd, int mode, off_t offset, off_t bytes) __asm__("fallocate");

__attribute__((visibility("default"))) int world_fallocate(int fd, int mode, off_t offset,
                                                           off_t bytes)
{
    return mode & FALLOC_FL_KEEP_SIZE ? 0 : (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}

/* ---- prompts ---- */

bool world_guest(uint32_t prompt)
{
    return prompt % 10 == 7;
}

const char *world_tenant(uint32_t prompt)
{
    return world_guest(prompt) ? "guest" : "";
}

const char *world_class(uint32_t prompt)
{
    return prompt % 2 ? "agent" : "chat";
}

uint32_t world_blocks(uint32_t prompt)
{
    return prompt % 5 ? 1 : WORLD_BLOCKS_MAX;
}

uint32_t world_tokens(uint32_t prompt, uint32_t ret[WORLD_TOKENS_MAX])
{
    uint32_t n = world_blocks(prompt) * RIG_BLOCK_TOKENS + 5;
    rig_tokens(1000 + prompt, n, ret);
    return n;
}

void world_keys(uint32_t prompt, uint64_t seed, struct kvd_key ret[WORLD_BLOCKS_MAX])
{
    uint32_t tokens[WORLD_TOKENS_MAX];
    struct kvd_space_desc desc = rig_space(1);
    struct kvd_digest space;
    struct kvd_digest tenant;
    struct kvd_key root;
    (void)world_tokens(prompt, tokens);
    kvd_space_digest(&desc, &space);
    kvd_tenant_digest(world_tenant(prompt), strlen(world_tenant(prompt)), &tenant);
    kvd_key_root(seed, &space, &tenant, NULL, &root);
    kvd_key_chain(seed, &root, tokens, RIG_BLOCK_TOKENS, world_blocks(prompt), ret);
}

/* ---- the store ---- */

static void set(struct rig *rig, const char *name, const char *value)
{
    struct kvd_diag diag = {{0}};
    if (kvd_config_set(&rig->config, name, value, name, &diag)) {
        fail_msg("%s", diag.text);
    }
}

void world_rig(struct rig *rig, const char *root, const char *pool)
{
    struct kvd_diag diag = {{0}};
    char path[WORLD_PATH_BYTES];
    memset(rig, 0, sizeof(*rig));
    assert_int_equal(kvd_config_init(&rig->config), 0);
    world_path(path, root, WORLD_DIR);
    set(rig, "dir", path);
    world_path(path, root, WORLD_NVME);
    set(rig, "nvme.path", path);
    set(rig, "dram.path", pool);
    set(rig, "dram.cap", "32MiB");
    set(rig, "nvme.cap", "16MiB");
    set(rig, "nvme.queue", "4MiB");
    set(rig, "index.cache", "1MiB");
    if (kvd_config_finish(&rig->config, &diag)) {
        fail_msg("%s", diag.text);
    }
    /* far below what people may set, so that it fills up within a short record */
    rig->config.nvme_cap = WORLD_NVME_CAP;
    rig->config.nvme_segment = WORLD_SEGMENT;
}

bool world_identity(const char *root, uint64_t *ret_seed, uint64_t *ret_boot)
{
    char path[WORLD_PATH_BYTES];
    char text[512] = "";
    world_path(path, root, WORLD_DIR "/IDENTITY");
    KVD_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0) {
        return false;
    }
    const char *seed = strstr(text, "\nseed ");
    const char *boot = strstr(text, "\nboot ");
    if (!seed || !boot) {
        return false;
    }
    *ret_seed = strtoull(seed + strlen("\nseed "), NULL, 16);
    *ret_boot = strtoull(boot + strlen("\nboot "), NULL, 10);
    return true;
}

/* ---- files ---- */

void world_path(char ret[WORLD_PATH_BYTES], const char *folder, const char *name)
{
    int n = snprintf(ret, WORLD_PATH_BYTES, "%s/%s", folder, name);
    assert_true(n > 0 && n < WORLD_PATH_BYTES);
}

void world_write_file(const char *path, const void *bytes, uint64_t n)
{
    KVD_AUTOCLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
}

void world_copy(const char *from, const char *to, uint64_t bytes_most)
{
    uint8_t buf[1 << 16];
    KVD_AUTOCLOSE int in = open(from, O_RDONLY | O_CLOEXEC);
    KVD_AUTOCLOSE int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(in >= 0 && out >= 0);
    for (ssize_t n; bytes_most > 0; bytes_most -= (uint64_t)n) {
        n = read(in, buf, bytes_most < sizeof(buf) ? bytes_most : sizeof(buf));
        if (n <= 0) {
            break;
        }
        assert_int_equal(write(out, buf, (size_t)n), n);
    }
}

static void close_dir(DIR **dir)
{
    if (*dir) {
        (void)closedir(*dir);
    }
}

static bool own_file(const char *name)
{
    return name[0] != '.' && strncmp(name, "LOG", 3) != 0 && strcmp(name, "LOCK") != 0;
}

void world_copy_index(const char *from, const char *to)
{
    KVD_CLEANUP(close_dir) DIR *dir = opendir(from);
    assert_non_null(dir);
    assert_true(mkdir(to, 0700) == 0 || errno == EEXIST);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        char a[WORLD_PATH_BYTES];
        char b[WORLD_PATH_BYTES];
        if (own_file(e->d_name)) {
            world_path(a, from, e->d_name);
            world_path(b, to, e->d_name);
            world_copy(a, b, UINT64_MAX);
        }
    }
}

uint64_t world_wal(const char *index, char ret_name[64])
{
    KVD_CLEANUP(close_dir) DIR *dir = opendir(index);
    assert_non_null(dir);
    unsigned long newest = 0;
    ret_name[0] = 0;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        const char *dot = strrchr(e->d_name, '.');
        unsigned long number = strtoul(e->d_name, NULL, 10);
        if (dot && strcmp(dot, ".log") == 0 && number > newest) {
            newest = number;
            (void)snprintf(ret_name, 64, "%.60s", e->d_name);
        }
    }
    struct stat st;
    return newest && fstatat(dirfd(dir), ret_name, &st, 0) == 0 ? (uint64_t)st.st_size : 0;
}

uint64_t world_index_shape(const char *index)
{
    KVD_CLEANUP(close_dir) DIR *dir = opendir(index);
    assert_non_null(dir);
    uint64_t shape = 0;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        char line[320];
        struct stat st;
        const char *dot = strrchr(e->d_name, '.');
        if (!own_file(e->d_name) || fstatat(dirfd(dir), e->d_name, &st, 0) != 0) {
            continue;
        }
        bool log = dot && strcmp(dot, ".log") == 0;
        int n =
            snprintf(line, sizeof(line), "%s %" PRIu64, e->d_name, log ? 0 : (uint64_t)st.st_size);
        shape += kvd_sum(line, (uint64_t)n);
    }
    return shape;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void world_remove(const char *folder)
{
    (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
