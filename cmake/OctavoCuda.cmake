# Enables the CUDA language as OCTAVO_CUDA requests, and sets OCTAVO_CUDA_ENABLED. A project that
# contains Octavo as a subfolder must enable CUDA itself to use the Cuda device.

# octavo_find_architectures(FOUND): sets FOUND to the architectures of this machine's GPUs, such as 90a.
function(octavo_find_architectures found)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE capabilities ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT capabilities MATCHES "^[0-9]+[.][0-9]")
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES is native, but nvidia-smi lists no GPU; pass the "
      "architecture of your GPU, such as -DCMAKE_CUDA_ARCHITECTURES=90a")
  endif()
  string(REPLACE "." "" capabilities "${capabilities}")
  string(REGEX REPLACE "[ \r\n]+" ";" capabilities "${capabilities}")
  list(TRANSFORM capabilities REPLACE "^90$" "90a")
  list(REMOVE_DUPLICATES capabilities)
  set(${found} "${capabilities}" PARENT_SCOPE)
endfunction()

set(OCTAVO_CUDA_ENABLED OFF)
if(OCTAVO_CUDA STREQUAL "ON" OR (OCTAVO_CUDA STREQUAL "AUTO"
    AND (PROJECT_IS_TOP_LEVEL OR CMAKE_CUDA_COMPILER_LOADED)))
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a CACHE STRING "GPU architectures to compile for")
    endif()
    if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native")
      octavo_find_architectures(octavo_found)
      set(CMAKE_CUDA_ARCHITECTURES "${octavo_found}" CACHE STRING "GPU architectures to compile for" FORCE)
      set(CMAKE_CUDA_ARCHITECTURES "${octavo_found}")
      message(STATUS "Octavo: the GPUs here have architecture ${octavo_found}")
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
