# The linker's tables are filled when a library is loaded, and are read-only from then on, so that a
# fault in memory does not redirect a call.
include(CheckLinkerFlag)
foreach(flag -Wl,-z,relro -Wl,-z,now)
  string(MAKE_C_IDENTIFIER "has${flag}" has_it)
  check_linker_flag(CXX ${flag} ${has_it})
  if(${has_it})
    add_link_options(${flag})
  endif()
endforeach()

# What reads the bytes of strangers ends the process at a write beyond a buffer, instead of going on with
# what it overwrote. It costs the server little; the limiter itself, whose calls take some 40 ns and whose
# keys it hashes before it looks at them, does without.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-fstack-protector-strong TIDEGATE_HAS_STACK_PROTECTOR)
# Processors that have it then refuse indirect calls and returns to places that are not marked. With
# link-time optimization it holds for all of an extension, so that what the limiter's links does
# without.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
  check_cxx_compiler_flag(-fcf-protection TIDEGATE_HAS_CF_PROTECTION)
endif()

function(tidegate_hardened target)
  if(NOT TIDEGATE_HARDENING)
    return()
  endif()
  if(TIDEGATE_HAS_STACK_PROTECTOR)
    target_compile_options(${target} PRIVATE -fstack-protector-strong)
  endif()
  if(TIDEGATE_HAS_CF_PROTECTION AND NOT target STREQUAL tidegate_redis)
    target_compile_options(${target} PRIVATE -fcf-protection)
  endif()
  # Fortified calls need an optimizer, and hide faults from sanitizers.
  if(NOT TIDEGATE_SANITIZE AND CMAKE_BUILD_TYPE MATCHES "Rel")
    target_compile_options(${target} PRIVATE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  endif()
  if(target STREQUAL tidegate_server)
    target_compile_definitions(${target} PRIVATE _GLIBCXX_ASSERTIONS)
  endif()
endfunction()
