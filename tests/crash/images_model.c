#include "images_model.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvd_test.h"
#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"

enum { NO_FILE = UINT32_MAX, IMAGE_ENTRIES_MAX = 2048 };
#define NEVER UINT32_MAX

/* One change. Times are positions in the record. */
struct disk_op {
    const struct record_event *event;
    const uint8_t *bytes; /* of a write: its bytes, or those that were really there */
    uint32_t begun;
    uint32_t ended;   /* NEVER: in no run */
    uint32_t durable; /* from here on; NEVER */
    uint32_t file;    /* of data and sizes: which; of names: what the name stands for, or NO_FILE */
    bool spoilt;      /* a sync that was about it failed */
    bool void_;       /* it failed, and changed nothing */
};

/* ---- reading the record ---- */

struct reading {
    struct history *h;
    uint32_t *begun_op; /* by event id: index of the op + 1 */
    uint32_t *sync_at;  /* by event id: where a sync began + 1 */
    struct live {
        char path[RECORD_PATH_BYTES];
        uint32_t file;
    } names[IMAGE_ENTRIES_MAX]; /* files as a live process sees them */
    uint32_t n_names;
    struct {
        uint64_t inode;
        uint32_t file;
    } inodes[IMAGE_ENTRIES_MAX];
    uint32_t n_inodes;
};

static bool is_data(const struct record_event *e)
{
    KVD_ASSERT(e);
    return e->op == RECORD_WRITE || e->op == RECORD_ALLOCATE || e->op == RECORD_TRUNCATE;
}

static struct live *name_find(struct reading *r, const char *path)
{
    for (uint32_t i = 0; i < r->n_names; i++) {
        if (strcmp(r->names[i].path, path) == 0) {
            return &r->names[i];
        }
    }
    return NULL;
}

static void name_set(struct reading *r, const char *path, uint32_t file)
{
    struct live *at = name_find(r, path);
    if (!at) {
        assert_true(r->n_names < IMAGE_ENTRIES_MAX);
        at = &r->names[r->n_names++];
        (void)snprintf(at->path, sizeof(at->path), "%s", path);
    }
    at->file = file;
}

/* The file that an inode's number stands for now: numbers are used again. */
static uint32_t file_of(struct reading *r, uint64_t inode)
{
    for (uint32_t i = r->n_inodes; i > 0; i--) {
        if (r->inodes[i - 1].inode == inode) {
            return r->inodes[i - 1].file;
        }
    }
    fail_msg("a file that was never made is changed");
    return NO_FILE;
}

static void read_begin(struct reading *r, const struct record_event *e, uint32_t at)
{
    if (e->op == RECORD_FDATASYNC || e->op == RECORD_SYNC_FOLDER) {
        r->sync_at[e->id] = at + 1;
        return;
    }
    struct disk_op op = {.event = e,
                         .bytes = record_extra(e),
                         .begun = at,
                         .ended = NEVER,
                         .durable = NEVER,
                         .file = NO_FILE};
    if (is_data(e)) {
        op.file = file_of(r, e->inode);
    } else if (e->op == RECORD_CREATE) {
        op.file = r->h->n_files++;
    } else if (e->op == RECORD_RENAME) {
        const struct live *from = name_find(r, e->path);
        op.file = from ? from->file : NO_FILE;
    }
    r->begun_op[e->id] = r->h->n_ops + 1;
    r->h->ops[r->h->n_ops++] = op;
}

static void op_ended(struct reading *r, struct disk_op *op, const struct record_event *end,
                     uint32_t at)
{
    const struct record_event *e = op->event;
    op->ended = at;
    op->void_ = end->result != 0 && e->op != RECORD_WRITE; /* any part of a failed write may be */
    op->bytes = end->extra_bytes ? record_extra(end) : op->bytes;
    if (op->void_) {
        return;
    }
    if (e->op == RECORD_CREATE) {
        assert_true(r->n_inodes < IMAGE_ENTRIES_MAX);
        r->inodes[r->n_inodes].inode = end->inode;
        r->inodes[r->n_inodes++].file = op->file;
        name_set(r, e->path, op->file);
    } else if (e->op == RECORD_UNLINK) {
        name_set(r, e->path, NO_FILE);
    } else if (e->op == RECORD_RENAME) {
        name_set(r, e->path2, op->file);
        name_set(r, e->path, NO_FILE);
    }
}

/* Whether `path` lies in `folder` itself. */
static bool lies_in(const char *path, const char *folder)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    return strlen(folder) == n && strncmp(path, folder, n) == 0;
}

static void sync_ended(struct reading *r, const struct record_event *sync, uint32_t began,
                       int64_t result, uint32_t at)
{
    for (uint32_t i = 0; i < r->h->n_ops; i++) {
        struct disk_op *op = &r->h->ops[i];
        bool covers = sync->op == RECORD_FDATASYNC
                          ? is_data(op->event) && op->file == file_of(r, sync->inode)
                          : !is_data(op->event) && lies_in(op->event->path, sync->path);
        if (!covers || op->ended >= began || op->durable != NEVER || op->spoilt) {
            continue;
        }
        op->durable = result == 0 ? at : NEVER;
        op->spoilt = result != 0;
    }
}

static void read_end(struct reading *r, const struct record_event *end, uint32_t at)
{
    if (r->begun_op[end->id]) {
        op_ended(r, &r->h->ops[r->begun_op[end->id] - 1], end, at);
    } else if (r->sync_at[end->id] && end->result != -ECANCELED) { /* its process was killed */
        uint32_t began = r->sync_at[end->id] - 1;
        sync_ended(r, r->h->log.events[began], began, end->result, at);
    }
}

void history_load(const char *folder, struct history *ret)
{
    char path[WORLD_PATH_BYTES];
    uint64_t boot;
    *ret = (struct history){0};
    (void)snprintf(ret->folder, sizeof(ret->folder), "%s", folder);
    world_path(path, folder, "disk");
    assert_true(world_identity(path, &ret->seed, &boot));
    world_path(path, folder, "log");
    record_load(path, &ret->log);
    uint64_t ids = 0;
    for (uint32_t i = 0; i < ret->log.n; i++) {
        ids = ret->log.events[i]->id > ids ? ret->log.events[i]->id : ids;
    }
    struct reading *r = calloc(1, sizeof(*r));
    assert_true(r && ret->log.n > 0);
    r->h = ret;
    r->begun_op = calloc(ids + 1, sizeof(*r->begun_op));
    r->sync_at = calloc(ids + 1, sizeof(*r->sync_at));
    ret->ops = calloc(ret->log.n + 1, sizeof(*ret->ops));
    assert_true(r->begun_op && r->sync_at && ret->ops);
    for (uint32_t i = 0; i < ret->log.n; i++) {
        const struct record_event *e = ret->log.events[i];
        if (e->op == RECORD_END) {
            read_end(r, e, i);
        } else if (e->op != RECORD_MARK) {
            read_begin(r, e, i);
        }
    }
    free(r->begun_op);
    free(r->sync_at);
    free(r);
}

void history_unload(struct history *h)
{
    free(h->ops);
    record_unload(&h->log);
    *h = (struct history){0};
}

/* ---- what was promised ---- */

static void promise(struct image_truth *t, const struct kvd_key *key, uint64_t segment)
{
    for (uint32_t i = 0; i < t->n_promises; i++) {
        if (kvd_key_equal(&t->promises[i].key, key)) {
            t->promises[i].segment = segment;
            return;
        }
    }
    t->promises[t->n_promises++] = (struct image_promise){*key, segment};
}

static void end_of_segment(struct image_truth *t, uint64_t segment)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_promises; i++) {
        if (t->promises[i].segment != segment) {
            t->promises[n++] = t->promises[i];
        }
    }
    t->n_promises = n;
}

void truth_at(const struct history *h, uint32_t events, struct image_truth *ret)
{
    uint64_t counted = 0;
    *ret = (struct image_truth){.promises = calloc(events + 1, sizeof(*ret->promises))};
    assert_non_null(ret->promises);
    for (uint32_t i = 0; i < events; i++) {
        const struct record_event *e = h->log.events[i];
        if (e->op != RECORD_MARK) {
            continue;
        }
        if (e->mark == MARK_PROMISED) {
            promise(ret, record_extra(e), e->bytes);
        } else if (e->mark == MARK_DYING) {
            end_of_segment(ret, e->bytes);
        } else if (e->mark == MARK_INDEX_OPEN) {
            ret->boot = ((const struct world_index *)record_extra(e))->boot;
        } else if (e->mark == MARK_COUNTED) {
            counted = e->bytes;
        } else if (e->mark == MARK_PURGING) {
            ret->purged[e->bytes] = PURGED_PERHAPS;
        } else if (e->mark == MARK_PURGED) {
            ret->purged[e->bytes] = PURGED;
        } else if (e->mark == MARK_NOT_PURGED) {
            ret->purged[e->bytes] = PURGED_NOT;
        } else if (e->mark == MARK_RUN_END && !e->bytes) {
            ret->asked_tokens = counted;
        }
    }
}

void truth_fini(struct image_truth *truth)
{
    free(truth->promises);
    truth->promises = NULL;
}

bool truth_promised(const struct image_truth *t, const struct kvd_key *key)
{
    for (uint32_t i = 0; i < t->n_promises; i++) {
        if (kvd_key_equal(&t->promises[i].key, key)) {
            return true;
        }
    }
    return false;
}

/* ---- an image ---- */

struct image {
    const struct history *h;
    const struct image_how *how;
    uint64_t random;
    uint32_t drop_percent; /* of FILES_ANY: how much doesn't come about */
    struct entry {
        char path[RECORD_PATH_BYTES];
        uint32_t file; /* NO_FILE: a folder */
        bool there;
    } entries[IMAGE_ENTRIES_MAX];
    uint32_t n_entries;
    struct content {
        uint8_t *bytes;
        uint64_t size;
    } * files;
};

static uint32_t draw(struct image *m, uint32_t below)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return (uint32_t)(m->random >> 24) % below;
}

static struct entry *entry_at(struct image *m, const char *path)
{
    for (uint32_t i = 0; i < m->n_entries; i++) {
        if (strcmp(m->entries[i].path, path) == 0) {
            return &m->entries[i];
        }
    }
    assert_true(m->n_entries < IMAGE_ENTRIES_MAX);
    struct entry *e = &m->entries[m->n_entries++];
    *e = (struct entry){.file = NO_FILE};
    (void)snprintf(e->path, sizeof(e->path), "%s", path);
    return e;
}

static void resize(struct content *c, uint64_t size)
{
    if (size > c->size) {
        c->bytes = realloc(c->bytes, size);
        assert_non_null(c->bytes);
        memset(c->bytes + c->size, 0, size - c->size);
    }
    c->size = size;
}

static void write_part(struct content *c, const struct disk_op *op, uint64_t from, uint64_t n)
{
    uint64_t end = op->event->offset + from + n;
    resize(c, end > c->size ? end : c->size);
    memcpy(c->bytes + op->event->offset + from, op->bytes + from, n);
}

/* Any of its pages, or of its sectors, and perhaps the size without the bytes. */
static void write_torn(struct image *m, struct content *c, const struct disk_op *op)
{
    uint64_t unit = draw(m, 2) ? 4096 : 512;
    uint64_t bytes = op->event->bytes;
    for (uint64_t at = 0; at < bytes; at += unit) {
        if (draw(m, 2)) {
            write_part(c, op, at, bytes - at < unit ? bytes - at : unit);
        }
    }
    if (draw(m, 4) == 0 && op->event->offset + bytes > c->size) {
        resize(c, op->event->offset + bytes);
    }
}

static void apply_data(struct image *m, const struct disk_op *op, bool torn)
{
    struct content *c = &m->files[op->file];
    const struct record_event *e = op->event;
    if (e->op == RECORD_TRUNCATE) {
        resize(c, e->bytes);
    } else if (e->op == RECORD_ALLOCATE) {
        resize(c, e->bytes > c->size ? e->bytes : c->size);
    } else if (torn) {
        write_torn(m, c, op);
    } else {
        write_part(c, op, 0, e->bytes);
    }
}

static void apply_name(struct image *m, const struct disk_op *op)
{
    const struct record_event *e = op->event;
    struct entry *at = entry_at(m, e->path);
    if (e->op == RECORD_UNLINK || e->op == RECORD_RENAME) {
        at->there = false;
    }
    if (e->op == RECORD_RENAME) {
        at = entry_at(m, e->path2);
    }
    if (e->op != RECORD_UNLINK) {
        at->there = true;
        at->file = op->file;
    }
}

/* Whether a change comes about that may. *ret_torn: in part. */
static bool happens(struct image *m, const struct disk_op *op, bool *ret_torn)
{
    bool open = op->ended >= m->how->events; /* under way, or its end not seen */
    *ret_torn = false;
    if (m->how->files != FILES_ANY) {
        uint32_t kind = op->event->op;
        bool takes = kind == RECORD_TRUNCATE || kind == RECORD_UNLINK;
        return !open && (m->how->files == FILES_ALL || (m->how->files == FILES_GROWN && !takes));
    }
    if (draw(m, 100) < m->drop_percent) {
        return false;
    }
    *ret_torn = draw(m, 2);
    return true;
}

static void apply_all(struct image *m)
{
    for (uint32_t i = 0; i < m->h->n_ops && m->h->ops[i].begun < m->how->events; i++) {
        const struct disk_op *op = &m->h->ops[i];
        bool torn = false;
        if (op->void_ || (op->durable >= m->how->events && !happens(m, op, &torn))) {
            continue;
        }
        if (is_data(op->event)) {
            apply_data(m, op, torn);
        } else {
            apply_name(m, op);
        }
    }
}

/* Whether all folders above a path are there. */
static bool reachable(struct image *m, const char *path)
{
    char up[RECORD_PATH_BYTES];
    (void)snprintf(up, sizeof(up), "%s", path);
    for (char *slash = strrchr(up, '/'); slash; slash = strrchr(up, '/')) {
        *slash = 0;
        const struct entry *e = entry_at(m, up);
        if (!e->there || e->file != NO_FILE) {
            return false;
        }
    }
    return true;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->path, ((const struct entry *)b)->path);
}

static void write_out(struct image *m, const char *folder)
{
    char path[WORLD_PATH_BYTES];
    qsort(m->entries, m->n_entries, sizeof(m->entries[0]), by_path);
    for (uint32_t i = 0; i < m->n_entries; i++) {
        const struct entry *e = &m->entries[i];
        if (!e->there || !reachable(m, e->path)) {
            continue;
        }
        const struct content *c = e->file == NO_FILE ? NULL : &m->files[e->file];
        world_path(path, folder, e->path);
        if (c) {
            world_write_file(path, c->bytes, c->size);
        } else {
            assert_int_equal(mkdir(path, 0700), 0);
        }
    }
}

/* ---- its index ---- */

struct index_cut {
    uint64_t nth; /* which copy; 0 and has == false: no index yet */
    bool has;
    struct world_index index;
    uint64_t synced;
    uint64_t written; /* at most so much of its log may be there */
};

/* Bytes of its log when a write that began at `at` had ended; to the end of the log where its run
 * ended before. */
static uint64_t written_by(const struct history *h, uint32_t at)
{
    for (uint32_t i = at + 1; i < h->log.n; i++) {
        const struct record_event *e = h->log.events[i];
        if (e->op == RECORD_END && e->id == h->log.events[at]->id) {
            return (uint64_t)e->result;
        }
    }
    return UINT64_MAX;
}

static void cut_at(const struct history *h, uint32_t events, struct index_cut *ret)
{
    *ret = (struct index_cut){0};
    for (uint32_t i = 0; i < events; i++) {
        const struct record_event *e = h->log.events[i];
        if (e->op != RECORD_MARK) {
            continue;
        }
        if (e->mark == MARK_INDEX_OPEN) {
            *ret = (struct index_cut){.nth = e->bytes, .has = true};
            memcpy(&ret->index, record_extra(e), sizeof(ret->index));
        } else if (e->mark == MARK_INDEX_WRITE) {
            ret->written = written_by(h, i);
        } else if (e->mark == MARK_INDEX_SYNCED) {
            ret->synced = e->bytes;
        }
    }
}

/* Bytes of its log in an image. */
static uint64_t log_bytes(struct image *m, const struct index_cut *cut)
{
    char log[WORLD_PATH_BYTES + 80];
    struct stat st;
    (void)snprintf(log, sizeof(log), "%.400s/index-%u/wal", m->h->folder, (unsigned)cut->nth);
    uint64_t most = stat(log, &st) == 0 ? (uint64_t)st.st_size : 0;
    most = cut->written < most ? cut->written : most;
    assert_true(most >= cut->synced);
    return m->how->index == INDEX_SYNCED ? cut->synced
           : m->how->index == INDEX_ANY  ? cut->synced + draw(m, (uint32_t)(most - cut->synced) + 1)
                                         : most;
}

static void write_index(struct image *m, const char *folder)
{
    struct index_cut cut;
    char name[WORLD_PATH_BYTES];
    char from[WORLD_PATH_BYTES];
    char to[WORLD_PATH_BYTES];
    cut_at(m->h, m->how->events, &cut);
    const struct entry *at = entry_at(m, WORLD_INDEX);
    if (!cut.has || !at->there || !reachable(m, WORLD_INDEX) || m->how->index == INDEX_GONE) {
        return;
    }
    (void)snprintf(name, sizeof(name), "index-%u", (unsigned)cut.nth);
    world_path(from, m->h->folder, name);
    world_path(to, folder, WORLD_INDEX);
    world_copy_index(from, to);
    world_path(to, folder, WORLD_INDEX "/wal");
    (void)unlink(to);
    (void)snprintf(name, sizeof(name), "index-%u/wal", (unsigned)cut.nth);
    world_path(from, m->h->folder, name);
    (void)snprintf(name, sizeof(name), WORLD_INDEX "/%s", cut.index.wal);
    world_path(to, folder, name);
    world_copy(from, to, log_bytes(m, &cut));
}

void image_make(const struct history *h, const struct image_how *how, const char *folder)
{
    struct image *m = calloc(1, sizeof(*m));
    assert_non_null(m);
    *m = (struct image){.h = h, .how = how, .random = how->random | 1};
    m->files = calloc(h->n_files + 1, sizeof(*m->files));
    assert_non_null(m->files);
    for (int i = 0; i < 8; i++) {
        (void)draw(m, 2); /* small seeds begin alike */
    }
    m->drop_percent = (const uint32_t[]){5, 50, 95}[draw(m, 3)];
    assert_int_equal(mkdir(folder, 0700), 0);
    apply_all(m);
    write_out(m, folder);
    write_index(m, folder);
    for (uint32_t i = 0; i < h->n_files; i++) {
        free(m->files[i].bytes);
    }
    free(m->files);
    free(m);
}

uint64_t image_sum(const struct history *h, const struct image_how *how)
{
    struct image m = {.h = h, .how = how};
    struct index_cut cut;
    uint64_t sum[4] = {0};
    bool torn;
    for (uint32_t i = 0; i < h->n_ops && h->ops[i].begun < how->events; i++) {
        const struct disk_op *op = &h->ops[i];
        if (!op->void_ && (op->durable < how->events || happens(&m, op, &torn))) {
            sum[1] = i;
            sum[0] = kvd_sum(sum, 16);
        }
    }
    cut_at(h, how->events, &cut);
    sum[1] = cut.nth;
    sum[2] = how->index == INDEX_GONE ? 0 : how->index == INDEX_ALL ? cut.written : cut.synced;
    return kvd_sum(sum, sizeof(sum));
}
