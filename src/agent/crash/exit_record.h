/* exit_record: records that the program ends by itself, with which status; see exit_record.c. */
#pragma once

struct pb_part;
extern const struct pb_part pb_part_ending;
