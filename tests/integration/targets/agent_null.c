/* agent_null: loads, and says no. */
#include <stddef.h>
void *pb_agent_start(const char *options);

void *pb_agent_start(const char *options)
{
    (void)options;
    return NULL;
}
