/* What one option alone can't tell: caps against the machine, and what empty paths stand for. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/config/machine.h"
#include "cachesvc/config/option.h"
#include "cachesvc/config/text_file.h"
#include "proto/base/cleanup.h"

enum { SEGMENT_MIN_BYTES = 1 << 20, SEGMENTS_MIN = 16 };

/* Again for each option by itself: a caller may have filled the struct by hand. */
static int check_each(struct kvd_config *config, struct kvd_diag *diag)
{
    int err = 0;
    for (size_t i = 0; !err && i < KVD_OPTION_COUNT; i++) {
        const struct kvd_option *o = &kvd_options[i];
        if (kvd_option_is_text(o)) {
            err = kvd_option_check(o, *kvd_option_str(o, config), o->name, diag);
        }
    }
    return err;
}

static int fill_nvme_path(struct kvd_config *config, struct kvd_diag *diag)
{
    char *path = NULL;
    if (config->nvme_path[0]) {
        return 0;
    }
    if (asprintf(&path, "%s/nvme", config->dir) < 0) {
        return kvd_fail(diag, -ENOMEM, "nvme.path: out of memory");
    }
    free(config->nvme_path);
    config->nvme_path = path;
    return 0;
}

/* Size as people read it, and to the byte: "1GiB (1073741824 bytes)". */
static void size_text(uint64_t bytes, char *ret_text, size_t n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024 && u + 1 < sizeof(units) / sizeof(units[0])) {
        v /= 1024;
        u++;
    }
    (void)snprintf(ret_text, n, "%.*f%s (%" PRIu64 " bytes)", v == (double)(uint64_t)v ? 0 : 1, v,
                   units[u], bytes);
}

/* what: "the whole file system of /x", "the cgroup's memory limit in /x" */
static int check_cap(const char *option, uint64_t cap, uint64_t limit, const char *what,
                     struct kvd_diag *diag)
{
    char cap_text[64];
    char limit_text[64];
    if (cap <= limit) {
        return 0;
    }
    size_text(cap, cap_text, sizeof(cap_text));
    size_text(limit, limit_text, sizeof(limit_text));
    return kvd_fail(diag, -KVD_E_CONFIG, "%s is %s, but %s is %s; give a smaller cap", option,
                    cap_text, what, limit_text);
}

static int check_cap_on_disk(const char *option, uint64_t cap, const char *path_option,
                             const char *path, struct kvd_diag *diag)
{
    char at[PATH_MAX];
    char what[400];
    uint64_t size = 0;
    int err = kvd_machine_file_system(path, at, &size);
    if (err) {
        return kvd_fail(diag, -KVD_E_CONFIG, "%s: cannot look at %.300s: %s; give another path",
                        path_option, path, kvd_strerror(err));
    }
    (void)snprintf(what, sizeof(what), "the whole file system of %.300s", at);
    return size ? check_cap(option, cap, size, what, diag) : 0;
}

static int check_dram_cap(const struct kvd_config *config, struct kvd_diag *diag)
{
    char file[KVD_MACHINE_FILE_MAX];
    char what[400];
    const char *path = config->dram_path[0] ? config->dram_path : "/dev/shm";
    int err = check_cap_on_disk("dram.cap", config->dram_cap, "dram.path", path, diag);
    if (err) {
        return err;
    }
    uint64_t limit = kvd_machine_cgroup_memory("/proc", file);
    (void)snprintf(what, sizeof(what), "this cgroup's memory limit in %.300s", file);
    return check_cap("dram.cap", config->dram_cap, limit, what, diag);
}

static int check_nvme(const struct kvd_config *config, struct kvd_diag *diag)
{
    char max[64];
    if (!config->nvme_enabled) {
        return 0;
    }
    uint64_t segment = config->nvme_segment;
    if (segment && (segment < SEGMENT_MIN_BYTES || segment > config->nvme_cap / SEGMENTS_MIN)) {
        size_text(config->nvme_cap / SEGMENTS_MIN, max, sizeof(max));
        return kvd_fail(diag, -KVD_E_CONFIG,
                        "nvme.segment is %" PRIu64 " bytes; 1MiB to a sixteenth of nvme.cap, %s, "
                        "is allowed, or 0 to have it chosen",
                        segment, max);
    }
    return check_cap_on_disk("nvme.cap", config->nvme_cap, "nvme.path", config->nvme_path, diag);
}

static int read_scenarios(struct kvd_config *config, struct kvd_diag *diag)
{
    struct kvd_scenarios *table = NULL;
    KVD_AUTOFREE char *owned = NULL;
    size_t bytes = 0;
    const char *text = kvd_scenarios_builtin(&bytes);
    const char *name = "scenarios.yaml (built in)";
    if (config->scenarios[0]) {
        int err = kvd_text_file_read(config->scenarios, diag, &owned, &bytes);
        if (err) {
            return kvd_fail_prefix(diag, err, "scenarios");
        }
        text = owned;
        name = config->scenarios;
    }
    int err = kvd_scenarios_parse(text, bytes, name, diag, &table);
    if (err) {
        return err;
    }
    if (!kvd_scenario_by_name(table, "chat", strlen("chat"))) {
        kvd_scenarios_destroy(&table);
        return kvd_fail(diag, -KVD_E_CONFIG,
                        "%s: class chat is missing; engines name it where a request names none",
                        name);
    }
    kvd_scenarios_destroy(&config->scenarios_table);
    config->scenarios_table = table;
    return 0;
}

int kvd_config_finish(struct kvd_config *config, struct kvd_diag *diag)
{
    int err = check_each(config, diag);
    err = err ? err : fill_nvme_path(config, diag);
    err = err ? err : check_dram_cap(config, diag);
    err = err ? err : check_nvme(config, diag);
    return err ? err : read_scenarios(config, diag);
}
