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

// Of oneDNN, cuBLAS and NCCL.
constexpr const char* kVariables[] = {
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
    "NCCL_ALGO",          "NCCL_PROTO"};

// Options that nodes may have their own of.
constexpr std::string_view kOfTheNode[] = {"recorder", "threads", "device-memory"};

std::vector<std::byte> encode(const std::vector<Fact>& facts) {
  ByteWriter out;
  for (const auto& [name, value] : facts) {
    out.put_string(name);
    out.put_string(value);
  }
  return out.take();
}

std::vector<Fact> decode(std::span<const std::byte> bytes) {
  std::vector<Fact> facts;
  for (ByteReader in(bytes); in.left() > 0;) {
    std::string name = in.get_string();
    facts.push_back({std::move(name), in.get_string()});
  }
  return facts;
}

}  // namespace

std::vector<Fact> facts_of_program() {
  std::vector<Fact> facts = {{"the program's build id", build_id()},
                             {"the MPI library", mpi_library()},
                             {"the oneDNN library", onednn_library()},
                             {"the accelerator's library", accelerator_library()},
                             {"the library of direct links", direct_transport_library()},
                             {"the widest vectors", std::to_string(vector_bits())}};
  for (const char* variable : kVariables) {
    const char* value = std::getenv(variable);
    facts.push_back({fmt::format("the variable {}", variable), value != nullptr ? value : ""});
  }
  return facts;
}

std::vector<Fact> facts_of_configuration(std::string_view effective) {
  std::vector<Fact> facts;
  while (!effective.empty()) {
    const std::string_view line = effective.substr(0, effective.find('\n'));
    effective.remove_prefix(std::min(line.size() + 1, effective.size()));
    const std::size_t equals = line.find('=');
    if (equals == line.npos || std::ranges::find(kOfTheNode, line.substr(0, equals)) != std::end(kOfTheNode)) continue;
    facts.push_back({fmt::format("the option --{}", line.substr(0, equals)), std::string(line.substr(equals + 1))});
  }
  return facts;
}

std::vector<Fact> facts_of_checkpoints(const Communicator& world, const std::vector<RosterEntry>& models) {
  const Communicator node = world.split_shared_memory();
  std::vector<Fact> facts;
  agreed(world, [&] {
    for (const RosterEntry& entry : node.rank() == 0 ? models : std::vector<RosterEntry>()) {
      facts.push_back(
          {fmt::format("the checkpoint of model {} ({})", entry.id, entry.path), file_fingerprint(entry.path)});
    }
  });
  return decode(node.broadcast(encode(facts), 0));
}

void require_same(const Communicator& world, const std::vector<Fact>& facts) {
  const std::vector<Fact> first = decode(world.broadcast(encode(facts), 0));
  agreed(world, [&] {
    for (std::size_t i = 0; i < std::max(facts.size(), first.size()); ++i) {
      const Fact mine = i < facts.size() ? facts[i] : Fact{first[i].name, "not there"};
      const std::string theirs = i < first.size() && first[i].name == mine.name ? first[i].value : "not there";
      if (mine.value == theirs) continue;
      throw ConfigError(
          fmt::format("{} is '{}' here and '{}' on rank 0: all ranks need the same", mine.name, mine.value, theirs));
    }
  });
}

}  // namespace computron
