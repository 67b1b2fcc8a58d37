/* Merging of one piece of text: byte-pair encoding by rank. */
#ifndef ENGINE_MODEL_BPE_H
#define ENGINE_MODEL_BPE_H

#include "engine/model/tokenizer.h"
#include "engine/model/vocab.h"

struct bpe_symbol;
struct bpe_candidate;

/* Memory that is used again from piece to piece. Zero-initialise; bpe_scratch_fini frees. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    struct bpe_candidate *heap;
    uint64_t cap; /* symbols; the heap has room for three times as many */
    uint64_t n_heap;
};

void bpe_scratch_fini(struct bpe_scratch *s);

/* Appends the ids of one piece, fewer than 2^31 bytes. A byte that the vocabulary has no token for
 * is left out, as the original tokenizer does. -ENOMEM. */
int bpe_encode(const struct vocab *v, struct bpe_scratch *s, const char *piece, uint64_t bytes,
               struct kvd_tokens *tokens);

#endif
