# Configures octavo for GPU architectures: those that the kernels do not support must be refused, by name
# and with advice. `native` must become the architectures of the GPUs.

set(folder ${build}/cuda_architectures)
file(REMOVE_RECURSE ${folder})
file(MAKE_DIRECTORY ${folder}/bin)

# Sets `status` and `text` to what the configuration gives.
function(configure architectures)
  file(REMOVE ${folder}/CMakeCache.txt)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${source} -B ${folder} -G ${generator}
      -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_CUDA_COMPILER=${cuda_compiler}
      -D OCTAVO_CUDA=ON "-D CMAKE_CUDA_ARCHITECTURES=${architectures}"
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " text "${output}")
  set(status "${status}" PARENT_SCOPE)
  set(text "${text}" PARENT_SCOPE)
endfunction()

# Writes a program that plays nvidia-smi.
function(play_nvidia_smi commands)
  file(WRITE ${folder}/bin/nvidia-smi "#!/bin/sh\n${commands}\n")
  file(CHMOD ${folder}/bin/nvidia-smi PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()
set(ENV{PATH} "${folder}/bin:$ENV{PATH}")

# In a list, the one that is refused comes last.
foreach(architectures IN ITEMS 75 190a all all-major OFF "90a;75")
  string(REGEX REPLACE ".*;" "" refused "${architectures}")
  configure("${architectures}")
  string(FIND "${text}" "but has '${refused}'" place)
  string(FIND "${text}" "such as -DCMAKE_CUDA_ARCHITECTURES=90a" advice)
  if(status EQUAL 0 OR place EQUAL -1 OR advice EQUAL -1)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${architectures} gave ${status} and\n${text}")
  endif()
endforeach()

play_nvidia_smi("exit 6")
configure(native)
if(status EQUAL 0 OR NOT text MATCHES "nvidia-smi lists no GPU; pass the architecture")
  message(FATAL_ERROR "native without a GPU gave ${status} and\n${text}")
endif()
# An old GPU next to a new one: the list is the GPUs', and the old one is refused.
play_nvidia_smi("echo 9.0; echo 9.0; echo 7.5")
configure(native)
if(status EQUAL 0 OR NOT text MATCHES "GPUs here have architecture 90a;75" OR NOT text MATCHES "but has '75'")
  message(FATAL_ERROR "native with a GPU that is too old gave ${status} and\n${text}")
endif()
