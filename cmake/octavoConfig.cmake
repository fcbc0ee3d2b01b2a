# find_package(octavo 0.1)                    defines octavo::octavo, for the Cpu device
# find_package(octavo 0.1 COMPONENTS cuda)    octavo::cuda as well; attention in Octavo's own kernels
# find_package(octavo 0.1 COMPONENTS cudnn)   octavo::cuda as well; attention through cuDNN
# find_package(octavo 0.1 COMPONENTS nccl)    octavo::cuda and octavo::nccl, for several ranks on Cuda
# find_package(octavo 0.1 COMPONENTS mpi)     octavo::mpi as well, for several ranks on the Cpu device
# find_package(octavo 0.1 COMPONENTS pcre2)   octavo::pcre2 as well, for tokenizers from files
# find_package(octavo 0.1 COMPONENTS utf8proc)   octavo::utf8proc as well, for tokenizers that
#                                             normalise text
# find_package(octavo 0.1 COMPONENTS zlib)    octavo::zlib as well, for text compressed by gzip
# find_package(octavo 0.1 COMPONENTS zstd)    octavo::zstd as well, for text compressed by Zstandard
# octavo_add_model(NAME my_model CONFIG config.json)  octavo::my_model: a preset of that shape

include(${CMAKE_CURRENT_LIST_DIR}/octavoDependencies.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/OctavoAddModel.cmake)
if(NOT TARGET octavo::octavo)
  include(${CMAKE_CURRENT_LIST_DIR}/octavoTargets.cmake)
  octavo_add_requirements(octavo::octavo)
endif()

foreach(octavo_component IN LISTS octavo_FIND_COMPONENTS)
  if(octavo_component STREQUAL "cuda")
    octavo_add_cuda(octavo_missing)
  elseif(octavo_component STREQUAL "cudnn")
    octavo_add_cuda(octavo_missing)
    if(NOT octavo_missing)
      octavo_add_cudnn(octavo_missing)
    endif()
  elseif(octavo_component STREQUAL "nccl")
    octavo_add_cuda(octavo_missing)
    if(NOT octavo_missing)
      octavo_add_nccl(octavo_missing)
    endif()
  elseif(octavo_component STREQUAL "mpi")
    octavo_add_mpi(octavo_missing)
  elseif(octavo_component IN_LIST octavo_optional_libraries)
    octavo_add_optional(${octavo_component} octavo_missing)
  else()
    list(JOIN octavo_optional_libraries ", " octavo_names)
    set(octavo_missing "it does not exist; choose cuda, cudnn, mpi, nccl, ${octavo_names}")
  endif()
  if(octavo_missing)
    set(octavo_${octavo_component}_FOUND FALSE)
    if(octavo_FIND_REQUIRED_${octavo_component})
      set(octavo_FOUND FALSE)
      set(octavo_NOT_FOUND_MESSAGE "component ${octavo_component}: ${octavo_missing}")
    endif()
  else()
    set(octavo_${octavo_component}_FOUND TRUE)
  endif()
endforeach()
