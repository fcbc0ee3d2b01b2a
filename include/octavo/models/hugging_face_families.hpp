/// @file
/// All families that Hugging Face folders can have.
#pragma once

#include <octavo/models/gemma3_hugging_face.hpp>
#include <octavo/models/gpt2_hugging_face.hpp>
#include <octavo/models/llama_hugging_face.hpp>

#include <array>
#include <string>

namespace octavo OCTAVO_ABI {

/// The constants of all families; that of a new family is added here.
inline constexpr std::array hugging_face_families{
    &llama_in_hugging_face,  &mistral_in_hugging_face, &qwen2_in_hugging_face,
    &qwen3_in_hugging_face,  &mixtral_in_hugging_face, &qwen3_moe_in_hugging_face,
    &gemma3_in_hugging_face, &gpt2_in_hugging_face};

/// Returns the names of all families, as a text.
[[nodiscard]] inline std::string hugging_face_family_names() {
  std::string names;
  for (const HuggingFaceFamily* family : hugging_face_families) {
    if (!names.empty()) names += family == hugging_face_families.back() ? " and " : ", ";
    names += family->name;
  }
  return names;
}

}  // namespace octavo
