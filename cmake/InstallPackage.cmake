# Installs the headers, the archive, and a package for find_package(tidegate).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tidegate)
install(TARGETS tidegate tidegate_hiredis EXPORT tidegateTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY cpp/include/tidegate DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tidegateTargets NAMESPACE tidegate:: DESTINATION ${package_dir})
configure_package_config_file(cmake/tidegateConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/tidegateConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# While the major version is 0, minor versions may break.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tidegateConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/tidegateConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/tidegateConfigVersion.cmake
  DESTINATION ${package_dir})
