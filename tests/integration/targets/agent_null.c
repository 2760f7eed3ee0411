/* agent_null: loads, and its entry point returns NULL. */
#include <stddef.h>
void *pb_agent_start(const char *options);

void *pb_agent_start(const char *options)
{
    (void)options;
    return NULL;
}
