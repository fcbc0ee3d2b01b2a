/// @file
/// Inference: generating text with trained models.
#pragma once

#include <octavo/inference/checkpoint.hpp>
#include <octavo/inference/generate.hpp>
#include <octavo/inference/hugging_face.hpp>
#include <octavo/inference/inference_shape.hpp>
#include <octavo/inference/inferring.hpp>
#include <octavo/inference/model.hpp>
#include <octavo/inference/sampling.hpp>
#include <octavo/inference/session.hpp>
#include <octavo/inference/text_model.hpp>
#include <octavo/inference/text_stream.hpp>
