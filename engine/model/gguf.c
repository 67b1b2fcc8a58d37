/*
 * An open GGUF: the mapping, and look-ups by name. All checking of the file is done in
 * gguf_parse.c, before anybody gets a handle. The mapping is private and read-only; whoever
 * shortens the file while it is mapped ends this process by SIGBUS, as with every mapped file.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engine/model/gguf_priv.h"
#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"

void kvd_gguf_close(struct kvd_gguf **gguf)
{
    struct kvd_gguf *g = KVD_TAKE(*gguf);
    if (!g) {
        return;
    }
    KVD_MAGIC_CHECK(g, GGUF_MAGIC_OBJ);
    for (uint64_t i = 0; i < g->n_values; i++) {
        free(g->values[i].str_offsets);
    }
    free(g->values);
    free(g->tensors);
    if (g->map) {
        (void)munmap(g->map, g->bytes);
    }
    KVD_MAGIC_CLEAR(g);
    free(g);
}

static int gguf_open_bytes(const void *bytes, uint64_t n, void *map, struct kvd_diag *diag,
                           struct kvd_gguf **ret)
{
    KVD_CLEANUP(kvd_gguf_close) struct kvd_gguf *g = calloc(1, sizeof(*g));
    if (!g) {
        return kvd_fail(diag, -ENOMEM, "no memory");
    }
    KVD_MAGIC_SET(g, GGUF_MAGIC_OBJ);
    g->base = bytes;
    g->bytes = n;
    int r = gguf_parse(g, diag);
    if (r < 0) {
        return r;
    }
    g->map = map;
    *ret = KVD_TAKE(g);
    return 0;
}

int kvd_gguf_open_memory(const void *bytes, uint64_t n, struct kvd_diag *diag,
                         struct kvd_gguf **ret)
{
    return gguf_open_bytes(bytes, n, NULL, diag, ret);
}

/* Maps a regular file. O_NONBLOCK: a named pipe is refused, not waited for. */
static int map_file(const char *path, struct kvd_diag *diag, void **ret_map, uint64_t *ret_bytes)
{
    KVD_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int err = errno;
        return kvd_fail(diag, -err, "can't open the model file: %s", kvd_strerror(-err));
    }
    struct stat st;
    if (fstat(fd, &st) < 0) {
        int err = errno;
        return kvd_fail(diag, -err, "fstat: %s", kvd_strerror(-err));
    }
    if (!S_ISREG(st.st_mode)) {
        return kvd_fail(diag, -KVD_E_FORMAT, "not a regular file");
    }
    if (st.st_size == 0) {
        return kvd_fail(diag, -KVD_E_FORMAT, "the file is empty");
    }
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        int err = errno;
        return kvd_fail(diag, -err, "can't map the file: %s", kvd_strerror(-err));
    }
    *ret_map = map;
    *ret_bytes = (uint64_t)st.st_size;
    return 0;
}

int kvd_gguf_open(const char *path, struct kvd_diag *diag, struct kvd_gguf **ret)
{
    void *map = NULL;
    uint64_t n = 0;
    int r = map_file(path, diag, &map, &n);
    if (r < 0) {
        return kvd_fail_prefix(diag, r, "%s", path);
    }
    r = gguf_open_bytes(map, n, map, diag, ret);
    if (r < 0) {
        (void)munmap(map, n);
        return kvd_fail_prefix(diag, r, "%s", path);
    }
    return 0;
}

uint64_t kvd_gguf_tensor_count(const struct kvd_gguf *gguf)
{
    KVD_MAGIC_CHECK(gguf, GGUF_MAGIC_OBJ);
    return gguf->n_tensors;
}

const struct kvd_gguf_tensor *kvd_gguf_tensor_at(const struct kvd_gguf *gguf, uint64_t nth)
{
    KVD_MAGIC_CHECK(gguf, GGUF_MAGIC_OBJ);
    KVD_ASSERT(nth < gguf->n_tensors);
    return &gguf->tensors[nth];
}

static int tensor_name_order(const void *name, const void *tensor)
{
    return gguf_str_compare(name, &((const struct kvd_gguf_tensor *)tensor)->name);
}

const struct kvd_gguf_tensor *kvd_gguf_tensor(const struct kvd_gguf *gguf, const char *name)
{
    KVD_MAGIC_CHECK(gguf, GGUF_MAGIC_OBJ);
    struct kvd_gguf_str wanted = {.text = name, .bytes = strlen(name)};
    return bsearch(&wanted, gguf->tensors, gguf->n_tensors, sizeof(*gguf->tensors),
                   tensor_name_order);
}

static int value_key_order(const void *key, const void *value)
{
    return gguf_str_compare(key, &((const struct gguf_value *)value)->key);
}

static const struct gguf_value *gguf_value(const struct kvd_gguf *gguf, const char *key)
{
    KVD_MAGIC_CHECK(gguf, GGUF_MAGIC_OBJ);
    struct kvd_gguf_str wanted = {.text = key, .bytes = strlen(key)};
    return bsearch(&wanted, gguf->values, gguf->n_values, sizeof(*gguf->values), value_key_order);
}

/* An integer's 64 bits, and whether the type has a sign. False: no integer. */
static bool integer_at(uint32_t type, const uint8_t *at, uint64_t *ret_bits, bool *ret_signed)
{
    *ret_signed = type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
    switch (type) {
    case GGUF_U8:
        *ret_bits = at[0];
        return true;
    case GGUF_I8:
        *ret_bits = (uint64_t)(int64_t)(int8_t)at[0];
        return true;
    case GGUF_U16:
        *ret_bits = kvd_get_le16(at);
        return true;
    case GGUF_I16:
        *ret_bits = (uint64_t)(int64_t)(int16_t)kvd_get_le16(at);
        return true;
    case GGUF_U32:
        *ret_bits = kvd_get_le32(at);
        return true;
    case GGUF_I32:
        *ret_bits = (uint64_t)(int64_t)(int32_t)kvd_get_le32(at);
        return true;
    case GGUF_U64:
    case GGUF_I64:
        *ret_bits = kvd_get_le64(at);
        return true;
    default:
        return false;
    }
}

int kvd_gguf_u64(const struct kvd_gguf *gguf, const char *key, uint64_t *ret)
{
    const struct gguf_value *v = gguf_value(gguf, key);
    if (!v) {
        return -KVD_E_NOT_FOUND;
    }
    uint64_t bits;
    bool is_signed;
    if (!integer_at(v->type, v->at, &bits, &is_signed) || (is_signed && (int64_t)bits < 0)) {
        return -KVD_E_FORMAT;
    }
    *ret = bits;
    return 0;
}

int kvd_gguf_f64(const struct kvd_gguf *gguf, const char *key, double *ret)
{
    const struct gguf_value *v = gguf_value(gguf, key);
    if (!v) {
        return -KVD_E_NOT_FOUND;
    }
    if (v->type == GGUF_F32) {
        uint32_t bits = kvd_get_le32(v->at);
        float f;
        memcpy(&f, &bits, sizeof(f));
        *ret = f;
        return 0;
    }
    if (v->type == GGUF_F64) {
        uint64_t bits = kvd_get_le64(v->at);
        memcpy(ret, &bits, sizeof(*ret));
        return 0;
    }
    return -KVD_E_FORMAT;
}

int kvd_gguf_bool(const struct kvd_gguf *gguf, const char *key, bool *ret)
{
    const struct gguf_value *v = gguf_value(gguf, key);
    if (!v) {
        return -KVD_E_NOT_FOUND;
    }
    if (v->type != GGUF_BOOL || v->at[0] > 1) {
        return -KVD_E_FORMAT;
    }
    *ret = v->at[0] == 1;
    return 0;
}

int kvd_gguf_str(const struct kvd_gguf *gguf, const char *key, struct kvd_gguf_str *ret)
{
    const struct gguf_value *v = gguf_value(gguf, key);
    if (!v) {
        return -KVD_E_NOT_FOUND;
    }
    if (v->type != GGUF_STRING) {
        return -KVD_E_FORMAT;
    }
    *ret = (struct kvd_gguf_str){.text = (const char *)v->at, .bytes = v->bytes};
    return 0;
}

/* Finds an array; with nth: that has such an element. */
static int array_of(const struct kvd_gguf *gguf, const char *key, uint64_t nth,
                    const struct gguf_value **ret)
{
    const struct gguf_value *v = gguf_value(gguf, key);
    if (!v) {
        return -KVD_E_NOT_FOUND;
    }
    if (v->type != GGUF_ARRAY) {
        return -KVD_E_FORMAT;
    }
    if (nth >= v->count) {
        return -KVD_E_NOT_FOUND;
    }
    *ret = v;
    return 0;
}

int kvd_gguf_array_len(const struct kvd_gguf *gguf, const char *key, uint64_t *ret)
{
    const struct gguf_value *v = gguf_value(gguf, key);
    if (!v) {
        return -KVD_E_NOT_FOUND;
    }
    if (v->type != GGUF_ARRAY) {
        return -KVD_E_FORMAT;
    }
    *ret = v->count;
    return 0;
}

int kvd_gguf_array_str(const struct kvd_gguf *gguf, const char *key, uint64_t nth,
                       struct kvd_gguf_str *ret)
{
    const struct gguf_value *v;
    int r = array_of(gguf, key, nth, &v);
    if (r < 0) {
        return r;
    }
    if (v->element != GGUF_STRING) {
        return -KVD_E_FORMAT;
    }
    const uint8_t *at = v->at + v->str_offsets[nth];
    *ret = (struct kvd_gguf_str){.text = (const char *)at + 8, .bytes = kvd_get_le64(at)};
    return 0;
}

int kvd_gguf_array_i64(const struct kvd_gguf *gguf, const char *key, uint64_t nth, int64_t *ret)
{
    const struct gguf_value *v;
    int r = array_of(gguf, key, nth, &v);
    if (r < 0) {
        return r;
    }
    uint32_t width = gguf_number_bytes(v->element);
    uint64_t bits;
    bool is_signed;
    if (width == 0 || !integer_at(v->element, v->at + nth * width, &bits, &is_signed) ||
        (!is_signed && bits > INT64_MAX)) {
        return -KVD_E_FORMAT;
    }
    *ret = (int64_t)bits;
    return 0;
}
