/* ending: records that the program ends by itself, with which status; see ending.c. */
#pragma once

struct pb_part;
extern const struct pb_part pb_part_ending;
