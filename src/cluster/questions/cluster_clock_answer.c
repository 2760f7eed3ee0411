/* cluster_clock_answer: the node's end of an exchange of times; see cluster_clock.h. The service answers by
 * itself, since the start of a process would be the longest part of the way. */
#include "cluster/questions/cluster_clock.h"

#include "base/cleanup.h"
#include "base/time.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void pb_clock_say(struct pb_answer_writer *w, int64_t received_ns)
{
    char text[64];

    int n = snprintf(text, sizeof(text), "%" PRId64 " %" PRId64, received_ns, pb_wall_ns());
    pb_answer_bytes(w, false, text, (size_t)n);
}

bool pb_clock_answer(const char *line, size_t n, const char *node, int64_t received_ns,
                     struct pb_answer_writer *w)
{
    _cleanup_(pb_question_done) struct pb_question_in in = {0};

    if (pb_question_decode(line, n, &in, NULL) < 0 || strcmp(in.q.words[0], PB_CLOCK_WORD) != 0)
        return false;
    pb_answer_begin(w, node);
    pb_clock_say(w, received_ns);
    return pb_answer_end(w, 0, NULL) == 0;
}
