/* system_calls: numbers of system calls that the headers of glibc 2.17 do not have. */
#pragma once

#include <sys/syscall.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
#ifndef SYS_io_pgetevents
#ifdef __x86_64__
#define SYS_io_pgetevents 333
#else
#define SYS_io_pgetevents 292
#endif
#endif
#ifndef SYS_io_uring_enter
#define SYS_io_uring_enter 426
#endif
#ifndef SYS_mlock2
#ifdef __x86_64__
#define SYS_mlock2 325
#else
#define SYS_mlock2 284
#endif
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_rseq
#ifdef __x86_64__
#define SYS_rseq 334
#else
#define SYS_rseq 293
#endif
#endif
