# The options of the build.

option(OCTAVO_BUILD_EXAMPLES "Build the trainer and the other programs" ${PROJECT_IS_TOP_LEVEL})
option(OCTAVO_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(OCTAVO_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(OCTAVO_BUILD_DOCS "Offer the target docs" ${PROJECT_IS_TOP_LEVEL})
# Building requires CMake 3.22, installing 3.23.
set(octavo_install ${PROJECT_IS_TOP_LEVEL})
if(CMAKE_VERSION VERSION_LESS 3.23)
  set(octavo_install OFF)
endif()
option(OCTAVO_INSTALL "Install headers and package files with cmake --install" ${octavo_install})
option(OCTAVO_INSTALL_COMMAND "Also install the command octavo and the sources of its programs" ${octavo_install})

# Flags of programs, tests and benchmarks. Users of octavo::octavo do not inherit them.
if(PROJECT_IS_TOP_LEVEL)
  set(octavo_arch native)
endif()
set(OCTAVO_ARCH "${octavo_arch}" CACHE STRING
  "Processor that our targets are compiled for, as a value of -march=; empty: the compiler's default")
set(OCTAVO_OPTIMISATION "quick" CACHE STRING "Optimisation of the C++ of our programs and benchmarks, except in Debug builds: quick; quiet (-Og except for models and prepare_data); or flags such as -O3. Tests, plan_memory and compare_runs are not affected")
option(OCTAVO_WARNINGS "Compile our targets with warnings, which take a tenth of the compile time" ON)
# Each compiler warns about other things: scripts/check makes warnings of its compilers errors.
option(OCTAVO_WERROR "Treat warnings in our targets as errors" OFF)
option(OCTAVO_TEST_EACH_SOURCE "Build one test program per source file, as scripts/mutate does" OFF)
option(OCTAVO_TEST_ALL_TYPES "Instantiate typed test suites also for combinations of choices that other types have one by one" ON)
option(OCTAVO_TEST_FEW_TYPES "Instantiate typed test suites for two types only: for sanitizers, clang-tidy, and nvcc without a GPU")
set(OCTAVO_SANITIZE "" CACHE STRING "Sanitizers for our targets, such as address,undefined")

set(OCTAVO_CUDA AUTO CACHE STRING "The Cuda device: ON, OFF, or AUTO (if nvcc is found)")
set(OCTAVO_CUDNN AUTO CACHE STRING
  "Attention of the Cuda device through cuDNN: ON, OFF, or AUTO (if it is found)")
set(OCTAVO_MPI AUTO CACHE STRING "Several ranks on the Cpu device, through MPI: ON, OFF, or AUTO \
(if Octavo is the top-level project and MPI is found)")
set(OCTAVO_NCCL AUTO CACHE STRING
  "Several ranks on the Cuda device, through NCCL: ON, OFF, or AUTO (if it is found)")
set(octavo_library_options OCTAVO_CUDA OCTAVO_CUDNN OCTAVO_MPI OCTAVO_NCCL)
foreach(component IN LISTS octavo_optional_libraries)
  string(TOUPPER OCTAVO_${component} option)
  list(GET octavo_optional_${component} 0 name)
  list(GET octavo_optional_${component} 5 purpose)
  set(${option} AUTO CACHE STRING "Support ${purpose}, through ${name}: ON, OFF, or AUTO (if Octavo \
is the top-level project and ${name} is found)")
  list(APPEND octavo_library_options ${option})
endforeach()
foreach(option IN LISTS octavo_library_options)
  set_property(CACHE ${option} PROPERTY STRINGS AUTO ON OFF)
  if(NOT ${option} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "${option} is '${${option}}': it must be AUTO, ON or OFF")
  endif()
endforeach()

# The trainer has one translation unit for each pair of a preset and a precision.
set(OCTAVO_PRESETS "llama_tiny" CACHE STRING "Model presets of the trainer on the Cpu device")
octavo_known_precisions(precisions)
# By default only one precision with BF16 edges and one with an FP8 head is compiled, and none with
# fast gradients, with 8-bit attention or in NVFP4, because each precision adds to the compile time.
list(REMOVE_ITEM precisions fp8-delayed-fast-gradients fp8-delayed-fast-gemms
  fp8-delayed-8bit-attention fp8-tensorwise-bf16-edges fp8-tensorwise-fp8-head fp8-rowwise-fp8-head fp8-delayed-fast
  fp8-delayed-fast-gemms-fp8-head fp8-delayed-fastest nvfp4)
set(OCTAVO_PRECISIONS "${precisions}" CACHE STRING "Precisions of the trainer on the Cpu device: names, \
or C++ types such as Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>>")
set(OCTAVO_CUDA_PRESETS "llama_tiny;llama3_small;llama3_8b"
  CACHE STRING "Model presets of the trainer on the Cuda device")
list(REMOVE_ITEM precisions fp32 mxfp8)
set(OCTAVO_CUDA_PRECISIONS "${precisions}" CACHE STRING "Precisions of the trainer on the Cuda device")

set(OCTAVO_TRAIN_FIRST "" CACHE STRING "PRESET:PRECISION on the Cpu device: the target \
train_first is a trainer for this model only, which is built sooner than train_llama")

set(OCTAVO_MODELS "" CACHE STRING "Further models of the trainer, each with the shape of a \
Hugging Face folder: NAME:FOLDER")

set(OCTAVO_TENSOR_PARALLEL "" CACHE STRING "Presets and precisions compiled for the trainer's \
--tensor-parallel: PRESET:PRECISION:DEGREE, such as llama_tiny:fp32:2")

set(OCTAVO_LORA "" CACHE STRING "Presets and precisions compiled for the trainers' --lora: \
PRESET:PRECISION, such as llama3_8b:fp8-delayed")

set(OCTAVO_LEARN ALL CACHE STRING "Programs of examples/learn to build: ALL, or their names")

option(OCTAVO_PLAIN_MODELS "Compile the trainers' models without adapters and tensor parallelism" ON)

set(OCTAVO_REDUCE "stored" CACHE STRING "Formats compiled for the trainer's --reduce, in which ranks \
exchange gradients: stored, fp32, e4m3. Each adds to the compile time")
