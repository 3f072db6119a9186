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
