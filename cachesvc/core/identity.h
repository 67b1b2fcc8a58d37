/*
 * IDENTITY in every folder of a store (proto/format/identity.h): written by rename and fsynced.
 *
 * A folder whose IDENTITY is another store's is refused. An flock on LOCK keeps a second daemon
 * out.
 */
#ifndef CACHESVC_CORE_IDENTITY_H
#define CACHESVC_CORE_IDENTITY_H

#include <stdint.h>

#include "cachesvc/io/io.h"
#include "proto/base/error.h"
#include "proto/format/identity.h"

/* Makes the folder (with parents) if it is missing, locks it, and reads or draws the identity; boot
 * is raised by one and durable on return, as is the name of the folder `inner` in it, which is made
 * too. *ret_lock_fd holds the lock until it is closed. -KVD_E_IN_USE, -KVD_E_CORRUPT, -KVD_E_NEWER,
 * errno; diag names the folder and what to do. */
int kvd_identity_open(struct kvd_io *io, const char *folder, const char *inner,
                      struct kvd_diag *diag, struct kvd_identity *ret, int *ret_lock_fd);

/* Raises the boot number, durably, in a folder that is open already. */
int kvd_identity_raise(struct kvd_io *io, const char *folder, uint64_t boot, struct kvd_diag *diag,
                       struct kvd_identity *identity);

/* As kvd_identity_open, for another folder of the same store: marks an unmarked empty one;
 * -KVD_E_WRONG_STORE where it belongs to another. */
int kvd_identity_claim(struct kvd_io *io, const char *folder, const struct kvd_identity *identity,
                       struct kvd_diag *diag, int *ret_lock_fd);

#endif
