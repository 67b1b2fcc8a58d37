/*
 * Reads a GGUF's header: counts, key-values, tensor descriptions. Nothing here is trusted. Every
 * read goes through a cursor that can't pass the end of the file; counts are held against the bytes
 * that are left before memory is taken for them, so that memory stays below a small multiple of the
 * file's size; sums and products are checked for overflow. No two tensors share bytes, so that
 * whoever copies them all needs no more than a small multiple of the file either.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "engine/model/gguf_priv.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"

enum { GGUF_VERSION = 3, KEY_BYTES_MIN = 8 + 4 + 1, TENSOR_BYTES_MIN = 8 + 4 + 8 + 4 + 8 };

/* Block geometry of the types that are read. */
struct ggml_layout {
    uint32_t type;
    uint32_t block_weights;
    uint32_t block_bytes;
};

static const struct ggml_layout LAYOUTS[] = {
    {KVD_GGML_F32, 1, 4},      {KVD_GGML_F16, 1, 2},    {KVD_GGML_Q4_1, 32, 20},
    {KVD_GGML_Q5_0, 32, 22},   {KVD_GGML_Q8_0, 32, 34}, {KVD_GGML_Q4_K, 256, 144},
    {KVD_GGML_Q6_K, 256, 210},
};

struct parser {
    struct kvd_gguf *gguf;
    struct kvd_cursor in;
    struct kvd_diag *diag;
};

static uint64_t parser_offset(const struct parser *p)
{
    return (uint64_t)(p->in.at - p->gguf->base);
}

static int fail_truncated(const struct parser *p, const char *field)
{
    return kvd_fail(p->diag, -KVD_E_CORRUPT,
                    "the file ends inside %s at byte %" PRIu64 " of %" PRIu64
                    "; it may be an incomplete download",
                    field, parser_offset(p), p->gguf->bytes);
}

uint32_t gguf_number_bytes(uint32_t type)
{
    switch (type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL:
        return 1;
    case GGUF_U16:
    case GGUF_I16:
        return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32:
        return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

int gguf_str_compare(const struct kvd_gguf_str *a, const struct kvd_gguf_str *b)
{
    uint64_t common = a->bytes < b->bytes ? a->bytes : b->bytes;
    int order = common ? memcmp(a->text, b->text, common) : 0;
    if (order != 0) {
        return order;
    }
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int read_string(struct parser *p, const char *field, struct kvd_gguf_str *ret)
{
    uint64_t n = kvd_cursor_le64(&p->in);
    if (p->in.bad) {
        return fail_truncated(p, field);
    }
    const uint8_t *text = kvd_cursor_take(&p->in, n);
    if (!text) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT,
                        "%s at byte %" PRIu64 " claims %" PRIu64 " bytes, past the end of the file",
                        field, parser_offset(p) - 8, n);
    }
    *ret = (struct kvd_gguf_str){.text = (const char *)text, .bytes = n};
    return 0;
}

/* A key or a tensor's name: short, not empty, and fit to be shown to a person. */
static int read_name(struct parser *p, const char *field, struct kvd_gguf_str *ret)
{
    uint64_t at = parser_offset(p);
    int r = read_string(p, field, ret);
    if (r < 0) {
        return r;
    }
    if (ret->bytes == 0 || ret->bytes > GGUF_NAME_MAX) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT,
                        "%s at byte %" PRIu64 " has %" PRIu64 " bytes; 1 to %d are allowed", field,
                        at, ret->bytes, GGUF_NAME_MAX);
    }
    for (uint64_t i = 0; i < ret->bytes; i++) {
        unsigned char c = (unsigned char)ret->text[i];
        if (c < 0x20 || c == 0x7f) {
            return kvd_fail(p->diag, -KVD_E_CORRUPT,
                            "%s at byte %" PRIu64 " holds a control character", field, at);
        }
    }
    return 0;
}

/* Walks an array of strings once and keeps where each begins, so that an element is found at once
 * later. */
static int read_string_array(struct parser *p, struct gguf_value *v)
{
    if (v->count > p->in.left / 8) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT,
                        "key %.*s: an array of %" PRIu64
                        " strings doesn't fit into the %zu bytes left",
                        (int)v->key.bytes, v->key.text, v->count, p->in.left);
    }
    v->str_offsets = calloc(v->count ? v->count : 1, sizeof(*v->str_offsets));
    if (!v->str_offsets) {
        return kvd_fail(p->diag, -ENOMEM, "no memory for an array of %" PRIu64 " strings",
                        v->count);
    }
    for (uint64_t i = 0; i < v->count; i++) {
        struct kvd_gguf_str ignored;
        v->str_offsets[i] = (uint64_t)(p->in.at - v->at);
        int r = read_string(p, "an array's string", &ignored);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int read_array(struct parser *p, struct gguf_value *v)
{
    v->element = kvd_cursor_le32(&p->in);
    v->count = kvd_cursor_le64(&p->in);
    if (p->in.bad) {
        return fail_truncated(p, "an array's head");
    }
    v->at = p->in.at;
    if (v->element == GGUF_STRING) {
        return read_string_array(p, v);
    }
    uint32_t width = gguf_number_bytes(v->element);
    if (width == 0) {
        return kvd_fail(p->diag, -KVD_E_FORMAT,
                        "key %.*s at byte %" PRIu64 ": arrays of type %u are not read",
                        (int)v->key.bytes, v->key.text, parser_offset(p), v->element);
    }
    if (v->count > p->in.left / width) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT,
                        "key %.*s: an array of %" PRIu64
                        " numbers doesn't fit into the %zu bytes left",
                        (int)v->key.bytes, v->key.text, v->count, p->in.left);
    }
    (void)kvd_cursor_take(&p->in, v->count * width);
    return 0;
}

static int read_value(struct parser *p, struct gguf_value *v)
{
    int r = read_name(p, "a key", &v->key);
    if (r < 0) {
        return r;
    }
    v->type = kvd_cursor_le32(&p->in);
    if (p->in.bad) {
        return fail_truncated(p, "a value's type");
    }
    if (v->type == GGUF_ARRAY) {
        return read_array(p, v);
    }
    if (v->type == GGUF_STRING) {
        struct kvd_gguf_str text = {0};
        r = read_string(p, "a string", &text);
        if (r < 0) {
            return r;
        }
        v->at = (const uint8_t *)text.text;
        v->bytes = text.bytes;
        return 0;
    }
    if (v->type >= GGUF_TYPES) {
        return kvd_fail(p->diag, -KVD_E_FORMAT,
                        "key %.*s before byte %" PRIu64 ": value type %u is unknown",
                        (int)v->key.bytes, v->key.text, parser_offset(p), v->type);
    }
    v->at = kvd_cursor_take(&p->in, gguf_number_bytes(v->type));
    return v->at ? 0 : fail_truncated(p, "a number");
}

static int value_order(const void *a, const void *b)
{
    return gguf_str_compare(&((const struct gguf_value *)a)->key,
                            &((const struct gguf_value *)b)->key);
}

static int read_values(struct parser *p, uint64_t count)
{
    struct kvd_gguf *gguf = p->gguf;
    gguf->values = calloc(count ? count : 1, sizeof(*gguf->values));
    if (!gguf->values) {
        return kvd_fail(p->diag, -ENOMEM, "no memory for %" PRIu64 " keys", count);
    }
    for (uint64_t i = 0; i < count; i++) {
        gguf->n_values = i + 1; /* counted first: what a failed read leaves is freed too */
        int r = read_value(p, &gguf->values[i]);
        if (r < 0) {
            return r;
        }
    }
    qsort(gguf->values, count, sizeof(*gguf->values), value_order);
    for (uint64_t i = 1; i < count; i++) {
        if (value_order(&gguf->values[i - 1], &gguf->values[i]) == 0) {
            return kvd_fail(p->diag, -KVD_E_CORRUPT, "key %.*s is there twice",
                            (int)gguf->values[i].key.bytes, gguf->values[i].key.text);
        }
    }
    return 0;
}

static const struct ggml_layout *layout_of(uint32_t type)
{
    for (size_t i = 0; i < sizeof(LAYOUTS) / sizeof(LAYOUTS[0]); i++) {
        if (LAYOUTS[i].type == type) {
            return &LAYOUTS[i];
        }
    }
    return NULL;
}

/* Bytes of a tensor from its shape and type. */
static int tensor_size(const struct parser *p, struct kvd_gguf_tensor *t)
{
    const struct ggml_layout *layout = layout_of(t->type);
    if (!layout) {
        return kvd_fail(
            p->diag, -KVD_E_FORMAT,
            "tensor %.*s has type %u, which is not read; use a file with F32, F16, Q4_1, Q5_0, "
            "Q8_0, Q4_K or Q6_K weights",
            (int)t->name.bytes, t->name.text, t->type);
    }
    if (t->dims[0] % layout->block_weights != 0) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT,
                        "tensor %.*s: rows of %" PRIu64
                        " are no multiple of the %u weights of a block",
                        (int)t->name.bytes, t->name.text, t->dims[0], layout->block_weights);
    }
    uint64_t n = t->dims[0] / layout->block_weights;
    for (int i = 1; i < KVD_GGUF_DIMS_MAX; i++) {
        if (__builtin_mul_overflow(n, t->dims[i], &n)) {
            n = UINT64_MAX;
            break;
        }
    }
    if (__builtin_mul_overflow(n, (uint64_t)layout->block_bytes, &n)) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT, "tensor %.*s: its size overflows",
                        (int)t->name.bytes, t->name.text);
    }
    t->bytes = n;
    return 0;
}

static int read_dims(struct parser *p, struct kvd_gguf_tensor *t)
{
    t->n_dims = kvd_cursor_le32(&p->in);
    if (p->in.bad) {
        return fail_truncated(p, "a tensor's number of dimensions");
    }
    if (t->n_dims < 1 || t->n_dims > KVD_GGUF_DIMS_MAX) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT,
                        "tensor %.*s has %u dimensions; 1 to %d are allowed", (int)t->name.bytes,
                        t->name.text, t->n_dims, KVD_GGUF_DIMS_MAX);
    }
    for (uint32_t i = 0; i < KVD_GGUF_DIMS_MAX; i++) {
        t->dims[i] = i < t->n_dims ? kvd_cursor_le64(&p->in) : 1;
        if (p->in.bad) {
            return fail_truncated(p, "a tensor's dimensions");
        }
        if (t->dims[i] == 0) {
            return kvd_fail(p->diag, -KVD_E_CORRUPT, "tensor %.*s: dimension %u is 0",
                            (int)t->name.bytes, t->name.text, i);
        }
    }
    return 0;
}

/* The offset is kept until the data section's start is known. */
static int read_tensor(struct parser *p, struct kvd_gguf_tensor *t, uint64_t *ret_offset)
{
    int r = read_name(p, "a tensor's name", &t->name);
    if (r < 0) {
        return r;
    }
    r = read_dims(p, t);
    if (r < 0) {
        return r;
    }
    t->type = kvd_cursor_le32(&p->in);
    uint64_t offset = kvd_cursor_le64(&p->in);
    if (p->in.bad) {
        return fail_truncated(p, "a tensor's type and offset");
    }
    r = tensor_size(p, t);
    if (r < 0) {
        return r;
    }
    *ret_offset = offset;
    return 0;
}

static int read_alignment(const struct parser *p, uint64_t *ret)
{
    uint64_t alignment = GGUF_ALIGNMENT_DEFAULT;
    int r = kvd_gguf_u64(p->gguf, "general.alignment", &alignment);
    if (r < 0 && r != -KVD_E_NOT_FOUND) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT, "general.alignment is no integer");
    }
    if (alignment < 8 || alignment > GGUF_ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT,
                        "general.alignment is %" PRIu64 "; a power of two from 8 to %d is needed",
                        alignment, GGUF_ALIGNMENT_MAX);
    }
    *ret = alignment;
    return 0;
}

/* Turns an offset in the data section into a pointer. */
static int place_tensor(const struct parser *p, struct kvd_gguf_tensor *t, uint64_t offset,
                        uint64_t alignment, uint64_t data_start)
{
    if (offset % alignment != 0) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT,
                        "tensor %.*s: offset %" PRIu64 " is no multiple of the alignment %" PRIu64,
                        (int)t->name.bytes, t->name.text, offset, alignment);
    }
    uint64_t room = data_start <= p->gguf->bytes ? p->gguf->bytes - data_start : 0;
    if (offset > room || t->bytes > room - offset) {
        return kvd_fail(p->diag, -KVD_E_CORRUPT,
                        "tensor %.*s: %" PRIu64 " bytes at offset %" PRIu64
                        " of a data section of %" PRIu64
                        " bytes; the file may be an incomplete download",
                        (int)t->name.bytes, t->name.text, t->bytes, offset, room);
    }
    t->data = p->gguf->base + data_start + offset;
    return 0;
}

static int place_tensors(const struct parser *p, const uint64_t *offsets)
{
    struct kvd_gguf *gguf = p->gguf;
    uint64_t alignment = 0;
    int r = read_alignment(p, &alignment);
    if (r < 0) {
        return r;
    }
    uint64_t data_start = kvd_round_up(parser_offset(p), alignment);
    for (uint64_t i = 0; i < gguf->n_tensors; i++) {
        r = place_tensor(p, &gguf->tensors[i], offsets[i], alignment, data_start);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int tensor_order(const void *a, const void *b)
{
    return gguf_str_compare(&((const struct kvd_gguf_tensor *)a)->name,
                            &((const struct kvd_gguf_tensor *)b)->name);
}

static int place_order(const void *a, const void *b)
{
    const uint8_t *x = ((const struct kvd_gguf_tensor *)a)->data;
    const uint8_t *y = ((const struct kvd_gguf_tensor *)b)->data;
    return x < y ? -1 : x > y;
}

/* Leaves the tensors in order of place. */
static int check_overlap(const struct parser *p)
{
    struct kvd_gguf *gguf = p->gguf;
    qsort(gguf->tensors, gguf->n_tensors, sizeof(*gguf->tensors), place_order);
    for (uint64_t i = 1; i < gguf->n_tensors; i++) {
        const struct kvd_gguf_tensor *before = &gguf->tensors[i - 1];
        const struct kvd_gguf_tensor *t = &gguf->tensors[i];
        if ((const uint8_t *)before->data + before->bytes > (const uint8_t *)t->data) {
            return kvd_fail(p->diag, -KVD_E_CORRUPT, "tensors %.*s and %.*s share bytes",
                            (int)before->name.bytes, before->name.text, (int)t->name.bytes,
                            t->name.text);
        }
    }
    return 0;
}

static int sort_tensors(const struct parser *p)
{
    struct kvd_gguf *gguf = p->gguf;
    qsort(gguf->tensors, gguf->n_tensors, sizeof(*gguf->tensors), tensor_order);
    for (uint64_t i = 1; i < gguf->n_tensors; i++) {
        if (tensor_order(&gguf->tensors[i - 1], &gguf->tensors[i]) == 0) {
            return kvd_fail(p->diag, -KVD_E_CORRUPT, "tensor %.*s is there twice",
                            (int)gguf->tensors[i].name.bytes, gguf->tensors[i].name.text);
        }
    }
    return 0;
}

static int read_tensors(struct parser *p, uint64_t count)
{
    struct kvd_gguf *gguf = p->gguf;
    gguf->tensors = calloc(count ? count : 1, sizeof(*gguf->tensors));
    KVD_AUTOFREE uint64_t *offsets = calloc(count ? count : 1, sizeof(*offsets));
    if (!gguf->tensors || !offsets) {
        return kvd_fail(p->diag, -ENOMEM, "no memory for %" PRIu64 " tensors", count);
    }
    gguf->n_tensors = count;
    for (uint64_t i = 0; i < count; i++) {
        int r = read_tensor(p, &gguf->tensors[i], &offsets[i]);
        if (r < 0) {
            return r;
        }
    }
    int r = place_tensors(p, offsets);
    r = r < 0 ? r : check_overlap(p);
    return r < 0 ? r : sort_tensors(p);
}

static int check_version(const struct parser *p, uint32_t version)
{
    if (version == GGUF_VERSION) {
        return 0;
    }
    if ((version & 0xffff) == 0) {
        return kvd_fail(p->diag, -KVD_E_FORMAT, "a big-endian GGUF, which is not read");
    }
    if (version > GGUF_VERSION) {
        return kvd_fail(p->diag, -KVD_E_NEWER, "GGUF version %u; version %d is read", version,
                        GGUF_VERSION);
    }
    return kvd_fail(p->diag, -KVD_E_FORMAT,
                    "GGUF version %u; only version %d is read: convert the model again", version,
                    GGUF_VERSION);
}

static int check_count(const struct parser *p, const char *what, uint64_t n, uint64_t max,
                       uint64_t each)
{
    if (n <= max && n <= p->in.left / each) {
        return 0;
    }
    return kvd_fail(p->diag, -KVD_E_CORRUPT,
                    "the header claims %" PRIu64 " %s; at most %" PRIu64
                    " are read, and %zu bytes are left for them",
                    n, what, max, p->in.left);
}

int gguf_parse(struct kvd_gguf *gguf, struct kvd_diag *diag)
{
    struct parser p = {.gguf = gguf, .in = {.at = gguf->base, .left = gguf->bytes}, .diag = diag};
    const uint8_t *magic = kvd_cursor_take(&p.in, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0) {
        return kvd_fail(diag, -KVD_E_FORMAT, "not a GGUF file: the first four bytes aren't GGUF");
    }
    uint32_t version = kvd_cursor_le32(&p.in);
    uint64_t n_tensors = kvd_cursor_le64(&p.in);
    uint64_t n_values = kvd_cursor_le64(&p.in);
    if (p.in.bad) {
        return fail_truncated(&p, "the header");
    }
    int r = check_version(&p, version);
    if (r < 0) {
        return r;
    }
    r = check_count(&p, "tensors", n_tensors, GGUF_TENSORS_MAX, TENSOR_BYTES_MIN);
    if (r < 0) {
        return r;
    }
    r = check_count(&p, "keys", n_values, GGUF_KEYS_MAX, KEY_BYTES_MIN);
    if (r < 0) {
        return r;
    }
    r = read_values(&p, n_values);
    return r < 0 ? r : read_tensors(&p, n_tensors);
}
