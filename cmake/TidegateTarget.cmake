# The compile options of every target of the project.
set(ipo_supported OFF)
if(TIDEGATE_IPO)
  include(CheckIPOSupported)
  check_ipo_supported(RESULT ipo_supported OUTPUT ignored LANGUAGES CXX)
endif()

# An installed archive must also work with linkers that lack link-time optimization: gcc puts both
# forms into one object file, which other compilers cannot.
set(tidegate_ipo OFF)
if(ipo_supported AND CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT TIDEGATE_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR NOT TIDEGATE_INSTALL)
    set(tidegate_ipo ON)
  endif()
endif()

# The sources of one folder become one translation unit, and so do those of the folders that one further
# argument names. Most of what the compiler reads for a source is the headers of the standard library and
# of Abseil, which these sources share.
function(tidegate_unity target)
  if(NOT TIDEGATE_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} DIRECTORY)
    set(unit ${folder})
    foreach(folders IN LISTS ARGN)
      if(" ${folders} " MATCHES " ${folder} ")
        set(unit ${folders})
      endif()
    endforeach()
    string(MAKE_C_IDENTIFIER "in_${unit}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# Bindings and tests use the same private names again (Make, Of, kHour), so that a folder does not compile
# as one source. Sources of one group do; a source in no group compiles by itself.
function(tidegate_together name)
  foreach(source IN LISTS ARGN)
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${source})
      message(FATAL_ERROR "The group '${name}' names ${source}; expected a source in "
        "${CMAKE_CURRENT_SOURCE_DIR}.")
    endif()
  endforeach()
  if(TIDEGATE_UNITY)
    set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${name})
  endif()
endfunction()

function(tidegate_unity_of_groups target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TIDEGATE_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()

function(tidegate_target target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)  # wrong on strings: GCC bug 105651
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A tenth of gcc's time goes into collecting garbage of its own, again and again above 128 MB. From
    # 512 MB on, most sources never do, and a compiler takes 0.7 GB instead of 0.6.
    target_compile_options(${target} PRIVATE --param=ggc-min-heapsize=524288)
  endif()
  if(TIDEGATE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(NOT target MATCHES "^tidegate(_redis|_steps)?$")
    target_compile_options(${target} PRIVATE ${TIDEGATE_OUTER_OPTIONS})
  endif()
  # A source that is used brings the others of its unit. Link-time optimization leaves out of them what is
  # not used; without it, the linker does. Otherwise an extension that uses one function could need
  # thread-local memory at a fixed place, of which a process has 1.6 kB for all libraries that it loads.
  if(NOT tidegate_ipo AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -ffunction-sections -fdata-sections)
    target_link_options(${target} PRIVATE LINKER:--gc-sections)
  endif()
  if(tidegate_ipo)
    set_target_properties(${target} PROPERTIES INTERPROCEDURAL_OPTIMIZATION ON)
    if(TIDEGATE_INSTALL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -ffat-lto-objects)
    endif()
  endif()
endfunction()
