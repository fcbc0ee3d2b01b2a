# The messages for a project that uses Octavo with GPU architectures that it does not support; no nvcc
# is needed for that:
#
#   cmake -D source=OCTAVO -P architectures.cmake
cmake_minimum_required(VERSION 3.22)
include(${source}/cmake/octavoDependencies.cmake)
set(CMAKE_CUDA_COMPILER_LOADED 1)

foreach(architectures IN ITEMS 52 75 800 190a native all all-major OFF "90a;75" "90a-real;90a-virtual;70")
  # In a list, the one that is refused comes last.
  string(REGEX REPLACE ".*;" "" refused "${architectures}")
  set(CMAKE_CUDA_ARCHITECTURES ${architectures})
  octavo_add_cuda(reason)
  set(expected "CMAKE_CUDA_ARCHITECTURES must list architectures from 80, 86, 87, 89, 90a, 100 and 120, but \
has '${refused}'; pass that of your GPU, such as -DCMAKE_CUDA_ARCHITECTURES=90a for H100 and H200")
  if(NOT reason STREQUAL expected)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${architectures} gave '${reason}'")
  endif()
endforeach()
foreach(architectures IN ITEMS 80 86 87 89 90 90a 90a-real 90a-virtual "90a-real;90a-virtual" 100 100f 103a 120
    120f-real "80;86;87;89;90a;100;120")
  set(CMAKE_CUDA_ARCHITECTURES ${architectures})
  octavo_check_architectures(reason)
  if(reason)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${architectures} gave '${reason}'")
  endif()
endforeach()
