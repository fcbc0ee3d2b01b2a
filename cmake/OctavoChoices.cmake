# What presets and precisions there are, as the library's headers say.

# octavo_known_presets(OUTPUT): the names of all presets, of every family.
function(octavo_known_presets output)
  set(all)
  foreach(family IN ITEMS llama gpt2)
    file(STRINGS
      ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include/octavo/models/${family}_config.hpp known
      REGEX "inline constexpr +[A-Za-z0-9]+Config +[A-Za-z0-9_]+")
    list(TRANSFORM known REPLACE ".*constexpr +[A-Za-z0-9]+Config +([A-Za-z0-9_]+).*" "\\1")
    list(APPEND all ${known})
  endforeach()
  set(${output} ${all} PARENT_SCOPE)
endfunction()

# octavo_model_of(PRESET OUTPUT): the class template of the preset's model, such as Llama. nvcc 13
# cannot spell what PresetModel is, where it is named outside of a template.
function(octavo_model_of preset output)
  foreach(model IN ITEMS Llama Gpt2)
    string(TOLOWER ${model} header)
    file(STRINGS
      ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include/octavo/models/${header}_config.hpp found
      REGEX "inline constexpr +${model}Config +${preset}[^A-Za-z0-9_]")
    if(found)
      set(${output} ${model} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "The preset '${preset}' is of no known family")
endfunction()

# octavo_known_precisions(OUTPUT): the names of all precisions.
function(octavo_known_precisions output)
  file(STRINGS ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include/octavo/precision/named_precisions.hpp
    known REGEX "\"[a-z0-9-]+\"},$")
  list(TRANSFORM known REPLACE ".*\"([a-z0-9-]+)\"},$" "\\1")
  set(${output} ${known} PARENT_SCOPE)
endfunction()

# octavo_require_known(KIND HEADER LIST NAME...): each NAME is in the variable LIST.
function(octavo_require_known kind header list)
  foreach(name IN LISTS ARGN)
    if(NOT name IN_LIST ${list})
      list(JOIN ${list} ", " names)
      message(FATAL_ERROR "The ${kind} '${name}' is not known: choose ${names}, or add it to "
        "include/octavo/${header}")
    endif()
  endforeach()
endfunction()
