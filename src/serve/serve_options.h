/* serve_options: the options of probing-serve. `probing serve` has the same and passes them on. */
#pragma once

#include "base/options.h"

enum { PB_SERVE_OPTIONS = 17 };

extern const struct pb_option pb_serve_options[PB_SERVE_OPTIONS + 1]; /* ends with a NULL name */
