/* A prompt's blocks: asked for, loaded, put, asked for again. hello SOCKET prints both hits. */
#include <kvdepot/kvdepot.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 4, BLOCK_TOKENS = 64 };

static const struct kvd_space_config config = {.size = sizeof(config),
                                               .model = "hello",
                                               .dtype = KVD_DTYPE_F16,
                                               .layout = KVD_LAYOUT_HEADS,
                                               .layers = 2,
                                               .kv_heads = 2,
                                               .head_dim = 64,
                                               .block_tokens = BLOCK_TOKENS,
                                               .rope_base = 10000,
                                               .rope_scale = 1,
                                               .numerics = "hello-1",
                                               .ranks = 1};

/* What an engine does with each prompt; kv[i] is the memory of block i's keys and values. */
static int serve(struct kvd_space *space, const struct kvd_prompt *prompt, void *const *kv)
{
    struct kvd_match_result found;
    uint32_t loaded = 0;
    int err = kvd_match(space, prompt, &found);
    if (!err && found.hit_blocks > 0) {
        err = kvd_load(found.lease, 0, found.hit_blocks, kv, &loaded);
        kvd_lease_release(&found.lease);
    }
    if (!err && loaded < BLOCKS) { /* here it computes what was not loaded */
        err = kvd_put(space, prompt, loaded, BLOCKS - loaded, (const void **)kv + loaded, NULL);
    }
    printf("%u of %d blocks were stored\n", loaded, BLOCKS);
    return err;
}

int main(int argc, char **argv)
{
    static char memory[BLOCKS][1 << 20];
    void *const kv[BLOCKS] = {memory[0], memory[1], memory[2], memory[3]};
    uint32_t tokens[BLOCKS * BLOCK_TOKENS + 1] = {1, 2, 3}; /* one more: the last is computed */
    struct kvd_prompt prompt = {
        .scenario = "chat", .tokens = tokens, .n_tokens = BLOCKS * BLOCK_TOKENS + 1};
    struct kvd_client_options options;
    struct kvd_client *client = NULL;
    struct kvd_space *space;
    kvd_client_options_init(&options);
    options.socket_path = argc > 1 ? argv[1] : "/run/kvdepot/kvdepotd.sock";
    options.match_ms = 2000; /* patient; an engine would rather compute: the default is 20 */
    int err = kvd_client_open(&options, &client);
    err = err ? err : kvd_space_open(client, &config, &space);
    err = err ? err : serve(space, &prompt, kv);
    err = err ? err : serve(space, &prompt, kv);
    if (err) {
        fprintf(stderr, "kvdepot: %s: %s\n", kvd_status_text(err), kvd_client_message(client));
    }
    kvd_client_close(&client);
    return err ? 1 : 0;
}
