#include "computron/base/build_id.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <vector>

#include "computron/base/digest.h"

namespace computron {
namespace {

std::size_t padded(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// Of a segment of notes: each is a header, a name and its content.
std::string id_in(std::span<const std::byte> notes) {
  ElfW(Nhdr) note;
  while (notes.size() >= sizeof note) {
    std::memcpy(&note, notes.data(), sizeof note);
    const std::size_t content = sizeof note + padded(note.n_namesz), end = content + padded(note.n_descsz);
    if (end > notes.size()) break;
    const bool gnu = note.n_namesz == 4 && std::memcmp(notes.data() + sizeof note, "GNU", 4) == 0;
    if (gnu && note.n_type == NT_GNU_BUILD_ID) {
      std::string id;
      for (const std::byte b : notes.subspan(content, note.n_descsz)) id += fmt::format("{:02x}", b);
      return id;
    }
    notes = notes.subspan(end);
  }
  return {};
}

// The first object is the program.
int visit(dl_phdr_info* object, std::size_t, void* found) {
  for (const auto& header : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
    if (header.p_type != PT_NOTE) continue;
    const auto* notes = reinterpret_cast<const std::byte*>(object->dlpi_addr + header.p_vaddr);
    std::string id = id_in({notes, header.p_memsz});
    if (!id.empty()) *static_cast<std::string*>(found) = std::move(id);
  }
  return 1;
}

std::string digest_of_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return to_hex(digest128(std::as_bytes(std::span(bytes))));
}

}  // namespace

std::string build_id() {
  std::string id;
  dl_iterate_phdr(visit, &id);
  return id.empty() ? digest_of_program() : id;
}

}  // namespace computron
