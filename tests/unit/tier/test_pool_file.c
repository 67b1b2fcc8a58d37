/* The pool's file: found again, damaged, foreign, locked, on a full file system. */
#include "pool_fixture.h"

#include <grp.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <xxhash.h>

#include "cachesvc/tier/pool_internal.h"

static ino_t inode_of(const struct fixture *f)
{
    struct stat st;
    assert_int_equal(stat(f->path, &st), 0);
    return st.st_ino;
}

static uint64_t blocks_of(struct fixture *f)
{
    struct kvd_pool_stat st;
    kvd_pool_stat(f->pool, &st);
    return st.blocks;
}

static void put_many(struct fixture *f, uint32_t from, uint32_t to, uint32_t payload)
{
    for (uint32_t n = from; n < to; n++) {
        assert_int_equal(block_put_unpinned(f->pool, n, payload), 0);
    }
}

/* ---- warm start ---- */

static void check_meta(struct fixture *f, uint32_t n, uint32_t payload)
{
    struct kvd_slot *slot = block_pin(f->pool, n);
    assert_non_null(slot);
    const struct kvd_slot_meta want = meta_of(n, payload);
    assert_memory_equal(&slot->meta.addr, &want.addr, sizeof(want.addr));
    assert_memory_equal(&slot->meta.group, &want.group, sizeof(want.group));
    assert_int_equal(slot->meta.index, want.index);
    assert_int_equal(slot->meta.scenario, want.scenario);
    assert_int_equal(slot->meta.last_use_day, want.last_use_day);
    assert_int_equal(slot->meta.created_day, want.created_day);
    assert_int_equal(slot->meta.put_id, want.put_id);
    assert_int_equal(slot->meta.header_bytes, want.header_bytes);
    assert_int_equal(slot->meta.payload_bytes, want.payload_bytes);
    assert_true(bytes_right(slot->base, HEADER_BYTES + payload, n));
    kvd_pool_unpin(f->pool, slot);
}

static void test_warm_restart(void **state)
{
    (void)state;
    struct fixture f;
    struct kvd_pool_stat before;
    struct kvd_pool_stat st;
    fixture_begin(&f, 64 * MIB);
    fixture_open(&f);
    put_many(&f, 0, 100, 60000);
    put_many(&f, 100, 110, 1500000);
    struct kvd_slot *slot = block_pin(f.pool, 7);
    const uint32_t generation = slot->generation;
    kvd_pool_set_nvme_segment(f.pool, slot, UINT32_MAX - 1);
    kvd_pool_unpin(f.pool, slot);
    slot = block_pin(f.pool, 8);
    kvd_pool_remove(f.pool, slot);
    kvd_pool_unpin(f.pool, slot);
    kvd_pool_stat(f.pool, &before);
    const ino_t inode = inode_of(&f);
    kvd_pool_close(&f.pool);

    fixture_open(&f);
    assert_int_equal(inode_of(&f), inode);
    kvd_pool_stat(f.pool, &st);
    assert_int_equal(st.blocks, 109);
    assert_int_equal(st.warm_blocks, 109);
    assert_int_equal(st.used_bytes, before.used_bytes);
    assert_int_equal(st.page_bytes, before.page_bytes);
    assert_int_equal(st.pinned_bytes, 0);
    for (uint32_t n = 0; n < 110; n++) {
        if (n != 8) {
            check_meta(&f, n, n < 100 ? 60000 : 1500000);
        }
    }
    assert_false(block_there(f.pool, 8)); /* what was removed stays so */
    slot = block_pin(f.pool, 7);
    assert_int_equal(slot->meta.nvme_segment, UINT32_MAX - 1);
    assert_int_equal(slot->generation, generation);
    assert_false(slot->verified);
    kvd_pool_set_verified(f.pool, slot);
    assert_true(slot->verified);
    kvd_pool_unpin(f.pool, slot);
    assert_int_equal(block_put(f.pool, 8, 60000, &slot), 0);
    assert_true(slot->verified);
    kvd_pool_unpin(f.pool, slot);
    fixture_end(&f);
}

/* After a restart what was used long ago goes first, as before. */
static void test_warm_restart_keeps_order(void **state)
{
    (void)state;
    struct fixture f;
    uint32_t n = 0;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    while (f.evicted == 0) {
        put_many(&f, n, n + 1, 100000);
        n++;
    }
    for (uint32_t i = n - 1; i >= 10; i--) { /* now 10 is the youngest, but for 1 to 9 */
        struct kvd_slot *slot = block_pin(f.pool, i);
        kvd_pool_touch(f.pool, slot, 0, 100);
        kvd_pool_unpin(f.pool, slot);
    }
    kvd_pool_close(&f.pool);
    fixture_open(&f);
    f.evicted = 0;
    f.evicted_index_sum = 0;
    put_many(&f, 5000, 5009, 100000);
    assert_int_equal(f.evicted, 9);
    assert_int_equal(f.evicted_index_sum, 45); /* 1 to 9 */
    put_many(&f, 5009, 5010, 100000);
    assert_int_equal(f.evicted_index_sum, 45 + n - 1);
    fixture_end(&f);
}

/* A process that dies in the middle: what was READY is there, what was FILLING is not, and the slot
 * that was FILLING comes under a generation that was never given. */
static void r_killed_while_filling(void **state)
{
    (void)state;
    struct fixture f;
    int pipe_fd[2];
    fixture_begin(&f, 16 * MIB);
    assert_int_equal(pipe(pipe_fd), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        struct kvd_slot *slot;
        struct kvd_slot *pinned;
        if (kvd_pool_open(&f.options, &f.diag, &f.pool) != 0 ||
            block_put(f.pool, 1, 60000, &pinned) != 0 ||
            block_put_unpinned(f.pool, 2, 60000) != 0 || block_put(f.pool, 3, 60000, &slot) != 0) {
            _exit(1);
        }
        kvd_pool_remove(f.pool, slot); /* its header stays, and the next one fills its slot */
        kvd_pool_unpin(f.pool, slot);
        if (kvd_pool_alloc(f.pool, 64096, 0, &slot) != 0) {
            _exit(1);
        }
        memset(slot->base, 0xee, 64096);
        (void)!write(pipe_fd[1], &slot->generation, sizeof(slot->generation));
        (void)kill(getpid(), SIGKILL);
    }
    int status;
    uint32_t generation;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(read(pipe_fd[0], &generation, sizeof(generation)), sizeof(generation));
    (void)close(pipe_fd[0]);
    (void)close(pipe_fd[1]);
    fixture_open(&f);
    assert_int_equal(blocks_of(&f), 2);
    assert_false(block_there(f.pool, 3));
    check_meta(&f, 1, 60000);
    check_meta(&f, 2, 60000);
    struct kvd_slot *slot;
    assert_int_equal(kvd_pool_alloc(f.pool, 64096, 0, &slot), 0);
    assert_true(slot->generation > generation);
    kvd_pool_cancel(f.pool, slot);
    fixture_end(&f);
}

/* ---- damage ---- */

static void file_write(const struct fixture *f, uint64_t at, const void *bytes, size_t n)
{
    const int fd = open(f->path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, (off_t)at), n);
    (void)close(fd);
}

static void file_flip(const struct fixture *f, uint64_t at)
{
    uint8_t byte;
    const int fd = open(f->path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    (void)close(fd);
    byte ^= 0x55;
    file_write(f, at, &byte, 1);
}

/* Where the parts lie in the file of a pool with this cap. */
static uint64_t page_at(uint64_t cap, uint32_t page)
{
    struct pool_layout l;
    pool_layout_init(&l, cap);
    return pool_layout_page_offset(&l, page);
}

static uint64_t slot_header_at(uint64_t cap, uint32_t page, uint32_t slot)
{
    struct pool_layout l;
    pool_layout_init(&l, cap);
    return pool_layout_page_offset(&l, page) + POOL_GENERATIONS_OFFSET + 4ull * l.max_slots +
           sizeof(struct pool_slot_header) * slot;
}

static void r_damaged_slot_header(void **state)
{
    (void)state;
    struct fixture f;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    put_many(&f, 0, 10, 60000);
    kvd_pool_close(&f.pool);
    for (uint32_t i = 0; i < sizeof(struct pool_slot_header); i++) {
        const uint64_t at = slot_header_at(f.options.cap_bytes, 0, 3) + i;
        file_flip(&f, at);
        fixture_open(&f);
        assert_int_equal(blocks_of(&f), 9);
        assert_false(block_there(f.pool, 3));
        assert_true(block_there(f.pool, 2) && block_there(f.pool, 4));
        /* the slot is free again: the next block takes it, and the rest is whole */
        put_many(&f, 3, 4, 60000);
        for (uint32_t n = 0; n < 10; n++) {
            check_meta(&f, n, 60000);
        }
        kvd_pool_close(&f.pool);
    }
    fixture_open(&f);
    fixture_end(&f);
}

/* Headers with good sums that say what cannot be. */
static void r_lying_slot_header(void **state)
{
    (void)state;
    struct fixture f;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    put_many(&f, 0, 3, 60000);
    struct pool_slot *inside = (struct pool_slot *)(void *)block_pin(f.pool, 1);
    static const struct {
        uint32_t header_bytes;
        uint32_t payload_bytes;
    } lies[] = {{0, 100}, {4097, 100}, {4096, 1u << 31}, {UINT32_MAX & ~4095u, UINT32_MAX}};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        inside->pub.meta.header_bytes = lies[i].header_bytes;
        inside->pub.meta.payload_bytes = lies[i].payload_bytes;
        pool_file_slot_meta(f.pool, inside);
        assert_false(pool_file_slot_read(f.pool, inside));
    }
    inside->pub.meta.header_bytes = HEADER_BYTES;
    inside->pub.meta.payload_bytes = 60000;
    kvd_pool_unpin(f.pool, &inside->pub);
    fixture_end(&f);
}

static void r_damaged_page_header(void **state)
{
    (void)state;
    struct fixture f;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    struct pool_layout l;
    pool_layout_init(&l, f.options.cap_bytes);
    const uint32_t in_page = l.shape[pool_layout_class(&l, 64096)].slots;
    put_many(&f, 0, 2 * in_page, 60000);
    kvd_pool_close(&f.pool);
    for (uint32_t i = 0; i < sizeof(struct pool_page_header); i++) {
        file_flip(&f, page_at(f.options.cap_bytes, 0) + i);
        fixture_open(&f);
        assert_int_equal(blocks_of(&f), in_page);
        assert_false(block_there(f.pool, 0));
        put_many(&f, 0, in_page, 60000); /* it is a page like others again */
        for (uint32_t n = 0; n < 2 * in_page; n++) {
            check_meta(&f, n, 60000);
        }
        kvd_pool_close(&f.pool);
    }
    fixture_open(&f);
    fixture_end(&f);
}

static void r_damaged_file_header(void **state)
{
    (void)state;
    struct fixture f;
    fixture_begin(&f, 16 * MIB);
    /* past the magic: without that it would be no pool file, see test_foreign_file_survives */
    for (uint32_t i = sizeof(uint64_t); i < sizeof(struct pool_file_header); i += 5) {
        fixture_open(&f);
        put_many(&f, 0, 3, 60000);
        kvd_pool_close(&f.pool);
        file_flip(&f, i);
        fixture_open(&f);
        assert_int_equal(blocks_of(&f), 0);
        kvd_pool_close(&f.pool);
    }
    /* cut short, and empty */
    assert_int_equal(truncate(f.path, 5 << 20), 0);
    fixture_open(&f);
    kvd_pool_close(&f.pool);
    assert_int_equal(truncate(f.path, 0), 0);
    fixture_open(&f);
    fixture_end(&f);
}

/* A page changes its class, and its new slot headers come to lie on what were bytes of the old
 * class's slots: a client's payload, which may look like headers of READY slots, sums and all. */
static void r_payload_that_looks_like_slot_headers(void **state)
{
    (void)state;
    enum { SMALL = 4096, LARGE = 500000, FROM = 8192 };
    struct fixture f;
    struct pool_layout l;
    struct kvd_slot *slot = NULL;
    fixture_begin(&f, 16 * MIB);
    pool_layout_init(&l, f.options.cap_bytes);
    const struct pool_shape *small = &l.shape[pool_layout_class(&l, HEADER_BYTES + SMALL)];
    const struct pool_shape *large = &l.shape[pool_layout_class(&l, HEADER_BYTES + LARGE)];
    const size_t n = small->data_offset - FROM;
    uint8_t *headers = malloc(n);
    assert_non_null(headers);
    fixture_open(&f);
    put_many(&f, 0, small->slots, SMALL); /* the first page is of the small class: its headers */
    kvd_pool_close(&f.pool);
    const int fd = open(f.path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(fd, headers, n, (off_t)page_at(f.options.cap_bytes, 0) + FROM), n);
    (void)close(fd);
    f.options.drop = true;
    fixture_open(&f);
    f.options.drop = false;
    for (uint32_t i = 0; i < l.pages * large->slots; i++) {
        assert_int_equal(block_put(f.pool, 10000 + i, LARGE, &slot), 0);
        if (i == 0 && slot) {
            assert_int_equal(slot->file_offset, page_at(f.options.cap_bytes, 0) + HEADER_BYTES);
            memcpy(slot->base + FROM - HEADER_BYTES, headers, n);
        }
        kvd_pool_unpin(f.pool, slot);
    }
    put_many(&f, 20000, 20001, SMALL); /* the coldest page, which is the first, changes its class */
    kvd_pool_close(&f.pool);
    fixture_open(&f);
    assert_int_equal(blocks_of(&f), (l.pages - 1) * large->slots + 1);
    assert_true(block_there(f.pool, 20000));
    for (uint32_t i = 0; i < small->slots; i++) {
        assert_false(block_there(f.pool, i));
    }
    free(headers);
    fixture_end(&f);
}

/* One address in two slots, both whole: one stays. */
static void r_one_address_in_two_slots(void **state)
{
    (void)state;
    struct fixture f;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    put_many(&f, 0, 3, 60000);
    struct pool_slot *inside = (struct pool_slot *)(void *)block_pin(f.pool, 1);
    const struct kvd_slot_meta was = inside->pub.meta;
    inside->pub.meta.addr = addr_of(2);
    pool_file_slot_meta(f.pool, inside);
    inside->pub.meta = was;
    kvd_pool_unpin(f.pool, &inside->pub);
    kvd_pool_close(&f.pool);
    fixture_open(&f);
    assert_int_equal(blocks_of(&f), 2);
    struct kvd_slot *slot = block_pin(f.pool, 2);
    kvd_pool_remove(f.pool, slot);
    kvd_pool_unpin(f.pool, slot);
    assert_false(block_there(f.pool, 2));
    kvd_pool_close(&f.pool);
    fixture_open(&f); /* the other one doesn't come back either */
    assert_int_equal(blocks_of(&f), 1);
    fixture_end(&f);
}

/* ---- files that are not this pool's ---- */

static void replaced(struct fixture *f)
{
    const ino_t inode = inode_of(f);
    fixture_open(f);
    const void *old_map = mmap(NULL, kvd_pool_map_bytes(f->pool), PROT_READ, MAP_SHARED,
                               kvd_pool_fd_readonly(f->pool), 0);
    assert_ptr_not_equal(old_map, MAP_FAILED);
    assert_int_not_equal(inode_of(f), inode);
    assert_int_equal(blocks_of(f), 0);
    put_many(f, 0, 3, 60000);
    kvd_pool_close(&f->pool);
    (void)munmap((void *)(uintptr_t)old_map, 1);
}

static void r_pool_of_another_store_or_size(void **state)
{
    (void)state;
    struct fixture f;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    put_many(&f, 0, 3, 60000);
    /* a client's mapping of the old file stays as it is */
    struct kvd_slot *slot = block_pin(f.pool, 1);
    const uint64_t at = slot->file_offset;
    const uint64_t bytes = kvd_pool_map_bytes(f.pool);
    kvd_pool_unpin(f.pool, slot);
    const uint8_t *client =
        mmap(NULL, bytes, PROT_READ, MAP_SHARED, kvd_pool_fd_readonly(f.pool), 0);
    kvd_pool_close(&f.pool);

    f.options.store.b[0]++;
    replaced(&f);
    f.options.cap_bytes += 8 * 4096;
    replaced(&f);
    f.options.drop = true;
    replaced(&f);
    f.options.drop = false;
    assert_int_equal(chmod(f.path, 0640), 0);
    replaced(&f);
    assert_true(bytes_right(client + at, 64096, 1));
    (void)munmap((void *)(uintptr_t)client, bytes);
    fixture_open(&f);
    assert_int_equal(blocks_of(&f), 3);
    fixture_end(&f);
}

static void refused(struct fixture *f, int err, const char *words)
{
    f->diag.text[0] = 0;
    assert_int_equal(kvd_pool_open(&f->options, &f->diag, &f->pool), err);
    assert_null(f->pool);
    if (!strstr(f->diag.text, words)) {
        fail_msg("message \"%s\" lacks \"%s\"", f->diag.text, words);
    }
}

static void test_refused(void **state)
{
    (void)state;
    struct fixture f;
    char other[192];
    fixture_begin(&f, 15 * MIB);
    refused(&f, -KVD_E_CONFIG, "cap");
    f.options.cap_bytes = UINT64_MAX;
    refused(&f, -KVD_E_CONFIG, "cap");
    f.options.cap_bytes = 16 * MIB;
    (void)snprintf(other, sizeof(other), "%s/no/pool", f.folder);
    f.options.path = other;
    refused(&f, -ENOENT, other);
    f.options.path = f.path;
    /* a link to a file that is none of ours must not be followed, nor removed */
    assert_int_equal(symlink("/etc/passwd", f.path), 0);
    refused(&f, -ELOOP, "symbolic link");
    assert_int_equal(unlink(f.path), 0);
    assert_int_equal(mkdir(f.path, 0700), 0);
    refused(&f, -EISDIR, f.path);
    assert_int_equal(rmdir(f.path), 0);
    assert_int_equal(mkfifo(f.path, 0600), 0);
    refused(&f, -KVD_E_CONFIG, "not a file");
    assert_int_equal(unlink(f.path), 0);
    fixture_open(&f);
    assert_int_equal(rmdir(f.folder), -1);
    fixture_end(&f);
}

/* A path mistyped: whatever lies there that is no pool file is refused, and left byte for byte. */
static void survives(struct fixture *f, const void *bytes, size_t n)
{
    uint8_t have[2 * POOL_UNIT_BYTES];
    const int fd = open(f->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    for (int drop = 0; drop < 2; drop++) {
        f->options.drop = drop;
        refused(f, -KVD_E_WRONG_STORE, f->path);
        assert_int_equal(pread(fd, have, sizeof(have), 0), n);
        assert_memory_equal(have, bytes, n);
        assert_int_equal(access(f->path, F_OK), 0);
    }
    f->options.drop = false;
    (void)close(fd);
}

static void test_foreign_file_survives(void **state)
{
    (void)state;
    struct fixture f;
    uint8_t bytes[POOL_UNIT_BYTES + 1] = {0};
    fixture_begin(&f, 16 * MIB);
    survives(&f, "shopping: bread, milk\n", 22);
    survives(&f, "x", 1);
    survives(&f, "kvdpool", 7);               /* less than the magic */
    survives(&f, bytes, POOL_UNIT_BYTES - 1); /* zeros, but too few for a half-made file */
    bytes[POOL_UNIT_BYTES - 1] = 1;
    survives(&f, bytes, sizeof(bytes));
    bytes[0] = 'k'; /* the first of "kvdpool1", and no more */
    survives(&f, bytes, sizeof(bytes));
    /* half-made: as long as it was to be, but without a header */
    assert_int_equal(truncate(f.path, 0), 0);
    assert_int_equal(truncate(f.path, 16 << 20), 0);
    replaced(&f);
    fixture_open(&f);
    assert_int_equal(blocks_of(&f), 3);
    fixture_end(&f);
}

/* Two daemons on one file: the second must neither use nor replace it. */
static void test_second_opener_refused(void **state)
{
    (void)state;
    struct fixture f;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    put_many(&f, 0, 3, 60000);
    struct fixture second = f;
    second.pool = NULL;
    second.options.drop = true;
    refused(&second, -KVD_E_IN_USE, "another process");
    assert_int_equal(blocks_of(&f), 3);
    kvd_pool_close(&f.pool);
    fixture_open(&f);
    assert_int_equal(blocks_of(&f), 3);
    fixture_end(&f);
}

/* ---- frozen ---- */

static uint64_t sum_in_file(const struct fixture *f, uint64_t at, size_t n)
{
    uint8_t bytes[256];
    assert_true(n <= sizeof(bytes));
    const int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, bytes, n, (off_t)at), n);
    (void)close(fd);
    return XXH3_64bits(bytes, n);
}

/* The bytes of the three headers for known content. A change that alters one of the numbers is a
 * new POOL_FILE_VERSION: a daemon must not take a file of another layout for its own. */
static void test_headers_are_frozen(void **state)
{
    (void)state;
    struct fixture f;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    put_many(&f, 0, 3, 60000);
    struct kvd_slot *slot = block_pin(f.pool, 2);
    kvd_pool_set_nvme_segment(f.pool, slot, UINT64_C(0x11223344));
    kvd_pool_unpin(f.pool, slot);
    kvd_pool_close(&f.pool);
    assert_int_equal(POOL_FILE_VERSION, 2);
    const uint64_t cap = f.options.cap_bytes;
    assert_int_equal(sum_in_file(&f, 0, sizeof(struct pool_file_header)),
                     UINT64_C(0x9d46ed2f4825d174));
    assert_int_equal(sum_in_file(&f, page_at(cap, 0), sizeof(struct pool_page_header)),
                     UINT64_C(0x86c1c8aa9b78db76));
    assert_int_equal(sum_in_file(&f, slot_header_at(cap, 0, 2), sizeof(struct pool_slot_header)),
                     UINT64_C(0x85e55e092a34233d));
    fixture_open(&f);
    check_meta(&f, 0, 60000);
    slot = block_pin(f.pool, 2);
    assert_int_equal(slot->meta.nvme_segment, UINT64_C(0x11223344));
    kvd_pool_unpin(f.pool, slot);
    fixture_end(&f);
}

/* ---- rights ---- */

/* In a child that became nobody: 0 when the file can't be got for writing by any way, else the
 * number of the way. The parent is the daemon; `map` is where it has the file. */
static int try_writing(int fd, const char *path, void *map)
{
    char own[64];
    char daemons[64];
    char memory[64];
    const uint8_t byte = 1;
    struct iovec from = {(void *)(uintptr_t)&byte, 1};
    struct iovec to = {map, 1};
    (void)snprintf(own, sizeof(own), "/proc/self/fd/%d", fd);
    (void)snprintf(daemons, sizeof(daemons), "/proc/%d/fd/%d", (int)getppid(), fd);
    (void)snprintf(memory, sizeof(memory), "/proc/%d/mem", (int)getppid());
    if (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0 || geteuid() == 0) {
        return 100;
    }
    void *readable = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    const bool ways[] = {
        readable == MAP_FAILED, /* reading is what it is for */
        open(own, O_RDWR | O_CLOEXEC) >= 0,
        open(own, O_WRONLY | O_CLOEXEC) >= 0,
        open(daemons, O_RDWR | O_CLOEXEC) >= 0,
        open(memory, O_RDWR | O_CLOEXEC) >= 0,
        open(path, O_RDWR | O_CLOEXEC) >= 0,
        open(path, O_RDONLY | O_CLOEXEC) >= 0,
        pwrite(fd, &byte, 1, 0) >= 0,
        ftruncate(fd, 0) == 0,
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0,
        fchmod(fd, 0666) == 0,
        chmod(path, 0666) == 0,
        unlink(path) == 0,
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED,
        mprotect(readable, 4096, PROT_READ | PROT_WRITE) == 0,
        process_vm_writev(getppid(), &from, 1, &to, 1, 0) >= 0,
        ptrace(PTRACE_ATTACH, getppid(), NULL, NULL) == 0,
    };
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        if (ways[i]) {
            return 1 + (int)i;
        }
    }
    return 0;
}

static void r_pool_not_writable_by_another_uid(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        KVD_SKIP("root", "needs root to become another user");
    }
    struct fixture f;
    struct stat st;
    int status;
    fixture_begin(&f, 16 * MIB);
    assert_int_equal(chmod(f.folder, 0755), 0);
    fixture_open(&f);
    put_many(&f, 0, 3, 60000);
    assert_int_equal(stat(f.path, &st), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        _exit(try_writing(kvd_pool_fd_readonly(f.pool), f.path, f.pool->map));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(fcntl(kvd_pool_fd_readonly(f.pool), F_GETFL) & O_ACCMODE, O_RDONLY);
    assert_true(fcntl(kvd_pool_fd_readonly(f.pool), F_GETFD) & FD_CLOEXEC);
    for (uint32_t n = 0; n < 3; n++) {
        check_meta(&f, n, 60000);
    }
    fixture_end(&f);
}

/* Whoever opened the file while others might may have it open for writing still. */
static void r_pool_that_others_could_write(void **state)
{
    (void)state;
    struct fixture f;
    struct stat st;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    put_many(&f, 0, 3, 60000);
    const ino_t inode = inode_of(&f);
    kvd_pool_close(&f.pool);
    assert_int_equal(chmod(f.path, 0660), 0);
    fixture_open(&f);
    assert_int_equal(blocks_of(&f), 0);
    assert_true(inode_of(&f) != inode);
    assert_int_equal(stat(f.path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    fixture_end(&f);
}

/* ---- a file system with less room than the cap ---- */

static void test_full_file_system(void **state)
{
    (void)state;
    struct fixture f;
    struct kvd_pool_stat st;
    struct kvd_slot *slot = NULL;
    fixture_begin(&f, 32 * MIB);
    if (geteuid() != 0 || mount("kvd", f.folder, "tmpfs", 0, "size=10m") != 0) {
        (void)rmdir(f.folder);
        KVD_SKIP("root", "needs the right to mount a tmpfs");
    }
    int pipe_fd[2];
    struct kvd_log log;
    char text[4096];
    assert_int_equal(pipe(pipe_fd), 0);
    kvd_log_init(&log, pipe_fd[1], "test", KVD_LOG_INFO);
    f.options.log = &log;
    fixture_open(&f);
    for (uint32_t n = 0; n < 600; n++) { /* 36 MB through room for two pages of 4 MiB */
        assert_int_equal(block_put_unpinned(f.pool, n, 60000), 0);
        slot = block_pin(f.pool, n);
        assert_true(bytes_right(slot->base, 64096, n));
        kvd_pool_unpin(f.pool, slot);
    }
    kvd_pool_stat(f.pool, &st);
    assert_true(st.page_bytes <= 10 * MIB && st.used_bytes > 7 * MIB);
    assert_int_equal(st.evicted_blocks + st.blocks, 600);
    const ssize_t n = read(pipe_fd[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = 0;
    assert_non_null(strstr(text, "cannot grow"));
    assert_ptr_equal(strchr(text, '\n'), text + n - 1); /* said once */
    kvd_pool_close(&f.pool);
    (void)close(pipe_fd[0]);
    (void)close(pipe_fd[1]);
    assert_int_equal(umount(f.folder), 0);
    assert_int_equal(rmdir(f.folder), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_warm_restart),
    cmocka_unit_test(test_warm_restart_keeps_order),
    cmocka_unit_test(r_killed_while_filling),
    cmocka_unit_test(r_damaged_slot_header),
    cmocka_unit_test(r_lying_slot_header),
    cmocka_unit_test(r_damaged_page_header),
    cmocka_unit_test(r_damaged_file_header),
    cmocka_unit_test(r_payload_that_looks_like_slot_headers),
    cmocka_unit_test(r_one_address_in_two_slots),
    cmocka_unit_test(r_pool_of_another_store_or_size),
    cmocka_unit_test(test_refused),
    cmocka_unit_test(test_foreign_file_survives),
    cmocka_unit_test(test_second_opener_refused),
    cmocka_unit_test(test_headers_are_frozen),
    cmocka_unit_test(r_pool_not_writable_by_another_uid),
    cmocka_unit_test(r_pool_that_others_could_write),
    cmocka_unit_test(test_full_file_system),
};
KVD_TEST_MAIN(tests)
