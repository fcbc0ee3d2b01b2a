/// @file
/// Every number format of the library.
#pragma once

#include <octavo/formats/bf16.hpp>
#include <octavo/formats/e8m0.hpp>
#include <octavo/formats/eight_bit.hpp>
#include <octavo/formats/fp4.hpp>
#include <octavo/formats/fp8.hpp>
