/// @file
/// How algorithms of matrix products are chosen, and records of those that were. Needs no CUDA.
#pragma once

#include <octavo/gemm/gemm_key.hpp>

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// How an algorithm is chosen.
enum class GemmChoice : std::uint8_t {
  heuristic,  ///< the library's first guess
  rehearsed,  ///< the fastest of those that take turns in micro-batches before the first step, if
              ///< whole micro-batches are faster with them than with the library's first guesses;
              ///< in a deterministic context, where no timing may decide, the first guess
};

/// Where an algorithm can be used: cuBLASLt's own hold for one version of it and one kind of card.
struct GemmLibrary {
  std::string card;           ///< its name; blanks are written as '_'
  int multiprocessors = 0;    ///< of the card, which may be a part of one
  std::uint64_t version = 0;  ///< of cuBLASLt, such as 130100

  friend auto operator<=>(const GemmLibrary&, const GemmLibrary&) = default;
  friend bool operator==(const GemmLibrary&, const GemmLibrary&) = default;  // for nvcc 13
};

/// A product and the algorithm that was chosen for it.
struct GemmPlanRecord {
  GemmLibrary library;
  GemmKey key;
  double microseconds = 0;                   ///< that the product took when it was chosen
  std::array<std::uint64_t, 8> algorithm{};  ///< cuBLASLt's own words, opaque

  /// Whether both are of the same product in the same place.
  [[nodiscard]] bool replaces(const GemmPlanRecord& other) const {
    return library == other.library && key == other.key;
  }
  friend bool operator==(const GemmPlanRecord&, const GemmPlanRecord&) = default;
};

/// How the algorithms of products were chosen.
struct GemmPlanSummary {
  int rehearsed = 0;   ///< tried in micro-batches
  int heuristic = 0;   ///< the library's first guess, with nothing tried
  int recorded = 0;    ///< taken from records
  double seconds = 0;  ///< that choosing took
  /// Milliseconds of a pass of the last rehearsal with the library's first guesses, and with the
  /// fastest of each product; 0: there was none.
  double heuristic_pass = 0;
  double rehearsed_pass = 0;
  bool keeps_first = false;          ///< the first guesses stayed after the last rehearsal
  std::vector<std::string> refused;  ///< products whose recorded algorithm the library refuses

  /// "20 chosen in a rehearsal, 2 taken from records, in 2.8 s", and what the rehearsal brought;
  /// empty for none.
  [[nodiscard]] std::string text() const {
    std::string text;
    const auto add = [&](int count, const char* what) {
      if (count > 0) text += message(text.empty() ? "" : ", ", count, what);
    };
    add(rehearsed, " chosen in a rehearsal");
    add(heuristic, " by heuristics");
    add(recorded, " taken from records");
    if (!text.empty()) text += ", in " + fixed_text(seconds, 1) + " s";
    if (heuristic_pass > 0) {
      text += "\n  rehearsed passes took " + fixed_text(heuristic_pass, 2) + " ms by heuristics, " +
              fixed_text(rehearsed_pass, 2) + " ms with the fastest of each; used: " +
              (keeps_first ? "the heuristics'" : "the fastest");
    }
    for (const std::string& product : refused) {
      text += "\n  refused by this cuBLASLt, not used: " + product;
    }
    return text;
  }
};

/// Plans products before their first launch: with records, if the context was given some; else as
/// `choice` says, in a deterministic context always by heuristics. What sessions that share a
/// context have tried, they share. The context has a workspace.
/// @return products of which algorithms are to be tried: give them to `rehearse_gemms_sync`
template <Device D>
[[nodiscard]] int prepare_gemms(std::span<const GemmKey> keys, GemmChoice choice,
                                const Context<D>& context) {
  return prepare_gemms_body(keys, choice, context);
}

/// Chooses the algorithms of the products that `prepare_gemms` counted.
/// @param pass  called without arguments, up to 48 times and then for ten seconds or more: enqueues
///              the work that they are part of, the same in each call. Some calls are recorded: it
///              must neither wait nor allocate
/// @note synchronises
template <Device D, class Pass>
void rehearse_gemms_sync(const Pass& pass, const Context<D>& context) {
  rehearse_gemms_sync_body(pass, context);
}

/// How the algorithms of the products of the last `prepare_gemms` were chosen, and of those that
/// were launched since and never announced.
template <Device D>
[[nodiscard]] GemmPlanSummary gemm_plan_summary(const Context<D>& context) {
  return gemm_plan_summary_body(context);
}

/// Gives a context algorithms that were chosen before, also for products that have another; a step
/// that is recorded goes on with what it was recorded with. Those of another card or another
/// version of its library are left out, and those that the library refuses change nothing. A
/// deterministic context takes them, too: equal ones give equal bits.
template <Device D>
void take_gemm_plans(std::span<const GemmPlanRecord> records, const Context<D>& context) {
  take_gemm_plans_body(records, context);
}

/// The algorithms of a context's products, for later runs; not those of products that were never
/// tried, which heuristics find again.
template <Device D>
[[nodiscard]] std::vector<GemmPlanRecord> gemm_plans(const Context<D>& context) {
  return gemm_plans_body(context);
}

namespace detail {

/// @name The `Cpu` device has one algorithm: there is nothing to choose.
/// @{
inline int prepare_gemms_body(std::span<const GemmKey>, GemmChoice, const Context<Cpu>&) {
  return 0;
}
template <class Pass>
void rehearse_gemms_sync_body(const Pass&, const Context<Cpu>&) {}
inline GemmPlanSummary gemm_plan_summary_body(const Context<Cpu>&) { return {}; }
inline void take_gemm_plans_body(std::span<const GemmPlanRecord>, const Context<Cpu>&) {}
inline std::vector<GemmPlanRecord> gemm_plans_body(const Context<Cpu>&) { return {}; }
/// @}

}  // namespace detail
}  // namespace octavo
