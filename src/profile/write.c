/* write: the file format by the file name's ending; see write.h. */
#include "profile/write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/replace.h"

static const struct {
    const char *ending;
    enum pb_write_format format;
} endings[] = {
    {".gecko.json", PB_WRITE_GECKO}, /* before .json, which it ends in */
    {".lines.html", PB_WRITE_LINES}, /* before .html */
    {".svg", PB_WRITE_SVG},          {".html", PB_WRITE_HTML},        {".folded", PB_WRITE_FOLDED},
    {".json", PB_WRITE_SPEEDSCOPE},  {".pb.gz", PB_WRITE_PPROF},      {".perfetto", PB_WRITE_PERFETTO},
    {".txt", PB_WRITE_FOLDED},       {".pftrace", PB_WRITE_PERFETTO},
};

int pb_write_format_of(const char *path, enum pb_write_format *ret, struct pb_err *err)
{
    size_t len = strlen(path);

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        size_t n = strlen(endings[i].ending);
        if (len > n && strcmp(path + len - n, endings[i].ending) == 0) {
            *ret = endings[i].format;
            return 0;
        }
    }
    return pb_fail(err, -EINVAL,
                   "%s: unknown file ending (use .svg, .html, .lines.html for source lines, .folded, .json "
                   "for speedscope, .gecko.json for "
                   "the Firefox Profiler, .pb.gz for pprof, .perfetto)",
                   path);
}

/* What is being written, and where. */
struct write_job {
    enum pb_write_format format;
    const struct pb_profile *p, *after;
    const struct pb_profile *const *all; /* for a time axis */
    size_t nall;
    const struct pb_flame_options *options;
};

static int write_tree(FILE *out, const struct write_job *job)
{
    _cleanup_(pb_flame_done) struct pb_flame flame = {0};

    int r = pb_flame_init(&flame, job->options);
    if (r == 0)
        r = pb_flame_add(&flame, job->p, 0);
    if (r == 0 && job->after)
        r = pb_flame_add(&flame, job->after, 1);
    if (r == 0)
        r = pb_flame_finish(&flame);
    if (r < 0)
        return r;
    return job->format == PB_WRITE_FOLDED
               ? pb_write_folded(out, &flame, job->after)
               : pb_write_flame(out, &flame, job->p, job->after, job->format == PB_WRITE_HTML);
}

static int write_rows(FILE *out, const struct pb_timeline *t, const struct write_job *job)
{
    switch (job->format) {
    case PB_WRITE_PERFETTO:
        return pb_write_perfetto(out, t);
    case PB_WRITE_GECKO:
        return pb_write_gecko(out, t);
    default:
        return pb_write_speedscope(out, t, job->options->lines);
    }
}

static int write_timeline(FILE *out, const struct write_job *job)
{
    struct pb_timeline *t;

    int r = pb_timeline_new(&t);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < job->nall; i++)
        r = pb_timeline_add_profile(t, job->all[i]);
    if (r == 0)
        r = pb_timeline_finish(t);
    if (r == 0)
        r = write_rows(out, t, job);
    pb_timeline_free(t);
    return r;
}

static int write_stream(FILE *out, const struct write_job *job)
{
    switch (job->format) {
    case PB_WRITE_SVG:
    case PB_WRITE_HTML:
    case PB_WRITE_FOLDED:
        return write_tree(out, job);
    case PB_WRITE_LINES:
        return pb_write_lines(out, job->p, job->options->texts);
    case PB_WRITE_PPROF:
        return pb_write_pprof(out, job->p);
    case PB_WRITE_SPEEDSCOPE:
    case PB_WRITE_GECKO:
    case PB_WRITE_PERFETTO:
        return write_timeline(out, job);
    }
    return -EINVAL;
}

static int write_path(const char *path, const struct write_job *job, struct pb_err *err)
{
    struct pb_replace file;

    int r = pb_replace_begin(path, &file);
    if (r == 0)
        r = pb_replace_end(&file, write_stream(file.out, job));
    return r < 0 ? pb_fail(err, r, "%s cannot be written: %s%s", path, strerror(-r),
                           r == -EMFILE ? " (raise the limit of this shell: ulimit -n 4096)" : "")
                 : 0;
}

int pb_write_files(const char *path, const struct pb_profile *p, const struct pb_profile *const *all,
                   size_t n, const struct pb_flame_options *options, struct pb_err *err)
{
    struct write_job job = {.p = p, .all = all, .nall = n, .options = options};

    int r = pb_write_format_of(path, &job.format, err);
    return r < 0 ? r : write_path(path, &job, err);
}

int pb_write_file(const char *path, const struct pb_profile *p, const struct pb_flame_options *options,
                  struct pb_err *err)
{
    return pb_write_files(path, p, &p, 1, options, err);
}

int pb_write_diff_file(const char *path, const struct pb_profile *before, const struct pb_profile *after,
                       const struct pb_flame_options *options, struct pb_err *err)
{
    struct write_job job = {.p = before, .after = after, .options = options};

    int r = pb_write_format_of(path, &job.format, err);
    if (r < 0)
        return r;
    if (job.format != PB_WRITE_SVG && job.format != PB_WRITE_HTML && job.format != PB_WRITE_FOLDED)
        return pb_fail(err, -EINVAL, "%s: a difference is written as .svg, .html or .folded", path);
    return write_path(path, &job, err);
}
