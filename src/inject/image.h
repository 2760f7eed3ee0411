/* image: identifies the program that a process runs, to notice an exec.
 *
 * A plan made from outside (addresses, descriptors) is valid for one image only: on the next it would
 * overwrite unrelated memory. So each plan carries its image, the image is compared while a thread is held,
 * and memory is written through a descriptor bound to that image: after an exec nothing is written. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_image {
    int mem;                 /* /proc/PID/mem, which stays with the memory that it was opened on */
    uint64_t at;             /* the address of the image's random bytes (AT_RANDOM), */
    unsigned char token[16]; /* and their value, which differs after each exec */
};

/* -ESTALE: the process is in the middle of an exec; -ENOEXEC: it is not a 64-bit process. */
int pb_image_open(pid_t pid, struct pb_image *ret);
void pb_image_done(struct pb_image *image);

/* Waits until no other tool has this image locked: two simultaneous injections would each find no agent and
 * load one. The lock ends with the descriptor. -ETIMEDOUT. */
int pb_image_lock(const struct pb_image *image, uint64_t deadline);

/* 0: the process still runs this image; -ESTALE: another one; -ESRCH and others: not known. */
int pb_image_check(const struct pb_image *image, pid_t pid);

/* Writes into the image, also into read-only pages, as a debugger does. -ESTALE: the image is gone. */
int pb_image_write(const struct pb_image *image, uint64_t addr, const void *buf, size_t len);

/* True after vfork, before exec: the process still runs in its parent's memory. */
bool pb_image_is_borrowed(pid_t pid, pid_t parent);
