/* agent_crash: writes to an address that is not there, in its entry point. */
void *pb_agent_start(const char *options);

void *pb_agent_start(const char *options)
{
    *(volatile int *)16 = 1;
    return (void *)options;
}
