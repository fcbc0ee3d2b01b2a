/// @file
/// Every layer.
#pragma once

#include <octavo/layers/adapter.hpp>
#include <octavo/layers/attention.hpp>
#include <octavo/layers/embedding.hpp>
#include <octavo/layers/experts_linear.hpp>
#include <octavo/layers/experts_mlp.hpp>
#include <octavo/layers/head.hpp>
#include <octavo/layers/layer_norm.hpp>
#include <octavo/layers/linear.hpp>
#include <octavo/layers/lora_options.hpp>
#include <octavo/layers/mlp.hpp>
#include <octavo/layers/parallel_branch.hpp>
#include <octavo/layers/parallel_embedding.hpp>
#include <octavo/layers/parallel_head.hpp>
#include <octavo/layers/pre_norm_block.hpp>
#include <octavo/layers/projection.hpp>
#include <octavo/layers/residual_branch.hpp>
#include <octavo/layers/rms_norm.hpp>
#include <octavo/layers/rope.hpp>
#include <octavo/layers/rotation.hpp>
