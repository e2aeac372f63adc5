#include "src/apps/profile_passes.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace computron {
namespace {

constexpr int kWarm = 2;  // passes of a class that do not count: kernels are made, a GPU makes a graph
constexpr std::size_t kFewest = 3, kUsual = 7, kMost = 25;  // passes that count
constexpr double kUsualFor_s = 0.1, kFewestFor_s = 10;      // after which so many will do
constexpr int kTries = 2;                                   // submissions of which no pass came

int power_of_two_in(int most) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(std::max(most, 1)))); }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Of `rows` rows in inputs of `tokens` tokens or, where too many would run together, of more, up to `longest`.
bool add_inputs(int rows, int tokens, int longest, const ProfileLimits& limits, int pp,
                std::vector<PassClass>& classes) {
  tokens = std::min(tokens, rows);
  while (rows / tokens * pp > limits.max_seqs && 2 * tokens <= longest) tokens *= 2;
  const int sequences = rows / tokens * pp;
  if (sequences > limits.max_seqs) return false;
  classes.push_back({.rows = rows, .decodes = false, .sequences = sequences, .tokens = tokens});
  return true;
}

}  // namespace

std::vector<PassClass> pass_classes(const ModelConfig& config, const ProfileLimits& limits, int pp) {
  std::vector<PassClass> classes;
  if (config.takes_images()) {  // all of one size
    const int image = config.patches() + 1;
    for (int images = 1; image * images <= limits.max_batch_tokens && images * pp <= limits.max_seqs; images *= 2) {
      classes.push_back({.rows = image * images, .decodes = false, .sequences = images * pp, .tokens = image});
    }
    return classes;
  }
  int rows = 1;
  const int most = !config.pools() ? std::max(std::min(limits.max_seqs / pp, limits.max_batch_tokens), 1) : 0;
  for (; rows <= most; rows *= 2) {
    const int sequences = std::min(rows * pp, limits.max_seqs);
    classes.push_back({.rows = rows, .decodes = true, .sequences = sequences, .tokens = 1});
  }
  const int tokens = power_of_two_in(std::min(limits.context, config.max_positions));
  for (; rows <= limits.max_batch_tokens; rows *= 2) {
    if (!add_inputs(rows, tokens, config.max_positions, limits, pp, classes)) break;
  }
  return classes;
}

// Ends its sequence when fewer are to go on.
class PassExperiment::Watch : public TokenWatch {
 public:
  Watch(PassExperiment& experiment, int index) : experiment_(experiment), index_(index) {}
  bool ends_with(TokenId /*token*/) override {
    if (index_ == 0) ++experiment_.generated_;
    return index_ >= experiment_.alive_;
  }

 private:
  PassExperiment& experiment_;
  int index_;
};

PassExperiment::PassExperiment(const ModelConfig& config, const ProfileLimits& limits, MeshShape shape)
    : config_(config),
      shape_(shape),
      classes_(pass_classes(config, limits, shape.pp)),
      order_(classes_.size()),
      samples_(classes_.size()),
      context_(limits.context) {
  std::iota(order_.begin(), order_.end(), 0);
  const auto prompts = std::ranges::partition_point(order_, [this](std::size_t c) { return classes_[c].decodes; });
  std::reverse(order_.begin(), prompts);
}

bool PassExperiment::take_input(Dispatcher& dispatcher, double now) {
  if (closed_ || open_ > 0) return false;
  while (!over() && samples().tries >= kTries) ++at_;
  if (over()) {
    dispatcher.close_input();
    return closed_ = true;
  }
  submit(dispatcher, now);
  return true;
}

void PassExperiment::submit(Dispatcher& dispatcher, double now) {
  ++samples().tries;
  alive_ = current().sequences;
  generated_ = 0;
  for (int i = 0; i < current().sequences; ++i) {
    Request request = current().decodes ? decoding_request(i) : prompt_request();
    request.id = ++last_id_;
    request.arrival_s = now;
    ++open_;
    dispatcher.submit(std::move(request));
  }
}

// Long enough for the decoding classes that are left and that it goes on in, if the model has so many positions.
Request PassExperiment::decoding_request(int index) {
  const auto left =
      std::count_if(order_.begin() + static_cast<std::ptrdiff_t>(at_), order_.end(),
                    [this, index](std::size_t c) { return classes_[c].decodes && classes_[c].sequences > index; });
  const auto a_class = static_cast<std::ptrdiff_t>(kMost) + kWarm + shape_.pp + 1;
  Request request;
  request.prompt = random_tokens(1);
  request.ignore_eos = true;
  request.max_tokens = static_cast<int>(std::min<std::ptrdiff_t>(config_.max_positions, context_ + a_class * left));
  request.watch = std::make_shared<Watch>(*this, index);
  return request;
}

Request PassExperiment::prompt_request() {
  Request request;
  request.prompt = random_tokens(current().tokens);
  request.max_tokens = 1;
  request.ignore_eos = true;
  if (!config_.pools()) return request;
  request.task = Task::kEmbed;
  request.values = config_.embedding_size();
  if (!config_.takes_images()) return request;
  std::uniform_real_distribution<float> values(-1, 1);
  request.patches.resize(request.prompt.size() * static_cast<std::size_t>(config_.patch_values()));
  for (float& value : request.patches) value = values(random_);
  return request;
}

std::vector<TokenId> PassExperiment::random_tokens(int count) {
  std::uniform_int_distribution<TokenId> token(0, std::max(config_.vocab - 1, 0));
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& t : tokens) t = token(random_);
  return tokens;
}

// A class whose requests are refused, as where the pool is too small for one of them, is left out.
void PassExperiment::put_results(std::vector<Completion> completions, double /*now*/) {
  for (const Completion& completion : completions) {
    if (completion.error_code.empty()) continue;
    fault_ = completion.error_message;
    if (!over()) samples().tries = kTries;
  }
  open_ -= completions.size();
}

void PassExperiment::step_planned(const Step& step, double now) {
  sent_[step.id] = {.rows = step.rows(), .at_s = now, .alone = sent_.empty()};
}

void PassExperiment::step_done(const std::vector<Report>& reports, double now) {
  const auto found = sent_.find(reports.front().step);
  const Sent sent = found->second;
  sent_.erase(found);
  if (over() || sent.rows != current().rows) return;
  // Where positions are few: half of them.
  const int context = std::min(context_, config_.max_positions / 2);
  if (current().decodes && generated_ < context) return;
  Samples& samples = this->samples();
  samples.tries = 0;
  if (samples.warm++ < kWarm) return;
  if (samples.begin_s < 0) samples.begin_s = sent.at_s;
  samples.context = current().decodes ? generated_ : 0;
  std::vector<double>& stage_s = samples.stage_s.emplace_back(shape_.pp, 0.0);
  double computed_s = 0;
  for (int rank = 0; rank < shape_.ranks(); ++rank) {
    double& slowest_s = stage_s[static_cast<std::size_t>(shape_.stage_of(rank))];
    slowest_s = std::max(slowest_s, reports[static_cast<std::size_t>(rank)].compute_s);
  }
  for (const double time_s : stage_s) computed_s += time_s;
  if (sent.alone) latencies_s_.push_back(std::max(now - sent.at_s - computed_s, 0.0) / 2);
  if (enough(now)) go_on();
}

bool PassExperiment::enough(double now) {
  const std::size_t count = samples().stage_s.size();
  const double for_s = now - samples().begin_s;
  return count >= kMost || (count >= kUsual && for_s >= kUsualFor_s) || (count >= kFewest && for_s >= kFewestFor_s);
}

// Sequences of the next class are those that go on; before prompts none is.
void PassExperiment::go_on() {
  ++at_;
  alive_ = !over() && current().decodes ? current().sequences : 0;
}

std::vector<MeasuredPass> PassExperiment::passes() const {
  std::vector<MeasuredPass> passes;
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const Samples& samples = samples_[c];
    if (samples.stage_s.size() < kFewest) continue;
    MeasuredPass& pass = passes.emplace_back(MeasuredPass{classes_[c], samples.context, {}});
    for (std::size_t stage = 0; std::cmp_less(stage, shape_.pp); ++stage) {
      std::vector<double> times_s;
      for (const auto& stage_s : samples.stage_s) times_s.push_back(stage_s[stage]);
      pass.stage_s.push_back(median(std::move(times_s)));
    }
  }
  return passes;
}

double PassExperiment::step_latency_s() const { return median(latencies_s_); }

}  // namespace computron
