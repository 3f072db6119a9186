// TIDEGATE_LINUX: what only Linux has may be used: eventfd, membarrier, files without
// names, its word on the time-stamp counter. Not where TIDEGATE_PORTABLE is defined, so
// that what other systems get is built and tested on Linux too.
#ifndef TIDEGATE_SRC_BASE_PLATFORM_H_
#define TIDEGATE_SRC_BASE_PLATFORM_H_

#if defined(__linux__) && !defined(TIDEGATE_PORTABLE)
#define TIDEGATE_LINUX 1
#endif

#endif  // TIDEGATE_SRC_BASE_PLATFORM_H_
