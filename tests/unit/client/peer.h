/*
 * A peer that plays a daemon at fault: a test tells it step by step what to answer. It speaks the
 * wire with proto's own code; only what it answers is made up. Each test's script runs on a thread.
 */
#ifndef TESTS_UNIT_CLIENT_PEER_H
#define TESTS_UNIT_CLIENT_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "kvdepot/kvdepot.h"
#include "proto/wire/wire.h"

enum { PEER_POOL_BYTES = 1 << 20, PEER_STAGING_BYTES = 1 << 20, PEER_WAIT_MS = 10000 };

struct peer {
    char folder[128];
    char path[160];
    int kind; /* for the test's script */
    int listen_fd;
    int fd; /* of the client that was accepted last */
    int area_fd;
    int pool_fd;
    int staging_fd;
    uint8_t *area;
    uint8_t *pool;
    struct kvd_wire_budget budget;
    Kvd__Wire__Request *req; /* received last */
};

void peer_init(struct peer *p); /* makes the folder; nobody listens yet */
void peer_fini(struct peer *p);
void peer_listen(struct peer *p);
void peer_accept(struct peer *p);
void peer_hang_up(struct peer *p);

/* Receives one request of this kind into p->req; the test fails where another comes, or none. */
const Kvd__Wire__Request *peer_receive(struct peer *p, Kvd__Wire__Request__BodyCase kind);
/* The same for a request of any kind; NULL when the client has hung up. */
const Kvd__Wire__Request *peer_receive_any(struct peer *p);
void peer_send(struct peer *p, Kvd__Wire__Reply *reply, const int *fds, unsigned n_fds);
void peer_send_bytes(struct peer *p, const void *bytes, size_t n);
void peer_answer_hello(struct peer *p); /* to the hello received last */
void peer_answer_space(struct peer *p);
/* So many slots of staging (0: no room for it), so many descriptors. */
void peer_answer_space_with(struct peer *p, uint32_t slots, unsigned n_fds);
void peer_answer_empty(struct peer *p);
void peer_answer_error(struct peer *p, int err);
void peer_answer_match(struct peer *p, uint64_t lease, uint32_t asked, uint32_t hit);
void peer_answer_load(struct peer *p, uint32_t good);
void peer_answer_put_begin(struct peer *p, uint64_t put, uint32_t granted);
/* Result row i of the request received last. */
struct kvd_wire_block *peer_row(struct peer *p, const Kvd__Wire__Range *results, uint32_t i);

/* Accepts, and answers hello and one space_open. */
void peer_serve_start(struct peer *p);

/* ---- the client's side */
struct kvd_space_config peer_space(void);
struct kvd_prompt peer_prompt(const uint32_t *tokens, uint32_t n_tokens);

#endif
