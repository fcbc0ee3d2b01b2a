# Every choice that a user of the build has.

option(OCTAVO_BUILD_EXAMPLES "Build the trainer and the other programs" ${PROJECT_IS_TOP_LEVEL})
option(OCTAVO_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(OCTAVO_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(OCTAVO_BUILD_DOCS "Offer the target docs" ${PROJECT_IS_TOP_LEVEL})
# Building takes CMake 3.22, installing 3.23.
set(octavo_install ${PROJECT_IS_TOP_LEVEL})
if(CMAKE_VERSION VERSION_LESS 3.23)
  set(octavo_install OFF)
endif()
option(OCTAVO_INSTALL "Let cmake --install put headers and package files in place" ${octavo_install})

# What programs, tests and benchmarks are compiled with; never what a user of octavo::octavo is.
if(PROJECT_IS_TOP_LEVEL)
  set(octavo_arch native)
endif()
set(OCTAVO_ARCH "${octavo_arch}" CACHE STRING
  "Processor that our own targets are compiled for, as -march= takes it; empty: the compiler's choice")
set(OCTAVO_OPTIMISATION "quick" CACHE STRING "Optimisation of the C++ of our own programs and benchmarks, except in Debug builds: quick; quiet (-Og except for models and prepare_data); or flags such as -O3. Tests, plan_memory and compare_runs have their own")
option(OCTAVO_WARNINGS "Compile our own targets with warnings; they take a tenth of the time" ON)
# Compilers warn of different things: errors are for those that scripts/check names.
option(OCTAVO_WERROR "Warnings in our own targets are errors" OFF)
option(OCTAVO_TEST_EACH_SOURCE "One test program a source file, as scripts/mutate builds them" OFF)
option(OCTAVO_TEST_FEW_TYPES "Suites of tests run with two of their types: for sanitizers, clang-tidy and nvcc where no GPU is")
set(OCTAVO_SANITIZE "" CACHE STRING "Sanitizers for our own targets, such as address,undefined")

set(OCTAVO_CUDA AUTO CACHE STRING "The Cuda device: ON, OFF, or AUTO (where nvcc is found)")
set(OCTAVO_CUDNN AUTO CACHE STRING
  "Attention of the Cuda device through cuDNN: ON, OFF, or AUTO (where it is found)")
set(OCTAVO_MPI AUTO CACHE STRING "Several ranks on the Cpu device, through MPI: ON, OFF, or AUTO \
(where Octavo is not in another project, and MPI is found)")
set(OCTAVO_NCCL AUTO CACHE STRING
  "Several ranks on the Cuda device, through NCCL: ON, OFF, or AUTO (where it is found)")
set(OCTAVO_PCRE2 AUTO CACHE STRING "Tokenizers from files, through PCRE2: ON, OFF, or AUTO \
(where Octavo is not in another project, and PCRE2 is found)")
set(OCTAVO_UTF8PROC AUTO CACHE STRING "Tokenizers that normalise text, through utf8proc: ON, OFF, or \
AUTO (where Octavo is not in another project, and utf8proc is found)")
foreach(option IN ITEMS OCTAVO_CUDA OCTAVO_CUDNN OCTAVO_MPI OCTAVO_NCCL OCTAVO_PCRE2 OCTAVO_UTF8PROC)
  set_property(CACHE ${option} PROPERTY STRINGS AUTO ON OFF)
  if(NOT ${option} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "${option} is '${${option}}': it must be AUTO, ON or OFF")
  endif()
endforeach()

# The trainer gets one translation unit for each pair.
set(OCTAVO_PRESETS "llama_tiny" CACHE STRING "Model presets that the trainer offers on the Cpu")
octavo_known_precisions(precisions)
# Of edges in BF16 and of heads in FP8 one is offered unless more are asked for: each precision takes
# a while to compile.
list(REMOVE_ITEM precisions fp8-tensorwise-bf16-edges fp8-tensorwise-fp8-head fp8-rowwise-fp8-head)
set(OCTAVO_PRECISIONS "${precisions}" CACHE STRING "Precisions that the trainer offers on the Cpu")
set(OCTAVO_CUDA_PRESETS "llama_tiny;llama3_small;llama3_8b"
  CACHE STRING "Model presets that the trainer offers on Cuda")
list(REMOVE_ITEM precisions fp32 mxfp8)
set(OCTAVO_CUDA_PRECISIONS "${precisions}" CACHE STRING "Precisions that the trainer offers on Cuda")

set(OCTAVO_MODELS "" CACHE STRING "Models that the trainer offers beside its presets, each of the \
shape of a Hugging Face folder: NAME:FOLDER")

set(OCTAVO_TENSOR_PARALLEL "" CACHE STRING "What the trainer offers with --tensor-parallel, of its \
presets and precisions: PRESET:PRECISION:DEGREE, such as llama_tiny:fp32:2")

set(OCTAVO_LORA "" CACHE STRING "What the trainers offer with --lora, of their presets and \
precisions: PRESET:PRECISION, such as llama3_8b:fp8-delayed")

set(OCTAVO_REDUCE "stored" CACHE STRING "What --reduce of the trainer offers, what gradients travel \
in between ranks: stored, fp32, e4m3. Each makes compiling longer")
