# Installs octavo from `build` into a fresh prefix, then builds and runs the consumer against it.

set(prefix ${build}/package/prefix)
file(REMOVE_RECURSE ${build}/package)
foreach(command IN ITEMS
    "--install;${build};--prefix;${prefix}"
    "-S;${source}/tests/package;-B;${build}/package/build;-G;${generator};-DCMAKE_CXX_COMPILER=${compiler};-DCMAKE_PREFIX_PATH=${prefix};-DCMAKE_BUILD_TYPE=Debug"
    "--build;${build}/package/build")
  execute_process(COMMAND ${CMAKE_COMMAND} ${command} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(COMMAND ${build}/package/build/consumer COMMAND_ERROR_IS_FATAL ANY
  OUTPUT_VARIABLE output)
if(NOT output STREQUAL "the largest E4M3 is 448\n")
  message(FATAL_ERROR "the consumer printed '${output}'")
endif()
