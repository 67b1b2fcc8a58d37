/*
 * Byte-pair encoding. The piece is a linked list of symbols, one a byte at first. A heap holds the
 * merges that are possible between neighbours, best rank first, leftmost first among equals; a
 * merge joins two symbols and adds at most two new candidates. Candidates whose symbols have
 * changed since are dropped when they come up. So a piece of n bytes costs n log n, and a text of
 * one endless word can't hold the engine up.
 */
#include "engine/model/bpe.h"

#include <errno.h>
#include <stdlib.h>

enum { SCRATCH_MIN = 64, END = -1 };

struct bpe_symbol {
    uint32_t id; /* VOCAB_NONE: was merged into its left neighbour */
    int32_t prev;
    int32_t next;
};

struct bpe_candidate {
    uint32_t rank;
    int32_t at; /* left symbol */
    uint32_t left;
    uint32_t right; /* ids when it was found */
    uint32_t to;
};

void bpe_scratch_fini(struct bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    *s = (struct bpe_scratch){0};
}

static int scratch_reserve(struct bpe_scratch *s, uint64_t n)
{
    if (n <= s->cap) {
        return 0;
    }
    uint64_t cap = s->cap ? s->cap : SCRATCH_MIN;
    while (cap < n) {
        cap *= 2;
    }
    bpe_scratch_fini(s);
    s->symbols = malloc(cap * sizeof(*s->symbols));
    s->heap = malloc(3 * cap * sizeof(*s->heap));
    if (!s->symbols || !s->heap) {
        bpe_scratch_fini(s);
        return -ENOMEM;
    }
    s->cap = cap;
    return 0;
}

static bool before(const struct bpe_candidate *a, const struct bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct bpe_scratch *s, struct bpe_candidate c)
{
    uint64_t i = s->n_heap++;
    while (i > 0 && before(&c, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
}

static struct bpe_candidate heap_pop(struct bpe_scratch *s)
{
    struct bpe_candidate top = s->heap[0];
    struct bpe_candidate last = s->heap[--s->n_heap];
    uint64_t i = 0;
    for (;;) {
        uint64_t child = 2 * i + 1;
        if (child >= s->n_heap) {
            break;
        }
        if (child + 1 < s->n_heap && before(&s->heap[child + 1], &s->heap[child])) {
            child++;
        }
        if (!before(&s->heap[child], &last)) {
            break;
        }
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Adds the merge of a symbol with the one after it, if there is such a merge. */
static void consider(const struct vocab *v, struct bpe_scratch *s, int32_t at)
{
    if (at == END || s->symbols[at].next == END) {
        return;
    }
    uint32_t left = s->symbols[at].id;
    uint32_t right = s->symbols[s->symbols[at].next].id;
    const struct vocab_merge *m = vocab_merge_of(v, left, right);
    if (m) {
        heap_push(s, (struct bpe_candidate){
                         .rank = m->rank, .at = at, .left = left, .right = right, .to = m->to});
    }
}

static void merge(struct bpe_scratch *s, const struct bpe_candidate *c)
{
    struct bpe_symbol *left = &s->symbols[c->at];
    struct bpe_symbol *right = &s->symbols[left->next];
    left->id = c->to;
    left->next = right->next;
    right->id = VOCAB_NONE;
    if (left->next != END) {
        s->symbols[left->next].prev = c->at;
    }
}

static bool still_holds(const struct bpe_scratch *s, const struct bpe_candidate *c)
{
    const struct bpe_symbol *left = &s->symbols[c->at];
    return left->id == c->left && left->next != END && s->symbols[left->next].id == c->right;
}

/* Returns the number of symbols. */
static int32_t split_bytes(const struct vocab *v, struct bpe_scratch *s, const char *piece,
                           uint64_t bytes)
{
    int32_t n = 0;
    for (uint64_t i = 0; i < bytes; i++) {
        uint32_t id = v->of_byte[(uint8_t)piece[i]];
        if (id != VOCAB_NONE) {
            s->symbols[n] = (struct bpe_symbol){.id = id, .prev = n - 1, .next = n + 1};
            n++;
        }
    }
    if (n > 0) {
        s->symbols[n - 1].next = END;
    }
    return n;
}

int bpe_encode(const struct vocab *v, struct bpe_scratch *s, const char *piece, uint64_t bytes,
               struct kvd_tokens *tokens)
{
    int r = scratch_reserve(s, bytes);
    if (r < 0) {
        return r;
    }
    s->n_heap = 0;
    int32_t n = split_bytes(v, s, piece, bytes);
    for (int32_t i = 0; i < n; i++) {
        consider(v, s, i);
    }
    while (s->n_heap > 0) {
        struct bpe_candidate c = heap_pop(s);
        if (still_holds(s, &c)) {
            merge(s, &c);
            consider(v, s, s->symbols[c.at].prev);
            consider(v, s, c.at);
        }
    }
    for (int32_t i = n > 0 ? 0 : END; i != END; i = s->symbols[i].next) {
        r = kvd_tokens_push(tokens, s->symbols[i].id);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}
