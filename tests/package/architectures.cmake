# What a project that uses Octavo hears of GPU architectures that lack the kernels' instructions, some of
# them or all; no nvcc is needed for that:
#
#   cmake -D source=OCTAVO -P architectures.cmake
cmake_minimum_required(VERSION 3.22)
include(${source}/cmake/octavoDependencies.cmake)
set(CMAKE_CUDA_COMPILER_LOADED 1)

foreach(architectures IN ITEMS 52 80 90 90-real 90-virtual 100a 190a native all all-major OFF "90a;90"
    "90a-real;90a-virtual;120")
  # In a list, the one that is refused comes last.
  string(REGEX REPLACE ".*;" "" refused "${architectures}")
  set(CMAKE_CUDA_ARCHITECTURES ${architectures})
  octavo_add_cuda(reason)
  set(expected "CMAKE_CUDA_ARCHITECTURES has '${refused}', and the kernels are made for 90a alone \
(H100, H200); pass -DCMAKE_CUDA_ARCHITECTURES=90a")
  if(NOT reason STREQUAL expected)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${architectures} gave '${reason}'")
  endif()
endforeach()
foreach(architectures IN ITEMS 90a 90a-real 90a-virtual "90a-real;90a-virtual")
  set(CMAKE_CUDA_ARCHITECTURES ${architectures})
  octavo_check_architectures(reason)
  if(reason)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${architectures} gave '${reason}'")
  endif()
endforeach()
