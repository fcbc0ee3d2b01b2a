# Finds NCCL, also as a Python package (nvidia-nccl-cu13), and defines Nccl::Nccl.
# Set other folders with -DNccl_ROOT= or -DCMAKE_PREFIX_PATH=.

set(Nccl_PYTHON_FOLDERS "")
find_program(Nccl_PYTHON python3)
if(Nccl_PYTHON)
  execute_process(
    COMMAND ${Nccl_PYTHON} -c
      "import site, sys; print(';'.join(site.getsitepackages() + [site.getusersitepackages()] + sys.path[1:]), end='')"
    OUTPUT_VARIABLE Nccl_PYTHON_FOLDERS
    RESULT_VARIABLE Nccl_PYTHON_RESULT
    ERROR_QUIET)
  if(NOT Nccl_PYTHON_RESULT EQUAL 0)
    set(Nccl_PYTHON_FOLDERS "")
  endif()
endif()
list(TRANSFORM Nccl_PYTHON_FOLDERS APPEND /nvidia/nccl)
set(Nccl_FOLDERS ${Nccl_ROOT} ${CUDAToolkit_LIBRARY_ROOT} /usr/local/cuda ${Nccl_PYTHON_FOLDERS})

find_path(Nccl_INCLUDE_DIR nccl.h HINTS ${Nccl_FOLDERS} ${CUDAToolkit_INCLUDE_DIRS}
  PATH_SUFFIXES include)
# Header and library must come from one folder: programs refuse to mix two versions.
find_library(Nccl_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
  HINTS ${Nccl_INCLUDE_DIR}/.. ${Nccl_FOLDERS} PATH_SUFFIXES lib lib64)
mark_as_advanced(Nccl_PYTHON Nccl_INCLUDE_DIR Nccl_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Nccl REQUIRED_VARS Nccl_INCLUDE_DIR Nccl_LIBRARY)

if(Nccl_FOUND AND NOT TARGET Nccl::Nccl)
  add_library(Nccl::Nccl UNKNOWN IMPORTED)
  set_target_properties(Nccl::Nccl PROPERTIES
    IMPORTED_LOCATION "${Nccl_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Nccl_INCLUDE_DIR}")
endif()
