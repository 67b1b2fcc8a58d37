/*
 * Who stored prompts that begin with these tokens: a bounded table from an unsalted digest of the
 * first block's tokens to the space and tenant that used it last. It only explains misses ("stored,
 * but for another tenant or space"); it never leads to a block. Forgetful: a newer row replaces an
 * older one of the same place. Threads: any.
 */
#ifndef CACHESVC_CORE_OWNERS_H
#define CACHESVC_CORE_OWNERS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/keys/keys.h"

struct kvd_owners;

int kvd_owners_create(struct kvd_owners **ret);
void kvd_owners_destroy(struct kvd_owners **owners);
void kvd_owners_note(struct kvd_owners *owners, const uint32_t *tokens, uint32_t n,
                     const struct kvd_digest *space, const struct kvd_digest *tenant);
/* Whether somebody else stored a prompt that begins with these tokens. */
bool kvd_owners_other(struct kvd_owners *owners, const uint32_t *tokens, uint32_t n,
                      const struct kvd_digest *space, const struct kvd_digest *tenant);

#endif
