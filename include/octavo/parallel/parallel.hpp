/// @file
/// The exchanges between the ranks of a training step.
#pragma once

#include <octavo/parallel/batch.hpp>
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/parallel/replica_check.hpp>
#include <octavo/parallel/single_rank.hpp>
#include <octavo/parallel/with_tensor_parallel.hpp>
