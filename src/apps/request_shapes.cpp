#include "src/apps/request_shapes.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <variant>

#include "computron/base/error.h"
#include "computron/plan/virtual_cluster.h"
#include "computron/requests/request_reader.h"

namespace computron {
namespace {

// Takes every token and any length: profiles know no limits.
ServedModel any_tokens(const ModelProfile& profile, double deadline_s) {
  ServedModel model{.id = profile.id, .config = {}, .deadline_s = deadline_s};
  model.config.causal = !is_encoder(profile);
  model.config.vocab = std::numeric_limits<int>::max();
  model.config.max_positions = 1 << 24;
  model.config.token_types = 2;
  model.config.hidden = 1;
  model.config.classes = 2;
  return model;
}

bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r") == line.npos; }

}  // namespace

std::vector<Request> requests_in(const std::string& file, const std::vector<ModelProfile>& models,
                                 std::span<const float> slo_s, bool replay) {
  std::ifstream input(file);
  if (!input) throw Error(ExitCode::kNoInput, fmt::format("requests '{}' cannot be read", file));
  std::vector<ServedModel> served;
  for (std::size_t m = 0; m < models.size(); ++m) served.push_back(any_tokens(models[m], slo_s[m]));
  RequestParser parser(std::move(served), {});
  std::vector<Request> requests;
  RequestId number = 0;
  for (std::string line; std::getline(input, line); ++number) {
    if (is_blank(line)) continue;
    IncomingRequest incoming = parser.parse(number, line);
    if (const auto* failure = std::get_if<RequestFailure>(&incoming.content)) {
      throw Error(ExitCode::kUsage, fmt::format("requests '{}', line {}: {}", file, number + 1, failure->message));
    }
    for (Request& request : std::get<RequestParts>(incoming.content)) {
      if (!replay) request.arrival_s = 0;
      request.watch = nullptr;  // tokens are made up: no text ends early
      request.ignore_eos = true;
      requests.push_back(std::move(request));
    }
  }
  if (input.bad()) throw Error(ExitCode::kNoInput, fmt::format("requests '{}' cannot be read to the end", file));
  return requests;
}

}  // namespace computron
