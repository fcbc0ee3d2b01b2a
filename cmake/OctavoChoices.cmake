# The presets and precisions, read from the library's headers.

# The class templates of the model families. NAME_config.hpp contains the presets of a family.
set(octavo_families Llama Gemma3 Gpt2)

# octavo_presets_of(FAMILY OUTPUT): lists the names of a family's presets.
function(octavo_presets_of family output)
  string(TOLOWER ${family} header)
  file(STRINGS
    ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include/octavo/models/${header}_config.hpp known
    REGEX "inline constexpr +${family}Config +[A-Za-z0-9_]+")
  list(TRANSFORM known REPLACE ".*constexpr +${family}Config +([A-Za-z0-9_]+).*" "\\1")
  set(${output} ${known} PARENT_SCOPE)
endfunction()

# octavo_known_presets(OUTPUT): lists the names of the presets of all families.
function(octavo_known_presets output)
  set(all)
  foreach(family IN LISTS octavo_families)
    octavo_presets_of(${family} known)
    list(APPEND all ${known})
  endforeach()
  set(${output} ${all} PARENT_SCOPE)
endfunction()

# octavo_model_of(PRESET OUTPUT): returns the class template of the preset's model, such as Llama. Outside
# of templates, nvcc 13 cannot spell the type that PresetModel names.
function(octavo_model_of preset output)
  get_property(added GLOBAL PROPERTY octavo_model_family_${preset})
  if(added)
    set(${output} ${added} PARENT_SCOPE)
    return()
  endif()
  foreach(family IN LISTS octavo_families)
    octavo_presets_of(${family} known)
    if(preset IN_LIST known)
      set(${output} ${family} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "The preset '${preset}' is in no NAME_config.hpp of a family")
endfunction()

# octavo_known_precisions(OUTPUT): lists the names of all precisions.
function(octavo_known_precisions output)
  file(STRINGS ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include/octavo/precision/named_precisions.hpp
    known REGEX "\"[a-z0-9-]+\"},$")
  list(TRANSFORM known REPLACE ".*\"([a-z0-9-]+)\"},$" "\\1")
  set(${output} ${known} PARENT_SCOPE)
endfunction()

# octavo_is_precision_type(PRECISION OUTPUT): returns whether an entry of a list of precisions is a C++
# type, such as Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>>, rather than a name.
function(octavo_is_precision_type precision output)
  set(${output} OFF PARENT_SCOPE)
  if(precision MATCHES "^[A-Za-z_:][A-Za-z0-9_:<>,{}()&|*/ .+-]*$" AND precision MATCHES "[A-Z<]")
    set(${output} ON PARENT_SCOPE)
  endif()
endfunction()

# octavo_require_known(KIND HEADER LIST NAME...): stops unless each NAME is in the variable LIST.
function(octavo_require_known kind header list)
  foreach(name IN LISTS ARGN)
    if(NOT name IN_LIST ${list})
      list(JOIN ${list} ", " names)
      message(FATAL_ERROR "The ${kind} '${name}' is not known: choose ${names}, or add it to "
        "include/octavo/${header}")
    endif()
  endforeach()
endfunction()

# octavo_require_precisions(LIST PRECISION...): stops unless each PRECISION is in the variable LIST, or is
# a C++ type.
function(octavo_require_precisions list)
  set(names)
  foreach(precision IN LISTS ARGN)
    octavo_is_precision_type(${precision} is_type)
    if(NOT is_type)
      list(APPEND names ${precision})
    endif()
  endforeach()
  octavo_require_known(precision precision/named_precisions.hpp ${list} ${names})
endfunction()

# octavo_precision_of(NAME PRECISION FILE_NAME): returns the C++ type of an entry of a list of precisions,
# and a name for files and identifiers, which cannot contain a type's characters.
function(octavo_precision_of name precision file_name)
  octavo_is_precision_type(${name} is_type)
  if(is_type)
    string(MD5 hash ${name})
    string(SUBSTRING ${hash} 0 8 hash)
    set(${precision} ${name} PARENT_SCOPE)
    set(${file_name} type-${hash} PARENT_SCOPE)
  else()
    set(${precision} "octavo::PrecisionNamed<\"${name}\">" PARENT_SCOPE)
    set(${file_name} ${name} PARENT_SCOPE)
  endif()
endfunction()
