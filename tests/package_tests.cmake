# Projects that use the library, each in another way; scripts/package-test has more of those that take nvcc.
find_program(OCTAVO_CLANG NAMES clang++-16 clang++ DOC "A second compiler for consumers")
set(consumers headers:${CMAKE_CXX_COMPILER} fetch:${CMAKE_CXX_COMPILER})
if(OCTAVO_CLANG)
  list(APPEND consumers subfolder:${OCTAVO_CLANG})
endif()
if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.23)
  list(APPEND consumers installed:${CMAKE_CXX_COMPILER})
endif()
foreach(consumer IN LISTS consumers)
  string(REGEX MATCH "^([^:]+):(.+)$" consumer ${consumer})
  add_test(NAME package.${CMAKE_MATCH_1} COMMAND
    ${CMAKE_CURRENT_SOURCE_DIR}/package/consumer_test.sh ${CMAKE_MATCH_1} ${CMAKE_MATCH_2}
    ${PROJECT_BINARY_DIR}/package/${CMAKE_MATCH_1})
  # Each compiles in one process for up to half a minute: begun late, it would be what all wait for.
  set_tests_properties(package.${CMAKE_MATCH_1} PROPERTIES COST 200)
endforeach()
# Of those that take nvcc only what is quick.
list(PREPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake)
find_package(CUDAToolkit 13 QUIET)
find_package(Nccl MODULE QUIET)
if(CUDAToolkit_FOUND AND Nccl_FOUND AND CMAKE_VERSION VERSION_GREATER_EQUAL 3.23)
  add_test(NAME package.nccl COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/package/consumer_test.sh nccl
    ${CUDAToolkit_NVCC_EXECUTABLE} ${PROJECT_BINARY_DIR}/package/nccl)
  set_tests_properties(package.nccl PROPERTIES COST 200)
endif()
add_test(NAME package.architectures COMMAND ${CMAKE_COMMAND} -D source=${PROJECT_SOURCE_DIR}
  -P ${CMAKE_CURRENT_SOURCE_DIR}/package/architectures.cmake)
if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.23)
  add_test(NAME package.vcpkg_port COMMAND ${CMAKE_COMMAND} -D root=${PROJECT_SOURCE_DIR}
    -D work=${PROJECT_BINARY_DIR}/package/vcpkg_port
    -P ${CMAKE_CURRENT_SOURCE_DIR}/package/vcpkg_stand_in.cmake)
endif()
