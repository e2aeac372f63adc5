#include "computron/serve/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <span>

#include "computron/base/build_id.h"
#include "computron/base/bytes.h"
#include "computron/checkpoint/fingerprint.h"
#include "computron/comm/agreed.h"
#include "computron/comm/communicators.h"
#include "computron/device/device.h"
#include "computron/ops/cpu_probe.h"

namespace computron {
namespace {

// Of cuBLAS and NCCL.
constexpr const char* kVariables[] = {"CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "NCCL_ALGO", "NCCL_PROTO"};

// Options that nodes may have their own of.
constexpr std::string_view kOfTheNode[] = {"recorder", "threads", "device-memory"};

std::vector<std::byte> encode(const std::vector<RankProperty>& properties) {
  ByteWriter out;
  for (const auto& [name, value] : properties) {
    out.put_string(name);
    out.put_string(value);
  }
  return out.take();
}

std::vector<RankProperty> decode(std::span<const std::byte> bytes) {
  std::vector<RankProperty> properties;
  for (ByteReader in(bytes); in.left() > 0;) {
    std::string name = in.get_string();
    properties.push_back({std::move(name), in.get_string()});
  }
  return properties;
}

}  // namespace

std::vector<RankProperty> program_properties() {
  std::vector<RankProperty> properties = {{"the program's build id", build_id()},
                                          {"the MPI library", mpi_library()},
                                          {"the accelerator's library", accelerator_library()},
                                          {"the library of direct links", direct_transport_library()},
                                          {"the instruction set", instruction_set()}};
  for (const char* variable : kVariables) {
    const char* value = std::getenv(variable);
    properties.push_back({fmt::format("the variable {}", variable), value != nullptr ? value : ""});
  }
  return properties;
}

std::vector<RankProperty> configuration_properties(std::string_view effective) {
  std::vector<RankProperty> properties;
  while (!effective.empty()) {
    const std::string_view line = effective.substr(0, effective.find('\n'));
    effective.remove_prefix(std::min(line.size() + 1, effective.size()));
    const std::size_t equals = line.find('=');
    if (equals == line.npos || std::ranges::find(kOfTheNode, line.substr(0, equals)) != std::end(kOfTheNode)) continue;
    properties.push_back(
        {fmt::format("the option --{}", line.substr(0, equals)), std::string(line.substr(equals + 1))});
  }
  return properties;
}

std::vector<RankProperty> checkpoint_properties(const Communicator& world, const std::vector<ModelEntry>& models) {
  const Communicator node = world.split_shared_memory();
  std::vector<RankProperty> properties;
  agreed(world, [&] {
    for (const ModelEntry& entry : node.rank() == 0 ? models : std::vector<ModelEntry>()) {
      properties.push_back(
          {fmt::format("the checkpoint of model {} ({})", entry.id, entry.path), file_fingerprint(entry.path)});
      if (entry.adapter.empty()) continue;
      properties.push_back(
          {fmt::format("the adapter of model {} ({})", entry.id, entry.adapter), file_fingerprint(entry.adapter)});
    }
  });
  return decode(node.broadcast(encode(properties), 0));
}

void require_same(const Communicator& world, const std::vector<RankProperty>& properties) {
  const std::vector<RankProperty> first = decode(world.broadcast(encode(properties), 0));
  agreed(world, [&] {
    for (std::size_t i = 0; i < std::max(properties.size(), first.size()); ++i) {
      const RankProperty mine = i < properties.size() ? properties[i] : RankProperty{first[i].name, "not there"};
      const std::string theirs = i < first.size() && first[i].name == mine.name ? first[i].value : "not there";
      if (mine.value == theirs) continue;
      throw ConfigError(
          fmt::format("{} is '{}' here and '{}' on rank 0: all ranks need the same", mine.name, mine.value, theirs));
    }
  });
}

}  // namespace computron
