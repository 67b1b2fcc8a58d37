/*
 * BLAKE2b-256 over every tensor, and its cache.
 *
 * What is hashed: fields, each a tag byte, a length (u64, little-endian) and the bytes, so that no
 * two different files give the same stream. First field `V`: the version text. Then for each tensor
 * in name order: `N` name, `T` type (u32), `S` shape (u64 each), `D` the data as stored.
 *
 * A cache file is text: a head with the path and what stat says (device, inode, size, mtime,
 * ctime), the fingerprint, and a sum over both. It is used when the head is exactly the one
 * expected now and the sum fits; anything else is ignored and made again. A file changed within the
 * clock tick in which it was looked at would keep its times, so a file whose ctime is not yet
 * RACY_NS old is not cached.
 */
#include "engine/model/fingerprint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <stdlib.h>
#include <time.h>

#include "engine/model/model.h"
#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

#define FINGERPRINT_VERSION "kvdepot weights 1"
#define RACY_NS INT64_C(100000000) /* ten ticks of the coarsest clock of a Linux kernel */

enum { HEAD_MAX = PATH_MAX + 256, ENTRY_MAX = HEAD_MAX + 2 * KVD_DIGEST_HEX };

static void hash_field(crypto_generichash_blake2b_state *state, char tag, const void *bytes,
                       uint64_t n)
{
    uint8_t head[9] = {(uint8_t)tag};
    kvd_put_le64(head + 1, n);
    (void)crypto_generichash_blake2b_update(state, head, sizeof(head));
    (void)crypto_generichash_blake2b_update(state, bytes, n);
}

static void hash_tensor(crypto_generichash_blake2b_state *state, const struct kvd_gguf_tensor *t)
{
    uint8_t type[4];
    uint8_t shape[8 * KVD_GGUF_DIMS_MAX];
    kvd_put_le32(type, t->type);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        kvd_put_le64(shape + 8 * i, t->dims[i]);
    }
    hash_field(state, 'N', t->name.text, t->name.bytes);
    hash_field(state, 'T', type, sizeof(type));
    hash_field(state, 'S', shape, 8 * (uint64_t)t->n_dims);
    hash_field(state, 'D', t->data, t->bytes);
}

void kvd_model_fingerprint(const struct kvd_gguf *gguf, struct kvd_digest *ret)
{
    KVD_ASSERT(sodium_init() >= 0); /* picks the fast code path; may be called often */
    crypto_generichash_blake2b_state state;
    (void)crypto_generichash_blake2b_init(&state, NULL, 0, KVD_DIGEST_BYTES);
    hash_field(&state, 'V', FINGERPRINT_VERSION, strlen(FINGERPRINT_VERSION));
    uint64_t n = kvd_gguf_tensor_count(gguf);
    for (uint64_t i = 0; i < n; i++) { /* the table is in name order */
        hash_tensor(&state, kvd_gguf_tensor_at(gguf, i));
    }
    (void)crypto_generichash_blake2b_final(&state, ret->b, KVD_DIGEST_BYTES);
}

static void digest_hex(const void *bytes, uint64_t n, char ret_hex[KVD_DIGEST_HEX])
{
    struct kvd_digest d;
    (void)crypto_generichash_blake2b(d.b, sizeof(d.b), bytes, n, NULL, 0);
    kvd_hex(d.b, sizeof(d.b), ret_hex);
}

bool kvd_fingerprint_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Nanoseconds since the file's last change; 0 when the clock says it lies ahead. */
static int64_t age_ns(const struct stat *st)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    int64_t s = (int64_t)now.tv_sec - (int64_t)st->st_ctim.tv_sec;
    if (s < 0 || s > 1000000) {
        return s < 0 ? 0 : INT64_MAX;
    }
    int64_t ns = s * INT64_C(1000000000) + now.tv_nsec - st->st_ctim.tv_nsec;
    return ns < 0 ? 0 : ns;
}

/* What a cache entry must begin with to be about this file as it is now. */
static int entry_head(const char *real_path, const struct stat *file, char ret_head[HEAD_MAX])
{
    struct stat state = *file;
    const struct stat *st = &state;
    if (!KVD_PROTECT(FINGERPRINT_OF_THE_FILE)) { /* what a name and its times tell */
        state.st_ino = 0;
        state.st_ctim = (struct timespec){0};
    }
    int n =
        snprintf(ret_head, HEAD_MAX,
                 FINGERPRINT_VERSION "\npath %s\nfile %" PRIu64 " %" PRIu64 " %" PRId64
                                     "\nmtime %" PRId64 ".%09ld\nctime %" PRId64 ".%09ld\nweights ",
                 real_path, (uint64_t)st->st_dev, (uint64_t)st->st_ino, (int64_t)st->st_size,
                 (int64_t)st->st_mtim.tv_sec, st->st_mtim.tv_nsec, (int64_t)st->st_ctim.tv_sec,
                 st->st_ctim.tv_nsec);
    return n < HEAD_MAX ? n : -KVD_E_TOO_LONG;
}

static int entry_path(const char *cache_dir, const char *real_path, char ret_path[PATH_MAX])
{
    char hex[KVD_DIGEST_HEX];
    digest_hex(real_path, strlen(real_path), hex);
    int n = snprintf(ret_path, PATH_MAX, "%s/weights-%.32s", cache_dir, hex);
    return n < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* An entry is head, fingerprint, newline, sum of all before, newline. Returns its length. */
static size_t entry_build(const char *head, size_t head_bytes, const struct kvd_digest *weights,
                          char ret_entry[ENTRY_MAX])
{
    memcpy(ret_entry, head, head_bytes);
    size_t n = head_bytes;
    kvd_hex(weights->b, sizeof(weights->b), ret_entry + n);
    n += KVD_DIGEST_HEX - 1;
    ret_entry[n++] = '\n';
    digest_hex(ret_entry, n, ret_entry + n);
    n += KVD_DIGEST_HEX - 1;
    ret_entry[n++] = '\n';
    return n;
}

static ssize_t read_small(const char *path, char *buf, size_t cap)
{
    KVD_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    size_t n = 0;
    while (fd >= 0 && n < cap) {
        ssize_t got = read(fd, buf + n, cap - n);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -1 : (ssize_t)n;
        }
        n += (size_t)got;
    }
    return -1;
}

static bool cache_load(const char *path, const char *head, size_t head_bytes,
                       struct kvd_digest *ret)
{
    KVD_AUTOFREE char *have = malloc(ENTRY_MAX);
    KVD_AUTOFREE char *want = malloc(ENTRY_MAX);
    if (!have || !want) {
        return false;
    }
    ssize_t n = read_small(path, have, ENTRY_MAX);
    struct kvd_digest weights;
    size_t decoded = 0;
    if (n < (ssize_t)(head_bytes + KVD_DIGEST_HEX - 1) ||
        sodium_hex2bin(weights.b, sizeof(weights.b), have + head_bytes, KVD_DIGEST_HEX - 1, NULL,
                       &decoded, NULL) != 0 ||
        decoded != sizeof(weights.b)) {
        return false;
    }
    /* Built again from what it says: it must come out the same to the last byte. */
    size_t expected = entry_build(head, head_bytes, &weights, want);
    if ((size_t)n != expected || memcmp(have, want, expected) != 0) {
        return false;
    }
    *ret = weights;
    return true;
}

static bool write_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, bytes, n);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return false;
        }
        bytes += put;
        n -= (size_t)put;
    }
    return true;
}

/* A temporary file, then a rename: a reader sees a whole entry or none. */
static void cache_store(const char *cache_dir, const char *path, const char *head,
                        size_t head_bytes, const struct kvd_digest *weights)
{
    KVD_AUTOFREE char *entry = malloc(ENTRY_MAX);
    char temp[PATH_MAX];
    int n = snprintf(temp, sizeof(temp), "%s.XXXXXX", path);
    if (!entry || n >= (int)sizeof(temp)) {
        return;
    }
    (void)mkdir(cache_dir, 0700);
    KVD_AUTOCLOSE int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    size_t bytes = entry_build(head, head_bytes, weights, entry);
    if (!write_all(fd, entry, bytes) || rename(temp, path) < 0) {
        (void)unlink(temp);
    }
}

void kvd_fingerprint_cached(const struct kvd_gguf *gguf, const char *path,
                            const struct stat *before, const char *cache_dir,
                            struct kvd_digest *ret)
{
    KVD_AUTOFREE char *real = cache_dir ? realpath(path, NULL) : NULL;
    KVD_AUTOFREE char *head = malloc(HEAD_MAX);
    char entry[PATH_MAX];
    struct stat opened;
    /* The same before and after opening: what is mapped is what `before` speaks of. */
    bool usable = real && head && stat(path, &opened) == 0 &&
                  kvd_fingerprint_same_file(before, &opened) &&
                  entry_path(cache_dir, real, entry) == 0;
    int head_bytes = usable ? entry_head(real, before, head) : -1;
    if (head_bytes > 0 && cache_load(entry, head, (size_t)head_bytes, ret)) {
        return;
    }
    kvd_model_fingerprint(gguf, ret);
    struct stat after;
    if (head_bytes > 0 && stat(path, &after) == 0 && kvd_fingerprint_same_file(before, &after) &&
        age_ns(before) >= RACY_NS) {
        cache_store(cache_dir, entry, head, (size_t)head_bytes, ret);
    }
}
