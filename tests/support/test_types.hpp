#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <tuple>

namespace support {

/// The types that a suite runs with. Builds with OCTAVO_TEST_FEW_TYPES, which look for misuse of
/// memory, at how code is written, or whether nvcc takes it, have the first and the last only:
/// numbers are the others' task. So suites differ in what stands there.
#ifdef OCTAVO_TEST_FEW_TYPES
template <class... All>
struct FewTypes {
  using Tuple = std::tuple<All...>;
  using Types = testing::Types<std::tuple_element_t<0, Tuple>,
                               std::tuple_element_t<sizeof...(All) - 1, Tuple>>;
};
template <class... All>
using TestTypes = typename FewTypes<All...>::Types;
#else
template <class... All>
using TestTypes = testing::Types<All...>;
#endif

/// The types of a suite that combines choices which other types have one by one: those of And only
/// in builds with OCTAVO_TEST_ALL_TYPES, which the preset `tests` is not.
template <class... Always>
struct TypesAlways {
#if defined(OCTAVO_TEST_ALL_TYPES) || defined(OCTAVO_TEST_FEW_TYPES)
  template <class... Further>
  using And = TestTypes<Always..., Further...>;
#else
  template <class...>
  using And = testing::Types<Always...>;
#endif
};

}  // namespace support
