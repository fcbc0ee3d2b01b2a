# octavo_own_target(TARGET [OPTIMISATION]): the flags of our own programs, tests and benchmarks.
# They are compiled with OCTAVO_OPTIMISATION, or with what is given in its place; where the build type
# is Debug with that type's flags. `quick` compiles in two thirds of -O3's time with g++, and what it
# makes trains about as fast (benchmarks/results/compile-time.md). `quiet` is for what calculates
# little: with g++ -Og takes no longer than -O0, and what it makes runs several times as fast. Under
# sanitizers it is -O0, in Debug builds too: clang's -Og is its -O1, and they make that twice the work.
#
# Without math errno and traps the compiler vectorises loops; results stay the same, unlike under
# -ffast-math.

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
      # Of -O2 what loops gain by, and what warnings need: its other passes are a quarter of the time
      # for whole models.
      set(optimisation -O1 -ftree-vectorize -fvect-cost-model=dynamic -finline-functions
        -finline-small-functions -fexpensive-optimizations -fstrict-aliasing -ftree-vrp)
    endif()
  endif()
  list(APPEND flags ${optimisation})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Its own collection of garbage takes an eighth of the time where there is memory enough.
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
      # Checks of every pointer that are a quarter of the build: what they find, a null pointer or
      # one to something else, the address sanitizer stops at too.
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

# octavo_require(PACKAGE DEBIAN_PACKAGE FOR): find_package with a message that says what to do.
macro(octavo_require package debian_package for)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} is missing: run scripts/install-dependencies, "
      "install the package ${debian_package}, or pass -D${for}=OFF")
  endif()
endmacro()
