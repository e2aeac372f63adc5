// Plain files: reads and writes that are whole or fail. Private to src/checkpoint.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "computron/base/error.h"
#include "computron/base/file_descriptor.h"

namespace computron {

// Opens a regular file for reading; Error{kNoInput} naming `path` otherwise.
FileDescriptor open_input(const std::string& path);
std::size_t file_bytes(int fd, const std::string& path);

// Reads until `bytes` is full or the file ends; returns the bytes read. Error{kIo} naming `path`.
std::size_t read_at(int fd, std::size_t offset, std::span<std::byte> bytes, const std::string& path);
// Writes all of `bytes`. Error{kIo} naming `path`.
void write_at(int fd, std::size_t offset, std::span<const std::byte> bytes, const std::string& path);

// Error{code, "path: what: strerror(errno)"}.
[[noreturn]] void fail_errno(ExitCode code, const std::string& path, const std::string& what);

}  // namespace computron
