# Runs the port's portfile.cmake where there is no vcpkg: the functions that it calls do here, in short,
# what vcpkg's documentation says. Then a project finds the package:
#
#   cmake -D root=OCTAVO -D work=FOLDER -P vcpkg_stand_in.cmake
cmake_minimum_required(VERSION 3.22)

set(CURRENT_PORT_DIR ${root}/packaging/vcpkg/ports/octavo)
set(CURRENT_PACKAGES_DIR ${work}/package)
set(PORT octavo)
file(REMOVE_RECURSE ${work})

macro(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endmacro()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" SOURCE_PATH OPTIONS)
  run(${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${work}/build --warn-unused-vars
    -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR} -DCMAKE_INSTALL_LIBDIR=lib ${arg_OPTIONS})
endfunction()
function(vcpkg_cmake_install)
  run(${CMAKE_COMMAND} --install ${work}/build)
endfunction()
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" CONFIG_PATH "")
  file(MAKE_DIRECTORY ${CURRENT_PACKAGES_DIR}/share)
  file(RENAME ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH} ${CURRENT_PACKAGES_DIR}/share/${PORT})
  # The prefix is one folder less far away.
  set(targets ${CURRENT_PACKAGES_DIR}/share/${PORT}/octavoTargets.cmake)
  file(READ ${targets} text)
  set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
  string(REPLACE "${up}${up}${up}" "${up}${up}" text "${text}")
  file(WRITE ${targets} "${text}")
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" FILE_LIST)
  file(INSTALL ${arg_FILE_LIST} DESTINATION ${CURRENT_PACKAGES_DIR}/share/${PORT})
  file(RENAME ${CURRENT_PACKAGES_DIR}/share/${PORT}/LICENSE
    ${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright)
endfunction()

# The port's features are the components that the package knows, and its usage names each.
file(STRINGS ${root}/cmake/octavoConfig.cmake components REGEX "octavo_component STREQUAL")
list(TRANSFORM components REPLACE ".*\"([a-z0-9]+)\".*" "\\1")
file(STRINGS ${root}/cmake/octavoDependencies.cmake optional REGEX "set\\(octavo_optional_libraries ")
string(REGEX REPLACE "set\\(octavo_optional_libraries (.*)\\)" "\\1" optional "${optional}")
separate_arguments(optional)
list(APPEND components ${optional})
file(READ ${CURRENT_PORT_DIR}/vcpkg.json port)
string(JSON count LENGTH "${port}" features)
math(EXPR last "${count} - 1")
foreach(number RANGE ${last})
  string(JSON feature MEMBER "${port}" features ${number})
  list(APPEND features ${feature})
endforeach()
list(SORT components)
list(SORT features)
if(NOT features STREQUAL components)
  message(FATAL_ERROR "vcpkg.json has the features ${features}, octavoConfig.cmake the components "
    "${components}; they have to be the same")
endif()
file(READ ${CURRENT_PORT_DIR}/usage usage)
foreach(component IN LISTS components)
  if(NOT usage MATCHES "feature ${component}|octavo::${component}|\n    ${component} ")
    message(FATAL_ERROR "usage does not name the component ${component}")
  endif()
endforeach()

set(CMAKE_CURRENT_LIST_DIR ${CURRENT_PORT_DIR})
include(${CURRENT_PORT_DIR}/portfile.cmake)

# What vcpkg checks after an installation.
foreach(file IN ITEMS include/octavo/octavo.hpp share/octavo/octavoConfig.cmake share/octavo/copyright
    share/octavo/usage)
  if(NOT EXISTS ${CURRENT_PACKAGES_DIR}/${file})
    message(FATAL_ERROR "the port leaves no ${file}")
  endif()
endforeach()
foreach(folder IN ITEMS lib debug share/doc)
  if(EXISTS ${CURRENT_PACKAGES_DIR}/${folder})
    message(FATAL_ERROR "the port leaves a folder ${folder}")
  endif()
endforeach()
run(${CMAKE_COMMAND} -S ${root}/test_package -B ${work}/consumer
  -DCMAKE_PREFIX_PATH=${CURRENT_PACKAGES_DIR} -DCMAKE_CXX_FLAGS=-O0)
run(${CMAKE_COMMAND} --build ${work}/consumer)
run(${work}/consumer/train_one_step)
