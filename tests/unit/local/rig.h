/*
 * For tests of the door: a real daemon in a temporary folder, in this process, and two ways to talk
 * to it: libkvdepot, and a raw socket that says what no library would.
 */
#ifndef TESTS_UNIT_LOCAL_RIG_H
#define TESTS_UNIT_LOCAL_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "cachesvc/config/config.h"
#include "cachesvc/embed/daemon.h"
#include "kvdepot/kvdepot.h"
#include "proto/wire/wire.h"

enum {
    RIG_BLOCK_TOKENS = 16,
    RIG_BLOCK_BYTES = 2 * 2 * 64 * 16 * 2, /* 2 layers, 1 head of 64, f16 */
    RIG_WAIT_MS = 20000,
};

struct rig {
    char folder[128];
    char socket[160];
    int log_fd; /* what the daemon logs */
    struct kvd_log log;
    struct kvd_config config;
    struct kvd_daemon *daemon;
};

void rig_init(struct rig *rig); /* configured, not started */
void rig_fini(struct rig *rig);
void rig_set(struct rig *rig, const char *option, const char *value);
void rig_start(struct rig *rig);
void rig_stop(struct rig *rig);
/* How often text stands in the log. */
unsigned rig_logged(struct rig *rig, const char *text);

/* ---- through the library */
struct kvd_client *rig_client(struct rig *rig);
struct kvd_client *rig_client_embedded(struct rig *rig);
struct kvd_space *rig_space(struct kvd_client *client);
/* n tokens of a conversation; conversations with the same seed begin alike. */
void rig_tokens(uint32_t seed, uint32_t n, uint32_t *ret);
struct kvd_prompt rig_prompt(const uint32_t *tokens, uint32_t n);
/* The bytes that block `index` of a conversation must have. */
void rig_payload(uint32_t seed, uint32_t index, uint8_t *ret);
/* Puts blocks [first, first + n) of a conversation; returns how many are stored now. */
uint32_t rig_put(struct kvd_space *space, uint32_t seed, uint32_t first, uint32_t n);
/* Matches and loads a conversation of n blocks, compares every byte; returns the good blocks. */
uint32_t rig_hit(struct kvd_space *space, uint32_t seed, uint32_t n);
/* A number in the status report: the first that follows "name": . */
int64_t rig_status(struct kvd_client *client, const char *name);

/* ---- raw */
struct raw {
    int fd;
    uint8_t *area;
    uint32_t space_handle;
};

int raw_socket(const char *path); /* connected */
void raw_open(struct raw *raw, struct rig *rig, bool with_space);
void raw_close(struct raw *raw);
void raw_send_bytes(int fd, const void *bytes, size_t n);
void raw_send(int fd, const Kvd__Wire__Request *req);
/* The next reply (free: kvd__wire__reply__free_unpacked(r, NULL)), or NULL at the connection's end.
 * Descriptors go to ret_fds where it is given. */
Kvd__Wire__Reply *raw_receive(int fd, int *ret_fds, unsigned *ret_n);
/* The error of the next reply. */
int raw_receive_error(int fd);
/* Waits until the daemon has closed the connection; replies before that are dropped. */
void raw_expect_closed(int fd);
void raw_hello(int fd, uint64_t id);

#endif
