# Finds PCRE2 for 8-bit characters and defines Pcre2::Pcre2.
# Set other folders with -DPcre2_ROOT= or -DCMAKE_PREFIX_PATH=.

find_path(Pcre2_INCLUDE_DIR pcre2.h)
find_library(Pcre2_LIBRARY NAMES pcre2-8 HINTS ${Pcre2_INCLUDE_DIR}/.. PATH_SUFFIXES lib lib64)
mark_as_advanced(Pcre2_INCLUDE_DIR Pcre2_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Pcre2 REQUIRED_VARS Pcre2_INCLUDE_DIR Pcre2_LIBRARY)

if(Pcre2_FOUND AND NOT TARGET Pcre2::Pcre2)
  add_library(Pcre2::Pcre2 UNKNOWN IMPORTED)
  set_target_properties(Pcre2::Pcre2 PROPERTIES
    IMPORTED_LOCATION "${Pcre2_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Pcre2_INCLUDE_DIR}")
endif()
