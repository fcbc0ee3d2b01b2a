/// @file
/// Reassembling the state of a checkpoint for any number of ranks.
#pragma once

#include <octavo/checkpoint/checkpoint_file.hpp>
#include <octavo/checkpoint/checkpoint_manifest.hpp>
#include <octavo/checkpoint/parameter_state.hpp>
#include <octavo/kernels/adamw_formula.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// "bf16 [64, 256]".
inline std::string entry_text(const StateEntry& entry) {
  if (entry.whole.empty()) return entry.format;
  std::string text = entry.format + " [";
  for (std::size_t i = 0; i < entry.whole.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(entry.whole[i]);
  }
  return text + "]";
}

/// Returns the rows and columns of a whole entry.
inline Array<Index, 2> matrix_of(const StateEntry& entry) {
  const Index columns = entry.shape.size() == 2 ? entry.shape[1] : elements_of(entry.shape);
  return {columns == 0 ? 0 : elements_of(entry.shape) / columns, columns};
}

/// The pieces of each entry in the files of a checkpoint. Each rank that saved it wrote a shard.
/// The ranks of a session may need other shards, which are assembled from the overlapping pieces.
class CheckpointPieces {
 public:
  /// Reads the headers of the files.
  /// @throws IoError  naming a file that does not belong to a checkpoint
  CheckpointPieces(const std::filesystem::path& folder, const CheckpointManifest& manifest) {
    for (const CheckpointFile& file : manifest.files) {
      files_.push_back(std::make_unique<StateFile>(folder / file.name));
      const std::vector<StateEntry>& entries = files_.back()->entries();
      for (std::size_t i = 0; i < entries.size(); ++i) {
        pieces_[entries[i].name].push_back({files_.back().get(), i, &entries[i]});
      }
    }
  }

  /// Returns all names, sorted: the same on all ranks.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> result;
    result.reserve(pieces_.size());
    for (const auto& [name, pieces] : pieces_) result.push_back(name);
    return result;
  }

  /// Requires that the checkpoint has an entry.
  /// @throws StateMismatchError  if it has none, or one with another format or shape
  /// @throws ConfigError         if part of it is missing
  void require_has(const StateEntry& wanted) const { (void)copies(wanted); }

  /// Returns the description of an entry in one of the files; null if none has it.
  [[nodiscard]] const StateEntry* find(const std::string& name) const {
    const auto found = pieces_.find(name);
    return found == pieces_.end() ? nullptr : found->second.front().entry;
  }

  /// Returns the unsharded entries with a name: one, or one per tensor-parallel part. They have no
  /// functions for reading and writing.
  [[nodiscard]] std::vector<StateEntry> parts(const std::string& name) const {
    std::vector<StateEntry> result;
    const auto found = pieces_.find(name);
    if (found == pieces_.end()) return result;
    for (const Piece& piece : found->second) {
      StateEntry entry = *piece.entry;
      const auto count = static_cast<std::size_t>(elements_of(entry.shape));
      const auto has_part = [&](const StateEntry& other) { return other.part == entry.part; };
      if (count == 0 || std::ranges::any_of(result, has_part)) continue;
      entry.bytes = entry.bytes / count * static_cast<std::size_t>(elements_of(entry.whole));
      entry.shape = entry.whole;
      entry.begin = 0;
      result.push_back(std::move(entry));
    }
    return result;
  }

  /// Reads an entry, or consecutive elements of it.
  /// @param bytes    receives `wanted.bytes` bytes
  /// @param context  whose threads read them
  /// @throws ConfigError  see `require_has`
  /// @throws IoError      naming the file, if it cannot be read
  void read(const StateEntry& wanted, std::span<std::byte> bytes,
            const Context<Cpu>& context = Context<Cpu>(1)) const {
    for (const Copy& copy : copies(wanted)) {
      const std::span<std::byte> target = bytes.subspan(copy.to, copy.bytes);
      if (copy.from == nullptr) {
        std::ranges::fill(target, std::byte{0});
      } else {
        copy.from->file->read(copy.from->number, copy.begin, target, context);
      }
    }
  }

  /// Reads an entry into the session.
  /// @param memory  for its bytes; enlarged if necessary
  /// @throws IoError  naming the file, if it cannot be read
  void load_sync(const StateEntry& wanted, std::vector<std::byte>& memory) const {
    if (memory.size() < wanted.bytes) memory.resize(wanted.bytes);
    read(wanted, std::span(memory).first(wanted.bytes));
    wanted.write_sync(memory.data());
  }

 private:
  /// The part of an entry in one of the files.
  struct Piece {
    const StateFile* file;
    std::size_t number;
    const StateEntry* entry;
  };
  /// Bytes of a piece, and their offset in the wanted entry.
  struct Copy {
    const Piece* from;  ///< null: zeros
    std::uint64_t begin;
    std::size_t to;
    std::size_t bytes;
  };

  /// Consecutive elements of a part of a parameter, and their offset in the whole parameter.
  struct Stripe {
    Index whole_begin, begin, count;
    const ParameterPart* part;
  };

  [[nodiscard]] std::vector<Copy> copies(const StateEntry& wanted) const {
    const std::vector<Piece>& pieces = pieces_of(wanted);
    const auto has_part = [&](const Piece& piece) { return piece.entry->part == wanted.part; };
    std::vector<Copy> result;
    if (std::ranges::any_of(pieces, has_part)) {
      for (const Piece& piece : pieces) {
        if (piece.entry->whole != wanted.whole) throw_mismatch(wanted, *piece.entry);
      }
      add_copies(wanted, wanted.part, wanted.begin, wanted.begin + elements_of(wanted.shape), 0,
                 result);
    } else {
      add_copies_of_other_parts(wanted, *pieces.front().entry, result);
    }
    std::size_t bytes = 0;
    for (const Copy& copy : result) bytes += copy.bytes;
    require<ConfigError>(bytes == wanted.bytes, wanted.name, ": the checkpoint has ", bytes,
                         " of its ", wanted.bytes, " bytes; use another checkpoint");
    return result;
  }

  /// @throws StateMismatchError  if there are none, or of another format
  [[nodiscard]] const std::vector<Piece>& pieces_of(const StateEntry& wanted) const {
    const auto found = pieces_.find(wanted.name);
    if (found == pieces_.end()) {
      const bool is_optimizers = wanted.name.starts_with("optimizer.");
      throw StateMismatchError(
          message("the checkpoint has no ", wanted.name,
                  is_optimizers
                      ? "; the optimizer that saved it keeps other state, from which this "
                        "one cannot be computed: resume with that optimizer"
                      : entry_advice(wanted.name)),
          wanted.name, "");
    }
    for (const Piece& piece : found->second) {
      const bool is_recipe = wanted.name == "session.recipe";
      const std::string format =
          is_recipe ? current_recipe(piece.entry->format) : piece.entry->format;
      if (format != wanted.format) throw_mismatch(wanted, *piece.entry);
    }
    return found->second;
  }

  [[noreturn]] static void throw_mismatch(const StateEntry& wanted, const StateEntry& found) {
    throw StateMismatchError(
        message(entry_is(wanted.name), entry_text(found), " in the checkpoint, but ",
                entry_text(wanted), " here", entry_advice(wanted.name)),
        wanted.name, entry_text(found));
  }

  /// Adds the location of consecutive elements of a part.
  /// @param begin, end  elements of the part
  /// @param to          byte offset in the wanted entry
  void add_copies(const StateEntry& wanted, const ParameterPart& part, Index begin, Index end,
                  std::size_t to, std::vector<Copy>& result) const {
    std::vector<const Piece*> parts;
    for (const Piece& piece : pieces_.at(wanted.name)) {
      if (piece.entry->part == part) parts.push_back(&piece);
    }
    std::ranges::sort(parts, {}, [](const Piece* piece) { return piece->entry->begin; });
    Index at = begin;
    for (const Piece* piece : parts) {
      const StateEntry& entry = *piece->entry;
      const Index count = elements_of(entry.shape);
      const Index last = std::min(end, entry.begin + count);
      if (entry.bytes == 0 || entry.begin > at || last <= at) continue;
      const std::uint64_t element = entry.bytes / static_cast<std::uint64_t>(count);
      const std::uint64_t wanted_element = bytes_of_element(wanted);
      require<IoError>(
          element == wanted_element && entry.bytes == element * static_cast<std::uint64_t>(count),
          wanted.name, ": its elements have ", element, " bytes in the checkpoint, but ",
          wanted_element, " here; it is damaged, use another checkpoint");
      const auto bytes_of = [element](Index elements) {
        return static_cast<std::size_t>(element * static_cast<std::uint64_t>(elements));
      };
      result.push_back(
          {piece, bytes_of(at - entry.begin), to + bytes_of(at - begin), bytes_of(last - at)});
      at = last;
    }
    require<ConfigError>(at == end || wanted.bytes == 0, wanted.name,
                         ": the checkpoint lacks its elements from ", at,
                         " on; a file is missing: use another checkpoint");
  }

  /// Finds elements by their offset in the whole parameter, if the tensor-parallel degree differs.
  /// Padding rows that the checkpoint lacks are zeros.
  /// @param found  one of the existing parts
  void add_copies_of_other_parts(const StateEntry& wanted, const StateEntry& found,
                                 std::vector<Copy>& result) const {
    const Array<Index, 2> shape = shape_of_part(wanted);
    const Array<Index, 2> found_shape = shape_of_part(found);
    const Array<Index, 2> whole = wanted.part.full_shape(shape);
    const Array<Index, 2> found_whole = found.part.full_shape(found_shape);
    const Index rows = std::min(whole[0], found_whole[0]);
    const bool fits = whole[1] == found_whole[1] &&
                      (whole[0] == found_whole[0] ||
                       rows >= std::max(wanted.part.live_rows, found.part.live_rows));
    if (!fits) throw_mismatch(wanted, found);
    std::vector<Stripe> stripes;
    std::vector<ParameterPart> seen;
    for (const Piece& piece : pieces_.at(wanted.name)) {
      const ParameterPart& part = piece.entry->part;
      if (std::ranges::find(seen, part) != seen.end()) continue;
      seen.push_back(part);
      add_stripes(wanted.name, part, found_shape, stripes);
    }
    std::ranges::sort(stripes, {}, &Stripe::whole_begin);
    std::vector<Stripe> wanted_stripes;
    add_stripes(wanted.name, wanted.part, shape, wanted_stripes);
    const Index live_end = rows * whole[1] / elements_of_one(wanted.name);
    const auto bytes_of = [element = bytes_of_element(wanted)](Index elements) {
      return static_cast<std::size_t>(element * static_cast<std::uint64_t>(elements));
    };
    const Index wanted_end = wanted.begin + elements_of(wanted.shape);
    for (const Stripe& wanted_stripe : wanted_stripes) {
      const Index to_whole = wanted_stripe.whole_begin - wanted_stripe.begin;
      Index at = std::max(wanted_stripe.begin, wanted.begin);
      const Index end = std::min(wanted_stripe.begin + wanted_stripe.count, wanted_end);
      while (at < end) {
        const Index place = at + to_whole;
        const std::size_t to = bytes_of(at - wanted.begin);
        if (place >= live_end) {
          result.push_back({nullptr, 0, to, bytes_of(end - at)});
          break;
        }
        const auto next_stripe = std::ranges::upper_bound(stripes, place, {}, &Stripe::whole_begin);
        const Stripe stripe = next_stripe == stripes.begin() ? Stripe{} : *std::prev(next_stripe);
        const Index stripe_end = stripe.whole_begin + stripe.count;
        require<ConfigError>(
            place < stripe_end, "the checkpoint lacks the shard of ", wanted.name,
            " of one of the ranks; a file is missing in it: use another checkpoint");
        const Index last = std::min({end, stripe_end - to_whole, live_end - to_whole});
        const Index from = place - stripe.whole_begin + stripe.begin;
        add_copies(wanted, *stripe.part, from, from + last - at, to, result);
        at = last;
      }
    }
  }

  /// Returns the elements of a parameter per element of an entry: scales belong to groups.
  static Index elements_of_one(const std::string& name) {
    return moment_of_scale(name).empty() ? 1 : moment_group;
  }
  /// Returns the rows and columns of the part of an entry; for scales, those of their moment.
  [[nodiscard]] Array<Index, 2> shape_of_part(const StateEntry& entry) const {
    const std::string moment = moment_of_scale(entry.name);
    const StateEntry* shape_source = moment.empty() ? &entry : find(moment);
    require<IoError>(shape_source != nullptr, "the checkpoint has ", entry.name,
                     " without the values that they scale; it is damaged, use another checkpoint");
    StateEntry whole = *shape_source;
    whole.shape = whole.whole;
    Array<Index, 2> shape = matrix_of(whole);
    if (moment.empty()) return shape;
    shape = whole.part.full_shape(shape);
    const bool divides = !entry.part.is_whole() && entry.part.divides_columns();
    const Index columns = divides ? shape[1] / entry.part.degree : shape[1];
    return {elements_of(entry.whole) * moment_group / columns, columns};
  }
  /// Adds the elements of the whole parameter that a part contains, counted in elements of the
  /// entry.
  static void add_stripes(const std::string& name, const ParameterPart& part,
                          const Array<Index, 2>& shape, std::vector<Stripe>& stripes) {
    const Index one = elements_of_one(name);
    part.for_each_stripe(shape, [&](Index begin, Index whole_begin, Index count) {
      require<ConfigError>(
          begin % one == 0 && whole_begin % one == 0 && count % one == 0, name, ": a rank has ",
          count, " adjacent elements of the parameter, which is not a multiple of the ", one,
          " that share a scale; resume with the run's number of ranks that share each layer, or "
          "first convert the moments with that number to another format");
      stripes.push_back({whole_begin / one, begin / one, count / one, &part});
    });
  }
  static std::uint64_t bytes_of_element(const StateEntry& entry) {
    const Index count = elements_of(entry.shape);
    return count == 0 ? 0 : entry.bytes / static_cast<std::uint64_t>(count);
  }

  std::vector<std::unique_ptr<StateFile>> files_;
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace octavo OCTAVO_ABI::detail
