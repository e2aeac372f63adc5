// Little-endian byte streams for messages between ranks. A reader checks every length before it reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "computron/base/error.h"

namespace computron {

class ByteWriter {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { put_bytes(std::as_bytes(std::span(&value, 1))); }
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put_list(std::span<const T> values) {
    put(static_cast<std::uint32_t>(values.size()));
    put_bytes(std::as_bytes(values));
  }
  template <class T>
  void put_list(const std::vector<T>& values) {
    put_list(std::span<const T>(values));
  }
  void put_string(const std::string& text) { put_list(std::span<const char>(text.data(), text.size())); }

  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  std::vector<std::byte> take() { return std::move(bytes_); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void put_bytes(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  std::vector<std::byte> bytes_;
};

// Borrows the bytes. Throws Error{kInternal} when a read would pass their end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value;
    std::memcpy(&value, need(sizeof(T)).data(), sizeof(T));
    return value;
  }
  template <class T>
  requires std::is_trivially_copyable_v<T> std::vector<T> get_list() {
    const auto count = get<std::uint32_t>();
    ensure(count <= rest_.size() / sizeof(T), "message shorter than a list in it");
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), need(count * sizeof(T)).data(), count * sizeof(T));
    return values;
  }
  std::string get_string() {
    const auto chars = get_list<char>();
    return {chars.begin(), chars.end()};
  }
  std::size_t left() const { return rest_.size(); }
  void expect_end() const { ensure(rest_.empty(), "message longer than its content"); }

 private:
  std::span<const std::byte> need(std::size_t count) {
    ensure(count <= rest_.size(), "message shorter than its content");
    const auto part = rest_.first(count);
    rest_ = rest_.subspan(count);
    return part;
  }
  std::span<const std::byte> rest_;
};

}  // namespace computron
