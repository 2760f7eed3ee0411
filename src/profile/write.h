/* write: a profile as a file, in the formats of other tools.
 *
 * Each function writes to an open stream and returns 0 or a negative errno; errors of stdio show when the
 * caller closes the stream (pb_write_file does). */
#pragma once

#include <stdio.h>

#include "profile/flame.h"
#include "profile/profile.h"
#include "profile/timeline.h"

struct pb_err;

enum pb_write_format {
    PB_WRITE_SVG,
    PB_WRITE_HTML,
    PB_WRITE_LINES,
    PB_WRITE_FOLDED,
    PB_WRITE_SPEEDSCOPE,
    PB_WRITE_GECKO,
    PB_WRITE_PPROF,
    PB_WRITE_PERFETTO,
};

/* By the ending of a file name: .svg .lines.html .html .folded .txt .json .gecko.json .pb.gz .perfetto
 * .pftrace. -EINVAL: none of them (err lists them). */
int pb_write_format_of(const char *path, enum pb_write_format *ret, struct pb_err *err);

/* Writes the profile in the format of the ending. The file is replaced whole or not at all: written beside
 * and then renamed, unless path is not a regular file (/dev/stdout). */
int pb_write_file(const char *path, const struct pb_profile *p, const struct pb_flame_options *options,
                  struct pb_err *err);

/* Several profiles, of which the formats with a time axis show all on one clock; the others show p. */
int pb_write_files(const char *path, const struct pb_profile *p, const struct pb_profile *const *all,
                   size_t n, const struct pb_flame_options *options, struct pb_err *err);

/* The difference of two: .svg, .html, or .folded with two counts a line. */
int pb_write_diff_file(const char *path, const struct pb_profile *before, const struct pb_profile *after,
                       const struct pb_flame_options *options, struct pb_err *err);

/* "a;b;c N" a line, outermost first; two: "a;b;c N M". */
int pb_write_folded(FILE *out, const struct pb_flame *f, bool two);
/* Reads that back: a file in parentheses is split from its function again. -EBADMSG with the number of the
 * line that is wrong. */
int pb_read_folded(FILE *in, struct pb_profile *p, struct pb_err *err);

int pb_write_pprof(FILE *out, const struct pb_profile *p);

/* Formats with a time axis are written from a timeline, which may hold several profiles and other rows. */
int pb_write_speedscope(FILE *out, const struct pb_timeline *t, bool lines);
int pb_write_perfetto(FILE *out, const struct pb_timeline *t);
int pb_write_gecko(FILE *out, const struct pb_timeline *t);

/* A heat map of source lines, as a page. texts NULL: with their numbers alone. */
int pb_write_lines(FILE *out, const struct pb_profile *p, const struct pb_line_texts *texts);

/* A text for HTML or SVG; max_chars 0: all of it. */
void pb_write_escaped(FILE *out, const char *s, size_t max_chars);

/* after NULL: one profile. html: as a page, with the hottest functions below. */
int pb_write_flame(FILE *out, const struct pb_flame *f, const struct pb_profile *p,
                   const struct pb_profile *after, bool html);
