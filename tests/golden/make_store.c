/*
 * Makes a golden store: usage: kvd-make-golden-store FOLDER. FOLDER/store is the store, as a killed
 * daemon leaves it, FOLDER/blocks.txt the list of what is in it (golden_store.h). Not run by any
 * test: a golden store is made once a version of the formats, and kept (README.md here says how).
 */
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "golden_store.h"

/* A run of its own each; the first ends well, so that its segments are sealed; the last is killed.
 */
static const struct golden_chain first_run[] = {{1, 6, "-", "chat"}, {2, 3, "alice", "agent"}};
static const struct golden_chain last_run[] = {{3, 4, "-", "chat"}};
static const struct golden_chain purged = {4, 2, "bob", "chat"}; /* in the last run */

enum { FIRST = sizeof(first_run) / sizeof(first_run[0]), LAST = 1 };

static int complain(const char *what)
{
    (void)fprintf(stderr, "kvd-make-golden-store: %s\n", what);
    return 1;
}

static const char *put_all(struct golden_store *g, const struct golden_chain *chains, int n)
{
    const char *wrong = NULL;
    for (int i = 0; i < n && !wrong; i++) {
        wrong = golden_put(g, &chains[i]);
    }
    return wrong;
}

/* So that there is something to count: one chain is found, and one isn't. */
static const char *ask(struct golden_store *g)
{
    static const struct golden_chain unknown = {99, 2, "-", "chat"};
    uint64_t digests[GOLDEN_BLOCKS_MAX];
    uint32_t n = 0;
    const char *wrong = golden_get(g, &first_run[0], &n, digests);
    return wrong ? wrong : golden_get(g, &unknown, &n, digests);
}

static const char *purge(struct golden_store *g)
{
    const char *wrong = golden_put(g, &purged);
    return wrong ? wrong : golden_purge(g, purged.tenant);
}

static int run(const char *folder, bool last)
{
    struct golden_store g;
    const char *wrong = golden_open(&g, folder);
    wrong = wrong ? wrong : put_all(&g, last ? last_run : first_run, last ? LAST : FIRST);
    wrong = wrong ? wrong : last ? purge(&g) : ask(&g);
    if (wrong) {
        return complain(wrong);
    }
    if (last) {
        (void)kill(getpid(), SIGKILL);
    }
    golden_close(&g);
    return 0;
}

static int in_child(const char *folder, bool last)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(run(folder, last));
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        return complain("no child process can be started");
    }
    bool as_meant = last ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                         : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return as_meant ? 0 : complain("a run did not end as it should");
}

static void list_chain(FILE *out, const struct golden_chain *chain)
{
    uint32_t tokens[GOLDEN_TOKENS_MAX];
    uint8_t payload[GOLDEN_PAYLOAD_BYTES];
    golden_tokens(chain->seed, tokens);
    (void)fprintf(out, "chain %u %s %s %u\n", chain->seed, chain->tenant, chain->scenario,
                  chain->blocks);
    for (uint32_t i = 0; i < chain->blocks; i++) {
        (void)fprintf(out, "block %u %016" PRIx64 "\n", i, golden_payload(tokens, i, payload));
    }
}

static int list(const char *folder, uint64_t made_s)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/blocks.txt", folder);
    FILE *out = fopen(path, "we");
    if (!out) {
        return complain("blocks.txt can't be written");
    }
    (void)fprintf(out, "made %" PRIu64 "\n", made_s);
    for (int i = 0; i < FIRST; i++) {
        list_chain(out, &first_run[i]);
    }
    list_chain(out, &last_run[0]);
    (void)fprintf(out, "purged %u %s %s %u\n", purged.seed, purged.tenant, purged.scenario,
                  purged.blocks);
    (void)fprintf(out, "count rows.0.lookups 2\n"
                       "count rows.0.asked.blocks 8\n"
                       "count rows.0.asked.tokens 34\n"
                       "count rows.0.hit.dram.blocks 6\n"
                       "count rows.0.missed.never_seen.blocks 2\n");
    return fclose(out) == 0 ? 0 : complain("blocks.txt can't be written");
}

int main(int argc, char **argv)
{
    char store[4096];
    if (argc != 2) {
        return complain("usage: kvd-make-golden-store FOLDER");
    }
    (void)snprintf(store, sizeof(store), "%s/store", argv[1]);
    uint64_t made_s = (uint64_t)time(NULL);
    int err = in_child(store, false);
    err = err ? err : in_child(store, true);
    return err ? err : list(argv[1], made_s);
}
