# Finds cuDNN and its header-only frontend, also as Python packages (nvidia-cudnn-cu13,
# nvidia-cudnn-frontend), and defines CudnnFrontend::CudnnFrontend.
# Set other folders with -DCMAKE_PREFIX_PATH=, -DCudnn_ROOT= or -DCudnnFrontend_INCLUDE_DIR=.

set(CudnnFrontend_PYTHON_FOLDERS "")
find_program(CudnnFrontend_PYTHON python3)
if(CudnnFrontend_PYTHON)
  execute_process(
    COMMAND ${CudnnFrontend_PYTHON} -c
      "import site, sys; print(';'.join(site.getsitepackages() + [site.getusersitepackages()] + sys.path[1:]), end='')"
    OUTPUT_VARIABLE CudnnFrontend_PYTHON_FOLDERS
    RESULT_VARIABLE CudnnFrontend_PYTHON_RESULT
    ERROR_QUIET)
  if(NOT CudnnFrontend_PYTHON_RESULT EQUAL 0)
    set(CudnnFrontend_PYTHON_FOLDERS "")
  endif()
endif()
set(CudnnFrontend_CUDNN_FOLDERS ${CudnnFrontend_PYTHON_FOLDERS})
list(TRANSFORM CudnnFrontend_CUDNN_FOLDERS APPEND /nvidia/cudnn)
set(CudnnFrontend_CUDNN_FOLDERS ${Cudnn_ROOT} ${CudnnFrontend_CUDNN_FOLDERS}
  ${CUDAToolkit_LIBRARY_ROOT} /usr/local/cuda)

find_path(CudnnFrontend_INCLUDE_DIR cudnn_frontend.h
  HINTS ${CudnnFrontend_PYTHON_FOLDERS} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_path(Cudnn_INCLUDE_DIR cudnn.h HINTS ${CudnnFrontend_CUDNN_FOLDERS} PATH_SUFFIXES include)
# Python packages contain the library only under its versioned name.
find_library(Cudnn_LIBRARY NAMES cudnn libcudnn.so.9 NAMES_PER_DIR
  HINTS ${Cudnn_INCLUDE_DIR}/.. ${CudnnFrontend_CUDNN_FOLDERS} PATH_SUFFIXES lib lib64)
mark_as_advanced(CudnnFrontend_PYTHON CudnnFrontend_INCLUDE_DIR Cudnn_INCLUDE_DIR Cudnn_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CudnnFrontend
  REQUIRED_VARS CudnnFrontend_INCLUDE_DIR Cudnn_INCLUDE_DIR Cudnn_LIBRARY)

if(CudnnFrontend_FOUND AND NOT TARGET CudnnFrontend::CudnnFrontend)
  add_library(CudnnFrontend::CudnnFrontend UNKNOWN IMPORTED)
  set_target_properties(CudnnFrontend::CudnnFrontend PROPERTIES
    IMPORTED_LOCATION "${Cudnn_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CudnnFrontend_INCLUDE_DIR};${Cudnn_INCLUDE_DIR}")
endif()
