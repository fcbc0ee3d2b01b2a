# Configures octavo for GPU architectures that lack the kernels' instructions, some of them or all;
# each must be refused, by name and with advice. What is served, `build` itself proves.

set(folder ${build}/cuda_architectures)
file(REMOVE_RECURSE ${folder})
# CMake's native is refused whatever GPU answers.
file(MAKE_DIRECTORY ${folder}/bin)
file(WRITE ${folder}/bin/nvidia-smi "#!/bin/sh\necho 9.0\n")
file(CHMOD ${folder}/bin/nvidia-smi PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
set(ENV{PATH} "${folder}/bin:$ENV{PATH}")
# In a list, the one that is refused comes last.
foreach(architectures IN ITEMS 80 90 90-real 90-virtual 100a native all all-major OFF "90a;90"
    "90a-real;90a-virtual;120")
  string(REGEX REPLACE ".*;" "" refused "${architectures}")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${source} -B ${folder} -G ${generator}
      -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_CUDA_COMPILER=${cuda_compiler}
      -D OCTAVO_CUDA=ON "-D CMAKE_CUDA_ARCHITECTURES=${architectures}"
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " text "${output}")
  set(expected "CMAKE_CUDA_ARCHITECTURES has '${refused}', and the kernels are made for 90a alone")
  string(FIND "${text}" "${expected}" place)
  string(FIND "${text}" "pass -DCMAKE_CUDA_ARCHITECTURES=90a," advice)
  if(status EQUAL 0 OR place EQUAL -1 OR advice EQUAL -1)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${architectures} gave ${status} and\n${output}")
  endif()
endforeach()
