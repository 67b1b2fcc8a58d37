/*
 * See machine.h. Where a cgroup is: /proc/self/cgroup names the process's group in each hierarchy,
 * /proc/self/mountinfo where the hierarchy is mounted and which of its groups is the mount's root
 * (in a container, mostly the container's own). A file that can't be read says nothing and is
 * passed over: limits are a help to people, the caps themselves hold without them.
 */
#include "cachesvc/config/machine.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "policies/yaml_reader.h"
#include "proto/base/cleanup.h"

/* Takes the last component off a path; false when none is left. */
static bool path_up(char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    while (n > 0 && path[n - 1] != '/') {
        n--;
    }
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    bool left = n > 0 && n < strlen(path);
    path[n] = 0;
    return left;
}

int kvd_machine_file_system(const char *path, char ret_at[PATH_MAX], uint64_t *ret_bytes)
{
    char at[PATH_MAX];
    struct statvfs vfs;
    if (snprintf(at, sizeof(at), "%s", path) >= (int)sizeof(at)) {
        return -ENAMETOOLONG;
    }
    while (statvfs(at[0] ? at : ".", &vfs) != 0) {
        if (errno == EINTR) {
            continue;
        }
        if (errno != ENOENT || !at[0]) {
            return -errno;
        }
        (void)path_up(at); /* the last step leaves "", which stands for the current folder */
    }
    (void)snprintf(ret_at, PATH_MAX, "%s", at[0] ? at : ".");
    *ret_bytes = (uint64_t)vfs.f_blocks * vfs.f_frsize;
    return 0;
}

/* ---- cgroups ---- */

enum { LINE_MAX_BYTES = 4096, NO_LIMIT_V1_BITS = 62 };

/* Lines of a file, cut at LINE_MAX_BYTES; stops when fn says false. */
static void each_line(const char *proc, const char *name, bool (*fn)(char *line, void *user),
                      void *user)
{
    char path[KVD_MACHINE_FILE_MAX];
    char line[LINE_MAX_BYTES];
    (void)snprintf(path, sizeof(path), "%s/self/%s", proc, name);
    KVD_AUTOFCLOSE FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        if (!fn(line, user)) {
            return;
        }
    }
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == 0)) {
            return true;
        }
    }
    return false;
}

struct hierarchy {
    bool v2;
    bool mounted;
    bool joined;
    char group[KVD_MACHINE_FILE_MAX]; /* of the process, from the hierarchy's root */
    char root[KVD_MACHINE_FILE_MAX];  /* the group that is mounted */
    char mount[KVD_MACHINE_FILE_MAX];
};

/* "4:memory:/a/b" or "0::/a/b" */
static bool take_group(char *line, void *user)
{
    struct hierarchy *h = user;
    char *list = strchr(line, ':');
    char *group = list ? strchr(list + 1, ':') : NULL;
    if (!group) {
        return true;
    }
    *group++ = 0;
    list++;
    if (h->v2 ? strcmp(line, "0:") == 0 || (line[0] == '0' && !list[0])
              : has_word(list, "memory")) {
        h->joined = snprintf(h->group, sizeof(h->group), "%s", group) < (int)sizeof(h->group);
    }
    return !h->joined;
}

/* mountinfo writes space, tab, newline and backslash as \ooo. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *p = text; *p; to++) {
        bool octal = p[0] == '\\' && p[1] >= '0' && p[1] <= '3' && p[2] >= '0' && p[2] <= '7' &&
                     p[3] >= '0' && p[3] <= '7';
        *to = octal ? (char)((p[1] - '0') << 6 | (p[2] - '0') << 3 | (p[3] - '0')) : *p;
        p += octal ? 4 : 1;
    }
    *to = 0;
}

/* "35 31 0:32 ROOT MOUNT options fields... - TYPE source superoptions" */
static bool take_mount(char *line, void *user)
{
    struct hierarchy *h = user;
    char *words[5] = {NULL};
    char *save = NULL;
    char *tail = strstr(line, " - ");
    if (!tail) {
        return true;
    }
    *tail = 0;
    for (int i = 0; i < 5; i++) {
        words[i] = strtok_r(i ? NULL : line, " ", &save);
    }
    const char *type = strtok_r(tail + 3, " ", &save);
    (void)strtok_r(NULL, " ", &save);
    const char *super = strtok_r(NULL, " ", &save);
    bool mine = words[4] && type && super &&
                (h->v2 ? strcmp(type, "cgroup2") == 0
                       : strcmp(type, "cgroup") == 0 && has_word(super, "memory"));
    if (mine) {
        unescape(words[3]);
        unescape(words[4]);
        h->mounted = snprintf(h->root, sizeof(h->root), "%s", words[3]) < (int)sizeof(h->root) &&
                     snprintf(h->mount, sizeof(h->mount), "%s", words[4]) < (int)sizeof(h->mount);
    }
    return !h->mounted;
}

/* Limit that one file states; UINT64_MAX when it states none. */
static uint64_t read_limit(const char *file, bool v2)
{
    char line[64];
    const char *end = NULL;
    uint64_t v = 0;
    KVD_AUTOFCLOSE FILE *f = fopen(file, "re");
    if (!f || !fgets(line, sizeof(line), f) || !kvd_number_read(line, &end, &v)) {
        return UINT64_MAX; /* "max", or no such file in the root group */
    }
    /* version 1 says "no limit" by a number near 2^63, in pages */
    return !v2 && v >> NO_LIMIT_V1_BITS ? UINT64_MAX : v;
}

static void smallest_limit(const struct hierarchy *h, uint64_t *limit,
                           char ret_file[KVD_MACHINE_FILE_MAX])
{
    size_t root = strcmp(h->root, "/") == 0 ? 0 : strlen(h->root);
    bool below =
        strncmp(h->group, h->root, root) == 0 && (h->group[root] == '/' || h->group[root] == 0);
    char group[KVD_MACHINE_FILE_MAX];
    (void)snprintf(group, sizeof(group), "%s", below ? h->group + root : "/");
    for (bool more = true; more;) {
        char file[3 * KVD_MACHINE_FILE_MAX];
        (void)snprintf(file, sizeof(file), "%s%s/%s", h->mount, group[1] ? group : "",
                       h->v2 ? "memory.max" : "memory.limit_in_bytes");
        uint64_t v = read_limit(file, h->v2);
        if (v < *limit) {
            *limit = v;
            (void)snprintf(ret_file, KVD_MACHINE_FILE_MAX, "%s", file);
        }
        more = group[0] && group[1] && path_up(group);
    }
}

uint64_t kvd_machine_cgroup_memory(const char *proc, char ret_file[KVD_MACHINE_FILE_MAX])
{
    uint64_t limit = UINT64_MAX;
    ret_file[0] = 0;
    for (int v2 = 0; v2 < 2; v2++) {
        struct hierarchy h = {.v2 = v2 != 0};
        each_line(proc, "cgroup", take_group, &h);
        each_line(proc, "mountinfo", take_mount, &h);
        if (h.joined && h.mounted) {
            smallest_limit(&h, &limit, ret_file);
        }
    }
    return limit;
}
