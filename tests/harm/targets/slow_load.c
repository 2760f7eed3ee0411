/* slow_load: a library whose constructor takes a while. A thread that loads it holds the loader's lock that
 * long. */
#include <time.h>

__attribute__((constructor)) static void begin(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 120000000}, NULL);
}
