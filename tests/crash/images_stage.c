/*
 * The recorded program: images_stage STAGE SEED HISTORY. Each stage is one run of the store on the
 * root of a history (see images_world.h), with a client; most end by SIGKILL in the middle of
 * something, so that the next starts on what a killed daemon leaves, none of it synced. Ends with 0
 * where it was meant to live, else by SIGKILL; a failed assertion is another end.
 */
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault_io.h"
#include "images_index.h"
#include "images_world.h"
#include "kvd_test.h"
#include "proto/base/bytes.h"

struct stage {
    const char *history;
    uint64_t random;
    struct rig rig;
};

static uint32_t draw(struct stage *s, uint32_t below)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (uint32_t)(s->random >> 24) % below;
}

static void kill_at(enum fault_op op, const char *file, enum fault_when when, uint32_t skip)
{
    (void)fault_add(&(struct fault){
        .op = op, .kind = FAULT_KILL, .file = file, .when = when, .skip = skip, .times = 1});
}

static void put(struct stage *s, uint32_t prompt)
{
    uint32_t tokens[WORLD_TOKENS_MAX];
    (void)world_tokens(prompt, tokens);
    uint32_t n = world_blocks(prompt);
    assert_int_equal(rig_put(&s->rig, world_tenant(prompt), world_class(prompt), tokens, n), n);
}

static void put_range(struct stage *s, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t prompt = (first + i) % WORLD_PROMPTS;
        if (!world_guest(prompt)) {
            put(s, prompt);
        }
    }
}

/* Four of the guest's prompts, three of which are dropped at once. With `fault` the last drop
 * fails, and that prompt stays. */
static void guests(struct stage *s, uint32_t first, const struct fault *fault)
{
    for (uint32_t p = first; p < first + 40; p += 10) {
        assert_true(world_guest(p));
        put(s, p);
    }
    rig_settle(&s->rig);
    for (uint32_t p = first; p < first + 30; p += 10) {
        uint32_t tokens[WORLD_TOKENS_MAX];
        (void)world_tokens(p, tokens);
        (void)record_mark(MARK_PURGING, p, NULL, 0);
        bool fails = fault && p == first + 20;
        if (fails) {
            (void)fault_add(fault);
        }
        int dropped = rig_drop(&s->rig, world_tenant(p), tokens, 0, world_blocks(p));
        fault_clear();
        assert_int_equal(dropped < 0, fails);
        (void)record_mark(fails ? MARK_NOT_PURGED : MARK_PURGED, p, NULL, 0);
    }
}

/* The fourth, by a purge of all that the guest has. */
static void purge_guest(struct stage *s, uint32_t first)
{
    (void)record_mark(MARK_PURGING, first + 30, NULL, 0);
    assert_int_equal(rig_purge_tenant(&s->rig, world_tenant(first)), 0);
    (void)record_mark(MARK_PURGED, first + 30, NULL, 0);
}

static void hit(struct stage *s, uint32_t prompt)
{
    uint32_t tokens[WORLD_TOKENS_MAX];
    uint32_t n = world_tokens(prompt, tokens);
    uint32_t found = rig_match(&s->rig, world_tenant(prompt), world_class(prompt), tokens, n);
    assert_int_equal(found ? rig_load(&s->rig, tokens) : 0, found);
}

/* One batch of many blocks: while the first one is being written the others gather. Of that
 * batch the faults (up to two, or NULL) make something fail. Prompts of one class and one block
 * each. */
static void put_batch(struct stage *s, uint32_t first, uint32_t n, const struct fault *fault,
                      const struct fault *second)
{
    int hold = fault_hold(FAULT_WRITE, ".seg");
    put(s, first);
    assert_true(fault_wait_held(hold, 1));
    for (uint32_t i = 1; i < n; i++) {
        put(s, first + 10 * i);
    }
    if (fault) {
        (void)fault_add(fault);
    }
    if (second) {
        (void)fault_add(second);
    }
    fault_release(hold);
    rig_settle(&s->rig);
    fault_clear();
}

/* ---- the stages, in their order ---- */

/* Killed between the making of a folder and the sync that makes its name last. */
static void first_folder(struct stage *s)
{
    kill_at(FAULT_SYNC_FOLDER, "/disk", FAULT_BEFORE, draw(s, 2));
    rig_open(&s->rig, true);
}

static void first_identity(struct stage *s)
{
    kill_at(FAULT_RENAME, "IDENTITY", FAULT_AFTER, 0);
    rig_open(&s->rig, true);
}

static void second_folder(struct stage *s)
{
    kill_at(FAULT_SYNC_FOLDER, "/disk/b", FAULT_BEFORE, 0);
    rig_open(&s->rig, true);
}

static void class_folder(struct stage *s)
{
    rig_open(&s->rig, true);
    kill_at(FAULT_SYNC_FOLDER, "/b/nvme", FAULT_BEFORE, 0);
    put(s, 2);
    rig_settle(&s->rig);
}

static void count(struct stage *s)
{
    (void)record_mark(MARK_COUNTED, rig_number(&s->rig, "hitrate", "", "rows.0.asked.tokens"), NULL,
                      0);
}

/* A batch with a write that fails in its middle: what lies behind the hole is found by the footer
 * only. One whose segment gets no footer besides. One whose sync fails. Then a clean end. */
static void holes(struct stage *s)
{
    const struct fault write = {
        .op = FAULT_WRITE, .kind = FAULT_FAIL, .file = ".seg", .skip = 1 + draw(s, 2), .times = 1};
    const struct fault sync = {
        .op = FAULT_FDATASYNC, .kind = FAULT_FAIL, .file = ".seg", .times = 1};
    const struct fault cut = {.op = FAULT_TRUNCATE, .kind = FAULT_FAIL, .file = ".seg", .times = 2};
    rig_open(&s->rig, true);
    put_batch(s, 2, 5, &write, NULL);
    put_batch(s, 84, 5, &write, &cut);
    put_batch(s, 52, 3, &sync, NULL);
    put_batch(s, 4, 4, NULL, NULL);
    guests(s, 7, NULL);
    purge_guest(s, 7);
    for (uint32_t p = 0; p < 12; p++) {
        hit(s, p);
    }
    count(s);
}

/* Killed when records are written and not synced. */
static void tail(struct stage *s)
{
    rig_open(&s->rig, true);
    put_batch(s, 1, 4, NULL, NULL);
    put_range(s, 20, 4 + draw(s, 6));
    rig_settle(&s->rig);
    guests(s, 47, NULL);
    kill_at(FAULT_FDATASYNC, ".seg", FAULT_BEFORE, draw(s, 2));
    put_range(s, 40, 12);
    rig_settle(&s->rig);
}

/* Killed while it reads what the last one left. */
static void killed_start(struct stage *s)
{
    kill_at(FAULT_FDATASYNC, ".seg", draw(s, 2) ? FAULT_AFTER : FAULT_BEFORE, 1 + draw(s, 2));
    rig_open(&s->rig, true);
}

/* The same in a segment that has room for more, so that it is a record that isn't synced. */
static void short_tail(struct stage *s)
{
    rig_open(&s->rig, true);
    put(s, 103);
    rig_settle(&s->rig);
    kill_at(FAULT_FDATASYNC, ".seg", FAULT_BEFORE, 1);
    put(s, 113);
    rig_settle(&s->rig);
    put(s, 123);
    rig_settle(&s->rig);
}

/* Starts on it, then fills the cap several times; killed when a segment's file has gone. */
static void evictions(struct stage *s)
{
    rig_open(&s->rig, true);
    put_range(s, 60, 50);
    kill_at(FAULT_UNLINK, ".seg", draw(s, 2) ? FAULT_AFTER : FAULT_BEFORE, draw(s, 3));
    put_range(s, 110, 80);
    rig_settle(&s->rig);
}

static void clean(struct stage *s)
{
    rig_open(&s->rig, true);
    put_range(s, 30, 10 + draw(s, 10));
    rig_settle(&s->rig);
    for (uint32_t p = 25; p < 60; p++) {
        hit(s, p);
    }
    count(s);
}

/* A drop that fails, and is said to have failed, after others. */
static void failed_drop(struct stage *s)
{
    const struct fault write = {
        .op = FAULT_WRITE, .kind = FAULT_FAIL, .file = "PURGES", .times = 1};
    rig_open(&s->rig, true);
    guests(s, 87, &write);
    count(s);
}

/* Killed anywhere. */
static void anywhere(struct stage *s)
{
    record_kill_at(30 + draw(s, 400));
    rig_open(&s->rig, true);
    for (;;) {
        put_range(s, draw(s, WORLD_PROMPTS), 10);
    }
}

enum ending { DIES, LIVES, EITHER };
static const struct {
    void (*run)(struct stage *s);
    enum ending ending;
} stages[] = {
    {first_folder, DIES}, {first_identity, DIES}, {second_folder, DIES},  {class_folder, DIES},
    {holes, LIVES},       {tail, DIES},           {killed_start, EITHER}, {short_tail, EITHER},
    {evictions, DIES},    {clean, LIVES},         {failed_drop, LIVES},   {anywhere, DIES},
    {clean, LIVES},
};
enum { STAGES = sizeof(stages) / sizeof(stages[0]) };

static void run(void **state)
{
    char *const *argv = *state;
    struct stage s = {.history = argv[3]};
    unsigned long nth = strtoul(argv[1], NULL, 10);
    char root[WORLD_PATH_BYTES];
    char path[WORLD_PATH_BYTES];
    assert_true(nth < STAGES);
    s.random = (strtoull(argv[2], NULL, 10) * 1000 + nth) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    world_path(root, s.history, "disk");
    world_path(path, s.history, "pool");
    world_rig(&s.rig, root, path);
    images_index_watch(s.history, nth);
    world_path(path, s.history, "log");
    record_start(path, root);
    stages[nth].run(&s);
    assert_int_not_equal(stages[nth].ending, DIES);
    rig_close(&s.rig);
    kvd_config_fini(&s.rig.config);
}

/* 77: there is no such stage. */
int main(int argc, char **argv)
{
    if (argc != 4 || strtoul(argv[1], NULL, 10) >= STAGES) {
        return argc == 4 ? 77 : 2;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(run, argv)};
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
