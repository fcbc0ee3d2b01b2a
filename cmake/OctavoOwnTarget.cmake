# octavo_own_target(TARGET [OPTIMISATION]): sets the flags of our programs, tests and benchmarks.
# The optimisation is OPTIMISATION or, by default, OCTAVO_OPTIMISATION; Debug builds use the flags of
# their build type. With g++, `quick` compiles in two thirds of the time of -O3, and the programs
# train about as fast (benchmarks/results/compile-time.md). `quiet` is for targets that compute
# little: with g++, -Og compiles as fast as -O0, and the programs run several times as fast. With
# sanitizers `quiet` is -O0, also in Debug builds: clang's -Og equals -O1 and takes twice as long.
#
# Without math errno and traps the compiler vectorises loops; unlike -ffast-math, this does not
# change results.

function(octavo_own_target target)
  set(flags -fno-math-errno -fno-trapping-math)
  set(cuda_flags -Xcompiler=-fno-math-errno,-fno-trapping-math)
  if(OCTAVO_WARNINGS)
    list(APPEND flags -Wall -Wextra -Wconversion -Wshadow)
    list(APPEND cuda_flags -Xcompiler=-Wall,-Wextra)
  endif()
  set(optimisation ${OCTAVO_OPTIMISATION})
  if(ARGN)
    set(optimisation ${ARGN})
  endif()
  separate_arguments(optimisation UNIX_COMMAND "${optimisation}")
  if(optimisation STREQUAL "quiet" AND OCTAVO_SANITIZE)
    set(optimisation -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(optimisation "")
  elseif(optimisation STREQUAL "quiet")
    set(optimisation -Og)
  endif()
  if(optimisation STREQUAL "quick")
    set(optimisation -O2)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # The passes of -O2 that speed up loops or that warnings need. The others take a quarter of the
      # compile time of whole models.
      set(optimisation -O1 -ftree-vectorize -fvect-cost-model=dynamic -finline-functions
        -finline-small-functions -fexpensive-optimizations -fstrict-aliasing -ftree-vrp)
    endif()
  endif()
  list(APPEND flags ${optimisation})
  list(TRANSFORM optimisation PREPEND -Xcompiler=)
  list(APPEND cuda_flags ${optimisation})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # If memory suffices, g++ spends an eighth of its time in garbage collection that is not needed.
    list(APPEND flags --param=ggc-min-heapsize=1000000)
    list(APPEND cuda_flags -Xcompiler=--param=ggc-min-heapsize=1000000)
  endif()
  if(OCTAVO_ARCH)
    list(APPEND flags -march=${OCTAVO_ARCH})
    list(APPEND cuda_flags -Xcompiler=-march=${OCTAVO_ARCH})
  endif()
  if(OCTAVO_WERROR)
    list(APPEND flags -Werror)
    list(APPEND cuda_flags -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  if(OCTAVO_SANITIZE)
    set(sanitize -fsanitize=${OCTAVO_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    if(OCTAVO_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      # These checks of every pointer take a quarter of the build. The address sanitizer also stops at
      # the faults that they find.
      list(APPEND sanitize -fno-sanitize=null,object-size,vptr)
    endif()
    list(APPEND flags ${sanitize})
    target_link_options(${target} PRIVATE ${sanitize})
  endif()
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${flags}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

if(OCTAVO_CUDA_ENABLED)
  # nvcc passes its own -O3 to the host compiler after the flags of octavo_own_target, so that it would
  # override them. It optimises kernels even without -O3.
  string(REPLACE "-O3" "" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
  # octavo::cuda for our own targets, with compiled attention kernels.
  add_library(octavo_attention STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/attention.cu)
  target_link_libraries(octavo_attention PUBLIC octavo::cuda)
  target_compile_definitions(octavo_attention INTERFACE OCTAVO_COMPILED_ATTENTION)
  octavo_own_target(octavo_attention)
endif()

# octavo_require(PACKAGE DEBIAN_PACKAGE FOR): finds a package that an option FOR needs, or stops with advice.
macro(octavo_require package debian_package for)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    octavo_fail_without(${package} ${debian_package} ${for})
  endif()
endmacro()

# octavo_fail_without(NAME DEBIAN_PACKAGE FOR): stops with advice on a package that an option FOR needs.
function(octavo_fail_without name debian_package for)
  set(set_for_OCTAVO_BUILD_EXAMPLES run)
  set(set_for_OCTAVO_BUILD_TESTS test)
  set(set_for_OCTAVO_BUILD_BENCHMARKS ci)
  message(FATAL_ERROR "${name} is missing: run scripts/install-dependencies ${set_for_${for}}, "
    "install the package ${debian_package}, or pass -D${for}=OFF")
endfunction()
