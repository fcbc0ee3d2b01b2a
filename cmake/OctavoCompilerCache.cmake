# Compiles through ccache if it is found and Octavo is the top-level project. Paths inside the project
# are treated as relative, so checkouts in different folders share the cache. -DOCTAVO_CCACHE=OFF
# disables it.

option(OCTAVO_CCACHE "Compile through ccache if it is found" ${PROJECT_IS_TOP_LEVEL})
find_program(OCTAVO_CCACHE_PROGRAM ccache)
mark_as_advanced(OCTAVO_CCACHE_PROGRAM)
if(OCTAVO_CCACHE AND OCTAVO_CCACHE_PROGRAM)
  foreach(language IN ITEMS CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${OCTAVO_CCACHE_PROGRAM})
    endif()
  endforeach()
  message(STATUS "Octavo: compiles through ${OCTAVO_CCACHE_PROGRAM}")
endif()
