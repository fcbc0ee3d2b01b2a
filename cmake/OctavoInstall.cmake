# install(), so that find_package(octavo) works from another project.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(octavo_package ${CMAKE_INSTALL_LIBDIR}/cmake/octavo)
install(DIRECTORY include/octavo DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS octavo octavo_cuda EXPORT octavoTargets)
install(EXPORT octavoTargets NAMESPACE octavo:: DESTINATION ${octavo_package})
configure_package_config_file(cmake/octavoConfig.cmake.in octavoConfig.cmake
  INSTALL_DESTINATION ${octavo_package})
write_basic_package_version_file(octavoConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/octavoConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/octavoConfigVersion.cmake
  DESTINATION ${octavo_package})
