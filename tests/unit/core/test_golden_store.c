/*
 * Stores that earlier versions wrote, kept in tests/golden/store-vN.tar.gz: every block that their
 * lists name is found and loads with its digest, with the index that came with it and with the
 * index lost. A later version adds a store of its own, and keeps reading those before.
 */
#include "kvd_test.h"

#include <ftw.h>
#include <inttypes.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "golden_store.h"
#include "moved_wall.h"

enum { AFTER_S = 3600 }; /* it is opened so long after it was made: nothing has expired */

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void remove_folder(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void unpack(const char *archive, const char *folder)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)execlp("tar", "tar", "-xzf", archive, "-C", folder, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

struct reading {
    struct golden_store store;
    struct golden_chain chain; /* of the list's last `chain` line */
    uint64_t digests[GOLDEN_BLOCKS_MAX];
    uint32_t came;
    uint32_t blocks; /* compared */
    uint32_t purged; /* chains */
};

static void read_chain(struct reading *r, const char *line)
{
    assert_int_equal(sscanf(line, "chain %" SCNu32 " %31s %31s %" SCNu32, &r->chain.seed,
                            r->chain.tenant, r->chain.scenario, &r->chain.blocks),
                     4);
    const char *wrong = golden_get(&r->store, &r->chain, &r->came, r->digests);
    if (wrong) {
        fail_msg("%s", wrong);
    }
    assert_int_equal(r->came, r->chain.blocks);
}

static void read_block(struct reading *r, const char *line)
{
    uint32_t index = 0;
    uint64_t digest = 0;
    assert_int_equal(sscanf(line, "block %" SCNu32 " %" SCNx64, &index, &digest), 2);
    assert_true(index < r->came);
    assert_true(r->digests[index] == digest);
    r->blocks++;
}

static void read_purged(struct reading *r, const char *line)
{
    assert_int_equal(sscanf(line, "purged %" SCNu32 " %31s %31s %" SCNu32, &r->chain.seed,
                            r->chain.tenant, r->chain.scenario, &r->chain.blocks),
                     4);
    assert_null(golden_get(&r->store, &r->chain, &r->came, r->digests));
    assert_int_equal(r->came, 0);
    r->purged++;
}

static void check_count(struct reading *r, const char *line)
{
    char path[64];
    uint64_t want = 0;
    uint64_t have = 0;
    assert_int_equal(sscanf(line, "count %63s %" SCNu64, path, &want), 2);
    assert_true(golden_number(&r->store, "hitrate", path, &have));
    assert_int_equal(have, want);
}

/* The counts are those before anything is asked: they are compared first. */
static void check_list(struct reading *r, FILE *list, bool counts)
{
    char line[256];
    rewind(list);
    while (fgets(line, sizeof(line), list)) {
        bool is_count = strncmp(line, "count ", 6) == 0;
        if (counts && is_count) {
            check_count(r, line);
        } else if (!counts && strncmp(line, "chain ", 6) == 0) {
            read_chain(r, line);
        } else if (!counts && strncmp(line, "block ", 6) == 0) {
            read_block(r, line);
        } else if (!counts && strncmp(line, "purged ", 7) == 0) {
            read_purged(r, line);
        }
    }
}

static uint64_t made_s(FILE *list)
{
    uint64_t s = 0;
    assert_int_equal(fscanf(list, "made %" SCNu64, &s), 1);
    return s;
}

static void read_store(const char *version, bool lose_index)
{
    char folder[256];
    char path[512];
    const char *tmp = getenv("TMPDIR");
    const char *golden = getenv("KVD_GOLDEN");
    assert_non_null(golden);
    (void)snprintf(folder, sizeof(folder), "%s/kvd-golden-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/store-%s.tar.gz", golden, version);
    unpack(path, folder);
    if (lose_index) {
        (void)snprintf(path, sizeof(path), "%s/store/index", folder);
        remove_folder(path);
    }
    (void)snprintf(path, sizeof(path), "%s/blocks.txt", folder);
    FILE *list = fopen(path, "re");
    assert_non_null(list);
    int64_t moved = (int64_t)made_s(list) + AFTER_S - (int64_t)time(NULL);
    moved_wall_advance(moved);
    struct reading r = {0};
    (void)snprintf(path, sizeof(path), "%s/store", folder);
    for (int start = 0; start < 2; start++) { /* what the first start wrote is read too */
        const char *wrong = golden_open(&r.store, path);
        if (wrong) {
            fail_msg("%s", wrong);
        }
        if (!lose_index && start == 0) {
            check_list(&r, list, true);
        }
        r.blocks = 0;
        r.purged = 0;
        check_list(&r, list, false);
        assert_int_equal(r.blocks, 13);
        assert_int_equal(r.purged, 1);
        golden_close(&r.store);
    }
    moved_wall_advance(-moved);
    (void)fclose(list);
    remove_folder(folder);
}

static void v1_with_its_index(void **state)
{
    (void)state;
    read_store("v1", false);
}

static void v1_with_its_index_lost(void **state)
{
    (void)state;
    read_store("v1", true);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(v1_with_its_index),
    cmocka_unit_test(v1_with_its_index_lost),
};

KVD_TEST_MAIN(tests)
