/* What the tests of the configuration share: a temporary folder with files, and a fresh struct. */
#ifndef TESTS_UNIT_CONFIG_CONFIG_TEST_H
#define TESTS_UNIT_CONFIG_CONFIG_TEST_H

#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>

#include "cachesvc/config/option.h"
#include "kvd_test.h"
#include "proto/base/cleanup.h"

#define CONFIG KVD_CLEANUP(kvd_config_fini) struct kvd_config

struct folder {
    char path[64];
};

static inline void folder_make(struct folder *f)
{
    (void)snprintf(f->path, sizeof(f->path), "/tmp/kvd-config-XXXXXX");
    assert_non_null(mkdtemp(f->path));
}

static inline int folder_remove_one(const char *path, const struct stat *st, int type,
                                    struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void folder_remove(struct folder *f)
{
    assert_int_equal(nftw(f->path, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* Writes <folder>/<name>; its path goes to ret_path. */
static inline void folder_write(const struct folder *f, const char *name, const char *text,
                                char ret_path[PATH_MAX])
{
    (void)snprintf(ret_path, PATH_MAX, "%s/%s", f->path, name);
    FILE *out = fopen(ret_path, "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
}

/* Message `got` begins with `want`; says both when not. */
static inline int says(const char *input, const char *want, const char *got)
{
    if (strncmp(got, want, strlen(want)) == 0) {
        return 0;
    }
    print_error("for  %s\nwant %s\ngot  %s\n", input, want, got);
    return 1;
}

#endif
