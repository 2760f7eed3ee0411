/* keep_clocks: the clocks of a cluster's nodes, measured again and again while a command runs; see job.h. */
#include "base/process.h"
#include "base/time.h"
#include "cli/cluster/job.h"
#include "cluster/questions/clock.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The first measurement comes soon, since the stored one may be old; then the interval grows: a drift of 10
 * ppm is 0.1 ms in 10 s. */
enum { FIRST_S = 1, EVERY_S = 10 };

pid_t pb_clocks_follow(const struct pb_cluster *c)
{
    struct pb_cluster own;
    struct pb_err err = {0};
    struct pb_links *links = NULL;
    unsigned wait_s = FIRST_S;
    pid_t parent = getpid(), child = pb_process_fork(SIGKILL);

    if (child != 0)
        return child < 0 ? 0 : child;
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    while (getppid() == parent) {
        pb_sleep_ns(wait_s * PB_NS_PER_S);
        wait_s = 2 * wait_s < EVERY_S ? 2 * wait_s : EVERY_S;
        /* Read the file again each time: a refresh may have changed it. Links belong to its nodes. */
        if (pb_cluster_load(c->name, &own, &err) < 0)
            break;
        if (pb_links_new(&own, &links) == 0)
            pb_cluster_renew_clocks(&own, links, &err);
        pb_links_free(links);
        links = NULL;
        pb_cluster_done(&own);
    }
    _exit(0);
}

void pb_clocks_end(pid_t child)
{
    if (child <= 0)
        return;
    kill(child, SIGKILL);
    pb_process_wait(child);
}
