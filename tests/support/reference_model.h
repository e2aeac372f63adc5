// The models once more, in double precision and plain loops, for tests to hold the program against.
//
// Shares nothing with src/: it opens the checkpoint with HDF5 calls of its own, reads the root attribute "config"
// itself, and computes what facts about OPT say, a token at a time. Fast enough for tiny models (hidden ≤ 256, 4
// layers, 64 tokens: a fraction of a second). Checked against transformers' OPTForCausalLM by verify_reference.py.
#pragma once

#include <string>
#include <vector>

namespace computron::test {

class ReferenceModel {
 public:
  // Reads the whole checkpoint. std::runtime_error naming file and thing, also for a configuration that it cannot
  // compute.
  explicit ReferenceModel(const std::string& path);

  // Logits [tokens, vocab]: row p is the distribution of the token after tokens[0..p].
  std::vector<std::vector<double>> logits(const std::vector<int>& tokens) const;

  // What greedy decoding appends to a prompt. Ties go to the smaller token.
  struct Generation {
    std::vector<int> tokens;
    std::vector<double> margins;   // logit of the token chosen − logit of the second best, for each token
    std::vector<double> logprobs;  // of the token chosen
  };
  Generation generate(const std::vector<int>& prompt, int count) const;

  int vocab() const { return vocab_; }
  int max_positions() const { return max_positions_; }

 private:
  using Row = std::vector<double>;
  struct Linear {  // y = x W + b
    int in = 0;
    int out = 0;
    Row weight;  // [in, out]
    Row bias;    // [out]; empty: none
    Row apply(const Row& x) const;
  };
  struct LayerNorm {
    Row weight;
    Row bias;
    double epsilon = 0;
    Row apply(const Row& x) const;
  };
  struct Layer {
    LayerNorm attention_norm, mlp_norm;
    Linear query, key, value, output, up, down;
  };
  struct Cache {  // keys and values of the tokens seen, a row of [heads × head_dim] a token, for each layer
    std::vector<std::vector<Row>> keys, values;
  };

  Cache empty_cache() const;
  // Takes the next token into the cache and returns the logits after it.
  Row step(Cache& cache, int token) const;
  Row embed(int token, int position) const;
  void run_layer(const Layer& layer, std::vector<Row>& keys, std::vector<Row>& values, Row& h) const;
  Row attend(const Row& query, const std::vector<Row>& keys, const std::vector<Row>& values) const;

  int heads_ = 0;
  int head_dim_ = 0;
  int vocab_ = 0;
  int hidden_ = 0;
  int max_positions_ = 0;
  int position_offset_ = 0;
  bool post_norm_ = false;
  bool has_final_norm_ = true;
  Row token_table_;     // [vocab, hidden]
  Row position_table_;  // [max_positions + offset, hidden]
  std::vector<Layer> layers_;
  LayerNorm final_norm_;
  Linear head_;
};

// Log-probabilities of a row of logits.
std::vector<double> log_softmax(const std::vector<double>& logits);

}  // namespace computron::test
