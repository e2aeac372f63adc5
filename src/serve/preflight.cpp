#include "computron/serve/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <span>

#include "computron/base/build_id.h"
#include "computron/base/bytes.h"
#include "computron/base/digest.h"
#include "computron/comm/agreed.h"

namespace computron {
namespace {

// Of oneDNN, cuBLAS and NCCL.
constexpr const char* kVariables[] = {
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
    "NCCL_ALGO",          "NCCL_PROTO"};
constexpr std::streamoff kEndBytes = 64 << 10;

std::string fingerprint(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff bytes = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  std::vector<char> ends(static_cast<std::size_t>(2 * kEndBytes));
  const auto read = [&](std::streamoff from, char* to) {
    file.seekg(from);
    file.read(to, std::min(kEndBytes, bytes));
  };
  if (bytes >= 0) {
    read(0, ends.data());
    read(std::max(bytes - kEndBytes, std::streamoff{0}), ends.data() + kEndBytes);
  }
  if (!file) throw Error(ExitCode::kNoInput, fmt::format("cannot read {}", path));
  return fmt::format("{} bytes, {}", bytes, to_hex(digest128(std::as_bytes(std::span(ends)))));
}

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
  std::vector<Fact> facts = {{"the program's build id", build_id()}, {"the MPI library", mpi_library()}};
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
    if (equals == line.npos || line.starts_with("recorder=")) continue;
    facts.push_back({fmt::format("the option --{}", line.substr(0, equals)), std::string(line.substr(equals + 1))});
  }
  return facts;
}

std::vector<Fact> facts_of_checkpoints(const std::vector<RosterEntry>& models) {
  std::vector<Fact> facts;
  for (const RosterEntry& entry : models) {
    facts.push_back({fmt::format("the checkpoint of model {} ({})", entry.id, entry.path), fingerprint(entry.path)});
  }
  return facts;
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
