/// @file
/// Ranks that train one model.
#pragma once

#include <octavo/comm/all_gather_texts.hpp>
#include <octavo/comm/all_gather_values.hpp>
#include <octavo/comm/communicator.hpp>
#include <octavo/comm/launch.hpp>
#include <octavo/comm/same_on_all_ranks.hpp>
#include <octavo/comm/self_comm.hpp>
#include <octavo/comm/sharding.hpp>
