#include "tests/support/reference_model.h"

#include <hdf5.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace computron::test {
namespace {

using Row = std::vector<double>;
using nlohmann::json;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("reference model: " + what); }

// Owns one HDF5 identifier of whatever kind.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t), const std::string& what) : id_(id), close_(close) {
    if (id < 0) fail("cannot open " + what);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { close_(id_); }
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

void check(herr_t status, const std::string& what) {
  if (status < 0) fail("cannot read " + what);
}

std::string read_string_attribute(hid_t object, const char* name) {
  const Handle attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose, std::string("attribute ") + name);
  const Handle type(H5Aget_type(attribute), H5Tclose, std::string("type of attribute ") + name);
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0) {
    fail(std::string("attribute ") + name + " is not a fixed-length string");
  }
  std::string text(H5Tget_size(type), '\0');
  check(H5Aread(attribute, type, text.data()), name);
  return text.substr(0, text.find('\0'));
}

bool read_flag_attribute(hid_t object, const char* name) {
  if (H5Aexists(object, name) <= 0) return false;
  const Handle attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose, std::string("attribute ") + name);
  int value = 0;
  check(H5Aread(attribute, H5T_NATIVE_INT, &value), name);
  return value != 0;
}

// A tensor in its canonical orientation: a matrix is [out][in], a vector has rows == 1.
struct Tensor {
  int rows = 0;
  int columns = 0;
  Row values;
};

Tensor transposed(const Tensor& in) {
  Tensor out{in.columns, in.rows, Row(in.values.size())};
  for (int r = 0; r < in.rows; ++r) {
    for (int c = 0; c < in.columns; ++c) {
      out.values[static_cast<std::size_t>(c) * in.rows + r] = in.values[static_cast<std::size_t>(r) * in.columns + c];
    }
  }
  return out;
}

class Checkpoint {
 public:
  explicit Checkpoint(const std::string& path)
      : file_(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, path) {
    config_ = json::parse(read_string_attribute(file_, "config"));
    architecture_ = read_string_attribute(file_, "architecture");
  }

  const json& config() const { return config_; }
  const std::string& architecture() const { return architecture_; }
  int number(const char* key) const { return config_.at(key).get<int>(); }
  bool flag(const char* key) const { return config_.at(key).get<bool>(); }
  std::string word(const char* key) const { return config_.at(key).get<std::string>(); }

  bool has(const std::string& name) const { return H5Lexists(file_, ("/tensors/" + name).c_str(), H5P_DEFAULT) > 0; }

  Tensor read(const std::string& name) const {
    if (!has(name)) fail("no tensor " + name);
    const Handle set(H5Dopen2(file_, ("/tensors/" + name).c_str(), H5P_DEFAULT), H5Dclose, "tensor " + name);
    const Handle space(H5Dget_space(set), H5Sclose, "shape of " + name);
    const int rank = H5Sget_simple_extent_ndims(space);
    if (rank != 1 && rank != 2) fail(name + " is neither a vector nor a matrix");
    hsize_t extent[2] = {1, 1};
    H5Sget_simple_extent_dims(space, extent + (rank == 1 ? 1 : 0), nullptr);
    Tensor tensor{static_cast<int>(extent[0]), static_cast<int>(extent[1]), Row(extent[0] * extent[1])};
    check(H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.values.data()), name);
    return read_flag_attribute(set, "transposed") ? transposed(tensor) : tensor;
  }

 private:
  Handle file_;
  json config_;
  std::string architecture_;
};

Row read_vector(const Checkpoint& file, const std::string& name, int length) {
  const Tensor tensor = file.read(name);
  if (tensor.rows != 1 || tensor.columns != length) fail(name + " has an unexpected shape");
  return tensor.values;
}

Row read_matrix(const Checkpoint& file, const std::string& name, int rows, int columns) {
  const Tensor tensor = file.read(name);
  if (tensor.rows != rows || tensor.columns != columns) fail(name + " has an unexpected shape");
  return tensor.values;
}

// The weight [out][in] of a linear map as [in, out].
Row read_weight(const Checkpoint& file, const std::string& name, int out, int in) {
  return transposed({out, in, read_matrix(file, name, out, in)}).values;
}

// What this implementation computes; anything else would be answered wrongly.
void require_opt(const Checkpoint& file) {
  if (file.architecture() != "opt") fail("architecture " + file.architecture() + " is not implemented");
  const std::pair<const char*, const char*> words[] = {
      {"norm", "layer_norm"}, {"positions", "learned"}, {"activation", "relu"}};
  for (const auto& [key, value] : words) {
    if (file.word(key) != value) fail(std::string(key) + " " + file.word(key) + " is not implemented");
  }
  if (file.flag("gated_mlp")) fail("gated_mlp is not implemented");
  if (file.number("kv_heads") != file.number("heads")) fail("grouped-query attention is not implemented");
}

void add(Row& sum, const Row& x) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
}

}  // namespace

ReferenceModel::ReferenceModel(const std::string& path) {
  const Checkpoint file(path);
  require_opt(file);
  heads_ = file.number("heads");
  head_dim_ = file.number("head_dim");
  vocab_ = file.number("vocab");
  hidden_ = file.number("hidden");
  max_positions_ = file.number("max_positions");
  position_offset_ = file.number("position_offset");
  post_norm_ = file.word("norm_position") == "post";
  has_final_norm_ = file.flag("final_norm");
  const int ffn = file.number("ffn");
  const int width = heads_ * head_dim_;

  const auto norm = [&](const std::string& name) {
    return LayerNorm{read_vector(file, name + ".weight", hidden_),
                     file.flag("norm_bias") ? read_vector(file, name + ".bias", hidden_) : Row(hidden_, 0.0),
                     static_cast<double>(file.config().at("norm_epsilon").get<float>())};
  };
  const auto linear = [&](const std::string& name, int in, int out, bool bias) {
    return Linear{in, out, read_weight(file, name + ".weight", out, in),
                  bias ? read_vector(file, name + ".bias", out) : Row()};
  };

  token_table_ = read_matrix(file, "embedding.tokens.weight", vocab_, hidden_);
  position_table_ = read_matrix(file, "embedding.positions.weight", max_positions_ + position_offset_, hidden_);
  for (int n = 0; n < file.number("layers"); ++n) {
    const std::string at = "layers." + std::to_string(n) + ".";
    const bool attention_bias = file.flag("attention_bias");
    const bool mlp_bias = file.flag("mlp_bias");
    layers_.push_back({.attention_norm = norm(at + "attention_norm"),
                       .mlp_norm = norm(at + "mlp_norm"),
                       .query = linear(at + "attention.query", hidden_, width, attention_bias),
                       .key = linear(at + "attention.key", hidden_, width, attention_bias),
                       .value = linear(at + "attention.value", hidden_, width, attention_bias),
                       .output = linear(at + "attention.output", width, hidden_, file.flag("attention_output_bias")),
                       .up = linear(at + "mlp.up", hidden_, ffn, mlp_bias),
                       .down = linear(at + "mlp.down", ffn, hidden_, mlp_bias)});
  }
  if (has_final_norm_) final_norm_ = norm("final_norm");
  const std::string head = file.flag("tied_head") ? "embedding.tokens" : "head";
  head_ = linear(head, hidden_, vocab_, /*bias=*/false);
}

Row ReferenceModel::Linear::apply(const Row& x) const {
  Row y = bias.empty() ? Row(out, 0.0) : bias;
  double* const sums = y.data();
  for (int k = 0; k < in; ++k) {
    const double factor = x[k];
    const double* const row = weight.data() + static_cast<std::size_t>(k) * out;
    for (int n = 0; n < out; ++n) sums[n] += factor * row[n];
  }
  return y;
}

Row ReferenceModel::LayerNorm::apply(const Row& x) const {
  const double count = static_cast<double>(x.size());
  double mean = 0;
  for (const double value : x) mean += value / count;
  double variance = 0;
  for (const double value : x) variance += (value - mean) * (value - mean) / count;
  const double scale = 1 / std::sqrt(variance + epsilon);
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
  return y;
}

ReferenceModel::Cache ReferenceModel::empty_cache() const {
  return {std::vector<std::vector<Row>>(layers_.size()), std::vector<std::vector<Row>>(layers_.size())};
}

Row ReferenceModel::embed(int token, int position) const {
  if (token < 0 || token >= vocab_) fail("token " + std::to_string(token) + " is not in the vocabulary");
  if (position >= max_positions_) fail("sequence longer than " + std::to_string(max_positions_) + " positions");
  const double* const row = token_table_.data() + static_cast<std::size_t>(token) * hidden_;
  const double* const place = position_table_.data() + static_cast<std::size_t>(position + position_offset_) * hidden_;
  Row h(hidden_);
  for (int i = 0; i < hidden_; ++i) h[i] = row[i] + place[i];
  return h;
}

// The keys hold only tokens up to this one: causality needs no mask.
Row ReferenceModel::attend(const Row& query, const std::vector<Row>& keys, const std::vector<Row>& values) const {
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim_));
  Row out(query.size(), 0.0);
  for (int head = 0; head < heads_; ++head) {
    const int begin = head * head_dim_;
    Row scores(keys.size(), 0.0);
    for (std::size_t j = 0; j < keys.size(); ++j) {
      for (int i = begin; i < begin + head_dim_; ++i) scores[j] += query[i] * scale * keys[j][i];
    }
    const Row weights = log_softmax(scores);
    for (std::size_t j = 0; j < keys.size(); ++j) {
      for (int i = begin; i < begin + head_dim_; ++i) out[i] += std::exp(weights[j]) * values[j][i];
    }
  }
  return out;
}

void ReferenceModel::run_layer(const Layer& layer, std::vector<Row>& keys, std::vector<Row>& values, Row& h) const {
  const Row x = post_norm_ ? h : layer.attention_norm.apply(h);
  keys.push_back(layer.key.apply(x));
  values.push_back(layer.value.apply(x));
  add(h, layer.output.apply(attend(layer.query.apply(x), keys, values)));
  if (post_norm_) h = layer.attention_norm.apply(h);

  Row inner = layer.up.apply(post_norm_ ? h : layer.mlp_norm.apply(h));
  for (double& value : inner) value = std::max(value, 0.0);
  add(h, layer.down.apply(inner));
  if (post_norm_) h = layer.mlp_norm.apply(h);
}

Row ReferenceModel::step(Cache& cache, int token) const {
  const int position = static_cast<int>(cache.keys.at(0).size());
  Row h = embed(token, position);
  for (std::size_t n = 0; n < layers_.size(); ++n) run_layer(layers_[n], cache.keys[n], cache.values[n], h);
  return head_.apply(has_final_norm_ ? final_norm_.apply(h) : h);
}

std::vector<Row> ReferenceModel::logits(const std::vector<int>& tokens) const {
  Cache cache = empty_cache();
  std::vector<Row> rows;
  for (const int token : tokens) rows.push_back(step(cache, token));
  return rows;
}

ReferenceModel::Generation ReferenceModel::generate(const std::vector<int>& prompt, int count) const {
  Cache cache = empty_cache();
  Row row;
  for (const int token : prompt) row = step(cache, token);
  Generation result;
  while (static_cast<int>(result.tokens.size()) < count) {
    const auto best = std::max_element(row.begin(), row.end());
    const auto token = static_cast<int>(best - row.begin());
    const double second = std::max(best == row.begin() ? -INFINITY : *std::max_element(row.begin(), best),
                                   best + 1 == row.end() ? -INFINITY : *std::max_element(best + 1, row.end()));
    result.tokens.push_back(token);
    result.margins.push_back(*best - second);
    result.logprobs.push_back(log_softmax(row)[token]);
    if (static_cast<int>(result.tokens.size()) < count) row = step(cache, token);
  }
  return result;
}

std::vector<double> log_softmax(const std::vector<double>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double value : logits) sum += std::exp(value - largest);
  std::vector<double> result;
  for (const double value : logits) result.push_back(value - largest - std::log(sum));
  return result;
}

}  // namespace computron::test
