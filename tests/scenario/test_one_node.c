/*
 * One node, end to end, with the real programs: kvdepotd, kvdepot-engine and kvdepot as processes,
 * over a real socket and a real store. What is compared is what the engine says of its own numbers:
 * digests of the logits of every generated position and of the KV of the whole prompt, against an
 * engine that has no cache.
 */
#include "kvd_test.h"

#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvd_model_path.h"
#include "proc.h"
#include "proto/base/clock.h"
#include "tiny_gguf.h"

struct node {
    char folder[256];
    char socket[300];
    char store[300];
    char pool[300];
    char model[512];
    struct proc daemon;
};

struct answer {
    char text_sha[80];
    char logits_sha[80];
    char kv_sha[80];
    uint32_t prompt;
    uint32_t hit;
    uint32_t computed;
    uint32_t dram;
    uint32_t nvme;
};

static const char story[] = "The lighthouse keeper wrote down the weather every evening, for forty "
                            "years, in the same green book. On clear days "
                            "he wrote one line, on stormy days he wrote a page, and when ships "
                            "came close to the rocks he wrote their names, "
                            "their flags and the hour at which they turned away. After he had "
                            "retired, his daughter counted the storms: there "
                            "were 1,204 of them, and in all those nights only three ships were "
                            "lost. She gave the book to the museum in the "
                            "town, where a student found it, and made out of the green book's "
                            "lines the longest record of wind on that coast. ";

static void node_init(struct node *n)
{
    proc_folder(n->folder, sizeof(n->folder));
    (void)snprintf(n->socket, sizeof(n->socket), "%s/s", n->folder);
    (void)snprintf(n->store, sizeof(n->store), "%s/store", n->folder);
    (void)snprintf(n->pool, sizeof(n->pool), "%s/pool", n->folder);
    (void)snprintf(n->model, sizeof(n->model), "%s/model.gguf", n->folder);
    assert_int_equal(kvd_tiny_gguf_write(n->model, NULL), 0);
}

static void node_up(struct node *n, bool drop_dram)
{
    const char *const argv[] = {proc_program("cachesvc/kvdepotd"),
                                "--dir",
                                n->store,
                                "--socket",
                                n->socket,
                                "--dram.path",
                                n->pool,
                                "--dram.cap",
                                "512MiB",
                                "--nvme.cap",
                                "512MiB",
                                drop_dram ? "--drop-dram" : NULL,
                                NULL};
    proc_start(&n->daemon, argv);
    proc_expect(&n->daemon, "ready");
}

static void node_down(struct node *n)
{
    assert_int_equal(proc_end(&n->daemon, SIGTERM), 0);
}

static void node_fini(struct node *n)
{
    proc_remove_folder(n->folder);
}

/* ---- asking the engine ---- */

static void write_text(const char *path, const char *text, size_t repeat, const char *tail)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (size_t i = 0; i < repeat; i++) {
        assert_true(fprintf(f, "%zu. %s", i + 1, text) > 0);
    }
    assert_true(fprintf(f, "%s", tail) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void copy_string(const json_t *root, const char *key, char *ret, size_t n)
{
    const char *s = json_string_value(json_object_get(root, key));
    if (!s) {
        fail_msg("the report has no %s", key);
    }
    (void)snprintf(ret, n, "%s", s);
}

static uint32_t number(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(root, key);
    return v ? (uint32_t)json_integer_value(v) : 0;
}

static void read_report(const char *path, struct answer *ret)
{
    json_error_t err;
    json_t *root = json_load_file(path, 0, &err);
    if (!root) {
        fail_msg("%s: %s", path, err.text);
    }
    const json_t *tiers = json_object_get(root, "hit_by_tier");
    copy_string(root, "text_sha256", ret->text_sha, sizeof(ret->text_sha));
    copy_string(root, "logits_sha256", ret->logits_sha, sizeof(ret->logits_sha));
    copy_string(root, "kv_sha256", ret->kv_sha, sizeof(ret->kv_sha));
    ret->prompt = number(root, "prompt_tokens");
    ret->hit = number(root, "hit_tokens");
    ret->computed = number(root, "computed_tokens");
    ret->dram = number(tiers, "dram");
    ret->nvme = number(tiers, "nvme");
    json_decref(root);
}

/* Runs the engine once on the prompt file; cache: with the node's socket. */
static struct answer ask(struct node *n, const char *user, bool cache)
{
    struct answer a;
    struct proc p;
    char prompt[300];
    char report[300];
    (void)snprintf(prompt, sizeof(prompt), "%s/prompt", n->folder);
    (void)snprintf(report, sizeof(report), "%s/report", n->folder);
    const char *const argv[] = {proc_program("engine/kvdepot-engine"),
                                "--model",
                                n->model,
                                "--prompt-file",
                                prompt,
                                "--raw",
                                "--max-tokens",
                                "6",
                                "--user-id",
                                user,
                                "--report",
                                report,
                                "--match-ms",
                                "5000",
                                "--fingerprint-cache",
                                n->folder,
                                cache ? "--socket" : "--no-cache",
                                cache ? n->socket : NULL,
                                NULL};
    if (proc_run(&p, argv)) {
        fail_msg("the engine failed: %s", p.output);
    }
    read_report(report, &a);
    assert_int_equal(a.hit + a.computed, a.prompt);
    assert_int_equal(a.hit, a.dram + a.nvme);
    return a;
}

static void assert_same(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->prompt, b->prompt);
    assert_string_equal(a->text_sha, b->text_sha);
    assert_string_equal(a->logits_sha, b->logits_sha);
    assert_string_equal(a->kv_sha, b->kv_sha);
}

static void set_prompt(struct node *n, size_t repeat, const char *tail)
{
    char prompt[300];
    (void)snprintf(prompt, sizeof(prompt), "%s/prompt", n->folder);
    write_text(prompt, story, repeat, tail);
}

static uint32_t whole_blocks(const struct answer *a)
{
    return (a->prompt - 1) / 64 * 64;
}

/* ---- asking the administrator's command ---- */

static json_t *kvdepot_json(struct node *n, const char *what)
{
    struct proc p;
    const char *const argv[] = {
        proc_program("tools/kvdepot"), what, "--socket", n->socket, "--json", NULL};
    int status = proc_run(&p, argv);
    json_t *root = json_loads(p.output, 0, NULL);
    if (!root) {
        fail_msg("kvdepot %s: status %d, %s", what, status, p.output);
    }
    return root;
}

static uint64_t tier_number(struct node *n, size_t tier, const char *key)
{
    json_t *root = kvdepot_json(n, "status");
    const json_t *v = json_object_get(json_array_get(json_object_get(root, "tiers"), tier), key);
    assert_true(json_is_integer(v));
    uint64_t ret = (uint64_t)json_integer_value(v);
    json_decref(root);
    return ret;
}

static void settle(struct node *n)
{
    uint64_t deadline = kvd_mono_ns() + 60 * KVD_NS_PER_S;
    while (tier_number(n, 1, "queue_bytes") || tier_number(n, 0, "pinned_bytes")) {
        assert_true(kvd_mono_ns() < deadline);
    }
}

static void assert_hitrate_adds_up(struct node *n, uint64_t min_lookups, uint64_t max_lookups)
{
    json_t *root = kvdepot_json(n, "hitrate");
    const json_t *row = json_array_get(json_object_get(root, "rows"), 0);
    const char *const parts[] = {"hit", "missed"};
    json_int_t sum = 0;
    for (int i = 0; i < 2; i++) {
        const char *key;
        json_t *v;
        json_object_foreach(json_object_get(row, parts[i]), key, v)
        {
            sum += json_integer_value(json_object_get(v, "tokens"));
        }
    }
    assert_int_equal(sum,
                     json_integer_value(json_object_get(json_object_get(row, "asked"), "tokens")));
    assert_in_range(json_integer_value(json_object_get(row, "lookups")), min_lookups, max_lookups);
    json_decref(root);
}

/* ---- the tests ---- */

/* Every way a prefix can come back, against no cache; several lengths around the edges of blocks.
 */
static void every_way_back(struct node *n, size_t repeat, const char *tail)
{
    struct answer cold;
    struct answer warm;
    set_prompt(n, repeat, tail);
    struct answer none = ask(n, "", false);
    assert_int_equal(none.hit, 0);
    node_up(n, true);
    cold = ask(n, "", true);
    assert_same(&cold, &none);
    warm = ask(n, "", true); /* another engine process: the engine was restarted */
    assert_same(&warm, &none);
    assert_int_equal(warm.hit, whole_blocks(&none));
    assert_int_equal(warm.dram, warm.hit);
    node_down(n);
    node_up(n, false); /* dram survives a clean restart */
    warm = ask(n, "", true);
    assert_same(&warm, &none);
    assert_int_equal(warm.dram, whole_blocks(&none));
    node_down(n);
    node_up(n, true);
    warm = ask(n, "", true);
    assert_same(&warm, &none);
    assert_int_equal(warm.nvme, whole_blocks(&none));
    node_down(n);
}

static void hit_is_no_cache_byte_for_byte(void **state)
{
    (void)state;
    const char *const tails[] = {"", " a", " And then?",
                                 " What was the name of the last ship that was lost, and why?"};
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        struct node n;
        node_init(&n);
        every_way_back(&n, i, tails[i][0] ? tails[i] : "Hello");
        node_fini(&n);
    }
}

static void hit_is_no_cache_on_the_real_model(void **state)
{
    (void)state;
    char model[512];
    KVD_MODEL_OR_SKIP(model);
    struct node n;
    node_init(&n);
    (void)snprintf(n.model, sizeof(n.model), "%s", model);
    every_way_back(&n, 2, "Question: how many ships were lost?");
    node_fini(&n);
}

static void same_beginning_other_end(void **state)
{
    (void)state;
    struct node n;
    node_init(&n);
    node_up(&n, false);
    set_prompt(&n, 3, " Who kept the book?");
    struct answer first = ask(&n, "", true);
    set_prompt(&n, 3, " Where is the book now, and what colour has it?");
    struct answer none = ask(&n, "", false);
    struct answer second = ask(&n, "", true);
    assert_same(&second, &none);
    assert_true(second.hit > 0 && second.hit <= whole_blocks(&first));
    /* all whole blocks of the common beginning, which is the first prompt less its last 19 bytes */
    assert_true(second.hit + 64 > first.prompt - 19);
    assert_hitrate_adds_up(&n, 2, 2);
    node_down(&n);
    node_fini(&n);
}

static void r_other_user_and_other_weights(void **state)
{
    (void)state;
    struct node n;
    node_init(&n);
    node_up(&n, false);
    set_prompt(&n, 2, " Go on.");
    struct answer mine = ask(&n, "alice", true);
    assert_int_equal(ask(&n, "alice", true).hit, whole_blocks(&mine));
    assert_int_equal(ask(&n, "bob", true).hit, 0);
    assert_int_equal(ask(&n, "", true).hit, 0);
    struct kvd_tiny_gguf_options other = {.seed = 99}; /* the same name, the same path */
    assert_int_equal(kvd_tiny_gguf_write(n.model, &other), 0);
    struct answer none = ask(&n, "alice", false);
    struct answer theirs = ask(&n, "alice", true);
    assert_int_equal(theirs.hit, 0);
    assert_same(&theirs, &none);
    assert_string_not_equal(theirs.logits_sha, mine.logits_sha);
    assert_hitrate_adds_up(&n, 5, 5);
    node_down(&n);
    node_fini(&n);
}

/* ---- faults ---- */

static char segment_path[512];

static int find_segment(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)flag;
    (void)ftw;
    if (S_ISREG(st->st_mode) && strstr(path, ".seg")) {
        (void)snprintf(segment_path, sizeof(segment_path), "%s", path);
    }
    return 0;
}

static void flip_in_the_middle_of_a_segment(struct node *n)
{
    uint8_t b = 0;
    struct stat st;
    segment_path[0] = 0;
    assert_int_equal(nftw(n->store, find_segment, 16, FTW_PHYS), 0);
    int fd = open(segment_path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    off_t at = st.st_size / 2 / 4096 * 4096 - 4096 +
               1; /* a page that isn't padding: records are larger than two */
    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= 0x20;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    (void)close(fd);
}

static void r_one_byte_flipped_on_media(void **state)
{
    (void)state;
    struct node n;
    node_init(&n);
    node_up(&n, false);
    set_prompt(&n, 3, " Go on.");
    struct answer cold = ask(&n, "", true);
    node_down(&n);
    flip_in_the_middle_of_a_segment(&n);
    node_up(&n, true);
    struct answer none = ask(&n, "", false);
    struct answer damaged = ask(&n, "", true);
    assert_same(&damaged, &none);
    assert_true(damaged.hit < whole_blocks(&cold));
    json_t *status = kvdepot_json(&n, "status");
    assert_int_equal(json_integer_value(json_object_get(status, "corrupt")), 1);
    assert_string_equal(json_string_value(json_object_get(status, "health")), "degraded");
    json_decref(status);
    assert_hitrate_adds_up(&n, 2, 2);
    struct answer mended = ask(&n, "", true); /* what was computed anew was stored anew */
    assert_same(&mended, &none);
    assert_int_equal(mended.hit, whole_blocks(&cold));
    node_down(&n);
    node_fini(&n);
}

static void r_daemon_killed(void **state)
{
    (void)state;
    struct node n;
    node_init(&n);
    node_up(&n, false);
    set_prompt(&n, 3, " Go on.");
    struct answer none = ask(&n, "", false);
    struct answer cold = ask(&n, "", true);
    settle(&n);
    assert_int_equal(proc_end(&n.daemon, SIGKILL), 128 + SIGKILL);
    struct answer without = ask(&n, "", true); /* nobody listens: the engine computes */
    assert_same(&without, &none);
    assert_int_equal(without.hit, 0);
    node_up(&n, true);
    struct answer back = ask(&n, "", true);
    assert_same(&back, &none);
    assert_int_equal(back.nvme, whole_blocks(&cold));
    assert_hitrate_adds_up(&n, 1, 2); /* a kill loses at most the last second's look-ups, whole */
    assert_int_equal(proc_end(&n.daemon, SIGKILL), 128 + SIGKILL);
    node_up(&n, false); /* and warm out of what the killed one left in dram */
    back = ask(&n, "", true);
    assert_same(&back, &none);
    assert_int_equal(back.dram, whole_blocks(&cold));
    node_down(&n);
    node_fini(&n);
}

static void r_daemon_stopped(void **state)
{
    (void)state;
    struct node n;
    node_init(&n);
    node_up(&n, false);
    set_prompt(&n, 2, " Go on.");
    struct answer none = ask(&n, "", true);
    assert_int_equal(kill(n.daemon.pid, SIGSTOP), 0);
    struct answer stopped = ask(&n, "", true);
    assert_same(&stopped, &none);
    assert_int_equal(stopped.hit, 0);
    assert_int_equal(kill(n.daemon.pid, SIGCONT), 0);
    struct answer back = ask(&n, "", true);
    assert_int_equal(back.hit, whole_blocks(&none));
    node_down(&n);
    node_fini(&n);
}

static void second_daemon_on_the_folder_is_refused(void **state)
{
    (void)state;
    struct node n;
    struct proc p;
    char other[320];
    node_init(&n);
    node_up(&n, false);
    (void)snprintf(other, sizeof(other), "%s2", n.socket);
    const char *const argv[] = {proc_program("cachesvc/kvdepotd"),
                                "--dir",
                                n.store,
                                "--socket",
                                other,
                                "--dram.cap",
                                "64MiB",
                                "--dram.path",
                                n.pool,
                                NULL};
    assert_int_equal(proc_run(&p, argv), 1);
    assert_non_null(strstr(p.output, "another kvdepotd has it"));
    node_down(&n);
    node_fini(&n);
}

/* The example of the client library: a program of its own, with nothing but the public header. */
static void example_of_the_client_library(void **state)
{
    (void)state;
    struct node n;
    struct proc p;
    node_init(&n);
    node_up(&n, false);
    const char *const argv[] = {proc_program("client/kvdepot-hello"), n.socket, NULL};
    assert_int_equal(proc_run(&p, argv), 0);
    assert_non_null(strstr(p.output, "0 of 4 blocks were stored"));
    assert_int_equal(proc_run(&p, argv), 0);
    assert_non_null(strstr(p.output, "4 of 4"));
    node_down(&n);
    assert_int_not_equal(proc_run(&p, argv), 0); /* nobody listens */
    node_fini(&n);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(hit_is_no_cache_byte_for_byte),
    cmocka_unit_test(hit_is_no_cache_on_the_real_model),
    cmocka_unit_test(same_beginning_other_end),
    cmocka_unit_test(r_other_user_and_other_weights),
    cmocka_unit_test(r_one_byte_flipped_on_media),
    cmocka_unit_test(r_daemon_killed),
    cmocka_unit_test(r_daemon_stopped),
    cmocka_unit_test(second_daemon_on_the_folder_is_refused),
    cmocka_unit_test(example_of_the_client_library),
};

KVD_TEST_MAIN(tests)
