# Runs the port's portfile.cmake where there is no vcpkg: the functions that it calls do here, in short,
# what vcpkg's documentation says. Then a project finds the package.

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
  -DCMAKE_PREFIX_PATH=${CURRENT_PACKAGES_DIR} -DCMAKE_CXX_FLAGS=-O1)
run(${CMAKE_COMMAND} --build ${work}/consumer)
run(${work}/consumer/train_one_step)
