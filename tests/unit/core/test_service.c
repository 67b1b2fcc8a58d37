/* The service over a real store: RocksDB, segments on a real file system, a pool file. No sockets.
 */
#include "kvd_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <unistd.h>

#include "moved_wall.h"
#include "proto/base/clock.h"
#include "service_rig.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5 };

static void put_match_load(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(1, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 0);
    assert_int_equal(rig.match.lease, 0);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    assert_int_equal(rig.results[0].tier, KVD_TIER_DRAM);
    /* the last token is always left to compute: a prompt of exactly N blocks asks for N - 1 */
    assert_int_equal(rig_hit(&rig, "", tokens, N * RIG_BLOCK_TOKENS), N - 1);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N); /* all stored already */
    assert_int_equal(rig_number(&rig, "status", "", "puts.committed_blocks"), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static void below_after_restart(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(2, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_close(&rig);
    rig_open(&rig, true);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
    assert_int_equal(rig.results[0].tier, KVD_TIER_NVME);
    assert_int_equal(rig_load(&rig, tokens), N);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N); /* promoted by the read */
    assert_int_equal(rig.results[N - 1].tier, KVD_TIER_DRAM);
    assert_int_equal(rig_load(&rig, tokens), N);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.hit.nvme.blocks"), N);
    rig_close(&rig);
    rig_open(&rig, true); /* counters survive */
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.hit.nvme.blocks"), N);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.hit.dram.blocks"), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static void dram_survives_a_restart(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(3, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_close(&rig);
    rig_open(&rig, false);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.0.warm_blocks"), N);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
    assert_int_equal(rig.results[0].tier, KVD_TIER_DRAM);
    assert_int_equal(rig_load(&rig, tokens), N);
    rig_fini(&rig);
}

/* ---- damage ---- */

static char damaged_path[512];

static int find_segment(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)flag;
    (void)ftw;
    if (S_ISREG(st->st_mode) && strstr(path, ".seg")) {
        (void)snprintf(damaged_path, sizeof(damaged_path), "%s", path);
    }
    return 0;
}

/* Flips one byte of the file at an offset. */
static void flip(const char *path, off_t at)
{
    uint8_t b;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= 1;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    assert_int_equal(fsync(fd), 0);
    (void)close(fd);
}

static void flip_in_segment(const struct rig *rig, uint32_t record, uint64_t offset_in_record)
{
    uint64_t extent = 4096 + rig_block_bytes();
    damaged_path[0] = 0;
    assert_int_equal(nftw(rig->folder, find_segment, 16, FTW_PHYS), 0);
    assert_true(damaged_path[0]);
    flip(damaged_path, (off_t)(4096 + record * extent + offset_in_record));
}

static void r_flipped_byte_in_a_segment(void **state)
{
    (void)state;
    const uint64_t places[] = {4096, 4096 + 777, 200, 16}; /* payload, header's fields */
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        struct rig rig;
        uint32_t tokens[TOKENS];
        rig_tokens(4, TOKENS, tokens);
        rig_init(&rig, "64MiB", "64MiB");
        rig_open(&rig, false);
        assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
        rig_close(&rig);
        flip_in_segment(&rig, 5, places[i]);
        rig_open(&rig, true);
        assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
        assert_int_equal(rig_load(&rig, tokens), 5);
        assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 1);
        assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.hit.nvme.blocks"), 5);
        assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.failed.blocks"), N - 5);
        rig_assert_adds_up(&rig);
        rig_settle(&rig);
        assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS),
                         5); /* nobody looks there again */
        assert_int_equal(rig_load(&rig, tokens), 5);
        assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N); /* and it can be stored anew */
        assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
        rig_fini(&rig);
    }
}

/* Flips a byte of the payload of each record that lies in the pool file; returns how many. */
static uint32_t flip_payloads(const char *path)
{
    uint32_t n = 0;
    char magic[8];
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    for (off_t at = 0; at < 1024 * 4096; at += 4096) {
        if (pread(fd, magic, sizeof(magic), at) == sizeof(magic) &&
            memcmp(magic, "KVDRECRD", sizeof(magic)) == 0) {
            flip(path, at + 4096 + 777);
            n++;
        }
    }
    (void)close(fd);
    return n;
}

static void r_flipped_byte_in_a_warm_pool(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(5, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
    rig_close(&rig);
    char path[300];
    (void)snprintf(path, sizeof(path), "%s/pool", rig.folder);
    assert_int_equal(flip_payloads(path), N);
    rig_open(&rig, false);
    /* whatever is served is right: rig_load compares every byte. All is served: nvme has good
     * copies */
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), N);
    rig_close(&rig);
    /* every 1,000th byte, those of headers too: of pages, of slots, of records */
    for (off_t at = 8192; at < 128 * 4096; at += 1000) {
        flip(path, at);
    }
    rig_open(&rig, false);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static void r_segment_deleted_behind_the_back(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(6, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_close(&rig);
    assert_int_equal(nftw(rig.folder, find_segment, 16, FTW_PHYS), 0);
    assert_int_equal(unlink(damaged_path), 0);
    rig_open(&rig, true);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static void r_record_that_cannot_be_read(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(17, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_close(&rig);
    assert_int_equal(nftw(rig.folder, find_segment, 16, FTW_PHYS), 0);
    uint64_t extent = 4096 + rig_block_bytes();
    assert_int_equal(truncate(damaged_path, (off_t)(4096 + 3 * extent + 4096)), 0);
    rig_open(&rig, true);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 3);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.hit.nvme.blocks"), 3);
    rig_assert_adds_up(&rig);
    rig_settle(&rig);
    /* it heals: what can't be read is forgotten as it is met, and stored anew */
    for (int i = 0; i < N && rig_hit(&rig, "", tokens, TOKENS) < N; i++) {
        assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
        rig_settle(&rig);
    }
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void r_lost_index_is_rebuilt(void **state)
{
    (void)state;
    struct rig rig;
    char index[300];
    uint32_t tokens[TOKENS];
    rig_tokens(7, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_close(&rig);
    (void)snprintf(index, sizeof(index), "%s/index", rig.folder);
    assert_int_equal(nftw(index, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    rig_open(&rig, true);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    uint64_t used = rig_number(&rig, "status", "", "tiers.1.used_bytes");
    rig_close(&rig);
    rig_open(&rig, true); /* twice changes nothing */
    assert_int_equal(rig_number(&rig, "status", "", "tiers.1.used_bytes"), used);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.1.blocks"), N);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_fini(&rig);
}

/* ---- why not ---- */

static void reasons(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    uint32_t other[TOKENS];
    rig_tokens(8, TOKENS, tokens);
    memcpy(other, tokens, sizeof(tokens));
    other[3 * RIG_BLOCK_TOKENS + 1] ^= 1;
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.never_seen.blocks"), N);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.short.tokens"), 5);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_settle(&rig);
    assert_int_equal(rig_hit(&rig, "", other, TOKENS), 3);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.diverged.blocks"), N - 3);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.other_owner.blocks"), N);
    rig_connect(&rig, 2); /* other weights under the same name */
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.other_owner.blocks"), 2 * N);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.never_seen.blocks"), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static void retention(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t chat[TOKENS];
    uint32_t agent[TOKENS];
    rig_tokens(9, TOKENS, chat);
    rig_tokens(10, TOKENS, agent);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", chat, N), N);
    assert_int_equal(rig_put(&rig, "", "agent", agent, N), N);
    rig_close(&rig);
    moved_wall_advance(5 * 86400); /* more than 3 days and a day, less than 7 */
    rig_open(&rig, true);
    assert_int_equal(rig_match(&rig, "", "agent", agent, TOKENS), 0);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.expired.blocks"), N);
    assert_int_equal(rig_hit(&rig, "", chat, TOKENS), N); /* which is a use: 7 days from here */
    rig_close(&rig);
    moved_wall_advance(5 * 86400);
    rig_open(&rig, false);
    assert_int_equal(rig_match(&rig, "", "agent", agent, TOKENS), 0);
    assert_int_equal(rig_hit(&rig, "", chat, TOKENS), N);
    rig_close(&rig);
    moved_wall_advance(9 * 86400);
    rig_open(&rig, false); /* warm, and expired in dram too */
    assert_int_equal(rig_hit(&rig, "", chat, TOKENS), 0);
    assert_int_equal(rig_put(&rig, "", "chat", chat, N), N);
    assert_int_equal(rig_hit(&rig, "", chat, TOKENS), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static void touch_by_the_longer_class(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag = {{0}};
    uint32_t tokens[TOKENS];
    rig_tokens(11, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "agent", tokens, N), N);
    rig_settle(&rig);
    struct kvd_prompt_ref ref = {
        .space_handle = rig.space.handle, .scenario = "chat", .tokens = tokens, .n_tokens = TOKENS};
    assert_int_equal(kvd_service_touch(rig.session, &ref, N, &diag), 0);
    rig_close(&rig);
    moved_wall_advance(6 * 86400);
    rig_open(&rig, true);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_fini(&rig);
}

/* ---- caps and limits ---- */

static void caps_hold_and_say_evicted(void **state)
{
    (void)state;
    struct rig rig;
    static uint32_t tokens[128][TOKENS];
    rig_init(&rig, "32MiB", "16MiB");
    rig_open(&rig, false);
    for (uint32_t i = 0; i < 128;
         i++) { /* 128 * 12 * 36 KiB = 54 MiB through tiers of 28 and 16 MiB */
        rig_tokens(100 + i, TOKENS, tokens[i]);
        assert_int_equal(rig_put(&rig, "", "chat", tokens[i], N), N);
        assert_true(rig_number(&rig, "status", "", "tiers.0.used_bytes") <= 28 << 20);
        assert_true(rig_number(&rig, "status", "", "tiers.1.used_bytes") <= 16 << 20);
    }
    rig_settle(&rig);
    assert_int_equal(rig_hit(&rig, "", tokens[127], TOKENS), N);
    assert_int_equal(rig_hit(&rig, "", tokens[0], TOKENS), 0);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.evicted.blocks"), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static void more_than_a_client_may_pin(void **state)
{
    (void)state;
    enum { MANY = 500 };
    struct rig rig;
    uint32_t tokens[MANY * RIG_BLOCK_TOKENS + 1];
    rig_tokens(12, MANY * RIG_BLOCK_TOKENS + 1, tokens);
    rig_init(&rig, "32MiB", "64MiB"); /* half of dram is under 400 blocks of 36 KiB */
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, MANY), MANY);
    rig_close(&rig);
    rig_open(&rig, true);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rig_hit(&rig, "", tokens, MANY * RIG_BLOCK_TOKENS + 1), MANY);
        assert_int_equal(rig_number(&rig, "status", "", "leases"), 0);
    }
    rig_fini(&rig);
}

/* Many requests that begin alike pin the same blocks: that costs once. */
static void leases_on_the_same_blocks(void **state)
{
    (void)state;
    enum { MANY = 150, LEASES = 10 }; /* 5.3 MiB of 28; ten times that is more than half */
    struct rig rig;
    uint32_t tokens[MANY * RIG_BLOCK_TOKENS + 1];
    uint64_t leases[LEASES];
    rig_tokens(24, MANY * RIG_BLOCK_TOKENS + 1, tokens);
    rig_init(&rig, "32MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, MANY), MANY);
    rig_settle(&rig);
    for (int i = 0; i < LEASES; i++) {
        assert_int_equal(rig_match(&rig, "", "chat", tokens, MANY * RIG_BLOCK_TOKENS + 1), MANY);
        leases[i] = rig.match.lease;
    }
    uint64_t pinned = rig_number(&rig, "status", "", "tiers.0.pinned_bytes");
    assert_in_range(pinned, MANY * rig_block_bytes(), 2 * MANY * rig_block_bytes());
    assert_int_equal(rig_load(&rig, tokens), MANY); /* the last one, which also ends it */
    for (int i = 0; i < LEASES; i++) {
        kvd_service_release(rig.session, leases[i], UINT32_MAX);
    }
    assert_int_equal(rig_number(&rig, "status", "", "tiers.0.pinned_bytes"), 0);
    assert_int_equal(rig_hit(&rig, "", tokens, MANY * RIG_BLOCK_TOKENS + 1), MANY);
    rig_fini(&rig);
}

static void a_client_that_goes_leaves_nothing(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag = {{0}};
    struct kvd_put_out out;
    uint32_t tokens[TOKENS];
    uint32_t fresh[TOKENS];
    rig_tokens(13, TOKENS, tokens);
    rig_tokens(14, TOKENS, fresh);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_settle(&rig);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS),
                         N); /* a lease that nobody releases */
        struct kvd_prompt_ref ref = {.space_handle = rig.space.handle,
                                     .scenario = "chat",
                                     .tokens = fresh,
                                     .n_tokens = TOKENS};
        assert_int_equal(kvd_service_put_begin(rig.session, &ref, 0, N, &diag, rig.results, &out),
                         0);
        assert_int_equal(out.granted_blocks,
                         N); /* a put that nobody commits, begun anew each time */
        assert_true(rig_number(&rig, "status", "", "tiers.0.pinned_bytes") > 0);
        rig_connect(&rig, 1);
        assert_int_equal(rig_number(&rig, "status", "", "tiers.0.pinned_bytes"), 0);
        assert_int_equal(rig_number(&rig, "status", "", "leases"), 0);
    }
    assert_int_equal(rig_hit(&rig, "", fresh, TOKENS), 0); /* half a put is never seen */
    rig_fini(&rig);
}

static void one_put_at_a_time(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag = {{0}};
    struct kvd_put_out first;
    struct kvd_put_out second;
    uint32_t tokens[TOKENS];
    rig_tokens(15, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    struct kvd_prompt_ref ref = {
        .space_handle = rig.space.handle, .scenario = "chat", .tokens = tokens, .n_tokens = TOKENS};
    assert_int_equal(kvd_service_put_begin(rig.session, &ref, 0, 4, &diag, rig.results, &first), 0);
    assert_int_equal(first.granted_blocks, 4);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.pending.blocks"), N);
    assert_int_equal(kvd_service_put_begin(rig.session, &ref, 0, 6, &diag, rig.results, &second),
                     0);
    assert_int_equal(second.granted_blocks, 2);
    assert_int_equal(rig.results[0].state, KVD_BLOCK_PENDING);
    assert_int_equal(rig.results[4].state, KVD_BLOCK_GRANTED);
    rig_fini(&rig);
}

/* ---- time that passes ---- */

static int load_answer;

static void load_noted(int result, const struct kvd_wire_block *results, uint32_t n, uint32_t good,
                       void *user)
{
    (void)results;
    (void)n;
    (void)good;
    load_answer = result;
    (void)sem_post(user);
}

static int load_of_lease(struct rig *rig, uint64_t lease, uint32_t n)
{
    sem_t done;
    assert_int_equal(sem_init(&done, 0, 0), 0);
    const struct kvd_load_ask ask = {
        .lease = lease, .n = n, .deadline_ns = kvd_mono_ns() + 30 * KVD_NS_PER_S};
    kvd_service_load(rig->session, &ask, load_noted, &done);
    assert_int_equal(sem_wait(&done), 0);
    (void)sem_destroy(&done);
    return load_answer;
}

static void r_lease_outlives_its_deadline(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(18, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig.config.client_copy_lease = 100;
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_settle(&rig);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
    uint64_t lease = rig.match.lease;
    rig_settle(&rig); /* until nothing is pinned: the lease's pins are taken away by its deadline */
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.hit.dram.blocks"), N);
    assert_int_equal(load_of_lease(&rig, lease, N), -KVD_E_STALE);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.hit.dram.blocks"), 0);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.failed.blocks"), N);
    kvd_service_release(rig.session, lease, 0); /* counted once */
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
    rig_settle(&rig);
    kvd_service_release(rig.session, rig.match.lease,
                        4); /* a copy that came too late from block 4 on */
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.hit.dram.blocks"), 4);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.failed.blocks"), N + N - 4);
    assert_int_equal(rig_number(&rig, "status", "", "leases"), 0);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static void r_put_that_is_never_committed(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag = {{0}};
    struct kvd_put_out out;
    uint32_t tokens[TOKENS];
    rig_tokens(19, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig.config.client_put_pending = 200;
    rig_open(&rig, false);
    struct kvd_prompt_ref ref = {
        .space_handle = rig.space.handle, .scenario = "chat", .tokens = tokens, .n_tokens = TOKENS};
    assert_int_equal(kvd_service_put_begin(rig.session, &ref, 0, 4, &diag, rig.results, &out), 0);
    assert_int_equal(out.granted_blocks, 4);
    uint64_t deadline = kvd_mono_ns() + 20 * KVD_NS_PER_S; /* others wait for it, no longer */
    do {
        assert_true(kvd_mono_ns() < deadline);
        (void)sched_yield();
        assert_int_equal(kvd_service_put_begin(rig.session, &ref, 0, 4, &diag, rig.results, &out),
                         0);
    } while (!out.put);
    assert_int_equal(out.granted_blocks, 4);
    rig_fini(&rig);
}

static void clocks_that_disagree_freeze_expiry(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(20, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    rig_close(&rig);
    moved_wall_advance(
        30 * 86400); /* one start with a clock that is a month ahead, which is written down */
    rig_open(&rig, false);
    rig_close(&rig);
    moved_wall_advance(-30 * 86400);
    rig_open(&rig, false);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS),
                     N); /* expired by the store's clock: but one is wrong */
    rig_fini(&rig);
}

static void used_again_by_a_class_that_goes_below(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(21, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "batch", tokens, N), N);
    rig_settle(&rig);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.1.blocks"), 0);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N); /* as chat */
    rig_settle(&rig);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.1.blocks"), N);
    rig_close(&rig);
    rig_open(&rig, true);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_fini(&rig);
}

static void readers_without_staging(void **state)
{
    (void)state;
    enum { MANY = 60 };
    struct rig rig;
    struct kvd_diag diag = {{0}};
    struct kvd_session *sessions[MANY];
    struct kvd_space_opened opened = {.staging_slots = 1};
    struct kvd_space_desc desc = rig_space(1);
    uint32_t tokens[TOKENS];
    rig_tokens(22, TOKENS, tokens);
    rig_init(&rig, "32MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    int n = 0;
    for (; n < MANY && opened.staging_slots; n++) {
        assert_int_equal(kvd_session_open(rig.service, &sessions[n]), 0);
        assert_int_equal(kvd_service_space_open(sessions[n], &desc, &diag, &opened), 0);
    }
    assert_int_equal(opened.staging_slots, 0);
    assert_int_equal(opened.staging_fd, -1);
    struct kvd_prompt_ref ref = {
        .space_handle = opened.handle, .scenario = "chat", .tokens = tokens, .n_tokens = TOKENS};
    struct kvd_match_out match;
    struct kvd_put_out put;
    struct kvd_session *last = sessions[n - 1];
    assert_int_equal(kvd_service_match(last, &ref, &diag, rig.results, N, &match), 0);
    assert_int_equal(match.hit_blocks, N);
    rig_tokens(23, TOKENS, tokens);
    assert_int_equal(kvd_service_put_begin(last, &ref, 0, N, &diag, rig.results, &put), 0);
    assert_int_equal(put.granted_blocks, 0);
    assert_int_equal(rig.results[0].state, KVD_BLOCK_ABSENT);
    while (n > 0) {
        kvd_session_end(&sessions[--n]);
    }
    rig_fini(&rig);
}

/* ---- refusals ---- */

static void refusals(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag = {{0}};
    struct kvd_match_out match;
    struct kvd_put_out put;
    struct kvd_space_opened opened;
    uint32_t tokens[TOKENS];
    rig_tokens(16, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    struct kvd_prompt_ref ref = {
        .space_handle = rig.space.handle, .scenario = "chat", .tokens = tokens, .n_tokens = TOKENS};
    struct kvd_prompt_ref bad = ref;
    bad.scenario = "no-such";
    assert_int_equal(kvd_service_match(rig.session, &bad, &diag, rig.results, N, &match),
                     -KVD_E_UNKNOWN_SCENARIO);
    bad = ref;
    bad.space_handle = 7;
    assert_int_equal(kvd_service_match(rig.session, &bad, &diag, rig.results, N, &match),
                     -KVD_E_BAD_REQUEST);
    bad = ref;
    bad.rank = 1;
    assert_int_equal(kvd_service_match(rig.session, &bad, &diag, rig.results, N, &match),
                     -KVD_E_BAD_REQUEST);
    assert_int_equal(kvd_service_match(rig.session, &ref, &diag, rig.results, N - 1, &match),
                     -KVD_E_BAD_REQUEST);
    assert_int_equal(kvd_service_put_begin(rig.session, &ref, 0, 17, &diag, rig.results, &put),
                     -KVD_E_BAD_REQUEST);
    assert_int_equal(kvd_service_put_begin(rig.session, &ref, N, 1, &diag, rig.results, &put),
                     -KVD_E_BAD_REQUEST);
    assert_int_equal(
        kvd_service_put_begin(rig.session, &ref, UINT32_MAX, 2, &diag, rig.results, &put),
        -KVD_E_BAD_REQUEST);
    struct kvd_space_desc other = rig_space(1);
    other.layers = 4;
    other.payload_bytes *= 2;
    assert_int_equal(kvd_service_space_open(rig.session, &other, &diag, &opened),
                     -KVD_E_CONTRADICTION);
    struct kvd_service *second = NULL;
    assert_int_equal(kvd_service_open(&rig.config, false, NULL, &diag, &second), -KVD_E_IN_USE);
    assert_non_null(strstr(diag.text, rig.folder));
    rig_fini(&rig);
}

static void r_folder_of_another_store(void **state)
{
    (void)state;
    struct rig a;
    struct rig b;
    struct kvd_diag diag = {{0}};
    rig_init(&a, "64MiB", "64MiB");
    rig_init(&b, "64MiB", "64MiB");
    rig_open(&a, false);
    rig_close(&a);
    free(b.config.nvme_path);
    b.config.nvme_path = strdup(a.config.nvme_path);
    assert_int_equal(kvd_service_open(&b.config, false, NULL, &diag, &b.service),
                     -KVD_E_WRONG_STORE);
    assert_non_null(strstr(diag.text, a.config.nvme_path));
    rig_fini(&b);
    rig_fini(&a);
}

static void r_damaged_identity(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag = {{0}};
    char path[300];
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    rig_close(&rig);
    (void)snprintf(path, sizeof(path), "%s/IDENTITY", rig.folder);
    flip(path, 30);
    assert_int_equal(kvd_service_open(&rig.config, false, NULL, &diag, &rig.service),
                     -KVD_E_CORRUPT);
    assert_non_null(strstr(diag.text, "IDENTITY"));
    rig_fini(&rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(put_match_load),
    cmocka_unit_test(below_after_restart),
    cmocka_unit_test(dram_survives_a_restart),
    cmocka_unit_test(r_flipped_byte_in_a_segment),
    cmocka_unit_test(r_flipped_byte_in_a_warm_pool),
    cmocka_unit_test(r_record_that_cannot_be_read),
    cmocka_unit_test(r_segment_deleted_behind_the_back),
    cmocka_unit_test(r_lease_outlives_its_deadline),
    cmocka_unit_test(r_put_that_is_never_committed),
    cmocka_unit_test(clocks_that_disagree_freeze_expiry),
    cmocka_unit_test(used_again_by_a_class_that_goes_below),
    cmocka_unit_test(readers_without_staging),
    cmocka_unit_test(r_lost_index_is_rebuilt),
    cmocka_unit_test(reasons),
    cmocka_unit_test(retention),
    cmocka_unit_test(touch_by_the_longer_class),
    cmocka_unit_test(caps_hold_and_say_evicted),
    cmocka_unit_test(more_than_a_client_may_pin),
    cmocka_unit_test(leases_on_the_same_blocks),
    cmocka_unit_test(a_client_that_goes_leaves_nothing),
    cmocka_unit_test(one_put_at_a_time),
    cmocka_unit_test(refusals),
    cmocka_unit_test(r_folder_of_another_store),
    cmocka_unit_test(r_damaged_identity),
};

KVD_TEST_MAIN(tests)
