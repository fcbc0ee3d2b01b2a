/// @file
/// Optimizers and learning-rate schedules.
#pragma once

#include <octavo/optim/adamw.hpp>
#include <octavo/optim/muon.hpp>
#include <octavo/optim/optimizer.hpp>
#include <octavo/optim/schedule.hpp>
