/* parts: the parts of the agent (core/part.h). The order counts:
 * - channels come first, because a connection that has become a channel takes no other requests;
 * - Python's objects are released after all that uses them (end). */
#include "agent/channel/channel.h"
#include "agent/core/part.h"
#include "agent/crash/crash.h"
#include "agent/crash/exit_record.h"
#include "agent/crash/hang.h"
#include "agent/module/module.h"
#include "agent/probes/probes.h"
#include "agent/python/halt.h"
#include "agent/python/job.h"
#include "agent/python/prompt.h"

const struct pb_part *const pb_parts[] = {
    &pb_part_channels,
    &pb_part_crash,
    &pb_part_hang,
    &pb_part_jobs,
    &pb_part_prompt,
    &pb_part_halt,
    &pb_part_python,
    &pb_part_module,
    &pb_part_probes,
    &pb_part_ending,
    NULL,
};
