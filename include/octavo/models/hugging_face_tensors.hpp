/// @file
/// Names and layout of a model's tensors in Hugging Face transformers.
#pragma once

#include <octavo/models/model_description.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// A tensor of a Hugging Face model and its location in a parameter: `rows` whole rows. A parameter
/// that fuses matrices contains the rows of several tensors.
struct HuggingFaceTensor {
  std::string name{};       ///< such as "model.layers.0.self_attn.k_proj.weight"
  std::string parameter{};  ///< such as "blocks.0.qkv.weight"
  Index first_row = 0;      ///< of the parameter
  Index rows = 0;
  Index columns = 0;
  bool is_vector = false;      ///< its shape is [columns] instead of [rows, columns]
  bool is_transposed = false;  ///< its shape is [columns, rows]

  [[nodiscard]] std::vector<Index> shape() const {
    if (is_vector) return {columns};
    return is_transposed ? std::vector{columns, rows} : std::vector{rows, columns};
  }
};

namespace detail {

/// Collects the tensors of a model.
class HuggingFaceTensors {
 public:
  explicit HuggingFaceTensors(const ModelDescription& model) : model_(model) {}

  /// Collects the tensors of a Llama or a Qwen3. Source: transformers, modeling_llama.py and
  /// modeling_qwen3.py.
  std::vector<HuggingFaceTensor> llama() {
    const Index queries = model_.heads * model_.head_dim;
    const Index keys = model_.kv_heads * model_.head_dim;
    add("model.embed_tokens.weight", "embedding.weight", model_.vocabulary, model_.hidden);
    for (Index i = 0; i < model_.layers; ++i) {
      const std::string theirs = message("model.layers.", i, ".");
      const std::string ours = message("blocks.", i, ".");
      add_vector(theirs + "input_layernorm.weight", ours + "attention_norm.weight", model_.hidden);
      const std::string attention = theirs + "self_attn.";
      add(attention + "q_proj.weight", ours + "qkv.weight", queries, model_.hidden);
      add(attention + "k_proj.weight", ours + "qkv.weight", keys, model_.hidden, queries);
      add(attention + "v_proj.weight", ours + "qkv.weight", keys, model_.hidden, queries + keys);
      if (model_.family == ModelFamily::qwen3) {
        add_vector(attention + "q_norm.weight", ours + "query_norm.weight", model_.head_dim);
        add_vector(attention + "k_norm.weight", ours + "key_norm.weight", model_.head_dim);
      }
      add(attention + "o_proj.weight", ours + "output.weight", model_.hidden, queries);
      add_vector(theirs + "post_attention_layernorm.weight", ours + "mlp_norm.weight",
                 model_.hidden);
      add(theirs + "mlp.gate_proj.weight", ours + "gate_up.weight", model_.ffn, model_.hidden);
      add(theirs + "mlp.up_proj.weight", ours + "gate_up.weight", model_.ffn, model_.hidden,
          model_.ffn);
      add(theirs + "mlp.down_proj.weight", ours + "down.weight", model_.hidden, model_.ffn);
    }
    add_vector("model.norm.weight", "final_norm.weight", model_.hidden);
    if (!model_.tied_embeddings) {
      add("lm_head.weight", "head.weight", model_.vocabulary, model_.hidden);
    }
    return std::move(tensors_);
  }

  /// Collects the tensors of a GPT-2, whose linear layers are stored as [in, out]. Source:
  /// transformers, modeling_gpt2.py and Conv1D.
  std::vector<HuggingFaceTensor> gpt2() {
    const Index hidden = model_.hidden;
    add("transformer.wte.weight", "embedding.weight", model_.vocabulary, hidden);
    add("transformer.wpe.weight", "positions.weight", model_.positions, hidden);
    for (Index i = 0; i < model_.layers; ++i) {
      const std::string theirs = message("transformer.h.", i, ".");
      const std::string ours = message("blocks.", i, ".");
      add_norm(theirs + "ln_1", ours + "attention_norm");
      add_linear(theirs + "attn.c_attn", ours + "qkv", 3 * hidden, hidden);
      add_linear(theirs + "attn.c_proj", ours + "output", hidden, hidden);
      add_norm(theirs + "ln_2", ours + "mlp_norm");
      add_linear(theirs + "mlp.c_fc", ours + "up", model_.ffn, hidden);
      add_linear(theirs + "mlp.c_proj", ours + "down", hidden, model_.ffn);
    }
    add_norm("transformer.ln_f", "final_norm");
    return std::move(tensors_);
  }

 private:
  void add(std::string theirs, std::string ours, Index rows, Index columns, Index first_row = 0) {
    tensors_.push_back({std::move(theirs), std::move(ours), first_row, rows, columns});
  }
  void add_vector(std::string theirs, std::string ours, Index size) {
    tensors_.push_back({std::move(theirs), std::move(ours), 0, 1, size, true});
  }
  void add_norm(const std::string& theirs, const std::string& ours) {
    add_vector(theirs + ".weight", ours + ".weight", model_.hidden);
    add_vector(theirs + ".bias", ours + ".bias", model_.hidden);
  }
  void add_linear(const std::string& theirs, const std::string& ours, Index out, Index in) {
    add(theirs + ".weight", ours + ".weight", out, in);
    tensors_.back().is_transposed = true;
    add_vector(theirs + ".bias", ours + ".bias", out);
  }

  const ModelDescription& model_;
  std::vector<HuggingFaceTensor> tensors_;
};

}  // namespace detail

/// Returns all tensors of the model in a Hugging Face folder; those in one parameter are in the
/// order of its rows. A tied head has no tensor.
[[nodiscard]] inline std::vector<HuggingFaceTensor> hugging_face_tensors(
    const ModelDescription& model) {
  detail::HuggingFaceTensors tensors(model);
  return model.family == ModelFamily::gpt2 ? tensors.gpt2() : tensors.llama();
}

namespace detail {

/// The intersection of a tensor with a range of a parameter's elements.
struct TensorPiece {
  Index begin = 0;  ///< in the tensor, seen as [rows, columns]
  Index count = 0;
  std::size_t place = 0;  ///< of the first element in the requested range
};

/// Returns the intersection of a tensor with `count` elements of a parameter starting at `begin`.
inline TensorPiece piece_of(const HuggingFaceTensor& tensor, Index begin, std::size_t count) {
  const Index first = tensor.first_row * tensor.columns;
  const Index from = std::max(begin, first);
  const Index end =
      std::min(begin + static_cast<Index>(count), first + tensor.rows * tensor.columns);
  if (from >= end) return {};
  return {from - first, end - from, static_cast<std::size_t>(from - begin)};
}

/// Calls `body(begin, count, place)` for each contiguous range of a stored tensor that belongs to a
/// piece: its first element in the tensor, its length, and the place of its first element in the
/// piece. In the piece, the elements are also contiguous or, with `is_transposed`, one row apart.
template <class Body>
void for_each_stored(const HuggingFaceTensor& tensor, const TensorPiece& piece, const Body& body) {
  if (!tensor.is_transposed) return body(piece.begin, piece.count, Index{0});
  const Index end = piece.begin + piece.count;
  for (Index column = 0; column < tensor.columns; ++column) {
    // First row of the piece that has this column.
    const Index first = (piece.begin - column + tensor.columns - 1) / tensor.columns;
    const Index last = (end - column + tensor.columns - 1) / tensor.columns;
    if (first >= last) continue;
    body(column * tensor.rows + first, last - first, first * tensor.columns + column - piece.begin);
  }
}

}  // namespace detail
}  // namespace octavo
