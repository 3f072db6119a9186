# Each dependency is the system's package if there is one, or a pinned release that is fetched and
# built statically. -DFETCHCONTENT_SOURCE_DIR_<NAME>=DIR builds from sources on disk, and
# -DTIDEGATE_FETCH=ON ignores the system's packages.
include(FetchContent)
option(TIDEGATE_FETCH "Build the dependencies instead of looking for them" OFF)
if(POLICY CMP0135)
  cmake_policy(SET CMP0135 NEW)  # unpacked files get the time of their unpacking
endif()

# CMake 3.28 has options for this in FetchContent_Declare: our warnings do not apply to the headers
# of the targets below `dir`, and with ONLY_WHEN_USED the targets are not part of `all`.
function(tidegate_fetched dir)
  if("ONLY_WHEN_USED" IN_LIST ARGN)
    set_property(DIRECTORY ${dir} PROPERTY EXCLUDE_FROM_ALL ON)
  endif()
  get_property(targets DIRECTORY ${dir} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(includes ${target} INTERFACE_INCLUDE_DIRECTORIES)
    if(includes)
      set_target_properties(${target} PROPERTIES
        INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${includes}")
    endif()
  endforeach()
  get_property(subdirectories DIRECTORY ${dir} PROPERTY SUBDIRECTORIES)
  foreach(subdirectory IN LISTS subdirectories)
    tidegate_fetched(${subdirectory} ${ARGN})
  endforeach()
endfunction()

# Looks for a package of the system. A macro, since it sets NAME_FOUND.
macro(tidegate_find name)
  if(NOT TIDEGATE_FETCH)
    find_package(${name} QUIET)
  endif()
endmacro()

# Downloads and unpacks a release, and configures it unless ARGN says otherwise. Says what, and which
# packages to install if that fails: FetchContent's own error follows. A macro, since it sets
# NAME_SOURCE_DIR.
macro(tidegate_fetch name library release packages url hash)
  message(STATUS "${library}: downloading and building ${release}. Where there is no network, "
    "install ${packages}, and configure again")
  FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${hash} ${ARGN})
  FetchContent_MakeAvailable(${name})
endmacro()

# Makes the target tidegate_NAME of a library of the system, if it is installed with its header.
function(tidegate_system_library name header)
  string(TOUPPER ${name} prefix)
  if(NOT TIDEGATE_FETCH)
    find_path(${prefix}_INCLUDE_DIR ${header})
    find_library(${prefix}_LIBRARY ${name})
  endif()
  if(${prefix}_INCLUDE_DIR AND ${prefix}_LIBRARY)
    add_library(tidegate_${name} INTERFACE)
    target_include_directories(tidegate_${name} SYSTEM INTERFACE
      $<BUILD_INTERFACE:${${prefix}_INCLUDE_DIR}>)
    target_link_libraries(tidegate_${name} INTERFACE ${${prefix}_LIBRARY})
  endif()
endfunction()

tidegate_find(absl)
if(NOT TIDEGATE_FETCH)
  find_path(XXHASH_INCLUDE_DIR xxhash.h)
endif()

if(NOT absl_FOUND)
  set(ABSL_PROPAGATE_CXX_STD ON)
  set(ABSL_ENABLE_INSTALL ${TIDEGATE_INSTALL})
  tidegate_fetch(absl "Abseil" 20220623.1
    "libabsl-dev of Debian and Ubuntu, abseil-cpp-devel of Fedora, abseil-cpp-dev of Alpine or abseil of Homebrew"
    https://github.com/abseil/abseil-cpp/archive/refs/tags/20220623.1.tar.gz
    91ac87d30cc6d79f9ab974c51874a704de9c2647c40f6932597329a282217ba8)
  if(TIDEGATE_INSTALL)  # Abseil is installed whole
    tidegate_fetched(${absl_SOURCE_DIR})
  else()
    tidegate_fetched(${absl_SOURCE_DIR} ONLY_WHEN_USED)
  endif()
endif()

if(NOT XXHASH_INCLUDE_DIR)
  tidegate_fetch(xxhash "xxHash" 0.8.1
    "libxxhash-dev of Debian and Ubuntu, xxhash-devel of Fedora, xxhash-dev of Alpine or xxhash of Homebrew"
    https://github.com/Cyan4973/xxHash/archive/refs/tags/v0.8.1.tar.gz
    3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c SOURCE_SUBDIR no-build-needed)
  set(XXHASH_INCLUDE_DIR ${xxhash_SOURCE_DIR})
endif()

find_package(Threads REQUIRED)
find_package(OpenSSL 1.1.1 QUIET)
if(NOT OPENSSL_FOUND)
  message(FATAL_ERROR "OpenSSL 1.1.1 or newer was not found with its headers, which the client for "
    "Redis is built with. Install libssl-dev of Debian and Ubuntu, openssl-devel of Fedora, "
    "openssl-dev of Alpine or openssl of Homebrew; OPENSSL_ROOT_DIR=/PATH names another one.")
endif()

# hiredis >= 0.14, for its formatter and its parser. Old releases have no CMake package, and the
# package of new releases expects the headers in other places than an installation.
tidegate_system_library(hiredis hiredis/hiredis.h)
if(NOT TARGET tidegate_hiredis)
  tidegate_fetch(hiredis "hiredis" 1.2.0
    "libhiredis-dev of Debian and Ubuntu, hiredis-devel of Fedora, hiredis-dev of Alpine or hiredis of Homebrew"
    https://github.com/redis/hiredis/archive/refs/tags/v1.2.0.tar.gz
    82ad632d31ee05da13b537c124f819eb88e18851d9cb0c30ae0552084811588c SOURCE_SUBDIR no-build-needed)
  set(hiredis_sources "")
  foreach(source alloc hiredis net read sds)
    if(EXISTS ${hiredis_SOURCE_DIR}/${source}.c)  # 0.14 has no alloc.c
      list(APPEND hiredis_sources ${hiredis_SOURCE_DIR}/${source}.c)
    endif()
  endforeach()
  file(GLOB hiredis_headers ${hiredis_SOURCE_DIR}/*.h)
  file(COPY ${hiredis_headers} DESTINATION ${CMAKE_CURRENT_BINARY_DIR}/hiredis/hiredis)
  enable_language(C)
  add_library(tidegate_hiredis STATIC ${hiredis_sources})
  set_target_properties(tidegate_hiredis PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(tidegate_hiredis SYSTEM PUBLIC
    $<BUILD_INTERFACE:${CMAKE_CURRENT_BINARY_DIR}/hiredis>)
endif()

# simdjson, which reads the JSON of logs, of requests to the server and of tests/vectors. Its DOM has
# been the same since 1.0.
if(TIDEGATE_HAS_TUNING OR TIDEGATE_HAS_SERVER OR TIDEGATE_BUILD_TESTS)
  tidegate_find(simdjson)  # no version: a release accepts only its own major version
  add_library(tidegate_simdjson INTERFACE)
  if(simdjson_FOUND AND simdjson_VERSION VERSION_GREATER_EQUAL 1.0)
    target_link_libraries(tidegate_simdjson INTERFACE simdjson::simdjson)
  else()
    tidegate_fetch(simdjson "simdjson" 3.0.1
      "libsimdjson-dev of Debian and Ubuntu, simdjson-devel of Fedora, simdjson-dev of Alpine or simdjson of Homebrew"
      https://github.com/simdjson/simdjson/archive/refs/tags/v3.0.1.tar.gz
      156b1bc5eb0561b2bd166b46d191fd3d95a3e709cc63761477d3b7aec2b6e9ed SOURCE_SUBDIR no-build-needed)
    # A single source file with the code for all processors.
    add_library(tidegate_simdjson_source STATIC ${simdjson_SOURCE_DIR}/singleheader/simdjson.cpp)
    set_target_properties(tidegate_simdjson_source PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(tidegate_simdjson_source SYSTEM PUBLIC
      ${simdjson_SOURCE_DIR}/singleheader)
    target_link_libraries(tidegate_simdjson INTERFACE tidegate_simdjson_source)
  endif()
endif()

# The protocols of the server of checks: HTTP/2, HTTP/1.1 and protobuf.
if(TIDEGATE_HAS_SERVER)
  include(ServerDependencies)
endif()

if(TIDEGATE_BUILD_TESTS)
  tidegate_find(GTest)
  if(NOT GTest_FOUND)
    set(INSTALL_GTEST OFF)
    tidegate_fetch(googletest "GoogleTest" 1.12.1
      "libgtest-dev and libgmock-dev of Debian and Ubuntu"
      https://github.com/google/googletest/archive/refs/tags/release-1.12.1.tar.gz
      81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2)
    tidegate_fetched(${googletest_SOURCE_DIR} ONLY_WHEN_USED)
  endif()
endif()

if(TIDEGATE_BUILD_BENCHMARKS)
  tidegate_find(benchmark)
  if(NOT benchmark_FOUND)
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    set(BENCHMARK_ENABLE_WERROR OFF)
    tidegate_fetch(benchmark "Google Benchmark" 1.7.1
      "libbenchmark-dev of Debian and Ubuntu"
      https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz
      6430e4092653380d9dc4ccb45a1e2dc9259d581f4866dc0759713126056bc1d7)
    tidegate_fetched(${benchmark_SOURCE_DIR} ONLY_WHEN_USED)
  endif()
endif()
