/* Purges and drops over a real store: what is hidden, from whom, for how long, and what a restart,
 * a lost index or a device that fails makes of it. */
#include "kvd_test.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachesvc/core/keeper.h"
#include "cachesvc/core/service_private.h"
#include "damage.h"
#include "fault_io.h"
#include "proto/base/bytes.h"
#include "proto/base/clock.h"
#include "proto/format/frame.h"
#include "service_rig.h"

enum { N = 6, TOKENS = N * RIG_BLOCK_TOKENS + 5 };

static const struct kvd_purge_ask everything = {.all = true};

static void rig_begin(struct rig *rig)
{
    fault_clear();
    rig_init(rig, "64MiB", "64MiB");
    rig_open(rig, false);
}

static void put_all(struct rig *rig, const char *tenant, const uint32_t *tokens)
{
    assert_int_equal(rig_put(rig, tenant, "chat", tokens, N), N);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void remove_index(const struct rig *rig)
{
    char index[300];
    (void)snprintf(index, sizeof(index), "%s/index", rig->folder);
    assert_int_equal(nftw(index, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static uint64_t missed_purged(struct rig *rig)
{
    return rig_number(rig, "hitrate", "", "rows.0.missed.purged.blocks");
}

/* ---- scopes ---- */

static void a_tenant_alone_loses_its_blocks(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct kvd_purge_out out;
    struct kvd_purge_ask ask = {.tenant = "alice", .tenant_bytes = 5};
    rig_tokens(1, TOKENS, tokens);
    rig_begin(&rig);
    put_all(&rig, "alice", tokens);
    put_all(&rig, "bob", tokens);
    put_all(&rig, "", tokens);
    rig_settle(&rig);
    assert_int_equal(rig_purge(&rig, &ask, &out), 0);
    assert_int_equal(out.dram_blocks, N);
    assert_int_equal(out.dram_bytes, N * rig_block_bytes());
    assert_int_equal(rig_number(&rig, "status", "", "tiers.0.blocks"), 2 * N);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    assert_int_equal(missed_purged(&rig), N);
    assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), N);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    put_all(&rig, "alice", tokens);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
    ask.tenant_bytes = 0; /* the default tenant */
    assert_int_equal(rig_purge(&rig, &ask, &out), 0);
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 0);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
    rig_assert_adds_up(&rig);
    rig_fini(&rig);
}

static void a_space_by_its_first_digits(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    char hex[KVD_DIGEST_HEX];
    char shown[64];
    struct kvd_purge_out out;
    rig_tokens(2, TOKENS, tokens);
    rig_begin(&rig);
    kvd_hex(rig.space.space.b, KVD_DIGEST_BYTES, hex);
    put_all(&rig, "alice", tokens);
    rig_connect(&rig, 2); /* another space */
    put_all(&rig, "alice", tokens);
    put_all(&rig, "bob", tokens);
    (void)snprintf(shown, sizeof(shown), "rig@%.8s", hex);
    struct kvd_purge_ask of_first = {.space = shown};
    assert_int_equal(rig_purge(&rig, &of_first, &out), 0);
    assert_int_equal(out.dram_blocks, N);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
    kvd_hex(rig.space.space.b, KVD_DIGEST_BYTES, hex);
    struct kvd_purge_ask both = {.tenant = "bob", .tenant_bytes = 3, .space = hex};
    assert_int_equal(rig_purge(&rig, &both, &out), 0);
    assert_int_equal(out.dram_blocks, N);
    assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), 0);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
    rig_connect(&rig, 1);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    assert_int_equal(rig_purge(&rig, &everything, &out), 0);
    assert_int_equal(out.dram_blocks, N);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.0.blocks"), 0);
    rig_fini(&rig);
}

static void refusals(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct kvd_purge_out out;
    const struct kvd_purge_ask bad[] = {
        {.all = false},
        {.all = true, .tenant = "x", .tenant_bytes = 1},
        {.all = true, .space = "0123456789"},
        {.space = "0123"},
        {.space = "model@"},
        {.space = "0123456g"},
        {.space = "00000000000000000000000000000000000000000000000000000000000000000"},
    };
    rig_tokens(3, TOKENS, tokens);
    rig_begin(&rig);
    put_all(&rig, "", tokens);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(rig_purge(&rig, &bad[i], &out), -KVD_E_BAD_REQUEST);
        assert_true(rig.said.text[0]);
    }
    struct kvd_purge_ask unknown = {.space = "ffffffff"};
    assert_int_equal(rig_purge(&rig, &unknown, &out), -KVD_E_NOT_FOUND);
    static const char long_name[KVD_TENANT_NAME_MAX + 1] = {'x'};
    struct kvd_purge_ask too_long = {.tenant = long_name, .tenant_bytes = sizeof(long_name)};
    assert_int_equal(rig_purge(&rig, &too_long, &out), -KVD_E_TOO_LONG);
    assert_int_equal(rig_drop(&rig, "", tokens, 0, 0), -KVD_E_BAD_REQUEST);
    assert_int_equal(rig_drop(&rig, "", tokens, UINT32_MAX, 1), -KVD_E_BAD_REQUEST);
    rig.space.handle = 7;
    assert_int_equal(rig_drop(&rig, "", tokens, 0, 1), -KVD_E_BAD_REQUEST);
    rig.space.handle = 1;
    assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
    rig_fini(&rig);
}

/* ---- blocks ---- */

static void r_a_dropped_block_ends_the_prefix(void **state)
{
    (void)state;
    for (int in_dram = 0; in_dram < 2; in_dram++) {
        struct rig rig;
        uint32_t tokens[TOKENS];
        rig_tokens(4, TOKENS, tokens);
        rig_begin(&rig);
        put_all(&rig, "", tokens);
        put_all(&rig, "bob", tokens);
        rig_settle(&rig);
        if (!in_dram) {
            rig_close(&rig);
            rig_open(&rig, true);
        }
        assert_int_equal(rig_drop(&rig, "", tokens, 2, 2), 2);
        assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 2); /* no hole is served */
        assert_int_equal(missed_purged(&rig), N - 2);
        assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), N);
        assert_int_equal(rig_drop(&rig, "", tokens, 2, 2), 0); /* it is gone already */
        rig_settle(&rig);
        assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), 2);
        put_all(&rig, "", tokens);
        assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
        rig_assert_adds_up(&rig);
        rig_close(&rig);
        remove_index(&rig);
        rig_open(&rig, true);
        assert_int_equal(rig_hit(&rig, "", tokens, TOKENS), N);
        rig_fini(&rig);
    }
}

static void nothing_is_noted_of_blocks_that_were_never_here(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(5, TOKENS, tokens);
    rig_begin(&rig);
    assert_int_equal(rig_drop(&rig, "", tokens, 0, N), 0);
    assert_int_equal(rig_number(&rig, "status", "", "purges.rows"), 0);
    put_all(&rig, "", tokens);
    assert_int_equal(rig_drop(&rig, "", tokens, 1, 1), 1);
    assert_int_equal(rig_number(&rig, "status", "", "purges.rows"), 1);
    assert_int_equal(rig_purge_tenant(&rig, ""), 0); /* says as much, and more */
    assert_int_equal(rig_number(&rig, "status", "", "purges.rows"), 1);
    rig_fini(&rig);
}

/* Whose blocks were never dropped pays nothing for what others drop. */
static void a_drop_is_asked_about_by_its_tenant_only(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct kvd_purge_view view;
    struct kvd_digest alice;
    struct kvd_digest bob;
    kvd_tenant_digest("alice", 5, &alice);
    kvd_tenant_digest("bob", 3, &bob);
    rig_tokens(24, TOKENS, tokens);
    rig_begin(&rig);
    put_all(&rig, "alice", tokens);
    put_all(&rig, "bob", tokens);
    assert_int_equal(rig_drop(&rig, "bob", tokens, 1, 1), 1);
    kvd_purges_view(rig.service->purges, &rig.space.space, &alice, &view);
    assert_int_equal(view.block_cut, 0);
    kvd_purges_view(rig.service->purges, &rig.space.space, &bob, &view);
    assert_int_equal(view.block_cut, kvd_purges_newest(rig.service->purges));
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
    assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), 1);
    rig_fini(&rig);
}

/* ---- restarts ---- */

static void r_purged_blocks_after_a_restart(void **state)
{
    (void)state;
    for (int drop_dram = 0; drop_dram < 2; drop_dram++) {
        struct rig rig;
        uint32_t tokens[TOKENS];
        uint32_t others[TOKENS];
        rig_tokens(6, TOKENS, tokens);
        rig_tokens(7, TOKENS, others);
        rig_begin(&rig);
        put_all(&rig, "alice", tokens);
        put_all(&rig, "bob", tokens);
        put_all(&rig, "bob", others);
        rig_settle(&rig);
        assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
        assert_int_equal(rig_drop(&rig, "bob", others, 0, 1), 1);
        for (int i = 0; i < 2; i++) {
            rig_close(&rig);
            rig_open(&rig, drop_dram);
            assert_int_equal(rig_match(&rig, "alice", "chat", tokens, TOKENS), 0);
            assert_int_equal(rig_match(&rig, "bob", "chat", others, TOKENS), 0);
            assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), N);
        }
        assert_int_equal(missed_purged(&rig), 4 * N);
        rig_fini(&rig);
    }
}

/* A purge that ended between its row and the pool: the row is in the log, the slots are there. */
static uint64_t some_put_id(void *user)
{
    struct kvd_service *service = user;
    return service->put_id_base + atomic_fetch_add(&service->next_id, 1);
}

static void add_row_only(struct rig *rig, const char *tenant)
{
    struct kvd_digest digest;
    struct kvd_diag diag;
    uint64_t cut;
    kvd_tenant_digest(tenant, strlen(tenant), &digest);
    struct kvd_purge_what what = kvd_purge_what_of(KVD_PURGE_TENANT, NULL, &digest, NULL, 0);
    assert_int_equal(
        kvd_purges_add(rig->service->purges, &what, 1, 0, some_put_id, rig->service, &diag, &cut),
        0);
}

static void r_purge_cut_short_before_the_pool(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(8, TOKENS, tokens);
    rig_begin(&rig);
    put_all(&rig, "alice", tokens);
    put_all(&rig, "bob", tokens);
    add_row_only(&rig, "alice");
    rig_close(&rig);
    rig_open(&rig, false);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.0.warm_blocks"), 2 * N);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), N);
    assert_int_equal(keeper_reclaim(rig.service), 0); /* the keeper finishes it */
    assert_int_equal(rig_number(&rig, "status", "", "tiers.0.blocks"), N);
    rig_fini(&rig);
}

/* The same, and then the copy below is found to be bad: what is in dram is purged too, so it must
 * not be written down anew, where the purge's row would be forgotten before it. */
static void r_purged_block_written_down_anew(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(19, TOKENS, tokens);
    rig_begin(&rig);
    put_all(&rig, "alice", tokens);
    rig_settle(&rig);
    add_row_only(&rig, "alice");
    rig_close(&rig);
    damage_record(&rig, 2, DAMAGE_PAGE + 777);
    rig_open(&rig, false);
    damage_verify(&rig, "nvme");
    rig_settle(&rig);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 1);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.1.written_bytes"), 0);
    rig_fini(&rig);
}

/* ---- a lost index ---- */

static void r_lost_index_without_the_purged(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    uint32_t others[TOKENS];
    uint32_t opener[TOKENS];
    rig_tokens(9, TOKENS, tokens);
    rig_tokens(10, TOKENS, others);
    rig_tokens(11, TOKENS, opener);
    rig_begin(&rig);
    /* the segment of agents is the older one, but has the later puts: found first by a rebuild */
    assert_int_equal(rig_put(&rig, "bob", "agent", opener, N), N);
    put_all(&rig, "alice", tokens);
    put_all(&rig, "alice", others);
    rig_settle(&rig);
    assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
    assert_int_equal(rig_put(&rig, "alice", "agent", tokens, N), N);
    rig_settle(&rig);
    rig_close(&rig);
    remove_index(&rig);
    rig_open(&rig, true);
    assert_int_equal(rig_hit(&rig, "alice", others, TOKENS), 0);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
    assert_int_equal(rig_hit(&rig, "bob", opener, TOKENS), N);
    rig_fini(&rig);
}

/* ---- beside loads ---- */

static void r_purge_between_look_up_and_load(void **state)
{
    (void)state;
    for (int in_dram = 0; in_dram < 2; in_dram++) {
        struct rig rig;
        uint32_t tokens[TOKENS];
        rig_tokens(12, TOKENS, tokens);
        rig_begin(&rig);
        put_all(&rig, "alice", tokens);
        rig_close(&rig);
        rig_open(&rig, !in_dram);
        assert_int_equal(rig_match(&rig, "alice", "chat", tokens, TOKENS), N);
        assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
        assert_int_equal(rig_load(&rig, tokens), 0);
        assert_int_equal(rig_number(&rig, "hitrate", "", "rows.0.missed.failed.blocks"), N);
        assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 0);
        assert_int_equal(rig_number(&rig, "status", "", "tiers.0.blocks"), 0);
        rig_assert_adds_up(&rig);
        rig_fini(&rig);
    }
}

struct ended {
    sem_t sem;
    int result;
    uint32_t good;
};

static void ended_load(int result, const struct kvd_wire_block *results, uint32_t n, uint32_t good,
                       void *user)
{
    (void)results;
    (void)n;
    struct ended *e = user;
    e->result = result;
    e->good = good;
    (void)sem_post(&e->sem);
}

static void r_purge_while_a_load_reads(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct ended ended = {.result = 1};
    rig_tokens(13, TOKENS, tokens);
    rig_begin(&rig);
    put_all(&rig, "alice", tokens);
    rig_close(&rig);
    rig_open(&rig, true);
    assert_int_equal(sem_init(&ended.sem, 0, 0), 0);
    assert_int_equal(rig_match(&rig, "alice", "chat", tokens, TOKENS), N);
    int hold = fault_hold(FAULT_READ, ".seg");
    const struct kvd_load_ask ask = {
        .lease = rig.match.lease, .n = N, .deadline_ns = kvd_mono_ns() + 30 * KVD_NS_PER_S};
    kvd_service_load(rig.session, &ask, ended_load, &ended);
    assert_true(fault_wait_held(hold, N));
    assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
    fault_release(hold);
    assert_int_equal(sem_wait(&ended.sem), 0);
    assert_int_equal(ended.result, 0);
    assert_int_equal(ended.good, 0);
    kvd_service_release(rig.session, rig.match.lease, UINT32_MAX);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.0.blocks"), 0);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 0);
    rig_assert_adds_up(&rig);
    (void)sem_destroy(&ended.sem);
    rig_fini(&rig);
}

/* What a client uses where it lies stays as it is until the client says so, purged or not. */
static void r_purge_of_blocks_in_use_in_place(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    struct ended ended = {.result = 1};
    rig_tokens(20, TOKENS, tokens);
    rig_begin(&rig);
    put_all(&rig, "alice", tokens);
    rig_settle(&rig);
    assert_int_equal(sem_init(&ended.sem, 0, 0), 0);
    assert_int_equal(rig_match(&rig, "alice", "chat", tokens, TOKENS), N);
    struct kvd_load_ask ask = {.lease = rig.match.lease,
                               .n = N,
                               .deadline_ns = kvd_mono_ns() + 30 * KVD_NS_PER_S,
                               .place = true};
    kvd_service_load(rig.session, &ask, ended_load, &ended);
    assert_int_equal(sem_wait(&ended.sem), 0);
    assert_int_equal(ended.good, N);
    const uint64_t pinned = rig_number(&rig, "status", "", "tiers.0.leased_bytes");
    assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
    for (int again = 0; again < 2; again++) { /* copied or placed once more: they are gone */
        kvd_service_load(rig.session, &ask, ended_load, &ended);
        assert_int_equal(sem_wait(&ended.sem), 0);
        assert_int_equal(ended.result, 0);
        assert_int_equal(ended.good, 0);
        assert_int_equal(rig_number(&rig, "status", "", "tiers.0.leased_bytes"), pinned);
        put_all(&rig, "alice", tokens); /* a copy that is not purged is not the one in use */
        ask.place = false;
    }
    kvd_service_release(rig.session, rig.match.lease, UINT32_MAX);
    assert_int_equal(rig_number(&rig, "status", "", "tiers.0.leased_bytes"), 0);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
    rig_assert_adds_up(&rig);
    (void)sem_destroy(&ended.sem);
    rig_fini(&rig);
}

/* ---- beside write-behind ---- */

static void r_purge_while_a_block_is_written_down(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(14, TOKENS, tokens);
    rig_begin(&rig);
    int hold = fault_hold(FAULT_WRITE, ".seg");
    assert_int_equal(rig_put(&rig, "alice", "chat", tokens, N), N);
    assert_true(fault_wait_held(hold, 1));
    assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    fault_release(hold);
    rig_settle(&rig);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    rig_close(&rig);
    rig_open(&rig, false);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    put_all(&rig, "alice", tokens);
    rig_close(&rig);
    rig_open(&rig, true);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
    rig_fini(&rig);
}

/* ---- a device that fails ---- */

static void r_full_disk_at_a_purge(void **state)
{
    (void)state;
    const enum fault_op ops[] = {FAULT_WRITE, FAULT_FDATASYNC, FAULT_OPEN};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        struct rig rig;
        uint32_t tokens[TOKENS];
        rig_tokens(15, TOKENS, tokens);
        rig_begin(&rig);
        put_all(&rig, "alice", tokens);
        put_all(&rig, "bob", tokens);
        for (int there = 0; there < 2; there++) { /* the log is made, or appended to */
            int fault = fault_fail(ops[i], "PURGES", -ENOSPC);
            assert_int_equal(rig_purge_tenant(&rig, "alice"), -ENOSPC);
            assert_non_null(strstr(rig.said.text, "nothing was purged"));
            fault_release(fault);
            assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
            assert_int_equal(rig_purge_tenant(&rig, "carol"), 0);
        }
        rig_close(&rig);
        rig_open(&rig, true);
        assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
        assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
        rig_close(&rig);
        rig_open(&rig, true);
        assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
        assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), N);
        rig_fini(&rig);
    }
}

static void r_damaged_log_of_purges(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    uint32_t later[TOKENS];
    char path[300];
    rig_tokens(16, TOKENS, tokens);
    rig_tokens(17, TOKENS, later);
    rig_begin(&rig);
    (void)snprintf(path, sizeof(path), "%s/PURGES", rig.folder);
    put_all(&rig, "alice", tokens);
    put_all(&rig, "bob", tokens);
    assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
    assert_int_equal(rig_purge_tenant(&rig, "carol"), 0);
    put_all(&rig, "bob", later);
    rig_close(&rig);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, KVD_PURGE_LOG_HEADER_BYTES + 40, SEEK_SET), 0);
    assert_int_equal(fputc('x', f), 'x');
    assert_int_equal(fclose(f), 0);
    rig_open(&rig, false);
    /* nobody knows whose blocks the row named: none from before it is served */
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), 0);
    assert_int_equal(rig_hit(&rig, "bob", later, TOKENS), N);
    assert_int_equal(rig_number(&rig, "status", "", "purges.damaged"), 1);
    rig_close(&rig);
    rig_open(&rig, false); /* the log is whole again, and says the same */
    assert_int_equal(rig_number(&rig, "status", "", "purges.damaged"), 0);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    assert_int_equal(rig_hit(&rig, "bob", later, TOKENS), N);
    rig_fini(&rig);
}

static void log_path(const struct rig *rig, char *ret, size_t bytes)
{
    (void)snprintf(ret, bytes, "%s/PURGES", rig->folder);
}

static void log_write(const struct rig *rig, off_t at, const void *bytes, size_t n)
{
    char path[300];
    log_path(rig, path, sizeof(path));
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, at), n);
    (void)close(fd);
}

/* What a crash left of a call that never answered: a piece of a row, or a row that isn't whole. */
static void r_torn_end_of_the_log_of_purges(void **state)
{
    (void)state;
    static const uint8_t torn[KVD_PURGE_ROW_BYTES] = {'P', 'R', 'O', 'W', 1, 2, 3};
    for (size_t n = 1; n <= sizeof(torn); n += 127) {
        struct rig rig;
        struct stat st;
        char path[300];
        uint32_t tokens[TOKENS];
        rig_tokens(19, TOKENS, tokens);
        rig_begin(&rig);
        log_path(&rig, path, sizeof(path));
        put_all(&rig, "alice", tokens);
        put_all(&rig, "bob", tokens);
        assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
        rig_close(&rig);
        assert_int_equal(stat(path, &st), 0);
        log_write(&rig, st.st_size, torn, n);
        for (int i = 0; i < 2; i++) {
            rig_open(&rig, true);
            assert_int_equal(rig_number(&rig, "status", "", "purges.damaged"), 0);
            assert_int_equal(rig_number(&rig, "status", "", "purges.rows"), 1 + i);
            assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
            assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), N);
            assert_int_equal(rig_purge_tenant(&rig, "carol"), 0);
            rig_close(&rig);
        }
        rig_fini(&rig);
    }
}

/* A log that this version can't trust to be complete: better no daemon than one that serves what
 * was purged. */
static void r_log_of_purges_of_others(void **state)
{
    (void)state;
    struct rig rig;
    struct kvd_diag diag;
    uint8_t header[KVD_PURGE_LOG_HEADER_BYTES];
    struct kvd_store_id other = {{1, 2, 3}};
    rig_begin(&rig);
    assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
    struct kvd_store_id own = kvd_service_store_id(rig.service);
    rig_close(&rig);
    const struct {
        const struct kvd_store_id *store;
        uint16_t version;
        uint8_t magic;
        int err;
    } cases[] = {
        {&own, KVD_PURGE_LOG_VERSION + 1, 'K', -KVD_E_NEWER},
        {&own, KVD_PURGE_LOG_VERSION, 'X', -KVD_E_FORMAT},
        {&other, KVD_PURGE_LOG_VERSION, 'K', -KVD_E_WRONG_STORE},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        kvd_purge_log_encode(cases[i].store, NULL, 0, header);
        header[0] = cases[i].magic;
        kvd_put_le16(header + KVD_FRAME_VERSION, cases[i].version);
        kvd_frame_seal(header, sizeof(header));
        log_write(&rig, 0, header, sizeof(header));
        assert_int_equal(kvd_service_open(&rig.config, false, NULL, &diag, &rig.service),
                         cases[i].err);
        assert_non_null(strstr(diag.text, "PURGES"));
        rig.service = NULL;
    }
    rig_fini(&rig);
}

static void copy_file(const char *from, const char *to)
{
    uint8_t bytes[4096];
    int in = open(from, O_RDONLY);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(in >= 0 && out >= 0);
    ssize_t n = read(in, bytes, sizeof(bytes));
    assert_true(n > 0);
    assert_int_equal(write(out, bytes, (size_t)n), n);
    (void)close(in);
    (void)close(out);
}

static void r_identity_restored_from_an_older_copy(void **state)
{
    (void)state;
    for (int lost_index = 0; lost_index < 3; lost_index++) {
        struct rig rig;
        uint32_t tokens[TOKENS];
        char identity[300];
        char copy[300];
        rig_tokens(20, TOKENS, tokens);
        rig_begin(&rig);
        (void)snprintf(identity, sizeof(identity), "%s/IDENTITY", rig.folder);
        (void)snprintf(copy, sizeof(copy), "%s/nvme/IDENTITY", rig.folder);
        for (int i = 0; i < 3; i++) { /* some starts */
            rig_close(&rig);
            rig_open(&rig, false);
        }
        put_all(&rig, "alice", tokens);
        put_all(&rig, "bob", tokens);
        rig_close(&rig);
        copy_file(copy, identity); /* which counts no start at all */
        if (lost_index == 1) {
            remove_index(&rig);
        }
        rig_open(&rig, lost_index < 2); /* the last: from the pool too */
        assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
        assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
        assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
        rig_close(&rig);
        copy_file(copy, identity);
        rig_open(&rig, true);
        assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
        put_all(&rig, "alice", tokens);
        assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), N);
        assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), N);
        rig_fini(&rig);
    }
}

/* The same at every start, and no purge in between: the put ids of one must not come again in the
 * next. */
static void r_identity_restored_at_every_start(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t tokens[TOKENS];
    uint32_t later[TOKENS];
    char identity[300];
    char copy[300];
    rig_tokens(22, TOKENS, tokens);
    rig_tokens(23, TOKENS, later);
    rig_begin(&rig);
    (void)snprintf(identity, sizeof(identity), "%s/IDENTITY", rig.folder);
    (void)snprintf(copy, sizeof(copy), "%s/nvme/IDENTITY", rig.folder);
    rig_close(&rig);
    rig_open(&rig, true);
    put_all(&rig, "alice", tokens);
    rig_close(&rig);
    copy_file(copy, identity);
    rig_open(&rig, true);
    put_all(&rig, "alice", later);
    rig_close(&rig);
    copy_file(copy, identity);
    rig_open(&rig, true);
    assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
    assert_int_equal(rig_hit(&rig, "alice", tokens, TOKENS), 0);
    assert_int_equal(rig_hit(&rig, "alice", later, TOKENS), 0);
    rig_fini(&rig);
}

/* ---- rows that nothing needs any more ---- */

/* direct: whether the file system of the segments takes direct I/O. */
static void rows_go_with_segments(bool direct)
{
    struct rig rig;
    uint32_t tokens[TOKENS];
    rig_tokens(18, TOKENS, tokens);
    fault_clear();
    rig_init(&rig, "64MiB", "16MiB");
    rig_open(&rig, false);
    put_all(&rig, "alice", tokens);
    rig_settle(&rig);
    assert_int_equal(rig_purge_tenant(&rig, "alice"), 0);
    assert_int_equal(keeper_reclaim(rig.service), 0);
    assert_int_equal(rig_number(&rig, "status", "", "purges.rows"), 1); /* this run's */
    rig_close(&rig);
    rig_open(&rig, false);
    assert_int_equal(keeper_reclaim(rig.service), 0);
    assert_int_equal(rig_number(&rig, "status", "", "purges.rows"), 1); /* its segment lives */
    if (!direct) {
        const struct fault f = {
            .op = FAULT_OPEN, .kind = FAULT_FAIL, .file = ".seg", .times = 1, .err = -EINVAL};
        (void)fault_add(&f);
    }
    /* rounds of puts until the cap has thrown the segment away */
    for (uint32_t seed = 100; rig.service->nvme->ops->live(rig.service->nvme, 1, NULL); seed++) {
        assert_true(seed < 400);
        rig_tokens(seed, TOKENS, tokens);
        put_all(&rig, "bob", tokens);
    }
    rig_settle(&rig);
    assert_int_equal(keeper_reclaim(rig.service), 0);
    assert_int_equal(rig_number(&rig, "status", "", "purges.rows"), 0);
    rig_close(&rig);
    rig_open(&rig, false);
    assert_int_equal(rig_number(&rig, "status", "", "purges.rows"), 0);
    assert_int_equal(rig_hit(&rig, "bob", tokens, TOKENS), N);
    rig_fini(&rig);
}

static void rows_go_with_their_segments(void **state)
{
    (void)state;
    rows_go_with_segments(true);
    rows_go_with_segments(false);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_tenant_alone_loses_its_blocks),
    cmocka_unit_test(a_space_by_its_first_digits),
    cmocka_unit_test(refusals),
    cmocka_unit_test(r_a_dropped_block_ends_the_prefix),
    cmocka_unit_test(nothing_is_noted_of_blocks_that_were_never_here),
    cmocka_unit_test(a_drop_is_asked_about_by_its_tenant_only),
    cmocka_unit_test(r_purged_blocks_after_a_restart),
    cmocka_unit_test(r_purge_cut_short_before_the_pool),
    cmocka_unit_test(r_purged_block_written_down_anew),
    cmocka_unit_test(r_lost_index_without_the_purged),
    cmocka_unit_test(r_purge_between_look_up_and_load),
    cmocka_unit_test(r_purge_while_a_load_reads),
    cmocka_unit_test(r_purge_of_blocks_in_use_in_place),
    cmocka_unit_test(r_purge_while_a_block_is_written_down),
    cmocka_unit_test(r_full_disk_at_a_purge),
    cmocka_unit_test(r_damaged_log_of_purges),
    cmocka_unit_test(r_torn_end_of_the_log_of_purges),
    cmocka_unit_test(r_log_of_purges_of_others),
    cmocka_unit_test(r_identity_restored_from_an_older_copy),
    cmocka_unit_test(r_identity_restored_at_every_start),
    cmocka_unit_test(rows_go_with_their_segments),
};

KVD_TEST_MAIN(tests)
