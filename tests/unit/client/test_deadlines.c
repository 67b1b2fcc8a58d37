/*
 * Every public call that can wait, against every way in which a daemon fails to answer: each
 * returns by its deadline with the error that the header promises; a deadline is paid once, after
 * it calls are answered at once; and when a daemon answers again the client is back by itself.
 *
 * The peer is a thread that answers everything rightly, until it is told how to fail. What is
 * asserted of time is that a call did not take ten times what it may; an alarm ends a test that
 * hangs.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "kvd_test.h"
#include "peer.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"

enum {
    BLOCK_TOKENS = 16,
    BLOCKS = 4,
    N_TOKENS = BLOCKS * BLOCK_TOKENS + 1,
    BLOCK_BYTES = 2 * 64 * 16 * 2,
    CONNECT_MS = 40,
    MATCH_MS = 40,
    IO_MS = 60,
    BUDGET_MS = CONNECT_MS + MATCH_MS + IO_MS,
    FACTOR = 10, /* of what a call may take: a loaded machine is slow, a hang is longer */
    HANG_S = 45, /* the alarm */
};

static const uint32_t tokens[N_TOKENS] = {1, 2, 3, 4, 5};

/* ---- the peer ---- */

enum behaviour {
    ANSWERS,
    SILENT,     /* receives, answers nothing */
    DEAF,       /* receives nothing: what a stopped process looks like */
    HANGS_UP,   /* accepts, and closes at once */
    DIES,       /* closes the connection on the next request, and its socket */
    GARBAGE,    /* answers with what is no reply */
    HALF,       /* with the first half of one */
    OTHER_BODY, /* with the reply of something else */
    DOES_NOT_ACCEPT,
};

struct server {
    struct peer p;
    pthread_t thread;
    int wake;
    atomic_int behaviour;
    atomic_bool stop;
    atomic_uint accepted;
};

static void rows_of_load(struct peer *p, const Kvd__Wire__LoadRequest *load)
{
    for (uint32_t i = 0; i < load->n_blocks; i++) {
        const struct kvd_wire_block row = {.state = KVD_BLOCK_LOADED,
                                           .tier = KVD_TIER_DRAM,
                                           .generation = 7,
                                           .offset = (uint64_t)i << 16,
                                           .generation_offset = ((uint64_t)i << 16) + 65532,
                                           .bytes = BLOCK_BYTES};
        memcpy(p->pool + row.generation_offset, &row.generation, 4);
        *peer_row(p, load->results, i) = row;
    }
}

static void answer_load(struct peer *p)
{
    Kvd__Wire__LoadReply body = KVD__WIRE__LOAD_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    rows_of_load(p, p->req->load);
    body.good_blocks = p->req->load->n_blocks;
    body.placed = p->req->load->place;
    reply.id = p->req->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_LOAD;
    reply.load = &body;
    peer_send(p, &reply, NULL, 0);
}

static void answer_put_begin(struct peer *p)
{
    const Kvd__Wire__PutBeginRequest *put = p->req->put_begin;
    for (uint32_t i = 0; i < put->n_blocks; i++) {
        *peer_row(p, put->results, i) =
            (struct kvd_wire_block){.state = KVD_BLOCK_GRANTED,
                                    .offset = i * (PEER_STAGING_BYTES / KVD_WIRE_STAGING_SLOTS),
                                    .bytes = BLOCK_BYTES};
    }
    peer_answer_put_begin(p, 33, put->n_blocks);
}

static void answer_commit(struct peer *p)
{
    Kvd__Wire__PutCommitReply body = KVD__WIRE__PUT_COMMIT_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    body.committed_blocks = 1;
    reply.id = p->req->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_PUT_COMMIT;
    reply.put_commit = &body;
    peer_send(p, &reply, NULL, 0);
}

static void answer_admin(struct peer *p)
{
    Kvd__Wire__AdminReply body = KVD__WIRE__ADMIN_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    body.json = (ProtobufCBinaryData){.data = (uint8_t *)"{}", .len = 2};
    reply.id = p->req->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_ADMIN;
    reply.admin = &body;
    peer_send(p, &reply, NULL, 0);
}

static void answer(struct peer *p)
{
    if (p->req->id == 0) {
        return; /* a release, an abort */
    }
    switch (p->req->body_case) {
    case KVD__WIRE__REQUEST__BODY_HELLO:
        peer_answer_hello(p);
        break;
    case KVD__WIRE__REQUEST__BODY_SPACE_OPEN:
        peer_answer_space(p);
        break;
    case KVD__WIRE__REQUEST__BODY_MATCH:
        peer_answer_match(p, 9, BLOCKS, BLOCKS);
        break;
    case KVD__WIRE__REQUEST__BODY_LOAD:
        answer_load(p);
        break;
    case KVD__WIRE__REQUEST__BODY_PUT_BEGIN:
        answer_put_begin(p);
        break;
    case KVD__WIRE__REQUEST__BODY_PUT_COMMIT:
        answer_commit(p);
        break;
    case KVD__WIRE__REQUEST__BODY_ADMIN:
        answer_admin(p);
        break;
    default:
        peer_answer_empty(p);
        break;
    }
}

static void misbehave(struct server *s, enum behaviour how)
{
    struct peer *p = &s->p;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    Kvd__Wire__SpaceOpenReply body = KVD__WIRE__SPACE_OPEN_REPLY__INIT;
    uint8_t buf[256];
    size_t n;
    reply.id = p->req->id;
    switch (how) {
    case DIES:
        kvd_close_fd(&p->listen_fd); /* the next attempt finds nobody */
        (void)unlink(p->path);
        peer_hang_up(p);
        break;
    case GARBAGE:
        peer_send_bytes(p, "HTTP/1.1 400 Bad Request", 24);
        break;
    case HALF:
        reply.error_text = "half of this is never seen";
        n = kvd__wire__reply__pack(&reply, buf);
        peer_send_bytes(p, buf, n / 2);
        break;
    case OTHER_BODY:
        reply.body_case = KVD__WIRE__REPLY__BODY_SPACE_OPEN;
        reply.space_open = &body;
        peer_send(p, &reply, NULL, 0);
        break;
    default:
        break; /* SILENT */
    }
}

/* One packet, or the connection's end. */
static void serve_one(struct server *s)
{
    struct peer *p = &s->p;
    if (!peer_receive_any(p)) {
        peer_hang_up(p);
        return;
    }
    enum behaviour how = (enum behaviour)atomic_load(&s->behaviour);
    if (how == ANSWERS) {
        answer(p);
    } else if (p->req->id) {
        misbehave(s, how);
    }
}

static void *serve(void *arg)
{
    struct server *s = arg;
    while (!atomic_load(&s->stop)) {
        enum behaviour how = (enum behaviour)atomic_load(&s->behaviour);
        struct pollfd fds[3] = {
            {.fd = s->wake, .events = POLLIN},
            {.fd = how == DOES_NOT_ACCEPT ? -1 : s->p.listen_fd, .events = POLLIN},
            {.fd = how == DEAF ? -1 : s->p.fd, .events = POLLIN},
        };
        eventfd_t ignored;
        (void)poll(fds, 3, -1);
        if (fds[0].revents) {
            (void)eventfd_read(s->wake, &ignored);
            continue;
        }
        if (fds[1].revents) {
            peer_accept(&s->p);
            (void)atomic_fetch_add(&s->accepted, 1);
            if (how == HANGS_UP) {
                peer_hang_up(&s->p);
            }
        } else if (fds[2].revents) {
            serve_one(s);
        }
    }
    return NULL;
}

static void server_behave(struct server *s, enum behaviour how)
{
    atomic_store(&s->behaviour, (int)how);
    (void)eventfd_write(s->wake, 1);
}

static void server_start(struct server *s)
{
    atomic_store(&s->stop, false);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void server_stop(struct server *s)
{
    atomic_store(&s->stop, true);
    (void)eventfd_write(s->wake, 1);
    assert_int_equal(pthread_join(s->thread, NULL), 0);
}

static void server_init(struct server *s, enum behaviour how)
{
    memset(s, 0, sizeof(*s));
    peer_init(&s->p);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_init(&s->behaviour, (int)how);
}

static void server_fini(struct server *s)
{
    kvd_close_fd(&s->wake);
    peer_fini(&s->p);
}

/* ---- the client's side ---- */

struct subject {
    struct kvd_client *c;
    struct kvd_space *space;
    struct kvd_prompt prompt;
    struct kvd_lease *lease; /* NULL where there was no daemon to get one from */
    struct kvd_put *put;
};

static struct kvd_client *client_open(struct server *s)
{
    struct kvd_client_options o;
    struct kvd_client *c = NULL;
    kvd_client_options_init(&o);
    o.socket_path = s->p.path;
    o.program = "test";
    o.connect_ms = CONNECT_MS;
    o.match_ms = MATCH_MS;
    o.io_ms = IO_MS;
    assert_int_equal(kvd_client_open(&o, &c), 0);
    return c;
}

static int call_ping(struct subject *u)
{
    return kvd_ping(u->c);
}

static int call_match(struct subject *u)
{
    struct kvd_match_result m = {0};
    int err = kvd_match(u->space, &u->prompt, &m);
    kvd_lease_release(&m.lease);
    return err;
}

static int call_load(struct subject *u)
{
    static uint8_t memory[BLOCKS][BLOCK_BYTES];
    void *dest[BLOCKS] = {memory[0], memory[1], memory[2], memory[3]};
    uint32_t good = 0;
    return u->lease ? kvd_load(u->lease, 0, BLOCKS, dest, &good) : KVD_UNAVAILABLE;
}

static int call_place(struct subject *u)
{
    const void *at[BLOCKS];
    uint32_t good = 0;
    return u->lease ? kvd_place(u->lease, 0, BLOCKS, at, &good) : KVD_UNAVAILABLE;
}

static int call_put(struct subject *u)
{
    static const uint8_t block[BLOCK_BYTES];
    const void *src[BLOCKS] = {block, block, block, block};
    return kvd_put(u->space, &u->prompt, 0, BLOCKS, src, NULL);
}

static int call_put_begin(struct subject *u)
{
    struct kvd_put *put = NULL;
    int err = kvd_put_begin(u->space, &u->prompt, 0, 1, &put, NULL);
    kvd_put_abort(&put);
    return err;
}

static int call_put_commit(struct subject *u)
{
    return u->put ? kvd_put_commit(&u->put, NULL) : KVD_UNAVAILABLE;
}

static int call_touch(struct subject *u)
{
    return kvd_touch(u->space, &u->prompt, 1);
}

static int call_report(struct subject *u)
{
    KVD_AUTOFREE char *json = NULL;
    return kvd_report(u->c, "status", "", "", &json);
}

static int call_space_open(struct subject *u)
{
    struct kvd_space_config config = peer_space();
    struct kvd_space *space = NULL;
    config.layers = 2; /* another one */
    return kvd_space_open(u->c, &config, &space);
}

/* Waits for a submission's completion, as long as the descriptor says that there is one. */
static int drained(struct subject *u, int submitted)
{
    struct kvd_completion done;
    struct pollfd pfd = {.fd = kvd_client_fd(u->c), .events = POLLIN};
    if (submitted) {
        return submitted;
    }
    for (;;) {
        assert_int_equal(poll(&pfd, 1, BUDGET_MS * FACTOR), 1);
        if (kvd_drain(u->c, &done, 1) == 1) {
            if (done.status == 0 && done.op == KVD_OP_MATCH) {
                kvd_lease_release(&done.match.lease);
            }
            return done.status;
        }
    }
}

static int call_submit_match(struct subject *u)
{
    return drained(u, kvd_submit_match(u->space, &u->prompt, NULL));
}

static int call_submit_load(struct subject *u)
{
    static uint8_t memory[BLOCKS][BLOCK_BYTES];
    void *dest[BLOCKS] = {memory[0], memory[1], memory[2], memory[3]};
    return u->lease ? drained(u, kvd_submit_load(u->lease, 0, BLOCKS, dest, NULL))
                    : KVD_UNAVAILABLE;
}

static int call_submit_place(struct subject *u)
{
    const void *at[BLOCKS];
    return u->lease ? drained(u, kvd_submit_place(u->lease, 0, BLOCKS, at, NULL)) : KVD_UNAVAILABLE;
}

static int call_submit_commit(struct subject *u)
{
    return u->put ? drained(u, kvd_submit_put_commit(&u->put, NULL)) : KVD_UNAVAILABLE;
}

static int call_submit_touch(struct subject *u)
{
    return drained(u, kvd_submit_touch(u->space, &u->prompt, 1, NULL));
}

static int call_drop(struct subject *u)
{
    uint32_t stored = 0;
    return kvd_drop(u->space, &u->prompt, 0, 1, &stored);
}

static int call_purge(struct subject *u)
{
    const struct kvd_purge_scope scope = {.tenant = "alice"};
    return kvd_purge(u->c, &scope, NULL);
}

static int call_verify(struct subject *u)
{
    uint64_t round = 0;
    return kvd_verify(u->c, "dram", 0, &round);
}

static int call_release(struct subject *u)
{
    kvd_lease_release(&u->lease); /* has no answer: it must not wait */
    return KVD_UNAVAILABLE;
}

static const struct call {
    const char *name;
    int (*run)(struct subject *u);
    bool lenient; /* succeeds also without a daemon: what it asks for is asked again later */
} calls[] = {
    {"ping", call_ping, false},
    {"match", call_match, false},
    {"load", call_load, false},
    {"place", call_place, false},
    {"put", call_put, false},
    {"put_begin", call_put_begin, false},
    {"put_commit", call_put_commit, false},
    {"touch", call_touch, false},
    {"report", call_report, false},
    {"drop", call_drop, false},
    {"purge", call_purge, false},
    {"verify", call_verify, false},
    {"space_open", call_space_open, true},
    {"submit_match", call_submit_match, false},
    {"submit_load", call_submit_load, false},
    {"submit_place", call_submit_place, false},
    {"submit_put_commit", call_submit_commit, false},
    {"submit_touch", call_submit_touch, false},
    {"release", call_release, false},
};
enum { CALLS = sizeof(calls) / sizeof(calls[0]) };

/* ---- the situations ---- */

enum situation {
    NO_SOCKET,
    NOBODY_LISTENS, /* a socket file that is left from a daemon that died */
    BACKLOG_FULL,
    NOT_ACCEPTED,  /* stopped before hello */
    STOPPED,       /* after everything was set up; it goes on later, with what was sent meanwhile */
    NEVER_ANSWERS, /* receives what it is sent, and does nothing; another one takes its place */
    SOCKET_FULL,   /* the same, and its socket has no room for another request */
    DIES_IN_CALL,
    GARBAGE_IN_CALL,
    HALF_IN_CALL,
    OTHER_BODY_IN_CALL,
    SITUATIONS
};

static const struct {
    const char *name;
    enum behaviour before; /* when the client is opened */
    enum behaviour then;   /* when the call is made */
    bool set_up;           /* the client has a space, a lease and a put */
    int status[3];         /* what the call may say, 0 ends the list */
} situations[SITUATIONS] = {
    [NO_SOCKET] = {"no socket", ANSWERS, ANSWERS, false, {KVD_UNAVAILABLE}},
    [NOBODY_LISTENS] = {"nobody listens", ANSWERS, ANSWERS, false, {KVD_UNAVAILABLE}},
    [BACKLOG_FULL] = {"full backlog", DOES_NOT_ACCEPT, DOES_NOT_ACCEPT, false, {KVD_UNAVAILABLE}},
    [NOT_ACCEPTED] = {"not accepted", DOES_NOT_ACCEPT, DOES_NOT_ACCEPT, false, {KVD_UNAVAILABLE}},
    [STOPPED] = {"stopped", ANSWERS, DEAF, true, {KVD_DEADLINE, KVD_UNAVAILABLE}},
    [NEVER_ANSWERS] = {"never answers", ANSWERS, SILENT, true, {KVD_DEADLINE, KVD_UNAVAILABLE}},
    [SOCKET_FULL] = {"full socket", ANSWERS, DEAF, true, {KVD_DEADLINE, KVD_UNAVAILABLE, KVD_BUSY}},
    [DIES_IN_CALL] = {"dies", ANSWERS, DIES, true, {KVD_UNAVAILABLE}},
    [GARBAGE_IN_CALL] = {"garbage", ANSWERS, GARBAGE, true, {KVD_UNAVAILABLE}},
    [HALF_IN_CALL] = {"half a reply", ANSWERS, HALF, true, {KVD_UNAVAILABLE}},
    [OTHER_BODY_IN_CALL] = {"another reply", ANSWERS, OTHER_BODY, true, {KVD_UNAVAILABLE}},
};

/* A socket that listens, with nobody accepting and no room for one more to wait. */
struct backlog {
    int fds[8];
    int n;
};

static void backlog_fill(struct server *s, struct backlog *b)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s", s->p.path);
    assert_int_equal(listen(s->p.listen_fd, 0), 0);
    int err = 0;
    for (b->n = 0; b->n < 8 && !err; b->n++) {
        b->fds[b->n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        err = connect(b->fds[b->n], (const struct sockaddr *)&addr, sizeof(addr));
    }
    assert_int_equal(err, -1);
    assert_int_equal(errno, EAGAIN);
}

static void backlog_clear(struct backlog *b)
{
    while (b->n > 0) {
        kvd_close_fd(&b->fds[--b->n]);
    }
}

/* Sends until the socket takes no more; what is sent is never answered. */
static void socket_fill(struct subject *u)
{
    int err;
    while ((err = kvd_submit_touch(u->space, &u->prompt, 1, NULL)) == 0) {
    }
    assert_int_equal(err, KVD_BUSY);
}

static void subject_open(struct subject *u, struct server *s, bool set_up)
{
    struct kvd_space_config config = peer_space();
    memset(u, 0, sizeof(*u));
    u->c = client_open(s);
    u->prompt = peer_prompt(tokens, N_TOKENS);
    assert_int_equal(kvd_space_open(u->c, &config, &u->space), 0);
    if (set_up) {
        struct kvd_match_result m;
        uint64_t until = kvd_mono_ns() + 20 * KVD_NS_PER_S;
        int err; /* a slow machine may miss these short deadlines: again */
        while ((err = kvd_match(u->space, &u->prompt, &m)) && kvd_mono_ns() < until) {
        }
        assert_int_equal(err, 0);
        u->lease = m.lease;
        while ((err = kvd_put_begin(u->space, &u->prompt, 0, 1, &u->put, NULL)) &&
               kvd_mono_ns() < until) {
        }
        assert_int_equal(err, 0);
        assert_non_null(u->put);
    }
}

static uint64_t deadlines_paid(struct subject *u)
{
    struct kvd_stats stats = {.size = sizeof(stats)};
    kvd_stats(u->c, &stats);
    return stats.deadlines;
}

static void situation_begin(struct server *s, enum situation at, struct backlog *b)
{
    server_init(s, situations[at].before);
    if (at == NO_SOCKET) {
        return;
    }
    peer_listen(&s->p);
    if (at == NOBODY_LISTENS) {
        kvd_close_fd(&s->p.listen_fd);
        return;
    }
    if (at == BACKLOG_FULL) {
        backlog_fill(s, b);
    }
    server_start(s);
}

/* The daemon is back, under the same name. */
static void situation_end(struct server *s, enum situation at, struct backlog *b)
{
    const bool ran = at != NO_SOCKET && at != NOBODY_LISTENS;
    backlog_clear(b);
    if (ran) {
        server_stop(s);
    }
    if (!ran || at == DIES_IN_CALL || at == BACKLOG_FULL || at == NEVER_ANSWERS) {
        peer_hang_up(&s->p);
        peer_listen(&s->p);
    }
    atomic_store(&s->behaviour, (int)ANSWERS);
    server_start(s);
}

static void assert_status(const struct call *call, enum situation at, int status)
{
    if (call->lenient && status == 0) {
        return;
    }
    for (int i = 0; i < 3 && situations[at].status[i]; i++) {
        if (status == situations[at].status[i]) {
            return;
        }
    }
    fail_msg("%s, %s: %s", call->name, situations[at].name, kvd_status_text(status));
}

/* Calls until the daemon is back, which the library tries once a second. */
static void assert_comes_back(struct subject *u, const struct call *call, enum situation at)
{
    uint64_t until = kvd_mono_ns() + 20 * KVD_NS_PER_S;
    int err;
    while ((err = call_match(u)) != 0) {
        if (kvd_mono_ns() > until) {
            fail_msg("%s, %s: not back: %s: %s", call->name, situations[at].name,
                     kvd_status_text(err), kvd_client_message(u->c));
        }
    }
}

/* A call in a situation, with a daemon of its own. */
struct one {
    const struct call *call;
    struct server s;
    struct subject u;
    struct backlog b;
};

static void one_fails(struct one *o, enum situation at)
{
    struct subject *u = &o->u;
    o->b.n = 0;
    situation_begin(&o->s, at, &o->b);
    subject_open(u, &o->s, situations[at].set_up);
    if (situations[at].set_up) {
        server_behave(&o->s, situations[at].then);
    }
    if (at == SOCKET_FULL) {
        socket_fill(u);
    }
    uint64_t start = kvd_mono_ns();
    int status = o->call->run(u);
    uint64_t took_ms = (kvd_mono_ns() - start) / KVD_NS_PER_MS;
    assert_status(o->call, at, status);
    if (took_ms > BUDGET_MS * FACTOR) {
        fail_msg("%s, %s: %llu ms", o->call->name, situations[at].name,
                 (unsigned long long)took_ms);
    }
    /* whatever is asked from now on costs nothing, but for the one deadline if that is still due */
    uint64_t paid = deadlines_paid(u);
    for (int i = 0; i < 20; i++) {
        (void)call_match(u);
        (void)call_put(u);
        (void)call_ping(u);
    }
    assert_in_range(deadlines_paid(u) - paid, 0, at == SOCKET_FULL ? 2 : 1);
}

static void one_comes_back(struct one *o, enum situation at)
{
    situation_end(&o->s, at, &o->b);
    assert_comes_back(&o->u, o->call, at);
    kvd_put_abort(&o->u.put);
    kvd_client_close(&o->u.c);
    server_stop(&o->s);
    server_fini(&o->s);
}

/* First each call fails, then each client comes back: so the second that each must let pass before
 * it tries again passes for all at once. */
static void all_calls(enum situation at)
{
    static struct one ones[CALLS];
    for (int i = 0; i < CALLS; i++) {
        (void)alarm(HANG_S);
        ones[i].call = &calls[i];
        one_fails(&ones[i], at);
    }
    for (int i = 0; i < CALLS; i++) {
        (void)alarm(HANG_S);
        one_comes_back(&ones[i], at);
    }
    (void)alarm(0);
}

static void r_no_socket(void **state)
{
    (void)state;
    all_calls(NO_SOCKET);
}

static void r_nobody_listens(void **state)
{
    (void)state;
    all_calls(NOBODY_LISTENS);
}

static void r_full_backlog(void **state)
{
    (void)state;
    all_calls(BACKLOG_FULL);
}

static void r_stopped_before_hello(void **state)
{
    (void)state;
    all_calls(NOT_ACCEPTED);
}

static void r_stopped_daemon(void **state)
{
    (void)state;
    all_calls(STOPPED);
}

static void r_daemon_that_never_answers(void **state)
{
    (void)state;
    all_calls(NEVER_ANSWERS);
}

static void r_full_socket(void **state)
{
    (void)state;
    all_calls(SOCKET_FULL);
}

static void r_daemon_dies_in_a_call(void **state)
{
    (void)state;
    all_calls(DIES_IN_CALL);
}

static void r_garbage_for_an_answer(void **state)
{
    (void)state;
    all_calls(GARBAGE_IN_CALL);
    all_calls(HALF_IN_CALL);
    all_calls(OTHER_BODY_IN_CALL);
}

/* Reaching a daemon that is away is tried once a second, not with each call. */
static void r_reconnecting_all_the_time(void **state)
{
    (void)state;
    enum { RETRY_MS = 1000, SEEN = 3 };
    struct server s;
    struct subject u;
    unsigned calls_made = 0;
    server_init(&s, HANGS_UP);
    peer_listen(&s.p);
    server_start(&s);
    (void)alarm(HANG_S);
    uint64_t start = kvd_mono_ns();
    subject_open(&u, &s, false);
    while (atomic_load(&s.accepted) < SEEN) {
        assert_int_equal(call_ping(&u), KVD_UNAVAILABLE);
        calls_made++;
    }
    uint64_t took_ms = (kvd_mono_ns() - start) / KVD_NS_PER_MS;
    assert_in_range(took_ms, (SEEN - 1) * RETRY_MS, HANG_S * 1000);
    assert_true(calls_made >= SEEN);
    (void)alarm(0);
    kvd_client_close(&u.c);
    server_stop(&s);
    server_fini(&s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_no_socket),
    cmocka_unit_test(r_nobody_listens),
    cmocka_unit_test(r_full_backlog),
    cmocka_unit_test(r_stopped_before_hello),
    cmocka_unit_test(r_stopped_daemon),
    cmocka_unit_test(r_daemon_that_never_answers),
    cmocka_unit_test(r_full_socket),
    cmocka_unit_test(r_daemon_dies_in_a_call),
    cmocka_unit_test(r_garbage_for_an_answer),
    cmocka_unit_test(r_reconnecting_all_the_time),
};

KVD_TEST_MAIN(tests)
