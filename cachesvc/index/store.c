/*
 * Opening RocksDB. Memory is bounded by the block cache (indexes and filters live in it too) and
 * the write buffers; files by max_open_files; threads by two background jobs.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachesvc/index/internal.h"
#include "proto/base/cleanup.h"

enum {
    BACKGROUND_JOBS = 2,
    OPEN_FILES_MAX = 256,
    BLOCKS_BUFFER_BYTES = 16 << 20,
    ROWS_BUFFER_BYTES = 1 << 20,
    BUFFERS_BYTES = 40 << 20,
    WAL_BYTES = 64 << 20, /* or a family that is seldom written keeps every old WAL alive */
    FORMAT_VERSION = 5,
    PROBE_BYTES = 256 << 10,
    LOG_FILES = 2,
    LOG_BYTES = 1 << 20,
    LOG_LEVEL_FATAL = 4, /* RocksDB's InfoLogLevel */
    WALK_READAHEAD_BYTES = 1 << 20,
};
static const double FILTER_BITS_A_KEY = 10;

static const char *const family_names[FAMILY_COUNT] = {"default", "blocks", "spaces", "segments",
                                                       "meta"};

static rocksdb_options_t *make_db_options(void)
{
    rocksdb_options_t *o = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(o, 1);
    rocksdb_options_set_create_missing_column_families(o, 1);
    rocksdb_options_set_max_background_jobs(o, BACKGROUND_JOBS);
    rocksdb_options_set_max_open_files(o, OPEN_FILES_MAX);
    rocksdb_options_set_db_write_buffer_size(o, BUFFERS_BYTES);
    rocksdb_options_set_max_total_wal_size(o, WAL_BYTES);
    rocksdb_options_set_keep_log_file_num(o, LOG_FILES);
    rocksdb_options_set_max_log_file_size(o, LOG_BYTES);
    /* Nothing is logged but what opening says. RocksDB 7.8, as Debian builds it, ends the process
     * (an assertion of its file writer) at the second line that it can't write: a full disk would
     * end the daemon. What fails is in the errors that it returns. */
    rocksdb_options_set_info_log_level(o, LOG_LEVEL_FATAL);
    rocksdb_options_set_stats_dump_period_sec(o, 0);
    return o;
}

/* What all families share: one cache that also holds indexes and filters, and no compression: keys
 * are hashes, and a look-up must not pay for unpacking. */
static rocksdb_options_t *make_family_options(rocksdb_cache_t *cache, bool blocks)
{
    rocksdb_options_t *o = rocksdb_options_create();
    rocksdb_block_based_table_options_t *t = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(t, cache);
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(t, 1);
    rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority(t, 1);
    rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(t, 1);
    /* in small pieces: a whole file's filter is a megabyte, more than a shard of the cache holds,
     * and would be read again at every seek */
    rocksdb_block_based_options_set_index_type(
        t, rocksdb_block_based_table_index_type_two_level_index_search);
    rocksdb_block_based_options_set_partition_filters(t, 1);
    rocksdb_block_based_options_set_pin_top_level_index_and_filter(t, 1);
    rocksdb_block_based_options_set_format_version(t, FORMAT_VERSION);
    if (blocks) {
        /* whole keys for the writer's reads, prefixes for look-ups; the table owns the policy */
        rocksdb_block_based_options_set_filter_policy(
            t, rocksdb_filterpolicy_create_bloom_full(FILTER_BITS_A_KEY));
        rocksdb_options_set_prefix_extractor(
            o, rocksdb_slicetransform_create_fixed_prefix(KVD_GROUP_ID_BYTES));
        rocksdb_options_set_memtable_prefix_bloom_size_ratio(o, 0.02);
    }
    rocksdb_options_set_block_based_table_factory(o, t);
    rocksdb_block_based_options_destroy(t);
    rocksdb_options_set_compression(o, rocksdb_no_compression);
    rocksdb_options_set_write_buffer_size(o, blocks ? BLOCKS_BUFFER_BYTES : ROWS_BUFFER_BYTES);
    return o;
}

static void make_options(struct index_store *s, uint64_t cache_bytes,
                         rocksdb_compactionfilter_t *filter)
{
    s->filter = filter;
    s->cache = rocksdb_cache_create_lru(cache_bytes);
    s->db_options = make_db_options();
    for (int f = 0; f < FAMILY_COUNT; f++) {
        s->family_options[f] = make_family_options(s->cache, f == FAMILY_BLOCKS);
    }
    rocksdb_options_set_compaction_filter(s->family_options[FAMILY_BLOCKS], filter);
    s->read_group = rocksdb_readoptions_create();
    rocksdb_readoptions_set_prefix_same_as_start(s->read_group, 1);
    s->read_all = rocksdb_readoptions_create();
    rocksdb_readoptions_set_total_order_seek(s->read_all, 1);
    rocksdb_readoptions_set_fill_cache(s->read_all, 0);
    rocksdb_readoptions_set_readahead_size(s->read_all, WALK_READAHEAD_BYTES);
    s->write = rocksdb_writeoptions_create();
}

/* Whether a name may lie in the folder of an index whose making was cut off half way. */
static bool is_own_name(const char *name)
{
    static const char *const begins[] = {"LOCK", "LOG", "IDENTITY", "MANIFEST-", "OPTIONS-"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        if (strncmp(name, begins[i], strlen(begins[i])) == 0) {
            return true;
        }
    }
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
           (dot && (strcmp(dot, ".dbtmp") == 0 || strcmp(dot, ".log") == 0));
}

static void close_dir(DIR **dir)
{
    if (*dir) {
        (void)closedir(*dir);
    }
}

/* RocksDB would make itself at home in any folder: one with other people's files is refused. */
static int check_folder(const char *path, struct kvd_diag *diag)
{
    char current[4096];
    struct stat st;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        int err = -errno;
        return kvd_fail(diag, err, "index: cannot make the folder %s: %s", path, kvd_strerror(err));
    }
    (void)snprintf(current, sizeof(current), "%s/CURRENT", path);
    if (stat(current, &st) == 0) {
        return 0;
    }
    KVD_CLEANUP(close_dir) DIR *dir = opendir(path);
    if (!dir) {
        int err = -errno;
        return kvd_fail(diag, err, "index: cannot read the folder %s: %s", path, kvd_strerror(err));
    }
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (!is_own_name(e->d_name)) {
            return kvd_fail(diag, -KVD_E_WRONG_STORE,
                            "index: %s holds other files (%s) and no index; give a folder of its "
                            "own",
                            path, e->d_name);
        }
    }
    return 0;
}

/* Whether the folder takes writes, for the same reason: nothing that RocksDB writes must fail
 * before it is open. */
int index_store_probe(const char *path, struct kvd_diag *diag)
{
    char name[4096];
    static const uint8_t zeros[PROBE_BYTES];
    (void)snprintf(name, sizeof(name), "%s/probe.dbtmp", path);
    KVD_AUTOCLOSE int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    ssize_t n = fd < 0 ? -1 : write(fd, zeros, sizeof(zeros));
    int err = n < 0                        ? -errno
              : n < (ssize_t)sizeof(zeros) ? -ENOSPC
              : fdatasync(fd) != 0         ? -errno
                                           : 0;
    (void)unlink(name);
    return err ? kvd_fail(diag, err,
                          "index: %s can't be written: %s; check its free space and its rights",
                          path, kvd_strerror(err))
               : 0;
}

static int fail_open(const char *path, const char *error, struct kvd_diag *diag)
{
    /* in another process, and in this one */
    if (strstr(error, "/LOCK: Resource temporarily unavailable") ||
        strstr(error, "lock hold by current process")) {
        return kvd_fail(diag, -KVD_E_IN_USE,
                        "index: %s is in use by another process; stop that one, or give another "
                        "folder",
                        path);
    }
    if (strstr(error, "Column families not opened")) {
        return kvd_fail(diag, -KVD_E_NEWER, "index: %s was written by a newer version: %s", path,
                        error);
    }
    if (strncmp(error, "Corruption", 10) == 0) {
        return kvd_fail(diag, -KVD_E_CORRUPT,
                        "index: %s is damaged: %s; move the folder away and start again: the index "
                        "is then rebuilt from the segments",
                        path, error);
    }
    return kvd_fail(diag, -KVD_E_IO, "index: cannot open %s: %s", path, error);
}

int index_store_open(struct index_store *store, const char *path, uint64_t cache_bytes,
                     rocksdb_compactionfilter_t *filter, struct kvd_diag *diag)
{
    int err = check_folder(path, diag);
    err = err ? err : index_store_probe(path, diag);
    if (err) {
        rocksdb_compactionfilter_destroy(filter);
        return err;
    }
    char *error = NULL;
    make_options(store, cache_bytes, filter);
    store->db = rocksdb_open_column_families(
        store->db_options, path, FAMILY_COUNT, family_names,
        (const rocksdb_options_t *const *)store->family_options, store->families, &error);
    if (error) {
        err = fail_open(path, error, diag);
        rocksdb_free(error);
        store->db = NULL;
    }
    return err;
}

void index_store_close(struct index_store *s)
{
    if (s->db) {
        rocksdb_cancel_all_background_work(s->db, 1);
        for (int f = 0; f < FAMILY_COUNT; f++) {
            rocksdb_column_family_handle_destroy(s->families[f]);
        }
        rocksdb_close(s->db);
    }
    if (!s->db_options) {
        return;
    }
    rocksdb_writeoptions_destroy(s->write);
    rocksdb_readoptions_destroy(s->read_all);
    rocksdb_readoptions_destroy(s->read_group);
    for (int f = 0; f < FAMILY_COUNT; f++) {
        rocksdb_options_destroy(s->family_options[f]);
    }
    rocksdb_options_destroy(s->db_options);
    rocksdb_compactionfilter_destroy(s->filter);
    rocksdb_cache_destroy(s->cache);
    memset(s, 0, sizeof(*s));
}
