/* step: where a test may end the tool, to show that its death there does the target no harm.
 *
 * Nothing in a normal build. The tests' driver is compiled with PROBING_TEST_STEPS and defines pb_step. */
#pragma once

#ifdef PROBING_TEST_STEPS
void pb_step(const char *name);
#else
#define pb_step(name) ((void)0)
#endif
