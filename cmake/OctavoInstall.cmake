# Installs the package for find_package(octavo), also on another machine: the configuration of each
# consumer finds the libraries of octavoDependencies.cmake itself.

if(NOT OCTAVO_INSTALL)
  return()
endif()
if(CMAKE_VERSION VERSION_LESS 3.23)
  message(FATAL_ERROR "Installing Octavo requires CMake 3.23, but this is ${CMAKE_VERSION}: "
    "install a newer one, or pass -DOCTAVO_INSTALL=OFF")
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

file(GLOB_RECURSE octavo_headers CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/include/octavo/*.hpp ${PROJECT_SOURCE_DIR}/include/octavo/*.cuh)
target_sources(octavo INTERFACE
  FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${octavo_headers})

set(octavo_package ${CMAKE_INSTALL_LIBDIR}/cmake/octavo)
# INCLUDES is for consumers whose CMake does not support file sets.
install(TARGETS octavo EXPORT octavoTargets
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT octavoTargets NAMESPACE octavo:: DESTINATION ${octavo_package})
write_basic_package_version_file(octavoConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
  cmake/octavoConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/octavoConfigVersion.cmake
  cmake/octavoDependencies.cmake
  cmake/OctavoAddModel.cmake
  cmake/FindCudnnFrontend.cmake
  cmake/FindNccl.cmake
  cmake/cudnn_attention.cpp
  DESTINATION ${octavo_package})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
