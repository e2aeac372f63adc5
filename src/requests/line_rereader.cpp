#include "computron/requests/line_rereader.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "computron/base/error.h"

namespace computron {

LineRereader::LineRereader(std::string input, RequestParser parser, ReadAt read_at)
    : input_(std::move(input)), parser_(std::move(parser)), read_at_(std::move(read_at)) {
  thread_ = std::thread([this] { run(); });
}

LineRereader::~LineRereader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void LineRereader::ask(const LinePlace& place) {
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back(place);
  }
  work_.notify_one();
}

std::optional<IncomingRequest> LineRereader::poll() {
  const std::lock_guard lock(mutex_);
  if (read_.empty()) {
    if (failure_) std::rethrow_exception(failure_);
    return std::nullopt;
  }
  IncomingRequest incoming = std::move(read_.front());
  read_.pop_front();
  return incoming;
}

void LineRereader::run() {
  try {
    read_asked();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

void LineRereader::read_asked() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stopping_ || !asked_.empty(); });
    if (stopping_) return;
    const LinePlace place = asked_.front();
    asked_.pop_front();
    lock.unlock();
    IncomingRequest incoming = read(place);
    lock.lock();
    read_.push_back(std::move(incoming));
  }
}

IncomingRequest LineRereader::read(const LinePlace& place) {
  const std::string text = read_at_(place.begin, place.bytes);
  const Digest128 key = digest128(std::as_bytes(std::span(text)));
  if (text.size() != place.bytes || LineHistory::digest_of(place.line, key) != place.digest) {
    throw Error(ExitCode::kData,
                fmt::format("{} has changed since it was read: line {} is another one", input_, place.line));
  }
  IncomingRequest incoming = parser_.parse_again(place.line, text);
  incoming.key = key;
  incoming.place = place;
  return incoming;
}

}  // namespace computron
