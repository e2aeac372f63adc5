// adapter_config.json of PEFT (peft's LoraConfig): what kind of adapter it is, and the scale of each module. What would
// change what is computed and is not known here is refused by name. Private to src/model.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace computron {

class PeftConfig {
 public:
  // ConfigError naming the key at fault.
  explicit PeftConfig(const std::string& json);
  ~PeftConfig();
  PeftConfig(PeftConfig&&) noexcept;

  // By the module's full name in the base model, as PEFT's patterns take it ("model.layers.0.self_attn.q_proj").
  std::size_t rank_of(const std::string& module) const;
  // alpha / rank, or with rsLoRA alpha / sqrt(rank).
  float scale_of(const std::string& module) const;
  // Whether the adapter changes the module, as far as target_modules, a list of names, says for certain: false where it
  // is an expression, or other keys leave some of its modules out.
  bool targets(const std::string& module) const;

 private:
  struct Pattern;
  // The value of the first pattern that the module has, or else `otherwise`.
  static double value_of(const std::vector<Pattern>& patterns, const std::string& module, double otherwise);

  double rank_ = 8, alpha_ = 8;
  bool rank_stabilized_ = false;
  std::vector<Pattern> ranks_, alphas_;  // in the order of the file
  std::vector<std::string> targets_;     // ends of modules' names
};

}  // namespace computron
