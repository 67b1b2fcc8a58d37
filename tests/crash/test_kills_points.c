/*
 * Single crashes, each at one point: what a daemon leaves there, and what the next one makes of it.
 * The daemon is a process; at the chosen operation it kills itself (see fault_io.h), or the test
 * does when nothing is under way.
 */
#include "kvd_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kills_load.h"
#include "kills_node.h"
#include "proto/base/clock.h"

enum { DIE_S = 10, CHAT = 0, AGENT = 1, BATCH = 2, SEED = 17 };

struct scene {
    struct kills_node node;
    struct kills_load load; /* conversations; no workers */
    struct kills_client client;
};

/* Of the running test: taken down after it, failed or not. */
static struct scene *scene_begin(void **state, const char *dram_cap, const char *nvme_cap)
{
    struct scene *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    *state = s;
    kills_node_init(&s->node, dram_cap, nvme_cap);
    kills_load_init(&s->load, s->node.socket, SEED);
    return s;
}

static int scene_end(void **state)
{
    struct scene *s = *state;
    if (s) {
        kills_client_close(&s->client);
        kills_load_fini(&s->load);
        kills_node_fini(&s->node);
        free(s);
    }
    return 0;
}

/* faults: where it will kill itself, or NULL. */
static void scene_up(struct scene *s, const char *faults, bool drop_dram)
{
    s->node.faults = faults;
    kills_node_up(&s->node, drop_dram);
    s->node.faults = NULL;
    assert_true(kills_client_open(&s->client, s->node.socket));
}

static void scene_kill(struct scene *s)
{
    kills_client_close(&s->client);
    kills_node_kill(&s->node);
}

/* It comes to the point where it kills itself. */
static void scene_dies(struct scene *s)
{
    assert_true(kills_node_ended_in(&s->node, DIE_S * KVD_NS_PER_S));
    scene_kill(s);
}

static void settle(struct scene *s, struct kills_status *ret)
{
    kills_node_settle(&s->node, false, ret);
}

static void put(struct scene *s, uint32_t conv, uint32_t first, uint32_t end)
{
    struct kvd_put_result result;
    assert_int_equal(kills_put(&s->client, &s->load.convs[conv], first, end, &result), 0);
    assert_int_equal(result.refused, 0);
}

static uint32_t found(struct scene *s, uint32_t conv)
{
    struct kvd_match_result m;
    assert_int_equal(kills_match(&s->load, &s->client, &s->load.convs[conv], KILLS_BLOCKS, &m), 0);
    kvd_lease_release(&m.lease);
    return m.hit_blocks;
}

/* Match and load; every block is compared. What is found must be got. */
static uint32_t hit(struct scene *s, uint32_t conv)
{
    struct kvd_match_result m;
    uint32_t good = 0;
    const struct kills_conv *c = &s->load.convs[conv];
    assert_int_equal(kills_match(&s->load, &s->client, c, KILLS_BLOCKS, &m), 0);
    if (m.hit_blocks > 0) {
        assert_int_equal(kills_load_blocks(&s->load, &s->client, c, m.lease, m.hit_blocks, &good),
                         0);
        kvd_lease_release(&m.lease);
    }
    kills_load_check(&s->load);
    assert_int_equal(good, m.hit_blocks);
    return good;
}

/* The accounts are those of the files. Right after a start, when nothing was written yet. */
static void assert_counted(struct scene *s, struct kills_status *ret)
{
    struct kills_files f;
    settle(s, ret);
    kills_node_files(&s->node, &f);
    assert_int_equal(ret->nvme_used, f.bytes);
    assert_int_equal(ret->nvme_segments, f.segments);
    assert_int_equal(f.others, 0);
    assert_int_equal(ret->dram_used, ret->dram_by_scenario);
    assert_int_equal(ret->corrupt, 0);
    assert_string_equal(ret->health, "ok");
}

/* ---- between data and index ---- */

/* The record is durable, the index was not told: it is found all the same, once. */
static void r_killed_between_data_and_index(void **state)
{
    struct kills_status s;
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    scene_up(sc, "kill@fdatasync:.seg:1:after", false);
    put(sc, CHAT, 0, 1);
    scene_dies(sc);
    scene_up(sc, NULL, false);
    assert_counted(sc, &s);
    assert_int_equal(s.dram_blocks, 1);
    assert_int_equal(hit(sc, CHAT), 1);
    assert_counted(sc, &s);
    assert_int_equal(s.nvme_blocks, 1); /* using it has not written it down once more */
    scene_kill(sc);
    scene_up(sc, NULL, true);
    assert_counted(sc, &s);
    assert_int_equal(s.nvme_blocks, 1);
    assert_int_equal(hit(sc, CHAT), 1);
}

/* The other way round: a row of the index, and no record. Nobody is sent there, nothing is kept. */
static void r_killed_between_index_and_data(void **state)
{
    struct kills_status s;
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    scene_up(sc, "kill@write:.seg:2:before", false);
    put(sc, CHAT, 0, 1);
    scene_dies(sc);
    scene_up(sc, NULL, true);
    assert_int_equal(hit(sc, CHAT), 0);
    assert_counted(sc, &s);
    assert_int_equal(s.nvme_blocks, 0);
    assert_int_equal(s.nvme_segments, 0);
}

/* Half of a record: it is a miss from the start, and what lies before it is found. */
static void r_torn_record(void **state)
{
    struct kills_status s;
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    scene_up(sc, "kill@write:.seg:3:middle", false);
    put(sc, CHAT, 0, 1);
    settle(sc, &s);
    put(sc, CHAT, 1, 2);
    scene_dies(sc);
    scene_up(sc, NULL, true);
    assert_counted(sc, &s);
    assert_int_equal(s.nvme_blocks, 1);
    assert_int_equal(hit(sc, CHAT), 1);
    put(sc, CHAT, 1, 2); /* computed anew, stored anew */
    assert_int_equal(hit(sc, CHAT), 2);
}

/* The index is gone: everything that was written down is found again out of the files. */
static void r_index_lost_by_a_kill(void **state)
{
    struct kills_status s;
    struct kills_status again;
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    scene_up(sc, NULL, false);
    put(sc, CHAT, 0, 8);
    put(sc, AGENT, 0, 8);
    settle(sc, &s);
    scene_kill(sc);
    scene_up(sc, NULL, false); /* its segments are sealed now */
    assert_counted(sc, &s);
    scene_kill(sc);
    kills_node_lose_index(&sc->node);
    scene_up(sc, NULL, true);
    assert_counted(sc, &again);
    assert_int_equal(again.nvme_used, s.nvme_used);
    assert_int_equal(again.nvme_blocks, s.nvme_blocks);
    assert_int_equal(hit(sc, CHAT), 8);
    assert_int_equal(hit(sc, AGENT), 8);
}

/* Index and segments are gone, and segments are numbered anew: a block that is only in dram now
 * must not take another's segment for its own, or it would never be written down again. */
static void r_index_and_segments_lost(void **state)
{
    struct kills_status s;
    char path[400];
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    scene_up(sc, NULL, false);
    put(sc, CHAT, 0, 8);
    settle(sc, &s);
    scene_kill(sc);
    kills_node_lose_index(&sc->node);
    (void)snprintf(path, sizeof(path), "%s/1", sc->node.nvme);
    proc_remove_folder(path);
    scene_up(sc, NULL, false);
    put(sc, BATCH + 1, 3, 8); /* of class chat too: the first segment, and it stays open */
    settle(sc, &s);
    assert_int_equal(hit(sc, CHAT), 8);
    settle(sc, &s);
    scene_kill(sc);
    scene_up(sc, NULL, true);
    assert_int_equal(hit(sc, CHAT), 8);
}

/* A start-up that is cut off after its first segment, then twice more: each finds the same, and a
 * block's longer class, noted in the index before the kill, stays. */
static void r_start_up_twice(void **state)
{
    struct kills_status s;
    struct kills_status again;
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    scene_up(sc, NULL, false);
    put(sc, AGENT, 0, 3); /* all of a family's beginning */
    put(sc, CHAT, 3, 6);
    settle(sc, &s);
    assert_int_equal(s.nvme_segments, 2);
    struct kvd_prompt prompt = kills_prompt(&sc->load.convs[CHAT], 3, false);
    assert_int_equal(kvd_touch(sc->client.spaces[0], &prompt, 3), 0);
    settle(sc, &s);
    scene_kill(sc);
    sc->node.faults = "kill@truncate:.seg:1:after";
    kills_node_start(&sc->node, true);
    assert_true(kills_node_ended_in(&sc->node, DIE_S * KVD_NS_PER_S));
    kills_node_kill(&sc->node);
    scene_up(sc, NULL, true);
    assert_counted(sc, &s);
    assert_int_equal(s.nvme_blocks, 6);
    scene_kill(sc);
    scene_up(sc, NULL, true);
    assert_counted(sc, &again);
    assert_int_equal(again.nvme_blocks, 6);
    assert_int_equal(again.nvme_used, s.nvme_used);
    assert_int_equal(hit(sc, AGENT), 3);
    assert_int_equal(kills_node_scenario_bytes(&sc->node, "agent", "dram_bytes"), 0);
    assert_int_equal(hit(sc, CHAT), 6);
}

/* ---- two daemons ---- */

static void read_file(const char *path, char *ret, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, ret, n - 1);
    assert_true(got > 0);
    ret[got] = 0;
    (void)close(fd);
}

/* A second daemon on what the first one has: it must end, and say so. */
static void assert_refused(const struct kills_node *second, const char *words)
{
    struct kills_node n = *second;
    kills_node_start(&n, false);
    bool ended = kills_node_ended_in(&n, DIE_S * KVD_NS_PER_S);
    int status = proc_end(&n.daemon, ended ? 0 : SIGKILL);
    assert_int_equal(status, 1);
    if (!strstr(n.daemon.output, words)) {
        fail_msg("expected '%s' in: %s", words, n.daemon.output);
    }
}

static void r_two_daemons_on_one_folder(void **state)
{
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    char path[400];
    char before[512];
    char after[512];
    scene_up(sc, NULL, false);
    put(sc, CHAT, 0, 2);
    (void)snprintf(path, sizeof(path), "%s/IDENTITY", sc->node.store);
    read_file(path, before, sizeof(before));
    struct kills_node second = sc->node;
    (void)snprintf(second.socket, sizeof(second.socket), "%s/s2", sc->node.folder);
    (void)snprintf(second.pool, sizeof(second.pool), "%s2", sc->node.pool);
    assert_refused(&second, "another kvdepotd has it");
    read_file(path, after, sizeof(after));
    assert_string_equal(before, after); /* no boot was counted */
    assert_int_equal(hit(sc, CHAT), 2);
}

static void r_two_daemons_on_one_pool(void **state)
{
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    scene_up(sc, NULL, false);
    put(sc, CHAT, 0, 2);
    struct kills_node second = sc->node;
    (void)snprintf(second.socket, sizeof(second.socket), "%s/s2", sc->node.folder);
    (void)snprintf(second.store, sizeof(second.store), "%s/store2", sc->node.folder);
    assert_refused(&second, "another process has it");
    assert_int_equal(hit(sc, CHAT), 2);
    scene_kill(sc);
    scene_up(sc, NULL, false);
    assert_int_equal(hit(sc, CHAT), 2); /* the pool file is still this store's */
}

/* ---- usage after a restart ---- */

/* Puts what is missing of every conversation that is written down: more than either tier holds. */
static void fill(struct scene *sc, struct kills_status *ret)
{
    for (uint32_t c = 0; c < KILLS_CONVS; c++) {
        uint32_t n = sc->load.convs[c].below ? found(sc, c) : KILLS_BLOCKS;
        if (n < KILLS_BLOCKS) {
            put(sc, c, n, KILLS_BLOCKS);
            settle(sc, ret);
            assert_true(ret->nvme_used <= ret->nvme_cap);
            assert_true(ret->dram_used <= ret->dram_cap);
        }
    }
}

/* The caps are full. After each kind of end the usage is that of the files and of the slots; then
 * more is written, and the caps still hold. */
static void r_usage_after_a_restart(void **state)
{
    enum { CLEAN, KILLED, INDEX_LOST, ENDS };
    struct kills_status before;
    struct kills_status s;
    struct kills_files f;
    struct scene *sc = scene_begin(state, "32MiB", "16MiB");
    scene_up(sc, NULL, false);
    fill(sc, &s);
    assert_true(s.nvme_dropped > 0);
    for (int end = CLEAN; end < ENDS; end++) {
        settle(sc, &before);
        kills_client_close(&sc->client);
        if (end == CLEAN) {
            kills_node_stop(&sc->node);
        } else {
            kills_node_kill(&sc->node);
        }
        if (end == INDEX_LOST) {
            kills_node_lose_index(&sc->node);
        }
        scene_up(sc, NULL, false);
        assert_counted(sc, &s);
        assert_int_equal(s.dram_used, before.dram_used);
        assert_int_equal(s.dram_blocks, before.dram_blocks);
        assert_int_equal(s.dram_warm, before.dram_blocks);
        assert_true(s.nvme_used <= before.nvme_used && s.nvme_used > before.nvme_cap / 2);
        kills_load_talk(&sc->load, SEED + 1 + (uint64_t)end);
        fill(sc, &s);
        assert_true(s.nvme_dropped > 0 && s.dram_evicted > 0);
        kills_node_files(&sc->node, &f);
        assert_true(f.bytes <= before.nvme_cap);
    }
}

/* A smaller cap than in the last run holds from the start. */
static void r_smaller_cap_after_a_kill(void **state)
{
    struct kills_status s;
    struct kills_files f;
    struct scene *sc = scene_begin(state, "32MiB", "32MiB");
    scene_up(sc, NULL, false);
    fill(sc, &s);
    assert_true(s.nvme_used > UINT64_C(16) << 20);
    scene_kill(sc);
    sc->node.nvme_cap = "16MiB";
    scene_up(sc, NULL, false);
    kills_node_files(&sc->node, &f);
    assert_true(f.bytes <= UINT64_C(16) << 20);
    assert_counted(sc, &s);
}

/* ---- the pool of a killed daemon ---- */

/* Flips a byte in the middle of a block's payload in the pool file, wherever it lies. */
static void flip_in_pool(struct scene *sc, uint32_t conv, uint32_t block)
{
    struct kills_conv *c = &sc->load.convs[conv];
    uint64_t bytes = kills_block_bytes(c->space);
    uint8_t *payload = malloc(bytes);
    struct stat st;
    int fd = open(sc->node.pool, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_non_null(payload);
    assert_int_equal(fstat(fd, &st), 0);
    kills_payload_make(c, block, payload);
    uint8_t *pool = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(pool != MAP_FAILED);
    uint8_t *at = memmem(pool, (size_t)st.st_size, payload, bytes);
    assert_non_null(at);
    at[bytes / 2] ^= 4;
    (void)munmap(pool, (size_t)st.st_size);
    (void)close(fd);
    free(payload);
}

/* Match and load where a block is bad: what is good, without a gap. */
static uint32_t load_some(struct scene *sc, uint32_t conv)
{
    struct kvd_match_result m;
    uint32_t good = 0;
    const struct kills_conv *c = &sc->load.convs[conv];
    assert_int_equal(kills_match(&sc->load, &sc->client, c, KILLS_BLOCKS, &m), 0);
    assert_non_null(m.lease);
    assert_int_equal(kills_load_blocks(&sc->load, &sc->client, c, m.lease, m.hit_blocks, &good), 0);
    kvd_lease_release(&m.lease);
    kills_load_check(&sc->load);
    return good;
}

/* Its sum is checked when it is first used: a miss where dram has the only copy, the copy below
 * where there is one; counted, and never served. */
static void r_pool_byte_flipped_while_down(void **state)
{
    struct kills_status s;
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    scene_up(sc, NULL, false);
    put(sc, BATCH, 0, 5);
    put(sc, AGENT, 3, 6);
    settle(sc, &s);
    scene_kill(sc);
    flip_in_pool(sc, BATCH, 4);
    flip_in_pool(sc, AGENT, 5);
    scene_up(sc, NULL, false);
    assert_int_equal(load_some(sc, BATCH), 4);
    kills_node_status(&sc->node, &s);
    assert_int_equal(s.corrupt, 1);
    assert_string_not_equal(s.health, "ok");
    assert_int_equal(load_some(sc, AGENT), 6);
    kills_node_status(&sc->node, &s);
    assert_int_equal(s.corrupt, 2);
    (void)kills_node_check_counts(&sc->node, true);
    put(sc, BATCH, 4, 5);
    assert_int_equal(hit(sc, BATCH), 5);
}

/* A put that was begun and written to, and no more: the next daemon knows nothing of it. */
static void r_killed_between_begin_and_commit(void **state)
{
    struct kills_status s;
    struct kvd_put *begun = NULL;
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    struct kills_conv *c = &sc->load.convs[CHAT];
    struct kvd_prompt prompt = kills_prompt(c, 2, false);
    scene_up(sc, NULL, false);
    assert_int_equal(kvd_put_begin(sc->client.spaces[c->space], &prompt, 0, 2, &begun, NULL), 0);
    memset(kvd_put_buffer(begun, 0), 0xee, kills_block_bytes(c->space));
    assert_int_equal(proc_end(&sc->node.daemon, SIGKILL), 128 + SIGKILL);
    kvd_client_close(&sc->node.asker);
    assert_true(kvd_put_commit(&begun, NULL) < 0);
    kills_client_close(&sc->client);
    scene_up(sc, NULL, false);
    assert_counted(sc, &s);
    assert_int_equal(s.dram_blocks, 0);
    assert_int_equal(found(sc, CHAT), 0);
    put(sc, CHAT, 0, 2);
    assert_int_equal(hit(sc, CHAT), 2);
}

/* Look-ups of more than a second before the kill are counted by the next daemon. */
static void r_lookups_before_a_kill(void **state)
{
    enum { LOOKUPS = 50 };
    struct scene *sc = scene_begin(state, "32MiB", "64MiB");
    scene_up(sc, NULL, false);
    for (uint32_t i = 0; i < LOOKUPS; i++) {
        assert_int_equal(found(sc, i % KILLS_CONVS), 0);
    }
    uint64_t until = kvd_mono_ns() + 5 * KVD_NS_PER_S / 2;
    uint32_t more = 0;
    while (kvd_mono_ns() < until) {
        assert_int_equal(found(sc, CHAT), 0);
        more++;
    }
    scene_kill(sc);
    scene_up(sc, NULL, false);
    assert_in_range(kills_node_check_counts(&sc->node, true), LOOKUPS, LOOKUPS + more);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_teardown(r_killed_between_data_and_index, scene_end),
    cmocka_unit_test_teardown(r_killed_between_index_and_data, scene_end),
    cmocka_unit_test_teardown(r_torn_record, scene_end),
    cmocka_unit_test_teardown(r_index_lost_by_a_kill, scene_end),
    cmocka_unit_test_teardown(r_index_and_segments_lost, scene_end),
    cmocka_unit_test_teardown(r_start_up_twice, scene_end),
    cmocka_unit_test_teardown(r_two_daemons_on_one_folder, scene_end),
    cmocka_unit_test_teardown(r_two_daemons_on_one_pool, scene_end),
    cmocka_unit_test_teardown(r_usage_after_a_restart, scene_end),
    cmocka_unit_test_teardown(r_smaller_cap_after_a_kill, scene_end),
    cmocka_unit_test_teardown(r_pool_byte_flipped_while_down, scene_end),
    cmocka_unit_test_teardown(r_killed_between_begin_and_commit, scene_end),
    cmocka_unit_test_teardown(r_lookups_before_a_kill, scene_end),
};

KVD_TEST_MAIN(tests)
