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

function(tidegate_hardened target)
  if(TIDEGATE_HAS_STACK_PROTECTOR)
    target_compile_options(${target} PRIVATE -fstack-protector-strong)
  endif()
  # Fortified calls need an optimizer, and hide faults from sanitizers.
  if(NOT TIDEGATE_SANITIZE AND CMAKE_BUILD_TYPE MATCHES "Rel")
    target_compile_options(${target} PRIVATE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  endif()
endfunction()
