/* place: where on this machine an arena should live. */
#include <sys/statvfs.h>
#include <unistd.h>

#include "table/arena.h"

#define SHM_MIN_FREE (UINT64_C(1) << 30) /* containers have 64 MB there, which data loaders need */
#define RUN_MIN_FREE (UINT64_C(4) << 20)
#define SHM_PART     32 /* the rows take as much memory again */
#define RUN_PART     2

static uint64_t free_bytes(const char *dir)
{
    struct statvfs fs;

    if (!dir || access(dir, W_OK | X_OK) < 0 || statvfs(dir, &fs) < 0 || fs.f_flag & ST_RDONLY)
        return 0;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

uint64_t pb_arena_room(int dir_fd, enum pb_copy_place_kind kind, uint64_t held)
{
    struct statvfs fs;

    if (kind == PB_PLACE_MEMFD || fstatvfs(dir_fd, &fs) < 0)
        return UINT64_MAX;
    return ((uint64_t)fs.f_bavail * fs.f_frsize + held) / (kind == PB_PLACE_SHM ? SHM_PART : RUN_PART);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void pb_arena_place(const char *shm_dir, const char *run_dir, uint64_t want, struct pb_copy_place *ret)
{
    uint64_t shm = free_bytes(shm_dir ? shm_dir : "/dev/shm"), run = free_bytes(run_dir);

    if (shm >= SHM_MIN_FREE)
        *ret = (struct pb_copy_place){.kind = PB_PLACE_SHM, .bound = least(want, shm / SHM_PART)};
    else if (run >= RUN_MIN_FREE)
        *ret = (struct pb_copy_place){.kind = PB_PLACE_RUN_DIR, .bound = least(want, run / RUN_PART)};
    else
        *ret = (struct pb_copy_place){.kind = PB_PLACE_MEMFD, .bound = want};
}
