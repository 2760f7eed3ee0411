/* control_group: memory, CPU time and pressure of the control group of this process, in both versions of
 * control groups. For the resident thread; without the heap. */
#pragma once

#include <stdint.h>

struct pb_control_group {
    char memory[512], cpu[512]; /* folders; "": there is none. Version 2: both are the same */
    int version;                /* of memory: 1 or 2; 0: no folder */
};

/* Of this process, at this moment. */
void pb_control_group_find(struct pb_control_group *ret);

/* Negative numbers: not known, or no limit. Pressure is that of the group, or of the machine where groups
 * have none. */
struct pb_control_group_state {
    double memory_mb, memory_limit_mb, cpu_limit, throttled_s;
    double cpu_pressure_s, memory_pressure_s, io_pressure_s;
    int64_t oom_kills;
};
void pb_control_group_read(const struct pb_control_group *group, struct pb_control_group_state *ret);
