/*
 * The client against daemons that are absent, stopped, slow, dying or wrong. Deadlines are short
 * here; what is asserted about time is only that a call did not wait for one.
 */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "kvd_test.h"
#include "peer.h"
#include "proto/base/clock.h"

enum {
    BLOCK_TOKENS = 16,
    BLOCKS = 4,
    N_TOKENS = BLOCKS * BLOCK_TOKENS + 1,
    BLOCK_BYTES = 2 * 64 * 16 * 2,
    LONG_MS = 5000
};

static const uint32_t tokens[N_TOKENS] = {1, 2, 3, 4, 5};

static struct kvd_client *client_open(const struct peer *p, uint32_t connect_ms, uint32_t match_ms)
{
    struct kvd_client_options o;
    struct kvd_client *c = NULL;
    kvd_client_options_init(&o);
    o.socket_path = p->path;
    o.program = "test";
    o.connect_ms = connect_ms;
    o.match_ms = match_ms;
    o.io_ms = LONG_MS;
    assert_int_equal(kvd_client_open(&o, &c), 0);
    return c;
}

static struct kvd_space *space_open(struct kvd_client *c)
{
    struct kvd_space_config config = peer_space();
    struct kvd_space *s = NULL;
    assert_int_equal(kvd_space_open(c, &config, &s), 0);
    assert_int_equal(kvd_space_block_bytes(s), BLOCK_BYTES);
    return s;
}

/* A script on a thread of its own. */
struct script {
    pthread_t thread;
    struct peer *peer;
};

static void script_start(struct script *s, struct peer *p, void *(*fn)(void *))
{
    s->peer = p;
    assert_int_equal(pthread_create(&s->thread, NULL, fn, p), 0);
}

static void script_join(struct script *s)
{
    assert_int_equal(pthread_join(s->thread, NULL), 0);
}

static void *peer_serve_start_thread(void *arg)
{
    peer_serve_start(arg);
    return NULL;
}

static uint64_t elapsed_ms(uint64_t since)
{
    return (kvd_mono_ns() - since) / KVD_NS_PER_MS;
}

static unsigned open_descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) {
        n++;
    }
    (void)closedir(d);
    return n;
}

/* ---- arguments */

static void test_arguments(void **state)
{
    (void)state;
    struct kvd_client_options o;
    struct kvd_client *c = NULL;
    struct kvd_space *s = NULL;
    struct kvd_match_result r;
    char path[200];
    kvd_client_options_init(&o);
    assert_int_equal(kvd_client_open(&o, &c), KVD_BAD_REQUEST);
    memset(path, 'p', sizeof(path));
    path[108] = 0;
    o.socket_path = path;
    assert_int_equal(kvd_client_open(&o, &c), KVD_BAD_REQUEST);
    assert_non_null(strstr(kvd_client_message(NULL), "108"));
    path[107] = 0;
    assert_int_equal(kvd_client_open(&o, &c), 0);
    struct kvd_space_config config = peer_space();
    config.layers = 0;
    assert_int_equal(kvd_space_open(c, &config, &s), KVD_BAD_REQUEST);
    assert_non_null(strstr(kvd_client_message(c), "layers"));
    config = peer_space();
    assert_int_equal(kvd_space_open(c, &config, &s), 0);
    struct kvd_prompt p = peer_prompt(tokens, N_TOKENS);
    p.scenario = NULL;
    assert_int_equal(kvd_match(s, &p, &r), KVD_BAD_REQUEST);
    p = peer_prompt(tokens, 0);
    assert_int_equal(kvd_match(s, &p, &r), KVD_BAD_REQUEST);
    p = peer_prompt(tokens, (512 << 10) + 1);
    assert_int_equal(kvd_match(s, &p, &r), KVD_BAD_REQUEST);
    p = peer_prompt(tokens, N_TOKENS);
    p.rank = 1;
    assert_int_equal(kvd_match(s, &p, &r), KVD_BAD_REQUEST);
    p.rank = 0;
    const void *src[BLOCKS + 1] = {0};
    assert_int_equal(kvd_put(s, &p, 0, BLOCKS + 1, src, NULL), KVD_BAD_REQUEST);
    assert_int_equal(kvd_put(s, &p, UINT32_MAX, 2, src, NULL), KVD_BAD_REQUEST);
    assert_int_equal(kvd_touch(s, &p, BLOCKS + 1), KVD_BAD_REQUEST);
    assert_int_equal(kvd_match(s, &p, &r), KVD_UNAVAILABLE);
    kvd_client_close(&c);
    assert_null(c);
}

/* ---- absent, stopped */

static void test_absent_costs_nothing(void **state)
{
    (void)state;
    struct peer p;
    struct kvd_match_result r;
    peer_init(&p);
    uint64_t start = kvd_mono_ns();
    struct kvd_client *c = client_open(&p, LONG_MS, LONG_MS);
    struct kvd_space *s = space_open(c);
    struct kvd_prompt prompt = peer_prompt(tokens, N_TOKENS);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(kvd_match(s, &prompt, &r), KVD_UNAVAILABLE);
        assert_int_equal(kvd_submit_match(s, &prompt, NULL), KVD_UNAVAILABLE);
    }
    assert_true(elapsed_ms(start) < LONG_MS);
    assert_false(kvd_client_connected(c));
    assert_non_null(strstr(kvd_client_message(c), p.path));
    kvd_client_close(&c);
    peer_fini(&p);
}

/* Listening, but nobody accepts: what a stopped process looks like. */
static void test_stopped_before_hello(void **state)
{
    (void)state;
    struct peer p;
    peer_init(&p);
    peer_listen(&p);
    struct kvd_client *c = client_open(&p, 30, LONG_MS);
    assert_false(kvd_client_connected(c));
    uint64_t start = kvd_mono_ns();
    for (int i = 0; i < 100; i++) {
        assert_int_equal(kvd_ping(c), KVD_UNAVAILABLE);
    }
    assert_true(elapsed_ms(start) < 30 * 100); /* the deadline was paid once, not each time */
    /* it goes on: the hello that is out is answered, and the client is back */
    peer_accept(&p);
    (void)peer_receive(&p, KVD__WIRE__REQUEST__BODY_HELLO);
    peer_answer_hello(&p);
    assert_true(kvd_client_connected(c));
    kvd_client_close(&c);
    peer_fini(&p);
}

static void *script_hello_only(void *arg)
{
    struct peer *p = arg;
    peer_accept(p);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_HELLO);
    peer_answer_hello(p);
    return NULL;
}

static void test_stopped_after_hello(void **state)
{
    (void)state;
    struct peer p;
    struct script script;
    struct kvd_stats stats = {.size = sizeof(stats)};
    peer_init(&p);
    peer_listen(&p);
    script_start(&script, &p, script_hello_only);
    struct kvd_client *c = client_open(&p, LONG_MS, 30);
    script_join(&script);
    assert_true(kvd_client_connected(c));
    assert_int_equal(kvd_ping(c), KVD_DEADLINE);
    uint64_t start = kvd_mono_ns();
    for (int i = 0; i < 100; i++) {
        assert_int_equal(kvd_ping(c), KVD_UNAVAILABLE);
    }
    assert_true(elapsed_ms(start) < 30 * 100);
    assert_false(kvd_client_connected(c));
    kvd_stats(c, &stats);
    assert_int_equal(stats.deadlines, 1);
    /* it goes on and answers what it was asked, late: the reply is dropped, the client is back */
    (void)peer_receive(&p, KVD__WIRE__REQUEST__BODY_PING);
    peer_answer_empty(&p);
    assert_true(kvd_client_connected(c));
    kvd_client_close(&c);
    peer_fini(&p);
}

/* ---- garbage, death */

enum garbage { TEXT, EMPTY, TOO_LONG, UNKNOWN_ID, OTHER_BODY, HANG_UP, GARBAGE_KINDS };

static void send_garbage(struct peer *p, enum garbage kind)
{
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    Kvd__Wire__LoadReply load = KVD__WIRE__LOAD_REPLY__INIT;
    static const uint8_t zeros[KVD_WIRE_PACKET_MAX + 8];
    reply.id = p->req->id;
    switch (kind) {
    case TEXT:
        peer_send_bytes(p, "HTTP/1.1 400 Bad Request", 24);
        break;
    case EMPTY:
        peer_send_bytes(p, "", 0);
        break;
    case TOO_LONG:
        peer_send_bytes(p, zeros, sizeof(zeros));
        break;
    case UNKNOWN_ID:
        reply.id += 1000;
        peer_send(p, &reply, NULL, 0);
        break;
    case OTHER_BODY:
        reply.body_case = KVD__WIRE__REPLY__BODY_LOAD;
        reply.load = &load;
        peer_send(p, &reply, NULL, 0);
        break;
    default:
        peer_hang_up(p);
        break;
    }
}

static void *script_garbage(void *arg)
{
    struct peer *p = arg;
    script_hello_only(p);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_PING);
    send_garbage(p, (enum garbage)p->kind);
    script_hello_only(p); /* the client's next connection */
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_PING);
    peer_answer_empty(p);
    return NULL;
}

/* Calls until the daemon is back, which the library tries once a second. */
static void ping_until_back(struct kvd_client *c)
{
    uint64_t deadline = kvd_mono_ns() + 10 * KVD_NS_PER_S;
    int err;
    while ((err = kvd_ping(c)) != 0 && kvd_mono_ns() < deadline) {
        assert_int_equal(err, KVD_UNAVAILABLE);
    }
    assert_int_equal(err, 0);
}

/* Whatever comes instead of a reply costs the connection and no more: the next one works. */
static void test_garbage_and_death(void **state)
{
    (void)state;
    for (int kind = TEXT; kind < GARBAGE_KINDS; kind++) {
        struct peer p;
        struct script script;
        struct kvd_stats stats = {.size = sizeof(stats)};
        peer_init(&p);
        peer_listen(&p);
        p.kind = kind;
        script_start(&script, &p, script_garbage);
        struct kvd_client *c = client_open(&p, LONG_MS, LONG_MS);
        assert_int_equal(kvd_ping(c), KVD_UNAVAILABLE);
        ping_until_back(c);
        kvd_stats(c, &stats);
        assert_int_equal(stats.reconnects, 1);
        assert_int_equal(stats.deadlines, 0);
        script_join(&script);
        kvd_client_close(&c);
        peer_fini(&p);
    }
}

static void *script_refuse_hello(void *arg)
{
    struct peer *p = arg;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    peer_accept(p);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_HELLO);
    reply.id = p->req->id;
    reply.error = kvd_error_to_wire(-KVD_E_NEWER);
    reply.error_text = "use a client library of the daemon's version";
    peer_send(p, &reply, NULL, 0);
    return NULL;
}

static void test_hello_refused(void **state)
{
    (void)state;
    struct peer p;
    struct script script;
    peer_init(&p);
    peer_listen(&p);
    script_start(&script, &p, script_refuse_hello);
    struct kvd_client *c = client_open(&p, LONG_MS, LONG_MS);
    assert_int_equal(kvd_ping(c), KVD_UNAVAILABLE);
    assert_non_null(strstr(kvd_client_message(c), "client library of the daemon's version"));
    script_join(&script);
    kvd_client_close(&c);
    peer_fini(&p);
}

/* Descriptors that came with hello but are too small would be SIGBUS when used. */
static void *script_small_pool(void *arg)
{
    struct peer *p = arg;
    peer_accept(p);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_HELLO);
    if (ftruncate(p->pool_fd, PEER_POOL_BYTES / 2)) {
        abort();
    }
    peer_answer_hello(p);
    return NULL;
}

static void test_pool_smaller_than_said(void **state)
{
    (void)state;
    struct peer p;
    struct script script;
    peer_init(&p);
    peer_listen(&p);
    script_start(&script, &p, script_small_pool);
    struct kvd_client *c = client_open(&p, LONG_MS, LONG_MS);
    assert_int_equal(kvd_ping(c), KVD_UNAVAILABLE);
    assert_non_null(strstr(kvd_client_message(c), "pool has a wrong size"));
    script_join(&script);
    kvd_client_close(&c);
    peer_fini(&p);
}

static void *script_descriptors(void *arg)
{
    struct peer *p = arg;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    script_hello_only(p);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_PING);
    reply.id = p->req->id;
    const int fds[] = {p->area_fd, p->area_fd, p->area_fd, p->area_fd, p->area_fd};
    peer_send(p, &reply, fds, 5);
    return NULL;
}

static void test_unexpected_descriptors_are_closed(void **state)
{
    (void)state;
    struct peer p;
    struct script script;
    peer_init(&p);
    peer_listen(&p);
    script_start(&script, &p, script_descriptors);
    struct kvd_client *c = client_open(&p, LONG_MS, LONG_MS);
    unsigned before = open_descriptors();
    assert_int_equal(kvd_ping(c), 0);
    assert_int_equal(open_descriptors(), before);
    script_join(&script);
    kvd_client_close(&c);
    peer_fini(&p);
}

static void test_nothing_is_left_open(void **state)
{
    (void)state;
    struct peer p;
    struct script script;
    peer_init(&p);
    peer_listen(&p);
    unsigned before = open_descriptors();
    script_start(&script, &p, peer_serve_start_thread);
    struct kvd_client *c = client_open(&p, LONG_MS, LONG_MS);
    (void)space_open(c);
    script_join(&script);
    kvd_client_close(&c);
    peer_hang_up(&p);
    assert_int_equal(open_descriptors(), before);
    peer_fini(&p);
}

/* ---- late and wrong answers */

struct rig {
    struct peer p;
    struct script script;
    struct kvd_client *c;
    struct kvd_space *s;
    struct kvd_prompt prompt;
};

static void rig_open(struct rig *r, uint32_t match_ms)
{
    peer_init(&r->p);
    peer_listen(&r->p);
    script_start(&r->script, &r->p, peer_serve_start_thread);
    r->c = client_open(&r->p, LONG_MS, match_ms);
    r->s = space_open(r->c);
    script_join(&r->script);
    r->prompt = peer_prompt(tokens, N_TOKENS);
}

static void rig_close(struct rig *r)
{
    kvd_client_close(&r->c);
    peer_fini(&r->p);
}

static void test_late_match_gives_its_lease_back(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_match_result result;
    rig_open(&r, 20);
    assert_int_equal(kvd_match(r.s, &r.prompt, &result), KVD_DEADLINE);
    const Kvd__Wire__Request *req = peer_receive(&r.p, KVD__WIRE__REQUEST__BODY_MATCH);
    assert_int_equal(req->match->prompt->space_handle, 5);
    assert_int_equal(req->match->prompt->tokens->bytes, N_TOKENS * 4);
    assert_memory_equal(r.p.area + req->match->prompt->tokens->offset, tokens, N_TOKENS * 4);
    peer_answer_match(&r.p, 77, BLOCKS, BLOCKS);
    assert_true(kvd_client_connected(r.c)); /* takes the late reply */
    req = peer_receive(&r.p, KVD__WIRE__REQUEST__BODY_RELEASE);
    assert_int_equal(req->id, 0);
    assert_int_equal(req->release->lease, 77);
    rig_close(&r);
}

static void *script_match_counts(void *arg)
{
    struct peer *p = arg;
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_MATCH);
    peer_answer_match(p, 1, BLOCKS + 1000, BLOCKS + 1000);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_MATCH);
    peer_answer_match(p, 1, BLOCKS, BLOCKS + 1);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_MATCH);
    peer_answer_match(p, 0, BLOCKS, BLOCKS);
    return NULL;
}

static void test_match_with_wrong_counts(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_match_result result;
    rig_open(&r, LONG_MS);
    script_start(&r.script, &r.p, script_match_counts);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvd_match(r.s, &r.prompt, &result), KVD_INTERNAL);
    }
    script_join(&r.script);
    rig_close(&r);
}

static void *script_match_all(void *arg)
{
    struct peer *p = arg;
    const Kvd__Wire__Request *req = peer_receive(p, KVD__WIRE__REQUEST__BODY_MATCH);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        peer_row(p, req->match->results, i)->tier = i % 2 ? KVD_TIER_NVME : KVD_TIER_DRAM;
    }
    peer_answer_match(p, 9, BLOCKS, BLOCKS);
    return NULL;
}

/* Block i lies at i * 64 KiB, its generation at the end of those. */
static struct kvd_wire_block right_row(uint32_t i)
{
    return (struct kvd_wire_block){.state = KVD_BLOCK_LOADED,
                                   .tier = KVD_TIER_DRAM,
                                   .generation = 100 + i,
                                   .offset = (uint64_t)i << 16,
                                   .generation_offset = ((uint64_t)i << 16) + 65532,
                                   .bytes = BLOCK_BYTES};
}

/* p->kind: how the third row is wrong. */
enum wrong {
    OFFSET_BEYOND,
    OFFSET_WRAPS,
    ENDS_BEYOND,
    BYTES_OTHER,
    GENERATION_BEYOND,
    GENERATION_UNALIGNED,
    GENERATION_OTHER,
    STATE_FAILED,
    WRONG_KINDS
};

static void spoil(struct kvd_wire_block *row, enum wrong kind)
{
    switch (kind) {
    case OFFSET_BEYOND:
        row->offset = PEER_POOL_BYTES;
        break;
    case OFFSET_WRAPS:
        row->offset = UINT64_MAX - 4;
        break;
    case ENDS_BEYOND:
        row->offset = PEER_POOL_BYTES - BLOCK_BYTES + 1;
        break;
    case BYTES_OTHER:
        row->bytes = UINT64_MAX;
        break;
    case GENERATION_BEYOND:
        row->generation_offset = PEER_POOL_BYTES - 2;
        break;
    case GENERATION_UNALIGNED:
        row->generation_offset -= 1;
        break;
    case GENERATION_OTHER:
        row->generation++;
        break;
    default:
        row->state = KVD_BLOCK_FAILED;
        break;
    }
}

static void *script_load_with_a_wrong_row(void *arg)
{
    struct peer *p = arg;
    const Kvd__Wire__Request *req = peer_receive(p, KVD__WIRE__REQUEST__BODY_LOAD);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        struct kvd_wire_block row = right_row(i);
        memset(p->pool + row.offset, (int)(i + 1), BLOCK_BYTES);
        memcpy(p->pool + row.generation_offset, &row.generation, 4);
        if (i == 2) {
            spoil(&row, (enum wrong)p->kind);
        }
        *peer_row(p, req->load->results, i) = row;
    }
    peer_answer_load(p, BLOCKS);
    return NULL;
}

/* The two blocks before it are good, and the daemon is told of the others. */
static void test_wrong_rows_cut_the_prefix(void **state)
{
    (void)state;
    for (int kind = OFFSET_BEYOND; kind < WRONG_KINDS; kind++) {
        struct rig r;
        struct kvd_match_result result;
        struct kvd_stats stats = {.size = sizeof(stats)};
        static uint8_t memory[BLOCKS][BLOCK_BYTES];
        void *dest[BLOCKS] = {memory[0], memory[1], memory[2], memory[3]};
        uint32_t good = 99;
        rig_open(&r, LONG_MS);
        script_start(&r.script, &r.p, script_match_all);
        assert_int_equal(kvd_match(r.s, &r.prompt, &result), 0);
        script_join(&r.script);
        assert_int_equal(result.asked_blocks, BLOCKS);
        assert_int_equal(result.hit_blocks, BLOCKS);
        assert_int_equal(kvd_lease_tier(result.lease, 0), KVD_IN_DRAM);
        assert_int_equal(kvd_lease_tier(result.lease, 3), KVD_IN_NVME);
        assert_int_equal(kvd_lease_tier(result.lease, 4), KVD_IN_NONE);
        assert_int_equal(kvd_load(result.lease, 1, BLOCKS, dest, &good), KVD_BAD_REQUEST);
        r.p.kind = kind;
        script_start(&r.script, &r.p, script_load_with_a_wrong_row);
        assert_int_equal(kvd_load(result.lease, 0, BLOCKS, dest, &good), 0);
        script_join(&r.script);
        assert_int_equal(good, 2);
        assert_int_equal(memory[0][0], 1);
        assert_int_equal(memory[1][BLOCK_BYTES - 1], 2);
        kvd_stats(r.c, &stats);
        assert_int_equal(stats.loaded_blocks, 2);
        assert_int_equal(stats.failed_blocks, 2);
        kvd_lease_release(&result.lease);
        const Kvd__Wire__Request *req = peer_receive(&r.p, KVD__WIRE__REQUEST__BODY_RELEASE);
        assert_int_equal(req->release->lease, 9);
        assert_true(req->release->has_stale);
        assert_int_equal(req->release->stale_from_block, 2);
        rig_close(&r);
    }
}

/* Two blocks at a time, because "more are not pinned for you"; the last is unreadable where kind is
 * STATE_FAILED. */
static void *script_load_in_parts(void *arg)
{
    struct peer *p = arg;
    for (uint32_t first = 0; first < BLOCKS; first += 2) {
        const Kvd__Wire__LoadRequest *load = peer_receive(p, KVD__WIRE__REQUEST__BODY_LOAD)->load;
        if (load->first_block != first || load->n_blocks != BLOCKS - first || load->lease != 9) {
            abort();
        }
        for (uint32_t i = 0; i < load->n_blocks; i++) {
            struct kvd_wire_block row = right_row(first + i);
            memset(p->pool + row.offset, (int)(first + i + 1), BLOCK_BYTES);
            memcpy(p->pool + row.generation_offset, &row.generation, 4);
            row.state = i < 2 ? KVD_BLOCK_LOADED : KVD_BLOCK_STORED;
            *peer_row(p, load->results, i) = row;
        }
        bool fail = first > 0 && p->kind == STATE_FAILED;
        if (fail) {
            peer_row(p, load->results, 1)->state = KVD_BLOCK_FAILED;
        }
        peer_answer_load(p, fail ? 1 : 2);
    }
    return NULL;
}

static int drain_one(struct kvd_client *c, struct kvd_completion *done);

static void load_in_parts(int kind, bool submit, uint32_t wanted)
{
    struct rig r;
    struct kvd_match_result result;
    struct kvd_completion done;
    static uint8_t memory[BLOCKS][BLOCK_BYTES];
    void *dest[BLOCKS] = {memory[0], memory[1], memory[2], memory[3]};
    uint32_t good = 99;
    memset(memory, 0, sizeof(memory));
    rig_open(&r, LONG_MS);
    script_start(&r.script, &r.p, script_match_all);
    assert_int_equal(kvd_match(r.s, &r.prompt, &result), 0);
    script_join(&r.script);
    r.p.kind = kind;
    script_start(&r.script, &r.p, script_load_in_parts);
    if (submit) {
        assert_int_equal(kvd_submit_load(result.lease, 0, BLOCKS, dest, NULL), 0);
        assert_int_equal(drain_one(r.c, &done), 1);
        assert_int_equal(done.status, 0);
        good = done.good;
    } else {
        assert_int_equal(kvd_load(result.lease, 0, BLOCKS, dest, &good), 0);
    }
    script_join(&r.script);
    assert_int_equal(good, wanted);
    for (uint32_t i = 0; i < wanted; i++) {
        assert_int_equal(memory[i][BLOCK_BYTES - 1], i + 1);
    }
    rig_close(&r);
}

static void test_load_in_parts(void **state)
{
    (void)state;
    load_in_parts(0, false, BLOCKS);
    load_in_parts(0, true, BLOCKS);
    load_in_parts(STATE_FAILED, false, BLOCKS - 1);
    load_in_parts(STATE_FAILED, true, BLOCKS - 1);
}

static void *script_load_then_die(void *arg)
{
    struct peer *p = arg;
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_LOAD);
    peer_hang_up(p);
    return NULL;
}

static void *script_restarted(void *arg)
{
    struct peer *p = arg;
    script_hello_only(p);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_PING);
    peer_answer_empty(p);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_SPACE_OPEN);
    peer_answer_space(p);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_MATCH);
    peer_answer_match(p, 0, BLOCKS, 0);
    return NULL;
}

/* The daemon dies under a load, and what is left of its lease is harmless. */
static void test_death_under_a_load(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_match_result result;
    static uint8_t memory[BLOCKS][BLOCK_BYTES];
    void *dest[BLOCKS] = {memory[0], memory[1], memory[2], memory[3]};
    uint32_t good = 99;
    rig_open(&r, LONG_MS);
    script_start(&r.script, &r.p, script_match_all);
    assert_int_equal(kvd_match(r.s, &r.prompt, &result), 0);
    script_join(&r.script);
    script_start(&r.script, &r.p, script_load_then_die);
    assert_int_equal(kvd_load(result.lease, 0, BLOCKS, dest, &good), KVD_UNAVAILABLE);
    script_join(&r.script);
    /* another daemon: the space is registered again by itself, the lease is of the old one */
    script_start(&r.script, &r.p, script_restarted);
    ping_until_back(r.c);
    assert_int_equal(kvd_load(result.lease, 0, BLOCKS, dest, &good), KVD_STALE);
    kvd_lease_release(&result.lease);
    assert_int_equal(good, 99);
    assert_int_equal(kvd_match(r.s, &r.prompt, &result), 0);
    assert_int_equal(result.hit_blocks, 0);
    assert_null(result.lease);
    script_join(&r.script);
    rig_close(&r);
}

/* ---- put */

static void *script_grant_outside(void *arg)
{
    struct peer *p = arg;
    Kvd__Wire__PutBeginReply body = KVD__WIRE__PUT_BEGIN_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    const Kvd__Wire__Request *req = peer_receive(p, KVD__WIRE__REQUEST__BODY_PUT_BEGIN);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        *peer_row(p, req->put_begin->results, i) = (struct kvd_wire_block){
            .state = KVD_BLOCK_GRANTED,
            .offset = PEER_STAGING_BYTES - BLOCK_BYTES * 2 + i * BLOCK_BYTES,
            .bytes = BLOCK_BYTES};
    }
    body.put = 33;
    body.granted_blocks = BLOCKS;
    reply.id = req->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_PUT_BEGIN;
    reply.put_begin = &body;
    peer_send(p, &reply, NULL, 0);
    req = peer_receive(p, KVD__WIRE__REQUEST__BODY_PUT_COMMIT);
    if (req->id != 0 || !req->put_commit->abort || req->put_commit->put != 33) {
        abort();
    }
    return NULL;
}

static void test_grant_outside_of_staging(void **state)
{
    (void)state;
    struct rig r;
    static const uint8_t block[BLOCK_BYTES];
    const void *src[BLOCKS] = {block, block, block, block};
    rig_open(&r, LONG_MS);
    script_start(&r.script, &r.p, script_grant_outside);
    assert_int_equal(kvd_put(r.s, &r.prompt, 0, BLOCKS, src, NULL), KVD_INTERNAL);
    script_join(&r.script);
    rig_close(&r);
}

/* ---- submissions */

static void wait_for_client(struct kvd_client *c)
{
    struct pollfd pfd = {.fd = kvd_client_fd(c), .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, 10000), 1);
}

static int drain_one(struct kvd_client *c, struct kvd_completion *done)
{
    int n = 0;
    for (int i = 0; i < 1000 && n == 0; i++) {
        wait_for_client(c);
        n = kvd_drain(c, done, 1);
    }
    return n;
}

static void test_submission_deadline(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_completion done;
    int mark;
    rig_open(&r, 30);
    assert_int_equal(kvd_drain(r.c, &done, 1), 0);
    assert_int_equal(kvd_submit_match(r.s, &r.prompt, &mark), 0);
    assert_int_equal(drain_one(r.c, &done), 1);
    assert_int_equal(done.op, KVD_OP_MATCH);
    assert_int_equal(done.status, KVD_DEADLINE);
    assert_ptr_equal(done.cookie, &mark);
    assert_int_equal(kvd_submit_match(r.s, &r.prompt, &mark), KVD_UNAVAILABLE);
    /* once all is reported the descriptor is quiet */
    struct pollfd pfd = {.fd = kvd_client_fd(r.c), .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, 0), 0);
    rig_close(&r);
}

static void test_submission_and_death(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_completion done[8];
    rig_open(&r, LONG_MS);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(kvd_submit_match(r.s, &r.prompt, NULL), 0);
    }
    (void)peer_receive(&r.p, KVD__WIRE__REQUEST__BODY_MATCH);
    peer_answer_match(&r.p, 0, BLOCKS, 0);
    assert_int_equal(drain_one(r.c, done), 1);
    assert_int_equal(done[0].status, 0);
    assert_int_equal(done[0].match.asked_blocks, BLOCKS);
    peer_hang_up(&r.p);
    int n = 0;
    while (n < 3) {
        wait_for_client(r.c);
        n += kvd_drain(r.c, done + n, 8 - n);
    }
    assert_int_equal(n, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(done[i].status, KVD_UNAVAILABLE);
    }
    rig_close(&r);
}

/* Closing with everything open: sanitizers watch for leaks. */
static void test_close_frees_everything(void **state)
{
    (void)state;
    struct rig r;
    struct kvd_match_result result;
    rig_open(&r, LONG_MS);
    script_start(&r.script, &r.p, script_match_all);
    assert_int_equal(kvd_match(r.s, &r.prompt, &result), 0);
    script_join(&r.script);
    assert_int_equal(kvd_submit_match(r.s, &r.prompt, NULL), 0);
    assert_int_equal(kvd_submit_touch(r.s, &r.prompt, 1, NULL), 0);
    rig_close(&r);
    assert_null(r.c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_arguments),
    cmocka_unit_test(test_absent_costs_nothing),
    cmocka_unit_test(test_stopped_before_hello),
    cmocka_unit_test(test_stopped_after_hello),
    cmocka_unit_test(test_garbage_and_death),
    cmocka_unit_test(test_hello_refused),
    cmocka_unit_test(test_pool_smaller_than_said),
    cmocka_unit_test(test_unexpected_descriptors_are_closed),
    cmocka_unit_test(test_nothing_is_left_open),
    cmocka_unit_test(test_late_match_gives_its_lease_back),
    cmocka_unit_test(test_match_with_wrong_counts),
    cmocka_unit_test(test_wrong_rows_cut_the_prefix),
    cmocka_unit_test(test_load_in_parts),
    cmocka_unit_test(test_death_under_a_load),
    cmocka_unit_test(test_grant_outside_of_staging),
    cmocka_unit_test(test_submission_deadline),
    cmocka_unit_test(test_submission_and_death),
    cmocka_unit_test(test_close_frees_everything),
};

KVD_TEST_MAIN(tests)
