/* agent_missing: does not load: it needs a symbol that does not exist. */
void a_symbol_that_nobody_has(void);
void *pb_agent_start(const char *options);

void *pb_agent_start(const char *options)
{
    a_symbol_that_nobody_has();
    return (void *)options;
}
