/// @file
/// Every model.
#pragma once

#include <octavo/models/adapter_tensors.hpp>
#include <octavo/models/decoder.hpp>
#include <octavo/models/family.hpp>
#include <octavo/models/gemma3.hpp>
#include <octavo/models/gemma3_config.hpp>
#include <octavo/models/gpt2.hpp>
#include <octavo/models/gpt2_config.hpp>
#include <octavo/models/hugging_face_families.hpp>
#include <octavo/models/hugging_face_tensors.hpp>
#include <octavo/models/llama.hpp>
#include <octavo/models/llama_config.hpp>
#include <octavo/models/model.hpp>
#include <octavo/models/model_description.hpp>
#include <octavo/models/stage.hpp>
#include <octavo/models/stage_driver.hpp>
#include <octavo/models/stage_hooks.hpp>
