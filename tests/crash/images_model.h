/*
 * What a power cut may leave, worked out from a record (record_io.h) and the strictest reading of
 * POSIX:
 *   - what is inside a file lasts from the end of an fdatasync of it that began after the write (or
 *     change of size) had ended;
 *   - a name (made, removed, renamed) lasts from the end of a sync of its folder that began after
 *     the change had ended;
 *   - all else may or may not have come about, each by itself: of a write any of its pages or
 *     sectors, also where it was reported as failed, or was under way; and the size without the
 *     bytes;
 *   - what a failed sync was about never lasts, whatever comes later.
 * The index is RocksDB, which we trust with its own files: of its log there is all that was synced,
 * and any part of the rest that was written until then.
 */
#ifndef TESTS_CRASH_IMAGES_MODEL_H
#define TESTS_CRASH_IMAGES_MODEL_H

#include "images_world.h"

struct history {
    char folder[WORLD_PATH_BYTES];
    struct record_log log;
    struct disk_op *ops; /* what changes the device, in order */
    uint32_t n_ops;
    uint32_t n_files;
    uint64_t seed; /* of the store's keys */
};

enum image_files {
    FILES_SYNCED, /* what was synced */
    FILES_ALL,    /* and all that had ended */
    FILES_GROWN,  /* and what had ended, but what makes files shorter or takes names away */
    FILES_ANY,
};
enum image_index { INDEX_SYNCED, INDEX_ALL, INDEX_ANY, INDEX_GONE };

struct image_how {
    uint32_t events; /* the cut comes after so many events of the record */
    enum image_files files;
    enum image_index index;
    uint64_t random; /* of FILES_ANY, INDEX_ANY */
};

enum image_purged { PURGED_NOT, PURGED_PERHAPS, PURGED };

/* What was promised until then. */
struct image_truth {
    struct image_promise {
        struct kvd_key key;
        uint64_t segment;
    } * promises; /* those that hold; no key twice */
    uint32_t n_promises;
    uint8_t purged[WORLD_PROMPTS]; /* enum image_purged */
    uint64_t boot;                 /* the last one that was used */
    uint64_t asked_tokens;         /* the least that the counters must say */
};

void history_load(const char *folder, struct history *ret);
void history_unload(struct history *history);

void truth_at(const struct history *history, uint32_t events, struct image_truth *ret);
void truth_fini(struct image_truth *truth);
bool truth_promised(const struct image_truth *truth, const struct kvd_key *key);

/* Makes the image in a folder, which is made. */
void image_make(const struct history *history, const struct image_how *how, const char *folder);

/* A sum over what an image holds, without making it: two with the same sum hold the same. Not of
 * FILES_ANY or INDEX_ANY. */
uint64_t image_sum(const struct history *history, const struct image_how *how);

#endif
