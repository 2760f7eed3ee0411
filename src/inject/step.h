/* step: points where a test may kill the tool, to show that its death there does not harm the target.
 *
 * Empty in a normal build. The tests' driver is compiled with PROBING_TEST_STEPS and defines pb_step. */
#pragma once

#ifdef PROBING_TEST_STEPS
void pb_step(const char *name);
#else
#define pb_step(name) ((void)0)
#endif
