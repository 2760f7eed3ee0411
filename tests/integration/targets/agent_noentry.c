/* agent_noentry: loads, and has no entry point. */
int something_else(void);

int something_else(void)
{
    return 1;
}
