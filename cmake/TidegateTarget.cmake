# The compile options of every target of the project.
include(CheckIPOSupported)
check_ipo_supported(RESULT TIDEGATE_IPO_SUPPORTED OUTPUT ignored LANGUAGES CXX)

# The extension, the tests and the benchmarks get whole-program optimization. An installed archive
# must also work with linkers that lack it: gcc puts both forms into one object file, which other
# compilers cannot.
set(TIDEGATE_IPO OFF)
if(TIDEGATE_IPO_SUPPORTED AND CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT TIDEGATE_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR NOT TIDEGATE_INSTALL)
    set(TIDEGATE_IPO ON)
  endif()
endif()

function(tidegate_target target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)  # wrong on strings: GCC bug 105651
  endif()
  if(TIDEGATE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(TIDEGATE_IPO)
    set_target_properties(${target} PROPERTIES INTERPROCEDURAL_OPTIMIZATION ON)
    if(TIDEGATE_INSTALL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -ffat-lto-objects)
    endif()
  endif()
endfunction()
