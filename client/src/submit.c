/*
 * Submissions and their completions. kvd_client_fd is an epoll descriptor over the socket, an
 * eventfd (completions wait that another thread received) and a timerfd (the earliest deadline of a
 * submission).
 */
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "client/src/internal.h"
#include "proto/base/protect.h"

/* Sets the timer to `when`, or off for 0. */
static void timer_set_locked(struct kvd_client *c, uint64_t when)
{
    struct itimerspec spec = {.it_value = {.tv_sec = (time_t)(when / KVD_NS_PER_S),
                                           .tv_nsec = (long)(when % KVD_NS_PER_S)}};
    if (when != c->timer_ns) {
        (void)timerfd_settime(c->timerfd, TFD_TIMER_ABSTIME, &spec, NULL);
        c->timer_ns = when;
    }
}

int kvd_submit_send_locked(struct kvd_call *call, Kvd__Wire__Request *req, void *cookie)
{
    struct kvd_client *c = call->conn->client;
    int err = kvd_call_send_locked(call, req, false);
    if (err) {
        kvd_call_free_locked(&call);
        return err;
    }
    call->submitted = true;
    call->cookie = cookie;
    kvd_list_push_back(&c->submitted, &call->async);
    if (c->timer_ns == 0 || call->deadline_ns < c->timer_ns) {
        timer_set_locked(c, call->deadline_ns);
    }
    return 0;
}

void kvd_submit_done_locked(struct kvd_call *call)
{
    struct kvd_client *c = call->conn->client;
    if (kvd_list_empty(&c->done)) {
        (void)eventfd_write(c->eventfd, 1);
    }
    kvd_list_remove(&call->async);
    kvd_list_push_back(&c->done, &call->async);
}

static enum kvd_op op_of(const struct kvd_call *call)
{
    switch (call->op) {
    case KVD_CALL_MATCH:
        return KVD_OP_MATCH;
    case KVD_CALL_LOAD:
        return call->placed ? KVD_OP_PLACE : KVD_OP_LOAD;
    case KVD_CALL_PUT_COMMIT:
        return KVD_OP_PUT_COMMIT;
    default:
        KVD_ASSERT(call->op == KVD_CALL_TOUCH);
        return KVD_OP_TOUCH;
    }
}

/* Completes a call whose reply has come; the lock is let go for the copies of a load. False: the
 * load goes on with its next part. */
static bool finish_locked(struct kvd_client *c, struct kvd_call *call, struct kvd_completion *ret)
{
    bool done = true;
    *ret = (struct kvd_completion){.op = op_of(call), .cookie = call->cookie};
    ret->status = kvd_call_status(call);
    if (ret->status && call->op == KVD_CALL_LOAD) {
        kvd_load_failed_locked(call);
    }
    if (ret->status && call->before > 0) {
        ret->status = 0; /* what earlier parts copied is right */
        ret->good = call->before;
    } else if (ret->status == 0 && call->op == KVD_CALL_MATCH) {
        ret->status = kvd_match_finish_locked(call, &ret->match);
    } else if (ret->status == 0 && call->op == KVD_CALL_PUT_COMMIT) {
        ret->status = kvd_put_commit_finish_locked(call, &ret->put);
    } else if (ret->status == 0 && call->placed) {
        ret->status = kvd_place_finish_locked(call, &ret->good);
    } else if (ret->status == 0 && call->op == KVD_CALL_LOAD) {
        kvd_client_unlock(c);
        done = kvd_load_finish(call, &ret->good);
        kvd_client_lock(c);
    }
    kvd_call_free_locked(&call);
    return done;
}

/* Completions of submissions whose deadline has passed. */
static int expire_locked(struct kvd_client *c, struct kvd_completion *ret, int max)
{
    int n = 0;
    uint64_t now = kvd_mono_ns();
    kvd_list_foreach_safe (it, &c->submitted) {
        struct kvd_call *call = KVD_CONTAINER_OF(it, struct kvd_call, async);
        if (KVD_PROTECT(SUBMISSION_DEADLINE) && n < max && call->deadline_ns <= now) {
            ret[n++] = (struct kvd_completion){.op = op_of(call),
                                               .status = call->before ? 0 : KVD_DEADLINE,
                                               .good = call->before,
                                               .cookie = call->cookie};
            (void)kvd_client_fail(c, KVD_DEADLINE, "the daemon did not answer in time");
            if (call->op == KVD_CALL_LOAD) {
                kvd_load_failed_locked(call);
            }
            kvd_call_abandon_locked(call);
        }
    }
    return n;
}

static void timer_update_locked(struct kvd_client *c)
{
    uint64_t earliest = 0;
    kvd_list_foreach (it, &c->submitted) {
        const struct kvd_call *call = KVD_CONTAINER_OF(it, struct kvd_call, async);
        if (earliest == 0 || call->deadline_ns < earliest) {
            earliest = call->deadline_ns;
        }
    }
    timer_set_locked(c, earliest);
}

int kvd_drain(struct kvd_client *client, struct kvd_completion *ret_completions, int max)
{
    struct kvd_client *c = client;
    KVD_MAGIC_CHECK(c, KVD_CLIENT_MAGIC);
    eventfd_t ignored;
    int n = 0;
    kvd_client_lock(c);
    if (c->conn) {
        kvd_link_pump_locked(c->conn);
    }
    while (n < max && !kvd_list_empty(&c->done)) {
        struct kvd_list *link = kvd_list_pop_front(&c->done);
        struct kvd_call *call = KVD_CONTAINER_OF(link, struct kvd_call, async);
        n += finish_locked(c, call, &ret_completions[n]);
    }
    n += expire_locked(c, ret_completions + n, max - n);
    if (kvd_list_empty(&c->done)) {
        (void)eventfd_read(c->eventfd, &ignored);
    }
    timer_update_locked(c);
    kvd_client_unlock(c);
    return n;
}
