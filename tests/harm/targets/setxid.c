/* setxid: changes its group, to what it is, again and again. The C library has every thread of the process
 * take part in that and waits for all of them, with a lock held: a thread that cannot answer hangs the
 * program. */
#include "kit.h"

static volatile bool stop;

static void *nap(void *unused)
{
    while (!stop)
        usleep(500);
    return NULL;
}

int main(void)
{
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, nap, NULL))
            return 1;
    while (kit_going()) {
        if (setgid(getgid()))
            kit_complain("setgid failed");
        usleep(500);
    }
    stop = true;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
