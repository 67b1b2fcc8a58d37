/*
 * What the recorded program (images_stage.c) and the test that makes images of its record
 * (test_crash_images.c) agree on: where things lie, which prompts there are, what the marks mean.
 *
 * A history lies in one folder: `root` (all that the store has on devices: its folder, and that of
 * its nvme tier, each with a parent to be made), `log` (the record, see record_io.h), `index-N` (a
 * copy of the index right after its N-th opening, and `wal`, what its log had become at the end of
 * that run), `pool`.
 */
#ifndef TESTS_CRASH_IMAGES_WORLD_H
#define TESTS_CRASH_IMAGES_WORLD_H

#include "../unit/core/service_rig.h"
#include "record_io.h"

#define WORLD_DIR "a/store"
#define WORLD_INDEX WORLD_DIR "/index"
#define WORLD_NVME "b/nvme"

enum { WORLD_PATH_BYTES = 512, WORLD_PROMPTS = 140, WORLD_BLOCKS_MAX = 3 };
enum { WORLD_TOKENS_MAX = WORLD_BLOCKS_MAX * RIG_BLOCK_TOKENS + 5 };

enum world_mark {
    MARK_INDEX_OPEN = 1, /* value: N; extra: struct world_index */
    MARK_INDEX_WRITE,    /* begins; the end's result: bytes of its log then */
    MARK_INDEX_SYNCED,   /* value: bytes of its log that are durable */
    MARK_PROMISED,       /* value: segment; extra: key. The block was reported to be below dram */
    MARK_DYING,          /* value: segment. What was promised of it is over */
    MARK_COUNTED,        /* value: tokens asked for so far; durable once the run has ended well */
    MARK_RUN_END,        /* value: whether it was killed. By the test, after the process */
    MARK_PURGING,        /* value: prompt. From here on it may be gone */
    MARK_PURGED,         /* value: prompt. It was said to be gone */
    MARK_NOT_PURGED,     /* value: prompt. It was said that it could not be purged */
};

struct world_index {
    uint64_t boot;
    char wal[64]; /* name of its log */
};

/* A prompt of the world: whether it is a guest's, which is put once and then purged; its tenant,
 * its class, its blocks, its tokens (blocks and 5 more). */
bool world_guest(uint32_t prompt);
const char *world_tenant(uint32_t prompt);
const char *world_class(uint32_t prompt);
uint32_t world_blocks(uint32_t prompt);
uint32_t world_tokens(uint32_t prompt, uint32_t ret[WORLD_TOKENS_MAX]);
/* Keys of its blocks in a store with this seed. */
void world_keys(uint32_t prompt, uint64_t seed, struct kvd_key ret[WORLD_BLOCKS_MAX]);

/* A rig whose store lies under root; small, so that it fills up. */
void world_rig(struct rig *rig, const char *root, const char *pool);

/* Figures of an IDENTITY file. False: there is none that can be read. */
bool world_identity(const char *root, uint64_t *ret_seed, uint64_t *ret_boot);

/* Files. Failures fail the test. */
void world_path(char ret[WORLD_PATH_BYTES], const char *folder, const char *name);
void world_write_file(const char *path, const void *bytes, uint64_t n);
void world_copy(const char *from, const char *to, uint64_t bytes_most);
void world_copy_index(const char *from, const char *to);
void world_remove(const char *folder);
/* Name and size of the newest log of an index. */
uint64_t world_wal(const char *index, char ret_name[64]);
/* A sum over the names and sizes of the other files of an index: it changes when RocksDB writes
 * anything but its log. */
uint64_t world_index_shape(const char *index);

#endif
