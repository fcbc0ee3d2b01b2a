# octavo_program: the libraries of the programs in examples/ and of their tests, including Octavo.

octavo_require(CLI11 libcli11-dev OCTAVO_BUILD_EXAMPLES)
octavo_require(fmt libfmt-dev OCTAVO_BUILD_EXAMPLES)
octavo_require(nlohmann_json nlohmann-json3-dev OCTAVO_BUILD_EXAMPLES)
# Some packages of toml++ contain only its header, without a CMake configuration.
find_package(tomlplusplus QUIET)
if(NOT TARGET tomlplusplus::tomlplusplus)
  find_path(tomlplusplus_INCLUDE_DIR toml++/toml.h)
  mark_as_advanced(tomlplusplus_INCLUDE_DIR)
  if(NOT tomlplusplus_INCLUDE_DIR)
    octavo_fail_without(toml++ libtomlplusplus-dev OCTAVO_BUILD_EXAMPLES)
  endif()
  add_library(tomlplusplus::tomlplusplus INTERFACE IMPORTED)
  target_include_directories(tomlplusplus::tomlplusplus INTERFACE ${tomlplusplus_INCLUDE_DIR})
endif()

add_library(octavo_program INTERFACE)
target_include_directories(octavo_program INTERFACE ${PROJECT_SOURCE_DIR}/examples)
target_link_libraries(octavo_program INTERFACE octavo::octavo
  CLI11::CLI11 fmt::fmt nlohmann_json::nlohmann_json tomlplusplus::tomlplusplus)
# Every file of a program must agree on which compressed text it reads.
foreach(component IN ITEMS zlib zstd)
  if(TARGET octavo::${component})
    target_link_libraries(octavo_program INTERFACE octavo::${component})
  endif()
endforeach()
