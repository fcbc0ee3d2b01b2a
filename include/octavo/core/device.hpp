/// @file
/// The devices that the library runs on, as types.
#pragma once

#include <octavo/core/version.hpp>

#include <concepts>
#include <cstdint>

namespace octavo OCTAVO_ABI {

/// Sizes and positions of elements.
using Index = std::int64_t;

/// The host's processors. Emulates every format bit for bit, and is the oracle for `Cuda`.
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

/// Properties of a device that memory plans need; the device itself need not exist. Specialised for
/// each device; a context converts to it.
template <Device D>
struct DeviceLimits;

/// Reports which header to include for a device whose header is missing.
template <Device D>
struct DeviceNotIncluded {
  static_assert(!std::same_as<D, Cuda>,
                "the Cuda device is not included; include <octavo/cuda.cuh>, in a file that nvcc "
                "compiles (NAME.cu)");
};

namespace detail {

/// A base of every context. It lets an unqualified call with a context find the bodies of
/// operations, which are in this namespace.
struct FindsBodies {};

}  // namespace detail

/// The resources that a launching function needs from its device: threads or a stream, and the
/// workspace that kernels and GEMMs may use while they run. Specialised for each device.
template <Device D>
class Context : DeviceNotIncluded<D> {};

}  // namespace octavo
