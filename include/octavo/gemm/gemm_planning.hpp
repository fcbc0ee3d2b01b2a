/// @file
/// Selection of GEMM algorithms, and records of it. Needs no CUDA.
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
  heuristic,  ///< the library's first choice
  rehearsed,  ///< the fastest algorithm in micro-batches before the first step, if whole
              ///< micro-batches are faster with the fastest algorithms than with the library's
              ///< first choices; in a deterministic context, where timing must not decide, the
              ///< first choice
};

/// Where an algorithm is valid: for one version of cuBLASLt and one type of card.
struct GemmLibrary {
  std::string card;           ///< its name, with spaces replaced by '_'
  int multiprocessors = 0;    ///< of the card or its MIG partition
  std::uint64_t version = 0;  ///< of cuBLASLt, such as 130100

  friend auto operator<=>(const GemmLibrary&, const GemmLibrary&) = default;
  friend bool operator==(const GemmLibrary&, const GemmLibrary&) = default;  // required by nvcc 13
};

/// A GEMM and the algorithm chosen for it.
struct GemmPlanRecord {
  GemmLibrary library;
  GemmKey key;
  double microseconds = 0;                   ///< the GEMM's time when it was chosen
  std::array<std::uint64_t, 8> algorithm{};  ///< cuBLASLt's opaque words

  /// Whether both are for the same GEMM, card and library version.
  [[nodiscard]] bool replaces(const GemmPlanRecord& other) const {
    return library == other.library && key == other.key;
  }
  friend bool operator==(const GemmPlanRecord&, const GemmPlanRecord&) = default;
};

/// Summary of how GEMM algorithms were chosen.
struct GemmPlanSummary {
  int rehearsed = 0;   ///< chosen by trying in micro-batches
  int heuristic = 0;   ///< the library's first choice, without trying
  int recorded = 0;    ///< taken from records
  double seconds = 0;  ///< time spent choosing
  /// Milliseconds of a pass of the last rehearsal with the library's first choices, and with the
  /// fastest algorithm of each GEMM; 0 if there was no rehearsal.
  double heuristic_pass = 0;
  double rehearsed_pass = 0;
  bool keeps_first = false;          ///< the first choices were kept after the last rehearsal
  std::vector<std::string> refused;  ///< GEMMs whose recorded algorithm the library rejects

  /// Returns a text such as "20 chosen in a rehearsal, 2 taken from records, in 2.8 s", with the
  /// results of the rehearsal; empty if there are no GEMMs.
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
    for (const std::string& gemm : refused) {
      text += "\n  refused by this cuBLASLt, not used: " + gemm;
    }
    return text;
  }
};

/// Plans GEMMs before their first launch: from the context's records, if any; otherwise by
/// `choice`, and in a deterministic context always by heuristics. Sessions that share a context
/// share the results. The context must have a workspace.
/// @return number of GEMMs whose algorithms must be tried: call `rehearse_gemms_sync`
template <Device D>
[[nodiscard]] int prepare_gemms(std::span<const GemmKey> keys, GemmChoice choice,
                                const Context<D>& context) {
  return prepare_gemms_body(keys, choice, context);
}

/// Chooses the algorithms of the GEMMs that `prepare_gemms` counted.
/// @param pass  called without arguments, first up to 48 times and then repeatedly for at least ten
///              seconds; enqueues the work that contains the GEMMs, the same in each call. Some
///              calls are recorded, so it must neither synchronise nor allocate
/// @note synchronises
template <Device D, class Pass>
void rehearse_gemms_sync(const Pass& pass, const Context<D>& context) {
  rehearse_gemms_sync_body(pass, context);
}

/// Returns how the algorithms of GEMMs were chosen: of those in the last `prepare_gemms`, and of
/// those launched since then that no manifest lists.
template <Device D>
[[nodiscard]] GemmPlanSummary gemm_plan_summary(const Context<D>& context) {
  return gemm_plan_summary_body(context);
}

/// Sets algorithms that were chosen earlier, including for GEMMs that already have one; a recorded
/// step continues to use those that it was recorded with. Records of another card or library
/// version are ignored, and those that the library rejects have no effect. A deterministic context
/// also uses records: equal records give equal bits.
template <Device D>
void take_gemm_plans(std::span<const GemmPlanRecord> records, const Context<D>& context) {
  take_gemm_plans_body(records, context);
}

/// Returns the algorithms of a context's GEMMs, for later runs, except for GEMMs that were never
/// tried, which use heuristics again.
template <Device D>
[[nodiscard]] std::vector<GemmPlanRecord> gemm_plans(const Context<D>& context) {
  return gemm_plans_body(context);
}

namespace detail {

/// @name The `Cpu` device has a single algorithm, so there is nothing to choose.
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
