# Enables the CUDA language where OCTAVO_CUDA says so; afterwards OCTAVO_CUDA_ENABLED tells.

set(OCTAVO_CUDA_ENABLED OFF)
if(NOT OCTAVO_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a CACHE STRING "GPU architectures to compile for")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    # The least architecture decides what FP8 layers compile, so it has to be a number.
    string(REGEX MATCHALL "[0-9]+" OCTAVO_CUDA_CAPABILITY "${CMAKE_CUDA_ARCHITECTURES}")
    if(NOT OCTAVO_CUDA_CAPABILITY)
      message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES is '${CMAKE_CUDA_ARCHITECTURES}': "
        "name architectures by their numbers, such as 90a")
    endif()
    list(SORT OCTAVO_CUDA_CAPABILITY COMPARE NATURAL)
    list(GET OCTAVO_CUDA_CAPABILITY 0 OCTAVO_CUDA_CAPABILITY)
    set(OCTAVO_CUDA_ENABLED ON)
  elseif(OCTAVO_CUDA STREQUAL "ON")
    message(FATAL_ERROR "OCTAVO_CUDA is ON but no nvcc was found: "
      "put it on PATH, name it with -DCMAKE_CUDA_COMPILER=, or pass -DOCTAVO_CUDA=OFF")
  endif()
endif()
message(STATUS "Octavo: Cuda device ${OCTAVO_CUDA_ENABLED}")
