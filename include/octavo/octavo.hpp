/// @file
/// The parts of models and their training, for the `Cpu` device; programs for `Cuda` include
/// `octavo/cuda.cuh` instead. Features that not every program needs are in separate headers, some
/// of which include all of a folder: `octavo/models/models.hpp` for Hugging Face's names of a
/// model's tensors, `octavo/precision/named_precisions.hpp` for precisions by name,
/// `octavo/session/state.hpp` for copies of a session's state, `octavo/data/data.hpp` for texts and
/// tokens, `octavo/run/run.hpp` for training with texts and files, `octavo/inference/inference.hpp`
/// for generating text.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/attention/cached_attention.hpp>
#include <octavo/core/version.hpp>
#include <octavo/formats/formats.hpp>
#include <octavo/gemm/gemm.hpp>
#include <octavo/kernels/kernels.hpp>
#include <octavo/layers/layers.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/models/family.hpp>
#include <octavo/optim/optim.hpp>
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/precision/inference.hpp>
#include <octavo/precision/layer_precision.hpp>
#include <octavo/precision/layerwise.hpp>
#include <octavo/precision/lora.hpp>
#include <octavo/precision/policy.hpp>
#include <octavo/precision/scaling.hpp>
#include <octavo/session/session.hpp>
#include <octavo/tensor/tensor.hpp>
