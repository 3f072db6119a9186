# Requires a C++20 compiler; the error says what to install.
include(CheckLanguage)
set(advice "Install g++ 12 or newer, or clang 14 or newer: the package g++ of Debian and Ubuntu, gcc-c++ \
of Fedora, g++ of Alpine, the Xcode command line tools of macOS. CXX=/PATH/TO/g++ names another one.")
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  message(FATAL_ERROR "No C++ compiler was found, and tidegate is built from C++20. ${advice}")
endif()
enable_language(CXX)
if(NOT "cxx_std_20" IN_LIST CMAKE_CXX_COMPILE_FEATURES)
  message(FATAL_ERROR "The C++ compiler ${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} \
${CMAKE_CXX_COMPILER_VERSION}, which has no C++20. ${advice}")
endif()

# Where ccache is installed, what was compiled once is not compiled again.
find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
