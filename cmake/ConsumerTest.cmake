# Installs the library into an empty prefix, and builds and runs a project that uses only that
# prefix.
add_test(NAME consumer COMMAND ${CMAKE_COMMAND}
  -DBUILD_DIR=${CMAKE_BINARY_DIR}
  -DCONSUMER_DIR=${CMAKE_CURRENT_SOURCE_DIR}/tests/cpp/consumer
  -DWORK_DIR=${CMAKE_BINARY_DIR}/consumer
  -DGENERATOR=${CMAKE_GENERATOR}
  -DCXX=${CMAKE_CXX_COMPILER}
  -P ${CMAKE_CURRENT_SOURCE_DIR}/tests/cpp/consumer/run.cmake)
