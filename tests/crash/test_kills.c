/*
 * kill -9 of a real daemon under load, again and again. KVD_CRASH_KILLS is the number of kills
 * (20), KVD_CRASH_SEED makes a run like an earlier one as far as the machine allows.
 *
 * Two kinds of stores, in turn. In a roomy one nothing may be thrown away, so nothing that was
 * acknowledged may be missing after a kill. In a tight one the caps are far too small for what is
 * put: pages of the pool change their class, segments are filled and thrown away. There, what was
 * found before a kill without load must be found after it.
 *
 * After each kill the daemon comes back in one of several ways: warm; without its dram; without its
 * index; killed again while it starts. Then everything is looked up, loaded and compared, and the
 * accounts of dram, nvme and look-ups are compared with the files and with what was asked.
 */
#include "kvd_test.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "kills_load.h"
#include "kills_node.h"
#include "proto/base/bytes.h"
#include "proto/base/clock.h"
#include "proto/format/record.h"

enum {
    KILLS_DEFAULT = 20,
    KILLS_A_STORE = 5,
    RUN_MS_MAX = 500, /* of load, after every client has found the daemon */
    LONG_RUN_MS_MAX = 2500,
    START_MS_MAX = 60, /* of a start-up that is cut off */
    SAMPLE_MS = 50,
    POINT_S = 2, /* of load, at most, until a chosen point is reached */
    /* A kill may lose a second of look-ups. The keeper that writes them down sleeps a second and
       then has to get a processor; other tests run on this machine. */
    LATE_MS = 1500,
    CONVS = KILLS_CONVS + KILLS_NEVER,
};

enum how_back { BACK_WARM, BACK_DROP_DRAM, BACK_NO_INDEX, BACK_COUNT };
static const char *const how_back_names[] = {"warm", "without its dram", "without its index"};

struct found {
    uint32_t hit;
    enum kvd_tier tier[KILLS_BLOCKS];
};

struct world {
    struct kills_node node;
    struct kills_load load;
    struct kills_client client; /* the test's own */
    uint64_t random;
    bool tight;
    uint64_t lookups; /* counted by the daemon when it was started */
    uint64_t killed_ns;
    bool begun; /* there is a store */
    uint32_t stores;
    /* for the closing line */
    uint32_t kills;
    uint32_t kills_in_start;
    uint32_t kills_at_points;
    uint64_t loaded_blocks;
    uint64_t loaded_bytes;
    uint64_t lookups_checked;
    uint64_t lookups_lost;
    uint64_t evicted; /* blocks, out of dram, as last seen before each kill */
    uint64_t dropped; /* blocks, with their segments */
};

static uint64_t dice(struct world *w, uint64_t n)
{
    return kills_random(&w->random) % n;
}

/* ---- after a start, before any load ---- */

static void check_healthy(const struct kills_status *s)
{
    assert_string_equal(s->health, "ok");
    assert_int_equal(s->corrupt, 0);
    assert_int_equal(s->nvme_failed, 0);
}

static void check_caps(const struct kills_status *s)
{
    assert_true(s->dram_used + s->dram_staging <= s->dram_cap);
    assert_true(s->nvme_used <= s->nvme_cap);
}

/* Nobody is connected but the asker: nothing is held, and what is counted is what there is. */
static void check_at_rest(struct world *w, bool sealed)
{
    struct kills_status s;
    struct kills_files f;
    kills_node_settle(&w->node, true, &s);
    kills_node_files(&w->node, &f);
    check_healthy(&s);
    check_caps(&s);
    assert_int_equal(s.dram_used, s.dram_by_scenario);
    assert_int_equal(f.others, 0);
    assert_int_equal(f.segments, s.nvme_segments);
    if (sealed) {
        assert_int_equal(s.nvme_used, f.bytes);
    } else {
        assert_true(f.bytes <= s.nvme_used); /* open segments count what they may take */
    }
}

/* Look-ups that were answered a second before the kill are counted, and no more than were asked. */
static void check_lookups(struct world *w, bool lost_index)
{
    struct kills_lookups *l = &w->load.lookups;
    uint64_t counted = kills_node_check_counts(&w->node, true);
    uint64_t base = lost_index ? 0 : w->lookups;
    uint64_t most = base + atomic_load(&l->attempted);
    uint64_t late_ns = KVD_NS_PER_S + (uint64_t)(LATE_MS - 1000) * KVD_NS_PER_MS;
    uint64_t answered = atomic_load(&l->answered);
    uint64_t least = base;
    assert_true(answered < KILLS_LOOKUPS_MAX);
    for (uint64_t i = 0; i < answered && !lost_index; i++) {
        least += atomic_load(&l->at_ns[i]) + late_ns <= w->killed_ns;
    }
    if (counted < least || counted > most) {
        fail_msg("%llu look-ups are counted after the kill; %llu to %llu were expected",
                 (unsigned long long)counted, (unsigned long long)least, (unsigned long long)most);
    }
    w->lookups_checked += answered;
    w->lookups_lost += base + answered > counted && !lost_index ? base + answered - counted : 0;
    w->lookups = counted;
    atomic_store(&l->attempted, 0);
    atomic_store(&l->answered, 0);
}

static void find(struct world *w, const struct kills_conv *conv, struct found *ret)
{
    struct kvd_match_result m;
    assert_int_equal(kills_match(&w->load, &w->client, conv, KILLS_BLOCKS, &m), 0);
    memset(ret, 0, sizeof(*ret));
    ret->hit = m.hit_blocks;
    for (uint32_t i = 0; i < m.hit_blocks; i++) {
        ret->tier[i] = kvd_lease_tier(m.lease, i);
    }
    kvd_lease_release(&m.lease);
}

static void find_all(struct world *w, struct found *ret)
{
    for (uint32_t i = 0; i < CONVS; i++) {
        find(w, &w->load.convs[i], &ret[i]);
        if (w->load.convs[i].never && ret[i].hit > 0) {
            fail_msg("conversation %u was never committed, and %u blocks of it are found", i,
                     ret[i].hit);
        }
    }
}

/* Nothing that was acknowledged is missing, but for what only dram had where that was dropped. */
static void check_nothing_lost(struct world *w, const struct found *found, enum how_back back)
{
    for (uint32_t i = 0; i < KILLS_CONVS; i++) {
        struct kills_conv *c = &w->load.convs[i];
        uint32_t acked = atomic_load(&c->acked);
        uint32_t want = back == BACK_DROP_DRAM ? c->durable : acked;
        if (found[i].hit < want) {
            fail_msg("conversation %u (%s, space %u): %u blocks were acknowledged, %u are found "
                     "after a start %s",
                     i, c->scenario, c->space, want, found[i].hit, how_back_names[back]);
        }
        for (uint32_t b = 0; b < found[i].hit && back != BACK_DROP_DRAM; b++) {
            assert_int_equal(found[i].tier[b], KVD_IN_DRAM);
        }
        if (back == BACK_DROP_DRAM) {
            atomic_store(&c->acked, found[i].hit);
            c->durable = found[i].hit < c->durable ? found[i].hit : c->durable;
        }
    }
}

static uint64_t extent_bytes(const struct kills_conv *c)
{
    return kvd_record_header_bytes(1, kills_block_tokens(c->space), 1) +
           kvd_round_up(kills_block_bytes(c->space), KVD_ALIGN_BYTES);
}

/* dram holds exactly what is found there, each block once. */
static void check_dram_used(struct world *w, const struct found *found)
{
    bool seen[KILLS_CONVS / KILLS_FAMILY][KILLS_SHARED] = {{false}};
    struct kills_status s;
    uint64_t bytes = 0;
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < KILLS_CONVS; i++) {
        for (uint32_t b = 0; b < found[i].hit; b++) {
            bool *shared = b < KILLS_SHARED ? &seen[i / KILLS_FAMILY][b] : NULL;
            bool counts = found[i].tier[b] == KVD_IN_DRAM && !(shared && *shared);
            bytes += counts ? extent_bytes(&w->load.convs[i]) : 0;
            blocks += counts;
            if (shared) {
                *shared = *shared || counts;
            }
        }
    }
    kills_node_status(&w->node, &s);
    assert_int_equal(s.dram_blocks, blocks);
    assert_int_equal(s.dram_used, bytes);
}

static void load_all(struct world *w, const struct found *found)
{
    for (uint32_t i = 0; i < KILLS_CONVS; i++) {
        struct kills_conv *c = &w->load.convs[i];
        struct kvd_match_result m;
        uint32_t good = 0;
        if (found[i].hit == 0) {
            continue;
        }
        assert_int_equal(kills_match(&w->load, &w->client, c, KILLS_BLOCKS, &m), 0);
        if (m.hit_blocks > 0) {
            assert_int_equal(
                kills_load_blocks(&w->load, &w->client, c, m.lease, m.hit_blocks, &good), 0);
            kvd_lease_release(&m.lease);
        }
        kills_load_check(&w->load);
        if (!w->tight) {
            assert_int_equal(good, found[i].hit);
        }
        w->loaded_blocks += good;
        w->loaded_bytes += good * kills_block_bytes(c->space);
    }
}

/* Puts what is missing of all conversations, as far as they may go now. After that no block lies
 * behind a gap, where nobody finds it: two clients put parts of one conversation, and the kill took
 * the one with the first part. */
static void complete_all(struct world *w, const struct found *found)
{
    uint32_t n = atomic_load(&w->load.limit);
    for (uint32_t i = 0; i < KILLS_CONVS; i++) {
        struct kvd_put_result result = {0};
        if (found[i].hit < n) {
            struct kills_conv *c = &w->load.convs[i];
            assert_int_equal(kills_put(&w->client, c, found[i].hit, n, &result), 0);
            assert_int_equal(result.refused, 0);
        }
    }
}

/* Everything that is acknowledged now and not queued any more is durable, where its class is. */
static void note_durable(struct world *w)
{
    for (uint32_t i = 0; i < KILLS_CONVS; i++) {
        struct kills_conv *c = &w->load.convs[i];
        if (c->below && atomic_load(&c->kept_above) == 0) {
            c->durable = atomic_load(&c->acked);
        }
    }
}

static void check_no_eviction(struct world *w)
{
    struct kills_status s;
    kills_node_status(&w->node, &s);
    assert_int_equal(s.dram_evicted, 0);
    assert_int_equal(s.nvme_dropped, 0);
}

/* All of the above, in an order in which each still sees what it is about. before: what was found
 * before a kill without load, or NULL. */
static void check_all(struct world *w, enum how_back back, const struct found *before)
{
    struct found found[CONVS];
    struct kills_status s;
    check_at_rest(w, true);
    check_lookups(w, back == BACK_NO_INDEX);
    assert_true(kills_client_open(&w->client, w->node.socket));
    find_all(w, found);
    if (!w->tight) {
        check_nothing_lost(w, found, back);
    }
    for (uint32_t i = 0; before && i < CONVS; i++) {
        assert_int_equal(found[i].hit, before[i].hit);
        assert_memory_equal(found[i].tier, before[i].tier, sizeof(found[i].tier));
    }
    load_all(w, found);
    if (!w->tight) {
        complete_all(w, found);
        find_all(w, found);
        check_dram_used(w, found);
    }
    kills_node_settle(&w->node, false, &s);
    check_healthy(&s);
    check_caps(&s);
    if (!w->tight) {
        note_durable(w);
        check_no_eviction(w);
    }
    kills_client_close(&w->client);
    (void)kills_node_check_counts(&w->node, true);
}

/* ---- killing ---- */

static void note_kill(struct world *w)
{
    struct kills_files f;
    struct kills_status caps = {0};
    kills_node_files(&w->node, &f);
    caps.nvme_cap = w->tight ? UINT64_C(16) << 20 : UINT64_C(256) << 20;
    assert_true(f.bytes <= caps.nvme_cap);
    w->kills++;
}

/* Load for some time, with a look at the caps and counters now and then, and a kill in it. */
static void load_and_kill(struct world *w)
{
    struct kills_status s;
    uint64_t lookups = w->lookups;
    bool is_long = dice(w, 5) == 0;
    uint64_t run_ns = dice(w, is_long ? LONG_RUN_MS_MAX : RUN_MS_MAX) * KVD_NS_PER_MS;
    kills_load_resume(&w->load);
    kills_load_all_answered(&w->load);
    uint64_t until = kvd_mono_ns() + run_ns;
    for (uint64_t now = kvd_mono_ns(); now < until; now = kvd_mono_ns()) {
        uint64_t step = (uint64_t)SAMPLE_MS * KVD_NS_PER_MS;
        kills_load_run_for(&w->load, until - now < step ? until - now : step);
        kills_node_status(&w->node, &s);
        check_caps(&s);
        check_healthy(&s);
        uint64_t more = kills_node_check_counts(&w->node, false);
        assert_true(more >= lookups);
        lookups = more;
    }
    kills_node_status(&w->node, &s);
    w->evicted += s.dram_evicted;
    w->dropped += s.nvme_dropped;
    w->killed_ns = kvd_mono_ns();
    kills_node_kill(&w->node);
    kills_load_pause(&w->load);
    kills_load_check(&w->load);
    note_kill(w);
}

/* Nobody uses it; what is found before must be found after, in the same place. */
static void rest_and_kill(struct world *w, struct found *ret_before)
{
    struct kills_status s;
    assert_true(kills_client_open(&w->client, w->node.socket));
    kills_node_settle(&w->node, false, &s);
    find_all(w, ret_before);
    kills_client_close(&w->client);
    kills_node_settle(&w->node, false, &s);
    w->killed_ns = kvd_mono_ns();
    kills_node_kill(&w->node);
    note_kill(w);
}

/* Where a daemon kills itself: an operation below its I/O interface, one of the first so many. */
static const struct {
    const char *op;
    const char *file;
    uint32_t most;
} points[] = {
    {"write", ".seg", 40},   {"fdatasync", ".seg", 20}, {"allocate", ".seg", 6},
    {"open", ".seg", 12},    {"truncate", ".seg", 4},   {"unlink", ".seg", 4},
    {"sync_folder", "*", 8}, {"rename", "*", 1},        {"write", "IDENTITY", 2},
    {"mkdir", "*", 8},       {"read", ".seg", 40},
};

/* A clean restart, then load on a daemon that kills itself at a chosen point, which may lie in its
 * start-up; one that doesn't come to it is killed. */
static void point_and_kill(struct world *w)
{
    static const char *const when[] = {"before", "middle", "after"};
    char faults[64];
    uint64_t p = dice(w, sizeof(points) / sizeof(points[0]));
    (void)snprintf(faults, sizeof(faults), "kill@%s:%s:%u:%s", points[p].op, points[p].file,
                   1 + (unsigned)dice(w, points[p].most), when[dice(w, 3)]);
    kills_node_stop(&w->node);
    w->node.faults = faults;
    kills_node_start(&w->node, false);
    w->node.faults = NULL;
    kills_load_resume(&w->load);
    bool itself = kills_node_ended_in(&w->node, POINT_S * KVD_NS_PER_S);
    w->killed_ns = kvd_mono_ns();
    kills_node_kill(&w->node);
    kills_load_pause(&w->load);
    kills_load_check(&w->load);
    note_kill(w);
    w->kills_at_points += itself;
}

/* A start-up that is cut off, at a random moment of it. */
static void start_and_kill(struct world *w, bool drop_dram)
{
    kills_node_start(&w->node, drop_dram);
    assert_false(kills_node_ended_in(&w->node, dice(w, START_MS_MAX) * KVD_NS_PER_MS));
    kills_node_kill(&w->node);
    note_kill(w);
    w->kills_in_start++;
}

static void come_back(struct world *w, const struct found *before)
{
    uint64_t d = before ? 0 : dice(w, 10);
    enum how_back back = d < 6 ? BACK_WARM : d < 8 ? BACK_DROP_DRAM : BACK_NO_INDEX;
    if (back == BACK_NO_INDEX) {
        kills_node_lose_index(&w->node);
    }
    for (uint64_t again = dice(w, 10); again >= 8; again--) {
        start_and_kill(w, back == BACK_DROP_DRAM);
    }
    kills_node_up(&w->node, back == BACK_DROP_DRAM);
    check_all(w, back, before);
}

/* ---- stores ---- */

/* More than both tiers hold, so that from then on every put throws something away. */
static void overfill(struct world *w)
{
    struct kills_status s;
    assert_true(kills_client_open(&w->client, w->node.socket));
    for (uint32_t i = 0; i < KILLS_CONVS; i++) {
        struct kvd_put_result result;
        assert_int_equal(kills_put(&w->client, &w->load.convs[i], 0, KILLS_BLOCKS, &result), 0);
        kills_node_settle(&w->node, false, &s);
        check_caps(&s);
    }
    kills_client_close(&w->client);
    assert_true(s.dram_evicted > 0 && s.nvme_dropped > 0);
}

static void world_begin(struct world *w)
{
    w->tight = w->stores++ % 2 == 1;
    kills_node_init(&w->node, w->tight ? "32MiB" : "256MiB", w->tight ? "16MiB" : "256MiB");
    memset(&w->load, 0, sizeof(w->load));
    w->load.gaps_allowed = w->tight;
    w->lookups = 0;
    kills_load_init(&w->load, w->node.socket, kills_random(&w->random));
    kills_load_start(&w->load, kills_random(&w->random));
    w->begun = true;
    atomic_store(&w->load.limit, w->tight ? KILLS_BLOCKS : 2);
    if (dice(w, 3) == 0) {
        start_and_kill(w, false); /* the very first start */
    }
    kills_node_up(&w->node, false);
    if (w->tight) {
        overfill(w);
    }
}

/* A clean end, and once more up and down: nothing held, nothing lost, nothing counted twice. */
static void world_end(struct world *w)
{
    struct kills_files files;
    struct kills_files again;
    kills_load_resume(&w->load);
    kills_load_all_answered(&w->load);
    kills_load_end(&w->load);
    kills_load_check(&w->load);
    check_at_rest(w, false);
    kills_node_stop(&w->node);
    kills_node_files(&w->node, &files);
    kills_node_up(&w->node, false);
    kills_node_files(&w->node, &again);
    assert_int_equal(files.bytes, again.bytes);
    assert_int_equal(files.segments, again.segments);
    w->killed_ns = UINT64_MAX; /* a clean stop loses no look-up */
    check_all(w, BACK_WARM, NULL);
    kills_node_stop(&w->node);
    kills_load_fini(&w->load);
    kills_node_fini(&w->node);
    w->begun = false;
}

static uint64_t environment_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end = NULL;
    uint64_t v = text ? strtoull(text, &end, 0) : 0;
    return text && end != text && *end == 0 ? v : otherwise;
}

static void r_killed_under_load(void **state)
{
    struct world *w = *state = calloc(1, sizeof(*w));
    assert_non_null(w);
    uint64_t kills = environment_number("KVD_CRASH_KILLS", KILLS_DEFAULT);
    uint64_t seed = environment_number("KVD_CRASH_SEED", kvd_mono_ns());
    w->random = seed;
    (void)printf("KVD_CRASH_SEED=%llu KVD_CRASH_KILLS=%llu\n", (unsigned long long)seed,
                 (unsigned long long)kills);
    (void)fflush(stdout);
    while (w->kills < kills) {
        uint32_t end = w->kills + KILLS_A_STORE;
        world_begin(w);
        while (w->kills < end && w->kills < kills) {
            struct found before[CONVS];
            uint64_t how = dice(w, 10);
            bool rest = how < 2;
            if (rest) {
                rest_and_kill(w, before);
            } else if (how < 6) {
                point_and_kill(w);
            } else {
                load_and_kill(w);
            }
            come_back(w, rest ? before : NULL);
            if (atomic_load(&w->load.limit) < KILLS_BLOCKS) {
                atomic_fetch_add(&w->load.limit, 1);
            }
        }
        world_end(w);
    }
    (void)printf("%u kills (%u at chosen points, %u while starting), %u stores: %llu blocks, %llu "
                 "MiB compared by the "
                 "test itself; %llu evicted, %llu dropped; of %llu look-ups, %llu of the last "
                 "second before a kill are not counted\n",
                 w->kills, w->kills_at_points, w->kills_in_start, w->stores,
                 (unsigned long long)w->loaded_blocks, (unsigned long long)(w->loaded_bytes >> 20),
                 (unsigned long long)w->evicted, (unsigned long long)w->dropped,
                 (unsigned long long)w->lookups_checked, (unsigned long long)w->lookups_lost);
}

/* Whatever a failure left. */
static int take_down(void **state)
{
    struct world *w = *state;
    if (w->begun) {
        kills_client_close(&w->client);
        kills_load_fini(&w->load);
        kills_node_fini(&w->node);
    }
    free(w);
    return 0;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_teardown(r_killed_under_load, take_down),
};

KVD_TEST_MAIN(tests)
