/* The program of faults as a text: see fault_io.h for its grammar. */
#include "fault_io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault_text.h"

enum { PARTS_MAX = 5, PART_BYTES = 128 };

struct what {
    const char *name;
    enum fault_kind kind;
    int err;
};

static const struct what whats[] = {
    {"kill", FAULT_KILL, 0},       {"eio", FAULT_FAIL, -EIO},       {"enospc", FAULT_FAIL, -ENOSPC},
    {"erofs", FAULT_FAIL, -EROFS}, {"eacces", FAULT_FAIL, -EACCES}, {"short", FAULT_SHORT, -EIO},
    {"flip", FAULT_FLIP, 0},       {"hold", FAULT_HOLD, 0},
};

static const char *const op_names[] = {
    [FAULT_READ] = "read",
    [FAULT_WRITE] = "write",
    [FAULT_FDATASYNC] = "fdatasync",
    [FAULT_OPEN] = "open",
    [FAULT_MKDIR] = "mkdir",
    [FAULT_UNLINK] = "unlink",
    [FAULT_RENAME] = "rename",
    [FAULT_ALLOCATE] = "allocate",
    [FAULT_TRUNCATE] = "truncate",
    [FAULT_SYNC_FOLDER] = "sync_folder",
    [FAULT_ANY] = "any",
};

static const char *const when_names[] = {
    [FAULT_BEFORE] = "before", [FAULT_MIDDLE] = "middle", [FAULT_AFTER] = "after"};

static bool number_of(const char *text, const char **ret_end, uint64_t *ret)
{
    char *end;
    if (*text < '0' || *text > '9') {
        return false;
    }
    *ret = strtoull(text, &end, 10);
    *ret_end = end;
    return true;
}

static bool find(const char *const *names, int n, const char *name, int *ret)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0) {
            *ret = i;
            return true;
        }
    }
    return false;
}

static bool what_of(const char *name, struct fault *f)
{
    for (size_t i = 0; i < sizeof(whats) / sizeof(whats[0]); i++) {
        if (strcmp(whats[i].name, name) == 0) {
            f->kind = whats[i].kind;
            f->err = whats[i].err;
            return true;
        }
    }
    return false;
}

static bool count_of(const char *text, struct fault *f)
{
    uint64_t first;
    uint64_t last;
    if (strcmp(text, "*") == 0) {
        return true;
    }
    if (!number_of(text, &text, &first) || first == 0) {
        return false;
    }
    f->skip = (uint32_t)first - 1;
    if (strcmp(text, "+") == 0) {
        return true;
    }
    f->times = 1;
    if (!*text) {
        return true;
    }
    if (*text != '-' || !number_of(text + 1, &text, &last) || last < first) {
        return false;
    }
    f->times = (uint32_t)(last - first + 1);
    return !*text;
}

static bool detail_of(const char *text, struct fault *f)
{
    int when;
    if (f->kind == FAULT_KILL && find(when_names, 3, text, &when)) {
        f->when = (enum fault_when)when;
        return true;
    }
    bool number = f->kind == FAULT_SHORT  ? number_of(text, &text, &f->bytes)
                  : f->kind == FAULT_FLIP ? number_of(text, &text, &f->bit)
                                          : false;
    return number && !*text;
}

/* Cuts `n` bytes at the first '@' and at each ':'. Returns the number of parts; 0: too many. */
static int split(const char *text, size_t n, char parts[PARTS_MAX][PART_BYTES])
{
    int at = 0;
    size_t len = 0;
    memset(parts, 0, (size_t)PARTS_MAX * PART_BYTES);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ':' || (text[i] == '@' && at == 0)) {
            at++;
            len = 0;
        } else if (at < PARTS_MAX && len < PART_BYTES - 1) {
            parts[at][len++] = text[i];
        } else {
            return 0;
        }
    }
    return at < PARTS_MAX ? at + 1 : 0;
}

static bool add_one(const char *text, size_t n)
{
    char parts[PARTS_MAX][PART_BYTES];
    struct fault f = {0};
    int op;
    int n_parts = split(text, n, parts);
    if (n_parts < 4 || !what_of(parts[0], &f) || !find(op_names, FAULT_ANY + 1, parts[1], &op) ||
        !parts[2][0] || !count_of(parts[3], &f) || (n_parts == 5 && !detail_of(parts[4], &f))) {
        return false;
    }
    f.op = (enum fault_op)op;
    f.file = strcmp(parts[2], "*") == 0 ? NULL : parts[2];
    (void)fault_add(&f);
    return true;
}

bool fault_add_text(const char *text, const char **ret_at)
{
    while (*text) {
        size_t n = strcspn(text, ";");
        if (!add_one(text, n)) {
            *ret_at = text;
            return false;
        }
        text += n + (text[n] == ';');
    }
    return true;
}

void fault_add_environment(void)
{
    const char *text = getenv("KVD_FAULTS");
    const char *at = NULL;
    if (text && !fault_add_text(text, &at)) {
        (void)fprintf(stderr, "KVD_FAULTS is wrong at \"%s\"\n", at);
        abort();
    }
}
