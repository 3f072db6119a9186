// TIDEGATE_LINUX is defined where features of Linux may be used: eventfd, membarrier, unnamed
// files, and the kernel's check of the time-stamp counter. TIDEGATE_PORTABLE keeps it undefined, so
// that the code for other systems is built and tested on Linux too.
#ifndef TIDEGATE_SRC_BASE_PLATFORM_H_
#define TIDEGATE_SRC_BASE_PLATFORM_H_

#if defined(__linux__) && !defined(TIDEGATE_PORTABLE)
#define TIDEGATE_LINUX 1
#endif

#endif  // TIDEGATE_SRC_BASE_PLATFORM_H_
