/* slow: how slow the machine is that a test is built for. An emulated one (the preset aarch64-tests) has some
 * tenth of the speed of a machine, and less on a busy host: limits of time are multiplied by TEST_SLOWNESS,
 * and tests do less often there what they do a thousand times elsewhere. */
#pragma once

#ifndef TEST_SLOWNESS
#define TEST_SLOWNESS 1
#endif
