# Finds the libraries that Octavo needs on the machine that compiles with it. Octavo's build and the
# installed package include this file, so no path of one machine is installed on another.

# octavo_add_requirements(TARGET): adds the compiler requirements of octavo::octavo.
function(octavo_add_requirements target)
  find_package(Threads REQUIRED)
  target_link_libraries(${target} INTERFACE $<BUILD_INTERFACE:Threads::Threads>)
  # C++20 in files that nvcc compiles. CMake before 3.26 does not know the flag, so it is passed here
  # unless the project passes one.
  if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    target_compile_features(${target} INTERFACE $<BUILD_INTERFACE:cuda_std_20>)
  elseif(NOT CMAKE_CUDA_FLAGS MATCHES "-std")
    target_compile_options(${target} INTERFACE
      "$<BUILD_INTERFACE:$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>>")
  endif()
endfunction()

# octavo_check_architectures(REASON): sets REASON to why an entry of CMAKE_CUDA_ARCHITECTURES is not
# supported, or to nothing if all are. CMake's native compiles 90, without the instructions of 90a.
function(octavo_check_architectures reason)
  set(${reason} "" PARENT_SCOPE)
  foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
    if(NOT architecture MATCHES "^(8[06789]|(90|100|103|110|120|121)[af]?)(-real|-virtual)?$")
      set(${reason} "CMAKE_CUDA_ARCHITECTURES must list architectures from 80, 86, 87, 89, 90a, 100 and 120, \
but has '${architecture}'; pass that of your GPU, such as -DCMAKE_CUDA_ARCHITECTURES=90a for H100 and \
H200" PARENT_SCOPE)
      return()
    elseif(architecture MATCHES "^90(-real|-virtual)?$")
      message(STATUS "Octavo: architecture 90 lacks instructions that H100 and H200 have, so they run slower \
kernels; pass 90a for them")
    endif()
  endforeach()
endfunction()

# octavo_add_cuda(REASON): defines octavo::cuda, or sets REASON to why it cannot.
function(octavo_add_cuda reason)
  set(${reason} "" PARENT_SCOPE)
  if(TARGET octavo::cuda)
    return()
  endif()
  if(NOT CMAKE_CUDA_COMPILER_LOADED)
    set(${reason} "the project does not enable CUDA; write project(... LANGUAGES CXX CUDA)"
      PARENT_SCOPE)
    return()
  endif()
  octavo_check_architectures(refused)
  if(refused)
    set(${reason} "${refused}" PARENT_SCOPE)
    return()
  endif()
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND OR NOT TARGET CUDA::cublasLt)
    set(${reason} "the CUDA Toolkit with cuBLASLt was not found; name it with -DCUDAToolkit_ROOT="
      PARENT_SCOPE)
    return()
  endif()
  add_library(octavo::cuda INTERFACE IMPORTED ${octavo_scope})
  target_link_libraries(octavo::cuda INTERFACE octavo::octavo CUDA::cudart CUDA::cublasLt)
  target_compile_definitions(octavo::cuda INTERFACE OCTAVO_WITH_CUDA=1)
endfunction()

# octavo_add_mpi(REASON): defines octavo::mpi, for programs of several ranks on the Cpu device, or sets
# REASON to why it cannot.
function(octavo_add_mpi reason)
  set(${reason} "" PARENT_SCOPE)
  if(TARGET octavo::mpi)
    return()
  endif()
  # MPI no longer contains the C++ bindings, and Octavo does not use them.
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND)
    set(${reason} "MPI was not found: install the package libopenmpi-dev, or name its compiler with \
-DMPI_CXX_COMPILER=" PARENT_SCOPE)
    return()
  endif()
  add_library(octavo::mpi INTERFACE IMPORTED ${octavo_scope})
  target_link_libraries(octavo::mpi INTERFACE octavo::octavo MPI::MPI_CXX)
endfunction()

# The optional libraries that have a component each: its name, the library's name, the prefix of its
# CMake variables, header, file name, Debian package, and what it adds.
set(octavo_optional_libraries pcre2 utf8proc zlib zstd)
set(octavo_optional_pcre2 PCRE2 Pcre2 pcre2.h pcre2-8 libpcre2-dev "tokenizers from files")
set(octavo_optional_utf8proc utf8proc Utf8proc utf8proc.h utf8proc libutf8proc-dev
  "tokenizers that normalise text")
set(octavo_optional_zlib zlib Zlib zlib.h z zlib1g-dev "text compressed by gzip")
set(octavo_optional_zstd Zstandard Zstd zstd.h zstd libzstd-dev "text compressed by Zstandard")

# octavo_add_optional(COMPONENT REASON): defines octavo::COMPONENT, which links an optional library and
# defines OCTAVO_WITH_COMPONENT, or sets REASON to why it cannot. Set other folders with
# -DPREFIX_ROOT= or -DCMAKE_PREFIX_PATH=.
function(octavo_add_optional component reason)
  set(${reason} "" PARENT_SCOPE)
  if(TARGET octavo::${component})
    return()
  endif()
  list(POP_FRONT octavo_optional_${component} name prefix header library package)
  find_path(${prefix}_INCLUDE_DIR ${header} HINTS ${${prefix}_ROOT} PATH_SUFFIXES include)
  find_library(${prefix}_LIBRARY NAMES ${library} HINTS ${${prefix}_ROOT} ${${prefix}_INCLUDE_DIR}/..
    PATH_SUFFIXES lib lib64)
  mark_as_advanced(${prefix}_INCLUDE_DIR ${prefix}_LIBRARY)
  if(NOT ${prefix}_INCLUDE_DIR OR NOT ${prefix}_LIBRARY)
    set(${reason} "${name} was not found: header ${${prefix}_INCLUDE_DIR}, library \
${${prefix}_LIBRARY}; install ${package}, or name its folder with -D${prefix}_ROOT=" PARENT_SCOPE)
    return()
  endif()
  add_library(octavo::${component} INTERFACE IMPORTED ${octavo_scope})
  target_include_directories(octavo::${component} INTERFACE ${${prefix}_INCLUDE_DIR})
  target_link_libraries(octavo::${component} INTERFACE octavo::octavo ${${prefix}_LIBRARY})
  string(TOUPPER ${component} upper)
  target_compile_definitions(octavo::${component} INTERFACE OCTAVO_WITH_${upper}=1)
endfunction()

# octavo_add_nccl(REASON): defines octavo::nccl, for programs of several ranks on the Cuda device, or
# sets REASON to why it cannot. octavo::cuda must exist.
function(octavo_add_nccl reason)
  set(${reason} "" PARENT_SCOPE)
  if(TARGET octavo::nccl)
    return()
  endif()
  list(PREPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  find_package(Nccl MODULE QUIET)
  if(NOT Nccl_FOUND)
    set(${reason} "NCCL was not found: header ${Nccl_INCLUDE_DIR}, library ${Nccl_LIBRARY}; install \
libnccl-dev or the Python package nvidia-nccl-cu13, or name its folder with -DNccl_ROOT=" PARENT_SCOPE)
    return()
  endif()
  find_package(Threads REQUIRED)
  add_library(octavo::nccl INTERFACE IMPORTED ${octavo_scope})
  target_link_libraries(octavo::nccl INTERFACE octavo::cuda Nccl::Nccl Threads::Threads)
endfunction()

# octavo_add_cudnn(REASON): lets octavo::cuda run attention through cuDNN, or sets REASON to why it
# cannot. Compiling the frontend takes half a minute, so the library octavo::cudnn compiles the only
# file that includes it.
function(octavo_add_cudnn reason)
  set(${reason} "" PARENT_SCOPE)
  if(TARGET octavo::cudnn)  # of another folder, which may have a separate octavo::cuda
    target_link_libraries(octavo::cuda INTERFACE octavo::cudnn)
    return()
  endif()
  list(PREPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  find_package(CudnnFrontend MODULE QUIET)
  if(NOT CudnnFrontend_FOUND)
    set(${reason} "cuDNN or its frontend was not found: library ${Cudnn_LIBRARY}, headers \
${Cudnn_INCLUDE_DIR}, frontend ${CudnnFrontend_INCLUDE_DIR}; name them with -DCudnn_ROOT= and \
-DCudnnFrontend_INCLUDE_DIR=" PARENT_SCOPE)
    return()
  endif()
  add_library(octavo_cudnn STATIC EXCLUDE_FROM_ALL
    ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/cudnn_attention.cpp)
  add_library(octavo::cudnn ALIAS octavo_cudnn)
  # The file has an unnamed namespace, so it must not share a translation unit with others.
  set_target_properties(octavo_cudnn PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
  target_link_libraries(octavo_cudnn
    PUBLIC octavo::octavo CUDA::cudart
    PRIVATE CudnnFrontend::CudnnFrontend CUDA::nvrtc)
  target_compile_definitions(octavo_cudnn PUBLIC OCTAVO_WITH_CUDNN=1)
  target_link_libraries(octavo::cuda INTERFACE octavo::cudnn)
endfunction()
