/*
 * A power cut at any moment. A history of the store is recorded: thirteen runs on one root, most of
 * them killed in the middle of something (images_stage.c). From the record come images of what a
 * power cut at some event may have left (images_model.h), the store opens them, and everything is
 * checked: what was promised is there, what is found is right, and nothing is counted wrong.
 *
 * KVD_CRASH_IMAGES: number of random images (100). KVD_CRASH_SEED: of the history and of the
 * images. Timing has its part in a history, so one that an image fails in is kept, and
 * KVD_CRASH_HISTORY with KVD_CRASH_IMAGE, both as printed, check that image again. A history that
 * isn't there is recorded, and kept.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "images_model.h"
#include "kvd_test.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"

enum { IMAGES = 100, STAGE_S = 120, SEGMENTS_MAX = 256, FRESH_PROMPT = 5000, NO_SUCH_STAGE = 77 };

struct images {
    char folder[WORLD_PATH_BYTES]; /* of the history */
    char image[WORLD_PATH_BYTES];  /* holds one image at a time, and its pool */
    uint64_t seed;
    struct history history;
    struct image_how how; /* of the image that is checked */
    uint32_t checked;
    bool kept; /* the history is somebody's, or an image of it fails */
};

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && text[0] ? strtoull(text, NULL, 10) : otherwise;
}

/* ---- the history ---- */

static pid_t stage_start(const struct images *im, unsigned stage)
{
    char number[16];
    char seed[32];
    char program[WORLD_PATH_BYTES];
    (void)snprintf(number, sizeof(number), "%u", stage);
    (void)snprintf(seed, sizeof(seed), "%" PRIu64, im->seed);
    world_path(program, getenv("KVD_BUILD"), "tests/crash/images_stage");
    pid_t pid = fork();
    if (pid == 0) {
        (void)alarm(STAGE_S); /* one that hangs ends as a failure */
        (void)execl(program, program, number, seed, im->folder, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    return pid;
}

/* Keeps what the index's log has become, before the next run opens it. */
static void keep_wal(const struct images *im, unsigned stage)
{
    char copy[WORLD_PATH_BYTES];
    char index[WORLD_PATH_BYTES];
    char path[WORLD_PATH_BYTES];
    char name[64];
    char wal[64];
    (void)snprintf(name, sizeof(name), "index-%u", stage);
    world_path(copy, im->folder, name);
    if (access(copy, F_OK) != 0) {
        return; /* this run ended before it had opened the index */
    }
    world_path(index, im->folder, "disk/" WORLD_INDEX);
    (void)world_wal(index, wal);
    world_path(path, index, wal);
    world_path(index, copy, "wal");
    world_copy(path, index, UINT64_MAX);
}

/* False: there is no such stage. */
static bool run_stage(const struct images *im, unsigned stage)
{
    char root[WORLD_PATH_BYTES];
    char log[WORLD_PATH_BYTES];
    int status = 0;
    world_path(root, im->folder, "disk");
    world_path(log, im->folder, "log");
    assert_true(waitpid(stage_start(im, stage), &status, 0) > 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_SUCH_STAGE) {
        return false;
    }
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!killed && status != 0) {
        fail_msg("stage %u ended with status %d", stage, status);
    }
    if (killed) {
        record_settle(log, root);
    }
    record_add_mark(log, MARK_RUN_END, killed);
    keep_wal(im, stage);
    return true;
}

static void record_history(struct images *im)
{
    char root[WORLD_PATH_BYTES];
    world_path(root, im->folder, "disk");
    assert_int_equal(mkdir(root, 0700), 0);
    for (unsigned stage = 0; run_stage(im, stage); stage++) {
    }
}

/* ---- checking an image ---- */

struct segments {
    char names[SEGMENTS_MAX][RECORD_PATH_BYTES];
    uint32_t n;
    uint64_t bytes; /* of the files */
};

static void close_dir(DIR **dir)
{
    if (*dir) {
        (void)closedir(*dir);
    }
}

static void list_class(const char *root, const char *class, struct segments *s)
{
    char folder[WORLD_PATH_BYTES];
    char path[RECORD_PATH_BYTES];
    (void)snprintf(path, sizeof(path), WORLD_NVME "/%s", class);
    world_path(folder, root, path);
    KVD_CLEANUP(close_dir) DIR *dir = opendir(folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        struct stat st;
        if (strstr(e->d_name, ".seg") && fstatat(dirfd(dir), e->d_name, &st, 0) == 0) {
            uint64_t on_disk = (uint64_t)st.st_blocks * 512;
            assert_true(s->n < SEGMENTS_MAX);
            (void)snprintf(s->names[s->n++], RECORD_PATH_BYTES, "%.20s/%.200s", path, e->d_name);
            s->bytes += (uint64_t)st.st_size > on_disk ? (uint64_t)st.st_size : on_disk;
        }
    }
}

static void list_segments(const char *root, struct segments *ret)
{
    memset(ret, 0, sizeof(*ret));
    list_class(root, "1", ret);
    list_class(root, "2", ret);
}

/* Leading blocks of a prompt that were promised. */
static uint32_t promised_of(const struct images *im, const struct image_truth *truth,
                            uint32_t prompt)
{
    struct kvd_key keys[WORLD_BLOCKS_MAX];
    uint32_t n = 0;
    if (truth->purged[prompt] != PURGED_NOT) {
        return 0;
    }
    world_keys(prompt, im->history.seed, keys);
    while (n < world_blocks(prompt) && truth_promised(truth, &keys[n])) {
        n++;
    }
    return n;
}

/* All prompts: what is found, which must be good to the last byte, and what was promised must be
 * among it. */
static void check_blocks(struct images *im, struct rig *rig, const struct image_truth *truth,
                         uint32_t found[WORLD_PROMPTS])
{
    for (uint32_t p = 0; p < WORLD_PROMPTS; p++) {
        uint32_t tokens[WORLD_TOKENS_MAX];
        uint32_t n = world_tokens(p, tokens);
        found[p] = rig_match(rig, world_tenant(p), world_class(p), tokens, n);
        if (found[p] && rig_load(rig, tokens) != found[p]) {
            fail_msg("prompt %u: %u blocks are found and can't be read", p, found[p]);
        }
        if (found[p] && truth->purged[p] == PURGED) {
            fail_msg("prompt %u was purged, and is there again", p);
        }
        if (found[p] < promised_of(im, truth, p)) {
            fail_msg("prompt %u: %u blocks were promised, %u are there", p,
                     promised_of(im, truth, p), found[p]);
        }
    }
}

static void check_accounts(struct rig *rig, const char *root)
{
    struct segments s;
    list_segments(root, &s);
    assert_int_equal(rig_number(rig, "status", "", "tiers.1.used_bytes"), s.bytes);
    assert_int_equal(rig_number(rig, "status", "", "corrupt"), 0);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.missed.failed.tokens"), 0);
    rig_assert_adds_up(rig);
}

/* The store goes on: what is put is written down, under names that were never used. */
static void check_goes_on(struct images *im, struct rig *rig, const char *root)
{
    struct segments s;
    uint32_t tokens[WORLD_TOKENS_MAX];
    struct segments before;
    list_segments(root, &before);
    rig_tokens(FRESH_PROMPT, WORLD_TOKENS_MAX, tokens);
    assert_int_equal(rig_put(rig, "", "chat", tokens, 2), 2);
    rig_settle(rig);
    list_segments(root, &s);
    for (uint32_t i = 0; i < s.n; i++) {
        bool old = false;
        for (uint32_t j = 0; j < before.n; j++) {
            old = old || strcmp(before.names[j], s.names[i]) == 0;
        }
        for (uint32_t e = 0; e < im->how.events && !old; e++) {
            const struct record_event *event = im->history.log.events[e];
            if (event->op == RECORD_CREATE && strcmp(event->path, s.names[i]) == 0) {
                fail_msg("the name %s is used twice", s.names[i]);
            }
        }
    }
}

static void check_identity(const char *root, const struct images *im,
                           const struct image_truth *truth)
{
    uint64_t seed = 0;
    uint64_t boot = 0;
    assert_true(world_identity(root, &seed, &boot));
    assert_true(boot > truth->boot);
    if (truth->n_promises) {
        assert_true(seed == im->history.seed);
    }
}

static void check_open(struct images *im, const char *root, const char *pool,
                       const struct image_truth *truth)
{
    uint32_t first[WORLD_PROMPTS];
    uint32_t again[WORLD_PROMPTS];
    struct rig rig;
    world_rig(&rig, root, pool);
    rig_open(&rig, true);
    check_identity(root, im, truth);
    if (im->how.index != INDEX_GONE) {
        assert_true(rig_number(&rig, "hitrate", "", "rows.0.asked.tokens") >= truth->asked_tokens);
    }
    check_blocks(im, &rig, truth, first);
    check_accounts(&rig, root);
    rig_close(&rig);
    rig_open(&rig, true);
    check_blocks(im, &rig, truth, again);
    assert_memory_equal(first, again, sizeof(first));
    check_accounts(&rig, root);
    check_goes_on(im, &rig, root);
    rig_close(&rig);
    kvd_config_fini(&rig.config);
}

static void check_image(struct images *im, const struct image_how *how)
{
    char root[WORLD_PATH_BYTES];
    char pool[WORLD_PATH_BYTES];
    struct image_truth truth;
    im->how = *how;
    im->checked++;
    im->kept = true; /* until the checks are passed */
    world_path(root, im->image, "disk");
    world_path(pool, im->image, "pool");
    truth_at(&im->history, how->events, &truth);
    image_make(&im->history, how, root);
    check_open(im, root, pool, &truth);
    truth_fini(&truth);
    world_remove(root);
    im->kept = getenv("KVD_CRASH_HISTORY") != NULL;
}

/* ---- tests ---- */

static void make_folder(const char *parent, char ret[WORLD_PATH_BYTES])
{
    char name[WORLD_PATH_BYTES];
    world_path(name, parent ? parent : "/tmp", "kvd-images-XXXXXX");
    char *folder = realpath(mkdtemp(name), NULL);
    assert_non_null(folder);
    (void)snprintf(ret, WORLD_PATH_BYTES, "%.400s", folder);
    free(folder);
}

static int setup(void **state)
{
    struct images *im = calloc(1, sizeof(*im));
    const char *tmp = getenv("TMPDIR");
    const char *had = getenv("KVD_CRASH_HISTORY");
    assert_non_null(im);
    *state = im;
    /* in memory, where there is such a place: an image is written, synced and read in no time */
    make_folder(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : tmp, im->image);
    im->seed = from_environment("KVD_CRASH_SEED", (uint64_t)time(NULL) % 1000000);
    if (had) {
        (void)snprintf(im->folder, sizeof(im->folder), "%.400s", had);
        im->kept = true;
    } else {
        make_folder(tmp, im->folder);
    }
    if (!had || mkdir(had, 0700) == 0) {
        record_history(im);
    }
    history_load(im->folder, &im->history);
    (void)printf("KVD_CRASH_SEED=%" PRIu64 ": a history of %u events\n", im->seed,
                 im->history.log.n);
    return 0;
}

static int teardown(void **state)
{
    struct images *im = *state;
    (void)printf("%u images\n", im->checked);
    world_remove(im->image);
    if (im->kept) {
        (void)printf("KVD_CRASH_HISTORY=%s KVD_CRASH_IMAGE=%u:%d:%d:%" PRIu64 "\n", im->folder,
                     im->how.events, (int)im->how.files, (int)im->how.index, im->how.random);
    } else {
        world_remove(im->folder);
    }
    history_unload(&im->history);
    free(im);
    return 0;
}

/* The image that is asked for, if one is. */
static bool check_given(struct images *im)
{
    const char *text = getenv("KVD_CRASH_IMAGE");
    struct image_how how = {0};
    unsigned files;
    unsigned index;
    if (!text) {
        return false;
    }
    assert_int_equal(sscanf(text, "%u:%u:%u:%" SCNu64, &how.events, &files, &index, &how.random),
                     4);
    how.files = (enum image_files)files;
    how.index = (enum image_index)index;
    assert_true(how.events <= im->history.log.n);
    check_image(im, &how);
    return true;
}

static void random_images(void **state)
{
    struct images *im = *state;
    uint64_t x = im->seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    uint64_t n = from_environment("KVD_CRASH_IMAGES", IMAGES);
    for (uint64_t i = 0; i < n && !(i == 0 && check_given(im)); i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        struct image_how how = {.events = 1 + (uint32_t)(x >> 20) % im->history.log.n,
                                .files = FILES_ANY,
                                .index = i % 10 == 9 ? INDEX_GONE : INDEX_ANY,
                                .random = x >> 8};
        check_image(im, &how);
    }
}

/* An event that another starts from: the beginning and end of a run are looked at closely. */
static bool is_turn(const struct record_event *e)
{
    return e->op == RECORD_MARK && (e->mark == MARK_INDEX_OPEN || e->mark == MARK_RUN_END);
}

static uint64_t sum_at(const struct images *im, const struct image_how *how)
{
    struct image_truth truth;
    truth_at(&im->history, how->events, &truth);
    uint64_t both[] = {image_sum(&im->history, how), truth.n_promises, truth.boot,
                       truth.asked_tokens};
    truth_fini(&truth);
    return kvd_sum(both, sizeof(both));
}

/* One extreme at each turn, after each of the `close` events that follow, then after one in `skip`:
 * what goes wrong there goes wrong for long. Images that hold the same as the one before are passed
 * over. */
static void every_step(struct images *im, const struct image_how *extreme, uint32_t close,
                       uint32_t skip)
{
    struct image_how how = *extreme;
    uint64_t last = 0;
    uint32_t since_turn = 0;
    uint32_t n = 0;
    for (how.events = 1; how.events <= im->history.log.n; how.events++) {
        bool turn = is_turn(im->history.log.events[how.events - 1]);
        since_turn = turn ? 0 : since_turn + 1;
        uint64_t sum = sum_at(im, &how);
        if (turn || (sum != last && (since_turn < close || n++ % skip == 0))) {
            check_image(im, &how);
        }
        last = sum;
    }
}

/* The files as little as they may be and the index as much; the other way round; nothing taken away
 * that may be back; and the files as little without an index. */
static void r_power_cut_after_every_step(void **state)
{
    struct images *im = *state;
    if (check_given(im)) {
        return;
    }
    every_step(im, &(struct image_how){.files = FILES_SYNCED, .index = INDEX_ALL}, 50, 20);
    every_step(im, &(struct image_how){.files = FILES_ALL, .index = INDEX_SYNCED}, 0, 40);
    every_step(im, &(struct image_how){.files = FILES_GROWN, .index = INDEX_ALL}, 0, 80);
    every_step(im, &(struct image_how){.files = FILES_SYNCED, .index = INDEX_GONE}, 0, 80);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(random_images, setup, teardown),
    cmocka_unit_test_setup_teardown(r_power_cut_after_every_step, setup, teardown),
};
KVD_TEST_MAIN(tests)
