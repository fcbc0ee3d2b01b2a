/// @file
/// The devices that the library runs on, as types.
#pragma once

#include <octavo/core/version.hpp>

#include <concepts>
#include <cstdint>

namespace octavo OCTAVO_ABI {

/// Sizes and positions of elements.
using Index = std::int64_t;

/// The host's processors; emulates every format bit for bit and is the oracle for `Cuda`.
struct Cpu {
  static constexpr const char* name = "cpu";
};

/// One NVIDIA GPU.
struct Cuda {
  static constexpr const char* name = "cuda";
};

/// A type that names a device.
template <class D>
concept Device = std::same_as<D, Cpu> || std::same_as<D, Cuda>;

/// What memory plans need to know of a device; no device has to be there. Specialised for each
/// device; a context converts to it.
template <Device D>
struct DeviceLimits;

/// Says what to include for a device that is not there.
template <Device D>
struct DeviceNotIncluded {
  static_assert(!std::same_as<D, Cuda>,
                "the Cuda device is not included: include <octavo/cuda.cuh>, in a file that nvcc "
                "compiles (NAME.cu)");
};

namespace detail {

/// A base of every context: an unqualified call with a context finds the bodies of operations,
/// which stand in this namespace, because of it.
struct FindsBodies {};

}  // namespace detail

/// What a launching function needs of its device: threads or a stream, and the workspace that
/// kernels and GEMMs may use while they run. Specialised for each device.
template <Device D>
class Context : DeviceNotIncluded<D> {};

}  // namespace octavo
