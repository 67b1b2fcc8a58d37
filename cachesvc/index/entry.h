/*
 * Bytes of the index: keys and values of blocks' entries, and what a change makes of an entry.
 * Pure; for the files of this folder and their tests.
 *
 * key    group (12) | index in chain (u32 big-endian) | key (16) | rank (u16 big-endian)
 * value  version (1) | gone (1) | block in record (u16) | scenario (u16) | extent bytes (u32)
 *        | last use day (u32) | created day (u32) | segment (u64) | offset (u64) | put id (u64)
 *        | gone at second (u64), little-endian
 */
#ifndef CACHESVC_INDEX_ENTRY_H
#define CACHESVC_INDEX_ENTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cachesvc/index/index.h"

enum {
    KVD_ENTRY_VERSION = 1,
    KVD_ENTRY_PLACE_BYTES = KVD_GROUP_ID_BYTES + 4, /* group and index */
    KVD_ENTRY_KEY_BYTES = KVD_ENTRY_PLACE_BYTES + KVD_KEY_BYTES + 2,
    KVD_ENTRY_VALUE_BYTES = 50,
};

void kvd_entry_key_encode(const struct kvd_index_id *id, uint8_t ret_key[KVD_ENTRY_KEY_BYTES]);
/* -KVD_E_CORRUPT: not of the right length. */
int kvd_entry_key_decode(const void *key, size_t bytes, struct kvd_index_id *ret);

void kvd_entry_encode(const struct kvd_index_entry *entry,
                      uint8_t ret_value[KVD_ENTRY_VALUE_BYTES]);
/* -KVD_E_CORRUPT: another version or length. */
int kvd_entry_decode(const void *value, size_t bytes, struct kvd_index_entry *ret);

/* What a change makes of an entry (NULL: there is none). False: nothing is to be written. */
bool kvd_entry_change(const struct kvd_index_change *change, const struct kvd_index_entry *old,
                      struct kvd_index_entry *ret_new);

#endif
