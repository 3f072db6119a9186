# Every dependency: what the system has first, else a pinned release that is
# fetched and built statically. -DFETCHCONTENT_SOURCE_DIR_<NAME>=DIR builds from
# sources that lie on disk, -DTIDEGATE_FETCH=ON ignores the system's packages.
include(FetchContent)
option(TIDEGATE_FETCH "Build the dependencies instead of looking for them" OFF)

# The static libraries of some systems are not position-independent, so the
# extension links what find_package offers only if it is shared.
if(NOT TIDEGATE_FETCH)
  find_package(absl QUIET)
  find_path(XXHASH_INCLUDE_DIR xxhash.h)
endif()

if(NOT absl_FOUND)
  message(STATUS "Abseil: building 20220623.1")
  set(ABSL_PROPAGATE_CXX_STD ON)
  set(ABSL_ENABLE_INSTALL ON)
  FetchContent_Declare(absl
    URL https://github.com/abseil/abseil-cpp/archive/refs/tags/20220623.1.tar.gz
    URL_HASH SHA256=91ac87d30cc6d79f9ab974c51874a704de9c2647c40f6932597329a282217ba8
    SYSTEM)
  FetchContent_MakeAvailable(absl)
endif()

if(NOT XXHASH_INCLUDE_DIR)
  message(STATUS "xxHash: taking 0.8.1")
  FetchContent_Declare(xxhash
    URL https://github.com/Cyan4973/xxHash/archive/refs/tags/v0.8.1.tar.gz
    URL_HASH SHA256=3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c
    SOURCE_SUBDIR no-build-needed)
  FetchContent_MakeAvailable(xxhash)
  set(XXHASH_INCLUDE_DIR ${xxhash_SOURCE_DIR} CACHE PATH "" FORCE)
endif()

find_package(Threads REQUIRED)
find_package(OpenSSL 1.1.1 REQUIRED)

# hiredis >= 0.14. Old releases bring no CMake package.
if(NOT TIDEGATE_FETCH)
  find_path(HIREDIS_INCLUDE_DIR hiredis/hiredis.h)
  find_library(HIREDIS_LIBRARY hiredis)
endif()
add_library(tidegate_hiredis INTERFACE)
if(HIREDIS_INCLUDE_DIR AND HIREDIS_LIBRARY)
  target_include_directories(tidegate_hiredis SYSTEM INTERFACE ${HIREDIS_INCLUDE_DIR})
  target_link_libraries(tidegate_hiredis INTERFACE ${HIREDIS_LIBRARY})
else()
  message(FATAL_ERROR "hiredis 0.14 or newer was not found (Debian: libhiredis-dev)")
endif()

if(TIDEGATE_BUILD_TESTS)
  if(NOT TIDEGATE_FETCH)
    find_package(GTest QUIET)
  endif()
  if(NOT GTest_FOUND)
    set(INSTALL_GTEST OFF)
    FetchContent_Declare(googletest
      URL https://github.com/google/googletest/archive/refs/tags/release-1.12.1.tar.gz
      URL_HASH SHA256=81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2)
    FetchContent_MakeAvailable(googletest)
  endif()
endif()

if(TIDEGATE_BUILD_BENCHMARKS)
  if(NOT TIDEGATE_FETCH)
    find_package(benchmark QUIET)
  endif()
  if(NOT benchmark_FOUND)
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    FetchContent_Declare(benchmark
      URL https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz
      URL_HASH SHA256=6430e4092653380d9dc4ccb45a1e2dc9259d581f4866dc0759713126056bc1d7)
    FetchContent_MakeAvailable(benchmark)
  endif()
endif()
