/* image: the program that a process runs, told from the one it runs after an exec.
 *
 * What is planned from outside (addresses, descriptors) holds for one image only: used on the next one it
 * would overwrite a stranger's memory. So each plan carries its image, the image is compared while a thread
 * is held, and memory is written through a descriptor that is bound to that image: once it is gone, nothing
 * is written anywhere. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_image {
    int mem;                 /* /proc/PID/mem, which stays with the memory that it was opened on */
    uint64_t at;             /* where the kernel put the image's random bytes (AT_RANDOM), */
    unsigned char token[16]; /* and what they are: others for each exec */
};

/* -ESTALE: the process is in the middle of an exec; -ENOEXEC: it is none of 64 bits. */
int pb_image_open(pid_t pid, struct pb_image *ret);
void pb_image_done(struct pb_image *image);

/* Waits until no other tool has this image locked: two injections at once would each find no agent, and each
 * load one. The lock goes with the descriptor. -ETIMEDOUT. */
int pb_image_lock(const struct pb_image *image, uint64_t deadline);

/* 0: the process runs this image still; -ESTALE: another one; -ESRCH and others: it cannot be told. */
int pb_image_check(const struct pb_image *image, pid_t pid);

/* Writes into the image, where it is read-only too, as a debugger does. -ESTALE: it is gone. */
int pb_image_write(const struct pb_image *image, uint64_t addr, const void *buf, size_t len);

/* True when the process runs in its parent's memory: vforked, and its own program not begun. */
bool pb_image_is_borrowed(pid_t pid, pid_t parent);
