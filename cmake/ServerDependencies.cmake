# The dependencies of the server of checks; the others are in Dependencies.cmake.

find_package(ZLIB QUIET)
if(NOT ZLIB_FOUND)
  message(FATAL_ERROR "zlib was not found with its headers, with which the server of checks unpacks "
    "messages. Install zlib1g-dev of Debian and Ubuntu, zlib-devel of Fedora or zlib-dev of Alpine; "
    "ZLIB_ROOT=/PATH names another one.")
endif()

# nghttp2 >= 1.50, for fields of headers that begin or end with spaces (RFC 9113).
tidegate_system_library(nghttp2 nghttp2/nghttp2.h)
if(NOT TARGET tidegate_nghttp2)
  tidegate_fetch(nghttp2 "nghttp2" 1.52.0
    "libnghttp2-dev of Debian and Ubuntu, libnghttp2-devel of Fedora or nghttp2-dev of Alpine"
    https://github.com/nghttp2/nghttp2/archive/refs/tags/v1.52.0.tar.gz
    6b71561a9950b4a90fa36aa3160763f1437f3730d7a12434e416aa3f4ab145e0 SOURCE_SUBDIR no-build-needed)
  enable_language(C)
  set(PACKAGE_VERSION 1.52.0)
  set(PACKAGE_VERSION_NUM 0x013400)
  configure_file(${nghttp2_SOURCE_DIR}/lib/includes/nghttp2/nghttp2ver.h.in
    ${CMAKE_CURRENT_BINARY_DIR}/nghttp2/nghttp2/nghttp2ver.h @ONLY)
  file(GLOB nghttp2_sources ${nghttp2_SOURCE_DIR}/lib/*.c)
  add_library(tidegate_nghttp2 STATIC ${nghttp2_sources})
  set_target_properties(tidegate_nghttp2 PROPERTIES POSITION_INDEPENDENT_CODE ON)
  tidegate_hardened(tidegate_nghttp2)
  target_compile_definitions(tidegate_nghttp2
    PRIVATE HAVE_ARPA_INET_H HAVE_NETINET_IN_H PUBLIC NGHTTP2_STATICLIB)
  target_include_directories(tidegate_nghttp2 SYSTEM PUBLIC
    ${nghttp2_SOURCE_DIR}/lib/includes ${CMAKE_CURRENT_BINARY_DIR}/nghttp2)
endif()

# llhttp is a library of Debian from 13 on; Debian 12 has its sources, in node-llhttp.
tidegate_system_library(llhttp llhttp.h)
if(NOT TARGET tidegate_llhttp)
  if(NOT TIDEGATE_FETCH)
    find_path(LLHTTP_SOURCES llhttp.c PATHS /usr/share/llhttp NO_DEFAULT_PATH)
  endif()
  if(LLHTTP_SOURCES)
    set(llhttp_headers /usr/share/include/llhttp)
  else()
    tidegate_fetch(llhttp "llhttp" 9.2.1
      "libllhttp-dev of Debian 13 and Ubuntu, node-llhttp of Debian 12, llhttp-devel of Fedora or llhttp-dev of Alpine"
      https://github.com/nodejs/llhttp/archive/refs/tags/release/v9.2.1.tar.gz
      3c163891446e529604b590f9ad097b2e98b5ef7e4d3ddcf1cf98b62ca668f23e SOURCE_SUBDIR no-build-needed)
    set(LLHTTP_SOURCES ${llhttp_SOURCE_DIR}/src)
    set(llhttp_headers ${llhttp_SOURCE_DIR}/include)
  endif()
  enable_language(C)
  add_library(tidegate_llhttp STATIC
    ${LLHTTP_SOURCES}/api.c ${LLHTTP_SOURCES}/http.c ${LLHTTP_SOURCES}/llhttp.c)
  set_target_properties(tidegate_llhttp PROPERTIES POSITION_INDEPENDENT_CODE ON)
  tidegate_hardened(tidegate_llhttp)
  # Before release 9 the macro turned off what the parser accepts beyond HTTP.
  target_compile_definitions(tidegate_llhttp PRIVATE LLHTTP_STRICT_MODE=1)
  target_include_directories(tidegate_llhttp SYSTEM PUBLIC ${llhttp_headers})
endif()

# protozero has only headers, so there is nothing to instrument and TIDEGATE_FETCH does not apply.
find_path(PROTOZERO_INCLUDE_DIR protozero/version.hpp)
if(NOT PROTOZERO_INCLUDE_DIR)
  tidegate_fetch(protozero "protozero" 1.7.1
    "libprotozero-dev of Debian and Ubuntu, protozero-devel of Fedora or protozero-dev of Alpine"
    https://github.com/mapbox/protozero/archive/refs/tags/v1.7.1.tar.gz
    27e0017d5b3ba06d646a3ec6391d5ccc8500db821be480aefd2e4ddc3de5ff99 SOURCE_SUBDIR no-build-needed)
  set(PROTOZERO_INCLUDE_DIR ${protozero_SOURCE_DIR}/include)
  if(NOT EXISTS ${PROTOZERO_INCLUDE_DIR}/protozero/version.hpp)
    message(FATAL_ERROR "protozero was neither found nor downloaded.")
  endif()
endif()
add_library(tidegate_protozero INTERFACE)
target_include_directories(tidegate_protozero SYSTEM INTERFACE ${PROTOZERO_INCLUDE_DIR})
