# The library: octavo::octavo needs a C++20 compiler only; octavo::cuda adds the CUDA Toolkit, and is
# there only where CUDA is enabled.

set(octavo_scope GLOBAL)

add_library(octavo INTERFACE)
add_library(octavo::octavo ALIAS octavo)
target_include_directories(octavo INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
target_compile_features(octavo INTERFACE cxx_std_20)
octavo_add_requirements(octavo)

if(OCTAVO_CUDA_ENABLED)
  octavo_add_cuda(octavo_missing)
  if(octavo_missing)
    message(FATAL_ERROR "Octavo: no Cuda device: ${octavo_missing}; or pass -DOCTAVO_CUDA=OFF")
  endif()
  set(octavo_missing "OCTAVO_CUDNN is OFF")
  if(NOT OCTAVO_CUDNN STREQUAL "OFF")
    octavo_add_cudnn(octavo_missing
      ${PROJECT_SOURCE_DIR}/include/octavo/attention/cuda/cudnn_attention.cpp)
  endif()
  if(NOT octavo_missing)
    message(STATUS "Octavo: attention through cuDNN, ${Cudnn_LIBRARY}, "
      "frontend ${CudnnFrontend_INCLUDE_DIR}")
  elseif(OCTAVO_CUDNN STREQUAL "ON")
    message(FATAL_ERROR "OCTAVO_CUDNN is ON but ${octavo_missing}; or pass -DOCTAVO_CUDNN=OFF")
  else()
    message(STATUS "Octavo: attention through own kernels; ${octavo_missing}")
  endif()
endif()
