/* The scrub: what went bad is found before it is asked for, and stays found. */
#include "kvd_test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "cachesvc/index/index.h"
#include "damage.h"
#include "moved_wall.h"
#include "proto/base/bytes.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5 };

static uint64_t extent_bytes(void)
{
    return DAMAGE_PAGE + rig_block_bytes();
}

/* A store with N blocks of one chain in dram and in one sealed segment; then closed. */
static void stored(struct rig *rig, uint32_t seed, uint32_t *tokens)
{
    rig_tokens(seed, TOKENS, tokens);
    rig_init(rig, "64MiB", "64MiB");
    rig_open(rig, false);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_close(rig);
}

static void option(struct rig *rig, const char *name, const char *value)
{
    struct kvd_diag diag = {{0}};
    if (kvd_config_set(&rig->config, name, value, name, &diag)) {
        fail_msg("%s", diag.text);
    }
}

static void a_round_reads_all(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 1, tokens);
    rig_open(&rig, false);
    damage_verify(&rig, "");
    for (int tier = 0; tier < 2; tier++) {
        const char *path = tier ? "now.tiers.1.records" : "now.tiers.0.records";
        assert_int_equal(rig_number(&rig, "verify", "", path), N);
        path = tier ? "now.tiers.1.bytes" : "now.tiers.0.bytes";
        assert_int_equal(rig_number(&rig, "verify", "", path), N * extent_bytes());
        path = tier ? "now.tiers.1.bad" : "now.tiers.0.bad";
        assert_int_equal(rig_number(&rig, "verify", "", path), 0);
    }
    assert_int_equal(rig_number(&rig, "status", "", "scrub.last.round"), 1);
    assert_int_equal(rig_number(&rig, "status", "", "scrub.quarantined"), 0);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    /* what is still being written is read too */
    uint32_t more[TOKENS];
    rig_tokens(2, TOKENS, more);
    assert_int_equal(rig_put(&rig, "", "chat", more, N), N);
    rig_settle(&rig);
    damage_verify(&rig, "nvme");
    assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.records"), 2 * N);
    assert_int_equal(rig_number(&rig, "status", "", "scrub.last.round"), 1); /* of all tiers */
    rig_fini(&rig);
}

/* Found before it is asked for: then it is a miss at the look-up already, not at the load. */
static void r_flipped_byte_found_by_the_scrub(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 3, tokens);
    damage_record(&rig, 5, DAMAGE_PAGE + 777); /* payload */
    damage_record(&rig, 7, 200);               /* header */
    rig_open(&rig, true);
    for (int round = 0; round < 2; round++) { /* the second counts nothing again */
        damage_verify(&rig, "nvme");
        rig_settle(&rig);
        assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.bad"), 2);
        assert_int_equal(rig_number(&rig, "verify", "", "quarantined"), 2);
        assert_int_equal(rig_number(&rig, "verify", "", "bad.0.offset"), damage_record_at(5));
        assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 2);
        assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 5);
        assert_int_equal(rig_load(&rig, tokens), 5);
    }
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.failed.blocks"), 2 * (N - 5));
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.hit.nvme.blocks"), 5);
    rig_close(&rig);
    rig_open(&rig, true); /* the quarantine lasts */
    assert_int_equal(rig_number(&rig, "verify", "", "quarantined"), 2);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 5);
    assert_int_equal(rig_load(&rig, tokens), 5);
    damage_verify(&rig, "nvme");
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 0); /* since this start: nothing */
    assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);      /* stored anew */
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

/* The block is in dram, and good there: it is written down again. */
static void r_bad_record_whose_block_is_in_dram(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 4, tokens);
    damage_record(&rig, 5, DAMAGE_PAGE + 777);
    rig_open(&rig, false);
    damage_verify(&rig, "nvme");
    rig_settle(&rig);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 1);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N); /* nobody noticed */
    rig_close(&rig);
    rig_open(&rig, true);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
    assert_int_equal(rig.results[5].tier, KVD_TIER_NVME);
    assert_int_equal(rig_load(&rig, tokens), N);
    rig_fini(&rig);
}

static void flip_in_pool(const struct rig *rig)
{
    char path[300];
    (void)snprintf(path, sizeof(path), "%s/pool", rig->folder);
    for (off_t at = 40 * DAMAGE_PAGE + 999; at < 110 * DAMAGE_PAGE; at += 3000) {
        damage_flip(path, at);
    }
}

/* A bad slot is removed. Where there is a copy below, that one serves; where there is none, the
 * next look-up is told why. */
static void r_flipped_byte_in_dram_found_by_the_scrub(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    uint32_t only_dram[TOKENS];
    stored(&rig, 5, tokens);
    rig_open(&rig, false);
    damage_verify(&rig, "dram"); /* from here on they would be served without another sum */
    flip_in_pool(&rig);
    damage_verify(&rig, "dram");
    uint64_t bad = rig_number(&rig, "verify", "", "now.tiers.0.bad");
    assert_in_range(bad, 1, N);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), bad);
    assert_int_equal(rig_number(&rig, "verify", "", "quarantined"), 0);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), N);
    assert_int_equal(rig_load(&rig, tokens), N);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.hit.nvme.blocks"), bad);
    rig_fini(&rig);

    rig_tokens(6, TOKENS, only_dram);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(rig_put(&rig, "", "batch", only_dram, N), N);
    flip_in_pool(&rig);
    damage_verify(&rig, "");
    bad = rig_number(&rig, "verify", "", "now.tiers.1.bad");
    assert_in_range(bad, 1, N);
    rig_settle(&rig);
    uint32_t good = rig_match(&rig, "", "batch", only_dram, TOKENS);
    assert_in_range(good, 0, N - 1);
    assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.failed.blocks"), N - good);
    kvd_service_release(rig.session, rig.match.lease, UINT32_MAX);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

/* ---- the quarantine at start ---- */

struct reopened {
    struct kvd_index *index;
    uint32_t changed;
};

static int say_open(const void *key, uint32_t key_bytes, const void *value, uint32_t value_bytes,
                    void *user)
{
    struct reopened *r = user;
    uint8_t row[256];
    assert_true(value_bytes < sizeof(row));
    memcpy(row, value, value_bytes);
    if (row[1] == 2) {
        row[1] = 1;
        assert_int_equal(
            kvd_index_row_put(r->index, KVD_INDEX_SEGMENTS, key, key_bytes, row, value_bytes, true),
            0);
        r->changed++;
    }
    return 0;
}

/* As a power cut leaves it that took the row which said SEALED: the file has its footer. */
static void sealed_rows_are_lost(struct rig *rig)
{
    char path[300];
    struct kvd_diag diag = {{0}};
    struct reopened r = {0};
    (void)snprintf(path, sizeof(path), "%s/index", rig->folder);
    const struct kvd_index_options options = {.path = path, .cache_bytes = 8 << 20};
    assert_int_equal(kvd_index_open(&options, &diag, &r.index), 0);
    assert_int_equal(kvd_index_row_walk(r.index, KVD_INDEX_SEGMENTS, say_open, &r), 0);
    assert_int_equal(r.changed, 1);
    kvd_index_close(&r.index);
}

static void r_bad_record_taken_up_again_at_start(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 7, tokens);
    damage_record(&rig, 5, DAMAGE_PAGE + 777); /* its header is good: start-up would believe it */
    rig_open(&rig, true);
    damage_verify(&rig, "nvme");
    rig_close(&rig);
    sealed_rows_are_lost(&rig);
    rig_open(&rig, true);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 5);
    assert_int_equal(rig_load(&rig, tokens), 5);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.1.quarantined"), 1);
    rig_fini(&rig);
}

/* The rows go with the segment. */
static void quarantine_goes_with_its_segment(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 8, tokens);
    damage_record(&rig, 5, DAMAGE_PAGE + 777);
    damage_record(&rig, 6, DAMAGE_PAGE + 777);
    rig_open(&rig, true);
    damage_verify(&rig, "nvme");
    assert_int_equal(rig_number(&rig, "verify", "", "quarantined"), 2);
    rig_close(&rig);
    assert_int_equal(unlink(damage_segment(&rig)), 0);
    rig_open(&rig, true);
    assert_int_equal(rig_number(&rig, "verify", "", "quarantined"), 0);
    rig_close(&rig);
    rig_open(&rig, true);
    assert_int_equal(rig_number(&rig, "verify", "", "quarantined"), 0);
    rig_fini(&rig);
}

/* ---- what only reading everything finds ---- */

/* The device put two records in each other's place. Both are whole. */
static void r_record_that_lies_elsewhere(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 9, tokens);
    uint8_t *a = malloc(extent_bytes());
    uint8_t *b = malloc(extent_bytes());
    int fd = open(damage_segment(&rig), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && a && b);
    assert_int_equal(pread(fd, a, extent_bytes(), damage_record_at(2)), extent_bytes());
    assert_int_equal(pread(fd, b, extent_bytes(), damage_record_at(9)), extent_bytes());
    assert_int_equal(pwrite(fd, a, extent_bytes(), damage_record_at(9)), extent_bytes());
    assert_int_equal(pwrite(fd, b, extent_bytes(), damage_record_at(2)), extent_bytes());
    (void)close(fd);
    free(a);
    free(b);
    rig_open(&rig, true);
    damage_verify(&rig, "nvme");
    rig_settle(&rig);
    assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.bad"), 2);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 2);
    assert_int_equal(rig_load(&rig, tokens), 2);
    rig_fini(&rig);
}

/* A footer is needed only when the index is lost: the scrub says so before. */
static void r_damaged_footer_found_by_the_scrub(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct stat st;
    stored(&rig, 10, tokens);
    const char *path = damage_segment(&rig);
    assert_int_equal(stat(path, &st), 0);
    damage_flip(path, st.st_size - 40);
    rig_open(&rig, true);
    for (int round = 0; round < 2; round++) {
        damage_verify(&rig, "nvme");
        assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.bad"), 1);
        assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.records"), N);
        assert_int_equal(rig_number(&rig, "verify", "", "bad.0.offset"), 0);
        assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 1);
    }
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_fini(&rig);
}

static void r_record_that_is_gone_found_by_the_scrub(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 11, tokens);
    assert_int_equal(truncate(damage_segment(&rig), damage_record_at(9) + DAMAGE_PAGE), 0);
    rig_open(&rig, true);
    damage_verify(&rig, "nvme");
    rig_settle(&rig);
    assert_int_equal(rig_match(&rig, "", "chat", tokens, TOKENS), 9);
    assert_int_equal(rig_load(&rig, tokens), 9);
    rig_fini(&rig);
}

/* ---- its course ---- */

static void wait_for(struct rig *rig, const char *what, const char *path, uint64_t at_least)
{
    uint64_t deadline = kvd_mono_ns() + DAMAGE_WAIT_S * KVD_NS_PER_S;
    while (rig_number(rig, what, "", path) < at_least) {
        assert_true(kvd_mono_ns() < deadline);
        (void)sched_yield();
    }
}

static void the_rate_holds(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct kvd_diag diag = {{0}};
    uint64_t round = 0;
    stored(&rig, 12, tokens);
    rig_open(&rig, true);
    uint64_t began_ns = kvd_mono_ns();
    assert_int_equal(kvd_service_verify(rig.service, "nvme", 20 * extent_bytes(), &diag, &round),
                     0);
    wait_for(&rig, "verify", "now.ended_s", 1);
    assert_true(kvd_mono_ns() - began_ns >= (N - 1) * KVD_NS_PER_S / 20);
    assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.records"), N);
    rig_fini(&rig);
}

static void a_restart_goes_on_where_it_was(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct kvd_diag diag = {{0}};
    uint64_t round = 0;
    stored(&rig, 13, tokens);
    rig_open(&rig, true);
    assert_int_equal(kvd_service_verify(rig.service, "nvme", 4 * extent_bytes(), &diag, &round), 0);
    wait_for(&rig, "verify", "now.tiers.0.records", 2);
    rig_close(&rig);
    rig_open(&rig, true);
    assert_int_equal(rig_number(&rig, "verify", "", "now.round"), round);
    assert_int_equal(rig_number(&rig, "verify", "", "now.ended_s"), 0);
    assert_in_range(rig_number(&rig, "verify", "", "now.tiers.0.records"), 2, N);
    wait_for(&rig, "verify", "now.ended_s", 1);
    assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.records"), N); /* none twice */
    rig_fini(&rig);
}

static void asking_twice_joins(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct kvd_diag diag = {{0}};
    uint64_t first = 0;
    uint64_t second = 0;
    stored(&rig, 14, tokens);
    rig_open(&rig, true);
    assert_int_equal(kvd_service_verify(rig.service, "", extent_bytes(), &diag, &first), 0);
    assert_int_equal(kvd_service_verify(rig.service, "nvme", 0, &diag, &second), 0);
    assert_int_equal(first, second);
    rig_close(&rig);
    rig_open(&rig, true);
    assert_int_equal(kvd_service_verify(rig.service, "moon", 0, &diag, &second),
                     -KVD_E_BAD_REQUEST);
    assert_non_null(strstr(diag.text, "moon"));
    rig_fini(&rig);
}

/* By the clock: not before the pause is over, and a new store has nothing to be read. */
static void a_round_a_day(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    stored(&rig, 15, tokens);
    rig_open(&rig, true);
    assert_int_equal(rig_number(&rig, "verify", "", "now.round"), 0);
    moved_wall_advance(24 * 3600 + 1);
    wait_for(&rig, "verify", "now.ended_s", 1);
    assert_int_equal(rig_number(&rig, "status", "", "scrub.last.round"), 1);
    assert_int_equal(rig_number(&rig, "status", "", "scrub.last.tiers.0.records"), N);
    rig_close(&rig);
    option(&rig, "scrub.rate", "0");
    rig_open(&rig, true); /* turned off: the next pause passes without a round */
    moved_wall_advance(24 * 3600 + 1);
    damage_verify(&rig, "nvme"); /* asked for: the number shows that none came between */
    assert_int_equal(rig_number(&rig, "verify", "", "now.round"), 2);
    moved_wall_advance(-2 * (24 * 3600 + 1));
    rig_fini(&rig);
}

/* ---- beside everything else ---- */

struct beside {
    struct rig *rig;
    atomic_bool stop;
};

static void *verify_again_and_again(void *arg)
{
    struct beside *b = arg;
    struct kvd_diag diag = {{0}};
    uint64_t round = 0;
    while (!atomic_load(&b->stop)) {
        (void)kvd_service_verify(b->rig->service, "", 0, &diag, &round);
        (void)sched_yield();
    }
    return NULL;
}

/* Segments die and slots are evicted under the scrub: nothing good is called bad, nothing stops. */
static void segments_die_meanwhile(void **state)
{
    (void)state;
    struct rig rig;
    rig_init(&rig, "32MiB", "16MiB");
    rig_open(&rig, false);
    struct beside b = {.rig = &rig};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, verify_again_and_again, &b), 0);
    for (uint32_t seed = 100; seed < 170; seed++) {
        uint32_t tokens[TOKENS];
        rig_tokens(seed, TOKENS, tokens);
        assert_int_equal(rig_put(&rig, "", "chat", tokens, N), N);
    }
    rig_settle(&rig);
    wait_for(&rig, "status", "tiers.1.dropped_blocks", 1);
    atomic_store(&b.stop, true);
    (void)pthread_join(thread, NULL);
    wait_for(&rig, "verify", "now.ended_s", 1);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 0);
    assert_int_equal(rig_number(&rig, "verify", "", "quarantined"), 0);
    assert_true(rig_number(&rig, "status", "", "scrub.last.round") >= 1);
    assert_true(rig_number(&rig, "status", "", "threads.keeper.silent_s") < 60);
    rig_fini(&rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_round_reads_all),
    cmocka_unit_test(r_flipped_byte_found_by_the_scrub),
    cmocka_unit_test(r_bad_record_whose_block_is_in_dram),
    cmocka_unit_test(r_flipped_byte_in_dram_found_by_the_scrub),
    cmocka_unit_test(r_bad_record_taken_up_again_at_start),
    cmocka_unit_test(quarantine_goes_with_its_segment),
    cmocka_unit_test(r_record_that_lies_elsewhere),
    cmocka_unit_test(r_damaged_footer_found_by_the_scrub),
    cmocka_unit_test(r_record_that_is_gone_found_by_the_scrub),
    cmocka_unit_test(the_rate_holds),
    cmocka_unit_test(a_restart_goes_on_where_it_was),
    cmocka_unit_test(asking_twice_joins),
    cmocka_unit_test(a_round_a_day),
    cmocka_unit_test(segments_die_meanwhile),
};

KVD_TEST_MAIN(tests)
