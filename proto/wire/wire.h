/*
 * What the socket protocol needs besides control.proto: limits, the layout of results in the
 * request area, and unpacking under a memory budget. Pure functions; safe from any thread.
 */
#ifndef PROTO_WIRE_WIRE_H
#define PROTO_WIRE_WIRE_H

#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "proto/base/error.h"
#include "proto/keys/keys.h"

enum {
    KVD_WIRE_VERSION = 1,
    KVD_WIRE_PACKET_MAX = 64 << 10,
    KVD_WIRE_UNPACK_BUDGET = 256 << 10, /* bytes of heap that one packet may cost */
    KVD_WIRE_REQUEST_AREA_BYTES = 4 << 20,
    KVD_WIRE_STAGING_SLOTS = 16,
    KVD_WIRE_PROMPT_TOKENS_MAX = 512 << 10,
    KVD_WIRE_REPORT_MAX = 64 << 20, /* bytes of JSON text */
    KVD_WIRE_REPORT_ARG_MAX = 256,  /* bytes of an argument of a report */
};

/* Tiers as numbers on the wire and in counters, fastest first. NONE is a miss. */
enum kvd_tier_id {
    KVD_TIER_NONE = 0,
    KVD_TIER_HBM = 1,
    KVD_TIER_DRAM = 2,
    KVD_TIER_NVME = 3,
    KVD_TIER_REMOTE = 4,
    KVD_TIER_SHARED = 5,
    KVD_TIER_COUNT = 6,
};

/* "none", "hbm", "dram", … */
const char *kvd_tier_name(enum kvd_tier_id tier);

enum kvd_wire_block_state {
    KVD_BLOCK_ABSENT =
        0, /* match: not stored. put_begin: neither stored nor granted, try again later */
    KVD_BLOCK_STORED = 1,  /* match and put_begin: stored, in `tier` */
    KVD_BLOCK_LOADED = 2,  /* load: payload lies in the pool at `offset`, verified */
    KVD_BLOCK_FAILED = 3,  /* load: could not be read or verified */
    KVD_BLOCK_GRANTED = 4, /* put_begin: write the payload into staging at `offset` */
    KVD_BLOCK_PENDING = 5, /* put_begin: another put of it is under way */
};

/* One block's result in the request area. Host byte order: both ends are on one machine. */
struct kvd_wire_block {
    uint8_t state; /* enum kvd_wire_block_state */
    uint8_t tier;  /* enum kvd_tier_id it was found in */
    uint16_t reserved;
    uint32_t generation;        /* of the slot when the payload was verified */
    uint64_t offset;            /* of the payload: in the pool (load) or in staging (put_begin) */
    uint64_t generation_offset; /* load: where in the pool the slot's generation (u32) can be read
                                   again */
    uint64_t bytes;             /* of the payload */
};

_Static_assert(sizeof(struct kvd_wire_block) == 32, "results are an array of 32-byte rows");

/* Allocator that refuses beyond a budget; use it as &a.base with the unpack functions. */
struct kvd_wire_budget {
    ProtobufCAllocator base;
    uint64_t left;
};
void kvd_wire_budget_init(struct kvd_wire_budget *a, uint64_t bytes);

#include "control.pb-c.h"

/* A space's description to and from the wire. The message borrows desc's names and digests; desc
 * borrows the message's. from_wire checks lengths and kvd_space_desc_check. */
void kvd_wire_space_desc_pack(const struct kvd_space_desc *desc, Kvd__Wire__SpaceDesc *ret_msg);
int kvd_wire_space_desc_unpack(const Kvd__Wire__SpaceDesc *msg, struct kvd_space_desc *ret_desc,
                               struct kvd_diag *diag);

#endif
