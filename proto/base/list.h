/* Intrusive doubly linked list. A head is a link that points to itself; a link outside any list
 * points to itself too. */
#ifndef PROTO_BASE_LIST_H
#define PROTO_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct kvd_list {
    struct kvd_list *prev;
    struct kvd_list *next;
};

#define KVD_CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void kvd_list_init(struct kvd_list *l)
{
    l->prev = l;
    l->next = l;
}

static inline bool kvd_list_empty(const struct kvd_list *l)
{
    return l->next == l;
}

static inline void kvd_list_insert(struct kvd_list *prev, struct kvd_list *link)
{
    link->prev = prev;
    link->next = prev->next;
    prev->next->prev = link;
    prev->next = link;
}

static inline void kvd_list_push_front(struct kvd_list *head, struct kvd_list *link)
{
    kvd_list_insert(head, link);
}

static inline void kvd_list_push_back(struct kvd_list *head, struct kvd_list *link)
{
    kvd_list_insert(head->prev, link);
}

/* Takes a link out; the link is a list of its own afterwards, so removing twice does no harm. */
static inline void kvd_list_remove(struct kvd_list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    kvd_list_init(link);
}

/* First link of a list, taken out, or NULL. */
static inline struct kvd_list *kvd_list_pop_front(struct kvd_list *head)
{
    if (kvd_list_empty(head)) {
        return NULL;
    }
    struct kvd_list *link = head->next;
    kvd_list_remove(link);
    return link;
}

#define kvd_list_foreach(it, head)                                                                 \
    for (struct kvd_list *it = (head)->next; it != (head); it = it->next)

/* The body may remove `it`. */
#define kvd_list_foreach_safe(it, head)                                                            \
    for (struct kvd_list *it = (head)->next, *it##_next_ = it->next; it != (head);                 \
         it = it##_next_, it##_next_ = it->next)

#endif
