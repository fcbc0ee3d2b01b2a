# octavo_add_model(NAME my_model CONFIG config.json): reads the shape of a model of any family that
# Octavo has from a Hugging Face config.json, and defines it as the preset octavo_models::my_model in
# <octavo_models/my_model.hpp>, for targets that link octavo::my_model. CONFIG may also be its folder.

# octavo_config_value(OUTPUT OTHERWISE KEY...): returns a value of the caller's `text`, or OTHERWISE if
# it is missing. If OTHERWISE is REQUIRED, a missing value is an error.
function(octavo_config_value output otherwise)
  string(JSON type ERROR_VARIABLE missing TYPE "${text}" ${ARGN})
  if(NOT missing AND NOT type STREQUAL "NULL")
    string(JSON value GET "${text}" ${ARGN})
    # Values are written into C++, so only numbers and words are accepted.
    if(NOT type STREQUAL "OBJECT" AND NOT "${value}" MATCHES "^[A-Za-z0-9_.+-]*$")
      list(JOIN ARGN "." key)
      message(FATAL_ERROR "octavo_add_model: ${config}: ${key} must be a number or a word, "
        "but has other characters")
    endif()
  elseif(otherwise STREQUAL "REQUIRED")
    list(JOIN ARGN "." key)
    message(FATAL_ERROR "octavo_add_model: ${config}: ${key} is missing")
  else()
    set(value "${otherwise}")
  endif()
  set(${output} "${value}" PARENT_SCOPE)
endfunction()

# octavo_config_serves(KEY VALUE...): stops unless the key is missing or has one of these values.
function(octavo_config_serves key)
  octavo_config_value(value "${ARGV1}" ${key})
  if(NOT value IN_LIST ARGN)
    message(FATAL_ERROR "octavo_add_model: ${config}: ${key} is ${value}, which Octavo's models do "
      "not support; they support ${ARGV1}")
  endif()
endfunction()

# octavo_config_rope(OUTPUT): returns a LlamaConfig's members for rotary position embeddings.
function(octavo_config_rope output)
  set(scaling rope_scaling)
  octavo_config_value(newer "" rope_parameters)
  octavo_config_value(theta 10000 rope_theta)
  if(newer)
    set(scaling rope_parameters)
    octavo_config_value(theta "${theta}" rope_parameters rope_theta)
  endif()
  octavo_config_value(kind default ${scaling} type)
  octavo_config_value(kind "${kind}" ${scaling} rope_type)
  set(members ".rope_theta = static_cast<float>(${theta})")
  if(NOT kind STREQUAL "default")
    if(NOT kind MATCHES "^(linear|dynamic|yarn|llama3)$")
      message(FATAL_ERROR "octavo_add_model: ${config}: rope_type is ${kind}, which Octavo's models "
        "do not support; they support default, linear, dynamic, yarn and llama3")
    endif()
    octavo_config_value(factor REQUIRED ${scaling} factor)
    octavo_config_value(trained "" max_position_embeddings)
    octavo_config_value(original "${trained}" ${scaling} original_max_position_embeddings)
    string(APPEND members ",\n    .rope_scaling = {.kind = octavo::RopeKind::${kind}"
      ", .factor = static_cast<float>(${factor})")
    if(kind STREQUAL "llama3")
      octavo_config_value(low REQUIRED ${scaling} low_freq_factor)
      octavo_config_value(high REQUIRED ${scaling} high_freq_factor)
      string(APPEND members ", .low_frequency_factor = static_cast<float>(${low})"
        ", .high_frequency_factor = static_cast<float>(${high})")
    endif()
    if(kind STREQUAL "dynamic")
      set(original "${trained}")
    endif()
    if(NOT kind STREQUAL "linear")
      if(original STREQUAL "")
        message(FATAL_ERROR "octavo_add_model: ${config}: max_position_embeddings is missing")
      endif()
      string(APPEND members ", .original_length = ${original}")
    endif()
    if(kind STREQUAL "yarn")
      octavo_config_yarn(yarn)
      string(APPEND members "${yarn}")
    endif()
    string(APPEND members "}")
  endif()
  set(${output} "${members}" PARENT_SCOPE)
endfunction()

# octavo_config_yarn(OUTPUT): returns the RopeScaling's members that YaRN has defaults for.
function(octavo_config_yarn output)
  set(members "")
  octavo_config_value(fast 32 ${scaling} beta_fast)
  octavo_config_value(slow 1 ${scaling} beta_slow)
  string(APPEND members ", .beta_fast = static_cast<float>(${fast})"
    ", .beta_slow = static_cast<float>(${slow})")
  octavo_config_value(attention "" ${scaling} attention_factor)
  octavo_config_value(mscale "" ${scaling} mscale)
  if(NOT attention STREQUAL "")
    string(APPEND members ", .attention_factor = static_cast<float>(${attention})")
  elseif(NOT mscale STREQUAL "")
    message(FATAL_ERROR "octavo_add_model: ${config}: ${scaling}.mscale: write the quotient of both "
      "magnitudes as attention_factor, because CMake has no logarithm")
  endif()
  octavo_config_value(truncate ON ${scaling} truncate)
  string(REPLACE "ON" "true" truncate ${truncate})
  string(REPLACE "OFF" "false" truncate ${truncate})
  string(APPEND members ", .truncate = ${truncate}")
  set(${output} "${members}" PARENT_SCOPE)
endfunction()

# octavo_config_window(OUTPUT): returns a LlamaConfig's members for the window of attention.
function(octavo_config_window output)
  set(members "")
  octavo_config_value(window 4096 sliding_window)
  set(first 0)
  if(model_type STREQUAL "mistral")
    string(JSON type ERROR_VARIABLE missing TYPE "${text}" sliding_window)
    if(type STREQUAL "NULL")
      set(window 0)
    endif()
  else()
    octavo_config_value(first 28 max_window_layers)
    octavo_config_value(uses OFF use_sliding_window)
    string(JSON kinds ERROR_VARIABLE missing LENGTH "${text}" layer_types)
    if(missing)
      if(NOT uses)
        set(first ${layers})
      endif()
    else()
      set(first 0)
      set(is_windowed OFF)
      math(EXPR last "${kinds} - 1")
      foreach(i RANGE ${last})
        string(JSON kind GET "${text}" layer_types ${i})
        if(kind STREQUAL "sliding_attention")
          set(is_windowed ON)
        elseif(kind STREQUAL "full_attention" AND NOT is_windowed)
          math(EXPR first "${i} + 1")
        else()
          message(FATAL_ERROR "octavo_add_model: ${config}: layer_types has ${kind} in layer ${i}, "
            "but Octavo's models support sliding_attention only from a layer on, after "
            "full_attention")
        endif()
      endforeach()
    endif()
    if(NOT first LESS layers)
      set(window 0)
    endif()
  endif()
  if(window)
    set(members ",\n    .window = ${window},\n    .first_windowed_layer = ${first}")
  endif()
  set(${output} "${members}" PARENT_SCOPE)
endfunction()

# octavo_config_llama(OUTPUT): returns the members of a LlamaConfig.
function(octavo_config_llama output)
  octavo_config_serves(hidden_act silu swish)
  octavo_config_serves(attention_bias OFF)
  octavo_config_serves(mlp_bias OFF)
  octavo_config_value(layers REQUIRED num_hidden_layers)
  octavo_config_value(hidden REQUIRED hidden_size)
  octavo_config_value(ffn REQUIRED intermediate_size)
  octavo_config_value(heads REQUIRED num_attention_heads)
  octavo_config_value(kv_heads ${heads} num_key_value_heads)
  math(EXPR head_dim "${hidden} / ${heads}")
  set(qk_norm false)
  set(qkv_bias false)
  if(model_type STREQUAL "qwen2")
    set(qkv_bias true)
  elseif(model_type STREQUAL "qwen3")
    set(head_dim 128)
    set(qk_norm true)
  endif()
  octavo_config_value(head_dim ${head_dim} head_dim)
  octavo_config_value(epsilon 1e-6 rms_norm_eps)
  octavo_config_value(tied OFF tie_word_embeddings)
  string(REPLACE "ON" "true" tied ${tied})
  string(REPLACE "OFF" "false" tied ${tied})
  octavo_config_rope(rope)
  set(window "")
  if(NOT model_type STREQUAL "llama")
    octavo_config_window(window)
  endif()
  string(CONCAT members
    "    .layers = ${layers},\n    .hidden = ${hidden},\n    .ffn = ${ffn},\n"
    "    .heads = ${heads},\n    .kv_heads = ${kv_heads},\n    .head_dim = ${head_dim},\n"
    "    .vocabulary = ${vocabulary},\n    .norm_epsilon = static_cast<float>(${epsilon}),\n"
    "    ${rope},\n    .tied_embeddings = ${tied},\n    .qk_norm = ${qk_norm},\n"
    "    .qkv_bias = ${qkv_bias}${window}")
  set(${output} "${members}" PARENT_SCOPE)
endfunction()

# octavo_config_gpt2(OUTPUT): returns the members of a Gpt2Config.
function(octavo_config_gpt2 output)
  octavo_config_value(layers REQUIRED n_layer)
  octavo_config_value(hidden REQUIRED n_embd)
  octavo_config_value(heads REQUIRED n_head)
  octavo_config_value(positions REQUIRED n_positions)
  octavo_config_value(epsilon 1e-5 layer_norm_epsilon)
  math(EXPR ffn "4 * ${hidden}")
  octavo_config_serves(n_inner ${ffn})
  octavo_config_serves(activation_function gelu_new gelu_pytorch_tanh)
  octavo_config_serves(tie_word_embeddings ON)
  octavo_config_serves(scale_attn_weights ON)
  octavo_config_serves(scale_attn_by_inverse_layer_idx OFF)
  string(CONCAT members
    "    .layers = ${layers},\n    .hidden = ${hidden},\n    .heads = ${heads},\n"
    "    .vocabulary = ${vocabulary},\n    .positions = ${positions},\n"
    "    .norm_epsilon = static_cast<float>(${epsilon})")
  set(${output} "${members}" PARENT_SCOPE)
endfunction()

function(octavo_add_model)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;CONFIG" "")
  if(NOT arg_NAME MATCHES "^[a-z_][a-z0-9_]*$" OR arg_UNPARSED_ARGUMENTS OR NOT arg_CONFIG)
    message(FATAL_ERROR "octavo_add_model: write octavo_add_model(NAME my_model CONFIG config.json), "
      "with a name of lower-case letters, digits and _; the arguments are '${ARGN}'")
  endif()
  cmake_path(ABSOLUTE_PATH arg_CONFIG NORMALIZE OUTPUT_VARIABLE config)
  if(IS_DIRECTORY ${config})
    cmake_path(APPEND config config.json)
  endif()
  if(NOT EXISTS ${config})
    message(FATAL_ERROR "octavo_add_model: ${config} does not exist")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${config})
  file(READ ${config} text)
  string(JSON type ERROR_VARIABLE error TYPE "${text}")
  if(error)
    message(FATAL_ERROR "octavo_add_model: ${config} is not valid JSON: ${error}")
  endif()
  octavo_config_value(model_type REQUIRED model_type)
  octavo_config_value(vocabulary REQUIRED vocab_size)
  if(model_type MATCHES "^(llama|mistral|qwen2|qwen3)$")
    set(family Llama)
    octavo_config_llama(members)
  elseif(model_type STREQUAL "gpt2")
    set(family Gpt2)
    octavo_config_gpt2(members)
  else()
    message(FATAL_ERROR "octavo_add_model: ${config}: model_type is ${model_type}, which Octavo does "
      "not support; it supports llama, mistral, qwen2, qwen3 and gpt2")
  endif()
  string(TOLOWER ${family} header)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${arg_NAME}_include)
  file(CONFIGURE OUTPUT ${folder}/octavo_models/${arg_NAME}.hpp @ONLY CONTENT
"// Generated by octavo_add_model from a Hugging Face config.json.
#pragma once

#include <octavo/models/${header}_config.hpp>

namespace octavo_models {

inline constexpr octavo::${family}Config ${arg_NAME}{
    .name = \"${arg_NAME}\",
${members}};

}  // namespace octavo_models
")
  add_library(octavo_model_${arg_NAME} INTERFACE)
  add_library(octavo::${arg_NAME} ALIAS octavo_model_${arg_NAME})
  target_include_directories(octavo_model_${arg_NAME} INTERFACE ${folder})
  target_link_libraries(octavo_model_${arg_NAME} INTERFACE octavo::octavo)
  set_property(GLOBAL PROPERTY octavo_model_family_${arg_NAME} ${family})
endfunction()
