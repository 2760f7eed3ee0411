/* agent_slow: takes a second and a half to load. */
#include <stdint.h>
#include <unistd.h>
void *pb_agent_start(const char *options);
static uint64_t status = 7;

__attribute__((constructor)) static void slowly(void)
{
    for (int i = 0; i < 150; i++)
        usleep(10000);
}

void *pb_agent_start(const char *options)
{
    (void)options;
    return &status;
}
