// Opening, writing and renaming of output files, with errors that name the file and the cause.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "computron/base/file_descriptor.h"


namespace computron {

// "a directory", "a FIFO", ...: what an st_mode is, for messages.
const char* file_kind(unsigned mode);

// Throws Error{kCannotCreate} if something other than a regular file stands at `path`.
void check_replaceable(const std::string& path);

// Creates or opens `path` for writing, empty, 0666 & umask. Refuses symlinks and whatever is not a regular file, and,
// before a byte of it is lost, the file `input_path` names ("-": standard input; empty: none).
// Error{kPermission} or {kCannotCreate}.
FileDescriptor open_output(const std::string& path, const std::string& input_path);

// Writes all of `bytes` with as few write(2)s as the system allows and adds what arrived to `written`.
// Error{kIo} naming path, cause and the bytes written so far.
void write_all(int fd, const std::string& path, std::string_view bytes, std::uint64_t& written);

// Makes `partial_path`, open as `fd`, durable, gives it the name `path`, and makes the name durable. Error{kIo}.
void publish(int fd, const std::string& partial_path, const std::string& path);

}  // namespace computron
