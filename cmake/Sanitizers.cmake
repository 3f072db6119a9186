# Set for the whole build and not target by target, so that fetched dependencies are instrumented
# too: a race detector that does not see inside absl::Mutex reports everything that a mutex guards.
if(TIDEGATE_SANITIZE)
  add_compile_options(-fsanitize=${TIDEGATE_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TIDEGATE_SANITIZE})
  if(TIDEGATE_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # ThreadSanitizer does not model fences. The fences of the core order only atomics, which cannot
    # race; plain memory is handed over by acquire and release.
    add_compile_options(-Wno-tsan)
  endif()
endif()
