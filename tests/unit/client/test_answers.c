/*
 * The client against answers that are allowed but rare: a load that brings nothing, a space without
 * staging, a put that finds no room while its batch before is committed, a report too long for a
 * packet. One thread plays both sides where nothing is waited for.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvd_test.h"
#include "peer.h"
#include "proto/base/cleanup.h"

enum {
    BLOCK_TOKENS = 16,
    BLOCKS = 4,
    N_TOKENS = BLOCKS * BLOCK_TOKENS + 1,
    BLOCK_BYTES = 2 * 64 * 16 * 2,
    LEASE = 9,
    LONG_MS = 10000,
    SHORT_MS = 300, /* a deadline that is waited for */
};

static const uint32_t tokens[N_TOKENS] = {1, 2, 3, 4, 5};
static uint8_t memory[BLOCKS][BLOCK_BYTES];
static void *const dest[BLOCKS] = {memory[0], memory[1], memory[2], memory[3]};
static const void *const src[BLOCKS] = {memory[0], memory[1], memory[2], memory[3]};

struct rig {
    struct peer p;
    pthread_t thread;
    struct kvd_client *c;
    struct kvd_space *s;
    struct kvd_prompt prompt;
    uint32_t slots; /* of staging */
    unsigned n_fds;
};

static void script_start(struct rig *r, void *(*fn)(void *))
{
    assert_int_equal(pthread_create(&r->thread, NULL, fn, r), 0);
}

static void script_join(struct rig *r)
{
    assert_int_equal(pthread_join(r->thread, NULL), 0);
}

static void *script_open(void *arg)
{
    struct rig *r = arg;
    peer_accept(&r->p);
    (void)peer_receive(&r->p, KVD__WIRE__REQUEST__BODY_HELLO);
    peer_answer_hello(&r->p);
    (void)peer_receive(&r->p, KVD__WIRE__REQUEST__BODY_SPACE_OPEN);
    peer_answer_space_with(&r->p, r->slots, r->n_fds);
    return NULL;
}

static void rig_open(struct rig *r, uint32_t io_ms, uint32_t slots, unsigned n_fds)
{
    struct kvd_client_options o;
    struct kvd_space_config config = peer_space();
    *r = (struct rig){.prompt = peer_prompt(tokens, N_TOKENS), .slots = slots, .n_fds = n_fds};
    peer_init(&r->p);
    peer_listen(&r->p);
    script_start(r, script_open);
    kvd_client_options_init(&o);
    o.socket_path = r->p.path;
    o.connect_ms = o.match_ms = LONG_MS;
    o.io_ms = io_ms;
    assert_int_equal(kvd_client_open(&o, &r->c), 0);
    assert_int_equal(kvd_space_open(r->c, &config, &r->s), 0);
    script_join(r);
}

static void rig_close(struct rig *r)
{
    kvd_client_close(&r->c);
    peer_fini(&r->p);
}

static void drain_one(struct kvd_client *c, struct kvd_completion *done)
{
    int n = 0;
    for (int i = 0; i < 1000 && n == 0; i++) {
        struct pollfd pfd = {.fd = kvd_client_fd(c), .events = POLLIN};
        assert_int_equal(poll(&pfd, 1, LONG_MS), 1);
        n = kvd_drain(c, done, 1);
    }
    assert_int_equal(n, 1);
}

/* ---- loads that bring nothing: the release says so */

static struct kvd_lease *matched(struct rig *r)
{
    struct kvd_completion done;
    assert_int_equal(kvd_submit_match(r->s, &r->prompt, NULL), 0);
    (void)peer_receive(&r->p, KVD__WIRE__REQUEST__BODY_MATCH);
    peer_answer_match(&r->p, LEASE, BLOCKS, BLOCKS);
    drain_one(r->c, &done);
    assert_int_equal(done.status, 0);
    assert_int_equal(done.match.hit_blocks, BLOCKS);
    return done.match.lease;
}

static void released(struct rig *r, struct kvd_lease **lease, uint32_t stale_from)
{
    kvd_lease_release(lease);
    const Kvd__Wire__Request *req = peer_receive(&r->p, KVD__WIRE__REQUEST__BODY_RELEASE);
    assert_int_equal(req->release->lease, LEASE);
    assert_true(req->release->has_stale);
    assert_int_equal(req->release->stale_from_block, stale_from);
}

/* The first two blocks are there, the others come with the next part. */
static void answer_half(struct peer *p)
{
    const Kvd__Wire__LoadRequest *load = peer_receive(p, KVD__WIRE__REQUEST__BODY_LOAD)->load;
    assert_int_equal(load->n_blocks, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        struct kvd_wire_block row = {.state = i < 2 ? KVD_BLOCK_LOADED : KVD_BLOCK_STORED,
                                     .tier = KVD_TIER_DRAM,
                                     .generation = 100 + i,
                                     .offset = (uint64_t)i << 16,
                                     .generation_offset = ((uint64_t)i << 16) + 65532,
                                     .bytes = BLOCK_BYTES};
        memcpy(p->pool + row.generation_offset, &row.generation, 4);
        *peer_row(p, load->results, i) = row;
    }
    peer_answer_load(p, 2);
}

static void test_submitted_load_expires(void **state)
{
    (void)state;
    for (int parts = 0; parts < 2; parts++) {
        struct rig r;
        struct kvd_completion done;
        rig_open(&r, SHORT_MS, KVD_WIRE_STAGING_SLOTS, 1);
        struct kvd_lease *lease = matched(&r);
        assert_int_equal(kvd_submit_load(lease, 0, BLOCKS, dest, NULL), 0);
        if (parts) {
            answer_half(&r.p);
        }
        drain_one(r.c, &done); /* the rest is never answered */
        assert_int_equal(done.op, KVD_OP_LOAD);
        assert_int_equal(done.status, parts ? 0 : KVD_DEADLINE);
        assert_int_equal(done.good, parts ? 2 : 0);
        (void)peer_receive(&r.p, KVD__WIRE__REQUEST__BODY_LOAD);
        released(&r, &lease, parts ? 2 : 0);
        rig_close(&r);
    }
}

static void test_submitted_load_fails(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_completion done;
    rig_open(&r, LONG_MS, KVD_WIRE_STAGING_SLOTS, 1);
    struct kvd_lease *lease = matched(&r);
    assert_int_equal(kvd_submit_load(lease, 1, BLOCKS - 1, dest, NULL), 0);
    (void)peer_receive(&r.p, KVD__WIRE__REQUEST__BODY_LOAD);
    peer_answer_error(&r.p, -KVD_E_IO);
    drain_one(r.c, &done);
    assert_int_equal(done.status, KVD_IO);
    released(&r, &lease, 1);
    rig_close(&r);
}

static void *script_load_fails(void *arg)
{
    struct rig *r = arg;
    (void)peer_receive(&r->p, KVD__WIRE__REQUEST__BODY_LOAD);
    peer_answer_error(&r->p, -KVD_E_BUSY);
    return NULL;
}

static void test_load_fails(void **state)
{
    (void)state;
    struct rig r;
    uint32_t good = 99;
    rig_open(&r, LONG_MS, KVD_WIRE_STAGING_SLOTS, 1);
    struct kvd_lease *lease = matched(&r);
    script_start(&r, script_load_fails);
    assert_int_equal(kvd_load(lease, 1, 2, dest, &good), KVD_BUSY);
    script_join(&r);
    assert_int_equal(good, 99);
    released(&r, &lease, 1);
    rig_close(&r);
}

/* Matches and touches until the request area has no room for the smallest call. */
static void area_fill(struct rig *r, unsigned *ret_matches, unsigned *ret_touches)
{
    static const uint32_t many[KVD_WIRE_PROMPT_TOKENS_MAX] = {1};
    struct kvd_prompt p = r->prompt;
    p.tokens = many;
    *ret_matches = *ret_touches = 0;
    for (p.n_tokens = KVD_WIRE_PROMPT_TOKENS_MAX; p.n_tokens >= BLOCK_TOKENS;) {
        int err = kvd_submit_match(r->s, &p, NULL);
        assert_true(err == 0 || err == KVD_BUSY);
        *ret_matches += !err;
        p.n_tokens /= err ? 2 : 1;
    }
    p.n_tokens = BLOCK_TOKENS;
    int err;
    while ((err = kvd_submit_touch(r->s, &p, 1, NULL)) == 0) {
        ++*ret_touches;
    }
    assert_int_equal(err, KVD_BUSY);
}

static void test_next_part_cannot_be_sent(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_completion done;
    unsigned matches;
    unsigned touches;
    rig_open(&r, LONG_MS, KVD_WIRE_STAGING_SLOTS, 1);
    struct kvd_lease *lease = matched(&r);
    assert_int_equal(kvd_submit_load(lease, 0, BLOCKS, dest, NULL), 0);
    area_fill(&r, &matches, &touches);
    answer_half(&r.p);
    drain_one(r.c, &done);
    assert_int_equal(done.op, KVD_OP_LOAD);
    assert_int_equal(done.status, 0);
    assert_int_equal(done.good, 2);
    while (matches-- > 0) {
        (void)peer_receive(&r.p, KVD__WIRE__REQUEST__BODY_MATCH);
    }
    while (touches-- > 0) {
        (void)peer_receive(&r.p, KVD__WIRE__REQUEST__BODY_TOUCH);
    }
    released(&r, &lease, 2);
    rig_close(&r);
}

/* ---- puts */

/* What each put_begin is answered: a letter a block: Stored, Granted, Pending, Absent. Then a "c"
 * is the commit's request and "r" its reply, for the commit received last. */
static void begin_answer(struct peer *p, uint64_t put, const char *letters)
{
    const Kvd__Wire__PutBeginRequest *b =
        peer_receive(p, KVD__WIRE__REQUEST__BODY_PUT_BEGIN)->put_begin;
    uint32_t granted = 0;
    if (b->n_blocks != strlen(letters)) {
        (void)fprintf(stderr, "begin of %u blocks, wanted %s\n", b->n_blocks, letters);
        abort();
    }
    for (uint32_t i = 0; i < b->n_blocks; i++) {
        struct kvd_wire_block *row = peer_row(p, b->results, i);
        *row = (struct kvd_wire_block){.state = letters[i] == 'S'   ? KVD_BLOCK_STORED
                                                : letters[i] == 'G' ? KVD_BLOCK_GRANTED
                                                : letters[i] == 'P' ? KVD_BLOCK_PENDING
                                                                    : KVD_BLOCK_ABSENT};
        if (letters[i] == 'G') {
            row->offset = (uint64_t)i * BLOCK_BYTES;
            row->bytes = BLOCK_BYTES;
            granted++;
        }
    }
    peer_answer_put_begin(p, granted ? put : 0, granted);
}

static void commit_answer(struct peer *p, uint64_t id, uint32_t committed)
{
    Kvd__Wire__PutCommitReply body = KVD__WIRE__PUT_COMMIT_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    body.committed_blocks = committed;
    reply.id = id;
    reply.body_case = KVD__WIRE__REPLY__BODY_PUT_COMMIT;
    reply.put_commit = &body;
    peer_send(p, &reply, NULL, 0);
}

/* Two slots: batches of one. The second finds both taken by somebody else's put but for the first
 * one's commit; after that it is begun again, and again finds room. The last is really refused. */
static void *script_no_room_while_committing(void *arg)
{
    struct peer *p = &((struct rig *)arg)->p;
    begin_answer(p, 31, "G");
    uint64_t commit = peer_receive(p, KVD__WIRE__REQUEST__BODY_PUT_COMMIT)->id;
    begin_answer(p, 0, "A");
    commit_answer(p, commit, 1);
    begin_answer(p, 32, "G");
    commit = peer_receive(p, KVD__WIRE__REQUEST__BODY_PUT_COMMIT)->id;
    begin_answer(p, 0, "S");
    begin_answer(p, 0, "A");
    commit_answer(p, commit, 1);
    begin_answer(p, 0, "A");
    return NULL;
}

static void test_put_waits_for_its_commit(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_put_result result;
    struct kvd_stats stats = {.size = sizeof(stats)};
    rig_open(&r, LONG_MS, 2, 1);
    script_start(&r, script_no_room_while_committing);
    assert_int_equal(kvd_put(r.s, &r.prompt, 0, BLOCKS, src, &result), 0);
    script_join(&r);
    assert_int_equal(result.committed, 2);
    assert_int_equal(result.stored_already, 1);
    assert_int_equal(result.refused, 1);
    kvd_stats(r.c, &stats);
    assert_int_equal(stats.put_blocks, 2);
    assert_int_equal(stats.refused_blocks, 1);
    rig_close(&r);
}

/* A batch of four of which one is granted: the other three are begun again after its own commit. */
static void *script_partly_granted(void *arg)
{
    struct peer *p = &((struct rig *)arg)->p;
    begin_answer(p, 41, "SGAS");
    uint64_t commit = peer_receive(p, KVD__WIRE__REQUEST__BODY_PUT_COMMIT)->id;
    begin_answer(p, 0, "AS");
    commit_answer(p, commit, 1);
    begin_answer(p, 42, "GS");
    commit = peer_receive(p, KVD__WIRE__REQUEST__BODY_PUT_COMMIT)->id;
    commit_answer(p, commit, 1);
    return NULL;
}

static void test_put_partly_granted(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_put_result result;
    rig_open(&r, LONG_MS, KVD_WIRE_STAGING_SLOTS, 1);
    script_start(&r, script_partly_granted);
    assert_int_equal(kvd_put(r.s, &r.prompt, 0, BLOCKS, src, &result), 0);
    script_join(&r);
    assert_int_equal(result.committed, 2);
    assert_int_equal(result.stored_already, 2);
    assert_int_equal(result.refused, 0);
    rig_close(&r);
}

static void *script_nothing_granted(void *arg)
{
    struct peer *p = &((struct rig *)arg)->p;
    begin_answer(p, 0, "SAAS");
    begin_answer(p, 0, "SAAS");
    begin_answer(p, 51, "GGGG"); /* of what it doesn't have */
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_PUT_COMMIT);
    return NULL;
}

static void test_space_without_staging(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_put *put = (struct kvd_put *)&r;
    struct kvd_put_result result;
    rig_open(&r, LONG_MS, 0, 0);
    struct kvd_lease *lease = matched(&r);
    script_start(&r, script_nothing_granted);
    assert_int_equal(kvd_put(r.s, &r.prompt, 0, BLOCKS, src, &result), 0);
    assert_int_equal(result.committed, 0);
    assert_int_equal(result.stored_already, 2);
    assert_int_equal(result.refused, 2);
    assert_int_equal(kvd_put_begin(r.s, &r.prompt, 0, BLOCKS, &put, &result), 0);
    assert_null(put);
    assert_int_equal(result.stored_already, 2);
    assert_int_equal(result.refused, 2);
    assert_int_equal(kvd_put(r.s, &r.prompt, 0, BLOCKS, src, &result), KVD_INTERNAL);
    script_join(&r);
    kvd_lease_release(&lease);
    rig_close(&r);
}

/* Slots and descriptors that disagree are no registration. */
static void test_staging_that_disagrees(void **state)
{
    (void)state;
    static const struct {
        uint32_t slots;
        unsigned n_fds;
    } wrong[] = {{0, 1}, {1, 0}};
    for (int i = 0; i < 2; i++) {
        struct rig r;
        rig_open(&r, LONG_MS, wrong[i].slots, wrong[i].n_fds);
        assert_int_equal(kvd_submit_match(r.s, &r.prompt, NULL), KVD_INTERNAL);
        rig_close(&r);
    }
}

/* ---- reports */

enum { REPORT_BYTES = 100000 };

enum report {
    RIGHT,
    NOT_SEALED,
    SHORTER,
    LONGER,
    TOO_LARGE,
    NO_DESCRIPTOR,
    NO_MEMORY_FILE,
    REPORTS
};

static const char *const report_names[] = {"right",     "not sealed",    "shorter", "longer",
                                           "too large", "no descriptor", "no memfd"};

static int report_create(enum report kind, char **ret_text)
{
    char *text = malloc(REPORT_BYTES + 1);
    if (!text) {
        abort();
    }
    for (int i = 0; i < REPORT_BYTES; i++) {
        text[i] = (char)('a' + i % 26);
    }
    text[REPORT_BYTES] = 0;
    int fd = kind == NO_MEMORY_FILE ? open("/dev/zero", O_RDONLY | O_CLOEXEC)
                                    : memfd_create("report", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || (kind != NO_MEMORY_FILE && write(fd, text, REPORT_BYTES) != REPORT_BYTES)) {
        abort();
    }
    if (kind != NOT_SEALED) {
        (void)fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    }
    *ret_text = text;
    return fd;
}

static void *script_report(void *arg)
{
    struct peer *p = &((struct rig *)arg)->p;
    KVD_AUTOFREE char *text = NULL;
    KVD_AUTOCLOSE int fd = report_create((enum report)p->kind, &text);
    Kvd__Wire__AdminReply body = KVD__WIRE__ADMIN_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_ADMIN);
    body.json_bytes = REPORT_BYTES;
    body.json_bytes -= p->kind == LONGER;
    body.json_bytes += p->kind == SHORTER;
    body.json_bytes = p->kind == TOO_LARGE ? UINT64_MAX : body.json_bytes;
    reply.id = p->req->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_ADMIN;
    reply.admin = &body;
    peer_send(p, &reply, &fd, p->kind == NO_DESCRIPTOR ? 0 : 1);
    return NULL;
}

static void test_long_reports(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, LONG_MS, KVD_WIRE_STAGING_SLOTS, 1);
    for (int kind = RIGHT; kind < REPORTS; kind++) {
        char *json = NULL;
        r.p.kind = kind;
        script_start(&r, script_report);
        int err = kvd_report(r.c, "status", NULL, NULL, &json);
        script_join(&r);
        if (err != (kind == RIGHT ? 0 : KVD_INTERNAL)) {
            fail_msg("%s: %d", report_names[kind], err);
        }
        assert_true(!json == (kind != RIGHT));
        if (json) {
            assert_int_equal(strlen(json), REPORT_BYTES);
            assert_int_equal(json[27], 'b');
        }
        free(json);
        assert_true(kvd_client_connected(r.c)); /* the connection goes on */
    }
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_submitted_load_expires),
    cmocka_unit_test(test_submitted_load_fails),
    cmocka_unit_test(test_load_fails),
    cmocka_unit_test(test_next_part_cannot_be_sent),
    cmocka_unit_test(test_put_waits_for_its_commit),
    cmocka_unit_test(test_put_partly_granted),
    cmocka_unit_test(test_space_without_staging),
    cmocka_unit_test(test_staging_that_disagrees),
    cmocka_unit_test(test_long_reports),
};

KVD_TEST_MAIN(tests)
