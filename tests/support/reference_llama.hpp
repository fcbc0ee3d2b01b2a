#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

/// Oracles for tests. Nothing here includes or imitates the library: each function is the formula,
/// in double precision, slow and obvious.
namespace reference {

/// The shape of a Llama-like decoder, as Hugging Face's config.json gives it.
struct ReferenceConfig {
  int layers = 0;
  int hidden = 0;
  int ffn = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocabulary = 0;
  double norm_epsilon = 0.0;
  double rope_theta = 0.0;
  bool llama3_rope = false;  ///< the four rope_ fields below count only if this is true
  double rope_factor = 1.0;
  double rope_low = 1.0;
  double rope_high = 4.0;
  int rope_original_length = 0;
  bool tied_embeddings = false;  ///< the head is model.embed_tokens.weight
  bool qk_norm = false;          ///< Qwen3: RMSNorm over head_dim of every q and k head before RoPE
};

/// Tensors by Hugging Face name; matrices are row-major [out, in].
using Weights = std::map<std::string, std::vector<double>>;

/// A row-major matrix of activations.
struct Matrix {
  Matrix(int row_count, int column_count)
      : rows(row_count),
        columns(column_count),
        values(static_cast<std::size_t>(row_count) * static_cast<std::size_t>(column_count)) {}

  double& operator()(int row, int column) { return values[index(row, column)]; }
  double operator()(int row, int column) const { return values[index(row, column)]; }

  int rows;
  int columns;
  std::vector<double> values;

 private:
  std::size_t index(int row, int column) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
           static_cast<std::size_t>(column);
  }
};

/// The weight called `name` as a matrix [rows, columns].
/// @throws std::invalid_argument  if it is missing or holds another number of elements
inline Matrix weight_matrix(const Weights& weights, const std::string& name, int rows,
                            int columns) {
  const auto found = weights.find(name);
  if (found == weights.end()) throw std::invalid_argument("reference: no weight " + name);
  Matrix matrix(rows, columns);
  if (found->second.size() != matrix.values.size()) {
    throw std::invalid_argument("reference: weight " + name + " has " +
                                std::to_string(found->second.size()) + " elements, expected " +
                                std::to_string(matrix.values.size()));
  }
  matrix.values = found->second;
  return matrix;
}

/// Radians a position for each of the head_dim / 2 rotated pairs: f_i = theta^(-2i / head_dim),
/// then, for `llama3`, by wavelength lambda = 2 pi / f: below original / high unchanged, above
/// original / low divided by the factor, blended between.
inline std::vector<double> rope_frequencies(const ReferenceConfig& config) {
  std::vector<double> frequencies;
  for (int pair = 0; pair < config.head_dim / 2; ++pair) {
    const double frequency = std::pow(config.rope_theta, -2.0 * pair / config.head_dim);
    if (!config.llama3_rope) {
      frequencies.push_back(frequency);
      continue;
    }
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    const double original = config.rope_original_length;
    if (wavelength < original / config.rope_high) {
      frequencies.push_back(frequency);
    } else if (wavelength > original / config.rope_low) {
      frequencies.push_back(frequency / config.rope_factor);
    } else {
      const double blend =
          (original / wavelength - config.rope_low) / (config.rope_high - config.rope_low);
      frequencies.push_back((1.0 - blend) * frequency / config.rope_factor + blend * frequency);
    }
  }
  return frequencies;
}

/// y = x / sqrt(mean(x^2) + epsilon) * gain, for each run of `gain.columns` elements of a row of x:
/// the whole row for the norms of a block, one head for qk_norm.
inline Matrix rms_norm(const Matrix& x, const Matrix& gain, double epsilon) {
  Matrix y(x.rows, x.columns);
  const int width = gain.columns;
  for (int row = 0; row < x.rows; ++row) {
    for (int begin = 0; begin < x.columns; begin += width) {
      double sum_of_squares = 0.0;
      for (int i = 0; i < width; ++i) sum_of_squares += x(row, begin + i) * x(row, begin + i);
      const double root = std::sqrt(sum_of_squares / width + epsilon);
      for (int i = 0; i < width; ++i) y(row, begin + i) = x(row, begin + i) / root * gain(0, i);
    }
  }
  return y;
}

/// y = x W^T, with W [out, in].
inline Matrix linear(const Matrix& x, const Matrix& w) {
  Matrix y(x.rows, w.rows);
  for (int row = 0; row < x.rows; ++row) {
    for (int out = 0; out < w.rows; ++out) {
      double sum = 0.0;
      for (int in = 0; in < w.columns; ++in) sum += x(row, in) * w(out, in);
      y(row, out) = sum;
    }
  }
  return y;
}

/// y = a + b.
inline Matrix add(const Matrix& a, const Matrix& b) {
  Matrix y = a;
  for (std::size_t i = 0; i < y.values.size(); ++i) y.values[i] += b.values[i];
  return y;
}

/// Rotary position embedding in Hugging Face's order: element i of a head is paired with element
/// i + head_dim / 2 and the pair is turned by position * frequency_i.
inline Matrix rope(const ReferenceConfig& config, const Matrix& x, int sequence_length) {
  const std::vector<double> frequencies = rope_frequencies(config);
  const int half = config.head_dim / 2;
  Matrix y(x.rows, x.columns);
  for (int row = 0; row < x.rows; ++row) {
    const int position = row % sequence_length;
    for (int head = 0; head < x.columns / config.head_dim; ++head) {
      for (int i = 0; i < half; ++i) {
        const double angle = position * frequencies[static_cast<std::size_t>(i)];
        const int first = head * config.head_dim + i;
        const int second = first + half;
        y(row, first) = x(row, first) * std::cos(angle) - x(row, second) * std::sin(angle);
        y(row, second) = x(row, second) * std::cos(angle) + x(row, first) * std::sin(angle);
      }
    }
  }
  return y;
}

/// softmax(q k^T / sqrt(head_dim)) v over the positions up to the query's own. Query head h reads
/// key and value head h / (heads / kv_heads).
/// @param q  [batch * sequence_length, heads * head_dim]
/// @param k  [batch * sequence_length, kv_heads * head_dim], as is v
inline Matrix causal_attention(const ReferenceConfig& config, const Matrix& q, const Matrix& k,
                               const Matrix& v, int batch, int sequence_length) {
  Matrix output(q.rows, q.columns);
  const int dim = config.head_dim;
  for (int sequence = 0; sequence < batch; ++sequence) {
    const int base = sequence * sequence_length;
    for (int head = 0; head < config.heads; ++head) {
      const int kv_head = head / (config.heads / config.kv_heads);
      for (int query = 0; query < sequence_length; ++query) {
        std::vector<double> scores;
        for (int key = 0; key <= query; ++key) {
          double dot = 0.0;
          for (int i = 0; i < dim; ++i) {
            dot += q(base + query, head * dim + i) * k(base + key, kv_head * dim + i);
          }
          scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
        }
        const double largest = *std::max_element(scores.begin(), scores.end());
        double total = 0.0;
        for (double& score : scores) total += score = std::exp(score - largest);
        for (int key = 0; key <= query; ++key) {
          const double probability = scores[static_cast<std::size_t>(key)] / total;
          for (int i = 0; i < dim; ++i) {
            output(base + query, head * dim + i) += probability * v(base + key, kv_head * dim + i);
          }
        }
      }
    }
  }
  return output;
}

/// o_proj(attention(rope(q_proj x), rope(k_proj x), v_proj x)) for one layer.
/// @param prefix  "model.layers.{i}."
inline Matrix attention_layer(const ReferenceConfig& config, const Weights& weights,
                              const std::string& prefix, const Matrix& x, int batch,
                              int sequence_length) {
  const std::string name = prefix + "self_attn.";
  const int q_width = config.heads * config.head_dim;
  const int kv_width = config.kv_heads * config.head_dim;
  const int hidden = config.hidden;
  Matrix q = linear(x, weight_matrix(weights, name + "q_proj.weight", q_width, hidden));
  Matrix k = linear(x, weight_matrix(weights, name + "k_proj.weight", kv_width, hidden));
  const Matrix v = linear(x, weight_matrix(weights, name + "v_proj.weight", kv_width, hidden));
  if (config.qk_norm) {
    q = rms_norm(q, weight_matrix(weights, name + "q_norm.weight", 1, config.head_dim),
                 config.norm_epsilon);
    k = rms_norm(k, weight_matrix(weights, name + "k_norm.weight", 1, config.head_dim),
                 config.norm_epsilon);
  }
  q = rope(config, q, sequence_length);
  k = rope(config, k, sequence_length);
  const Matrix mixed = causal_attention(config, q, k, v, batch, sequence_length);
  return linear(mixed, weight_matrix(weights, name + "o_proj.weight", hidden, q_width));
}

/// down_proj(silu(gate_proj x) * up_proj x), with silu(g) = g / (1 + e^-g).
inline Matrix mlp_layer(const ReferenceConfig& config, const Weights& weights,
                        const std::string& prefix, const Matrix& x) {
  const std::string name = prefix + "mlp.";
  const int hidden = config.hidden;
  const int ffn = config.ffn;
  const Matrix gate = linear(x, weight_matrix(weights, name + "gate_proj.weight", ffn, hidden));
  Matrix product = linear(x, weight_matrix(weights, name + "up_proj.weight", ffn, hidden));
  for (std::size_t i = 0; i < product.values.size(); ++i) {
    product.values[i] *= gate.values[i] / (1.0 + std::exp(-gate.values[i]));
  }
  return linear(product, weight_matrix(weights, name + "down_proj.weight", hidden, ffn));
}

/// The row of model.embed_tokens.weight for each token.
/// @throws std::invalid_argument  if the count is not `rows` or a token is outside the vocabulary
inline Matrix embed(const ReferenceConfig& config, const Weights& weights,
                    const std::vector<int>& tokens, int rows) {
  if (tokens.size() != static_cast<std::size_t>(rows)) {
    throw std::invalid_argument("reference: " + std::to_string(tokens.size()) +
                                " tokens, expected batch x sequence = " + std::to_string(rows));
  }
  const Matrix table =
      weight_matrix(weights, "model.embed_tokens.weight", config.vocabulary, config.hidden);
  Matrix x(rows, config.hidden);
  for (int row = 0; row < rows; ++row) {
    const int token = tokens[static_cast<std::size_t>(row)];
    if (token < 0 || token >= config.vocabulary) {
      throw std::invalid_argument("reference: token " + std::to_string(token) +
                                  " is outside the vocabulary of " +
                                  std::to_string(config.vocabulary));
    }
    for (int i = 0; i < config.hidden; ++i) x(row, i) = table(token, i);
  }
  return x;
}

/// The logits of a Llama, [batch * sequence_length, vocabulary] row-major.
/// @param tokens  batch x sequence_length, one sequence after the other
/// @throws std::invalid_argument  if a weight is missing or has another size, or a token is not one
inline std::vector<double> logits(const ReferenceConfig& config, const Weights& weights,
                                  const std::vector<int>& tokens, int batch, int sequence_length) {
  const int hidden = config.hidden;
  Matrix x = embed(config, weights, tokens, batch * sequence_length);
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const Matrix input_gain = weight_matrix(weights, prefix + "input_layernorm.weight", 1, hidden);
    const Matrix post_gain =
        weight_matrix(weights, prefix + "post_attention_layernorm.weight", 1, hidden);
    x = add(x,
            attention_layer(config, weights, prefix, rms_norm(x, input_gain, config.norm_epsilon),
                            batch, sequence_length));
    x = add(x, mlp_layer(config, weights, prefix, rms_norm(x, post_gain, config.norm_epsilon)));
  }
  x = rms_norm(x, weight_matrix(weights, "model.norm.weight", 1, hidden), config.norm_epsilon);
  const std::string head = config.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  return linear(x, weight_matrix(weights, head, config.vocabulary, hidden)).values;
}

/// The mean over all positions of -log softmax(logits)[target], in nats.
/// @param targets  batch x sequence_length: the token that each position is to predict
inline double mean_cross_entropy(const ReferenceConfig& config, const Weights& weights,
                                 const std::vector<int>& tokens, const std::vector<int>& targets,
                                 int batch, int sequence_length) {
  const int rows = batch * sequence_length;
  Matrix scores(rows, config.vocabulary);
  scores.values = logits(config, weights, tokens, batch, sequence_length);
  if (targets.size() != tokens.size()) {
    throw std::invalid_argument("reference: " + std::to_string(targets.size()) + " targets for " +
                                std::to_string(tokens.size()) + " tokens");
  }
  double sum = 0.0;
  for (int row = 0; row < rows; ++row) {
    const int target = targets[static_cast<std::size_t>(row)];
    if (target < 0 || target >= config.vocabulary) {
      throw std::invalid_argument("reference: target " + std::to_string(target) +
                                  " is outside the vocabulary of " +
                                  std::to_string(config.vocabulary));
    }
    double largest = scores(row, 0);
    for (int i = 1; i < config.vocabulary; ++i) largest = std::max(largest, scores(row, i));
    double total = 0.0;
    for (int i = 0; i < config.vocabulary; ++i) total += std::exp(scores(row, i) - largest);
    sum += largest + std::log(total) - scores(row, target);
  }
  return sum / rows;
}

/// d mean_cross_entropy / d weights[name][index], as (L(w + step) - L(w - step)) / (2 step). The
/// error is of order step^2; a step of 1e-4 leaves about eight digits.
inline double central_difference(const ReferenceConfig& config, Weights weights,
                                 const std::string& name, std::size_t index, double step,
                                 const std::vector<int>& tokens, const std::vector<int>& targets,
                                 int batch, int sequence_length) {
  double& value = weights.at(name).at(index);
  const double original = value;
  value = original + step;
  const double above = mean_cross_entropy(config, weights, tokens, targets, batch, sequence_length);
  value = original - step;
  const double below = mean_cross_entropy(config, weights, tokens, targets, batch, sequence_length);
  return (above - below) / (2.0 * step);
}

}  // namespace reference
