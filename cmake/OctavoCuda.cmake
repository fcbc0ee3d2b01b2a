# Enables the CUDA language as OCTAVO_CUDA requests, and sets OCTAVO_CUDA_ENABLED. A project that
# contains Octavo as a subfolder must enable CUDA itself to use the Cuda device.

set(OCTAVO_CUDA_ENABLED OFF)
if(OCTAVO_CUDA STREQUAL "ON" OR (OCTAVO_CUDA STREQUAL "AUTO"
    AND (PROJECT_IS_TOP_LEVEL OR CMAKE_CUDA_COMPILER_LOADED)))
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a CACHE STRING "GPU architectures to compile for")
    endif()
    octavo_check_architectures(octavo_refused)
    if(octavo_refused)
      message(FATAL_ERROR "${octavo_refused}, or for other GPUs -DOCTAVO_CUDA=OFF and use the Cpu "
        "device")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(OCTAVO_CUDA_ENABLED ON)
  elseif(OCTAVO_CUDA STREQUAL "ON")
    message(FATAL_ERROR "OCTAVO_CUDA is ON but no nvcc was found: "
      "put it on PATH, name it with -DCMAKE_CUDA_COMPILER=, or pass -DOCTAVO_CUDA=OFF")
  endif()
endif()
message(STATUS "Octavo: Cuda device ${OCTAVO_CUDA_ENABLED}")
