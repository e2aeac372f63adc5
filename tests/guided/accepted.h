// Whether a guide takes a text, byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "computron/base/error.h"
#include "computron/guided/guide_spec.h"
#include "computron/guided/matcher.h"

namespace computron::test {

inline Matcher::State state_behind(Matcher& matcher, std::string_view text) {
  Matcher::State state = matcher.start();
  for (const char byte : text) {
    if (state != Matcher::kDead) state = matcher.next(state, static_cast<std::uint8_t>(byte));
  }
  return state;
}

inline bool accepted(const std::string& guide, std::string_view text) {
  Matcher matcher(compile_guide(guide));
  const Matcher::State state = state_behind(matcher, text);
  return state != Matcher::kDead && matcher.accepts(state);
}

// Why it is refused; "" if it is not.
inline std::string refusal(const std::string& guide) {
  try {
    compile_guide(guide);
  } catch (const RequestError& error) {
    return error.what();
  }
  return "";
}

}  // namespace computron::test
