# The library: octavo::octavo needs a C++20 compiler only; octavo::cuda adds the CUDA Toolkit.

find_package(OpenMP COMPONENTS CXX)
message(STATUS "Octavo: OpenMP ${OpenMP_CXX_FOUND}")

add_library(octavo INTERFACE)
add_library(octavo::octavo ALIAS octavo)
target_include_directories(octavo INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:include>)
target_compile_features(octavo INTERFACE cxx_std_20)
# CMake 3.25 does not know C++20 for nvcc 13, so the flag is passed by hand. Relaxed constexpr lets
# functions for both sides use the constexpr parts of std, such as std::array and std::min.
target_compile_options(octavo INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20;--expt-relaxed-constexpr>")
if(OpenMP_CXX_FOUND)
  target_link_libraries(octavo INTERFACE OpenMP::OpenMP_CXX)
  # One inline function must not be parallel in one translation unit and serial in another.
  target_compile_options(octavo INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=${OpenMP_CXX_FLAGS}>")
endif()

add_library(octavo_cuda INTERFACE)
add_library(octavo::cuda ALIAS octavo_cuda)
set_target_properties(octavo_cuda PROPERTIES EXPORT_NAME cuda)
target_link_libraries(octavo_cuda INTERFACE octavo CUDA::cudart CUDA::cublasLt)
target_compile_definitions(octavo_cuda INTERFACE OCTAVO_WITH_CUDA=1)

# Attention through cuDNN where both it and its frontend are found. The frontend takes half a minute
# to include, so one library holds the one file that does. It is for this build only: the installed
# octavo::cuda runs Octavo's own attention kernels.
if(OCTAVO_CUDA_ENABLED)
  list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
  find_package(CudnnFrontend MODULE QUIET)
  if(CudnnFrontend_FOUND)
    add_library(octavo_cudnn STATIC EXCLUDE_FROM_ALL
      ${PROJECT_SOURCE_DIR}/include/octavo/attention/cuda/cudnn_attention.cpp)
    target_link_libraries(octavo_cudnn
      PUBLIC octavo CUDA::cudart
      PRIVATE CudnnFrontend::CudnnFrontend CUDA::nvrtc)
    target_link_libraries(octavo_cuda INTERFACE $<BUILD_INTERFACE:octavo_cudnn>)
    target_compile_definitions(octavo_cuda INTERFACE $<BUILD_INTERFACE:OCTAVO_WITH_CUDNN=1>)
    message(STATUS "Octavo: attention through cuDNN, ${Cudnn_LIBRARY}, "
      "frontend ${CudnnFrontend_INCLUDE_DIR}")
  else()
    message(STATUS "Octavo: attention through own kernels; cuDNN: library ${Cudnn_LIBRARY}, "
      "headers ${Cudnn_INCLUDE_DIR}, frontend ${CudnnFrontend_INCLUDE_DIR}")
  endif()
endif()
