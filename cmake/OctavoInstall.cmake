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

# The command octavo, with the sources of the programs that it builds. Two relative links lead from the
# sources to the headers, and from bin/ to the command, so that the installation can be moved.
if(OCTAVO_INSTALL_COMMAND)
  set(octavo_sources ${CMAKE_INSTALL_FULL_DATADIR}/octavo)
  install(DIRECTORY cmake examples DESTINATION ${CMAKE_INSTALL_DATADIR}/octavo
    PATTERN __pycache__ EXCLUDE PATTERN learn EXCLUDE)
  install(FILES CMakeLists.txt CMakePresets.json DESTINATION ${CMAKE_INSTALL_DATADIR}/octavo)
  install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DATADIR}/octavo  # --help reads them
    FILES_MATCHING PATTERN "*.md" PATTERN images EXCLUDE PATTERN site EXCLUDE)
  install(PROGRAMS octavo DESTINATION ${CMAKE_INSTALL_DATADIR}/octavo)
  install(PROGRAMS scripts/install-dependencies DESTINATION ${CMAKE_INSTALL_DATADIR}/octavo/scripts)
  set(octavo_links ${CMAKE_CURRENT_BINARY_DIR}/links)
  file(MAKE_DIRECTORY ${octavo_links}/include ${octavo_links}/bin)
  file(RELATIVE_PATH octavo_target ${octavo_sources}/include ${CMAKE_INSTALL_FULL_INCLUDEDIR}/octavo)
  file(CREATE_LINK ${octavo_target} ${octavo_links}/include/octavo SYMBOLIC)
  install(FILES ${octavo_links}/include/octavo DESTINATION ${CMAKE_INSTALL_DATADIR}/octavo/include)
  file(RELATIVE_PATH octavo_target ${CMAKE_INSTALL_FULL_BINDIR} ${octavo_sources}/octavo)
  file(CREATE_LINK ${octavo_target} ${octavo_links}/bin/octavo SYMBOLIC)
  install(FILES ${octavo_links}/bin/octavo DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
