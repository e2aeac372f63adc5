// What options' values must be, where CLI11's own checks let too much pass.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "computron/base/error.h"
#include "computron/base/size.h"

namespace computron {

// The size that is the value of an option. Error{kUsage} naming the option.
inline std::size_t size_of(const char* option, const std::string& text) try {
  return parse_size(text);
} catch (const Error& error) {
  throw Error(error.code(), std::string(option) + ": " + error.what());
}

// An unsigned integer of 64 bits: CLI11 takes the largest for any larger one.
inline CLI::Validator whole_number() {
  return {[](std::string& text) {
            std::uint64_t value = 0;
            const char* end = text.data() + text.size();
            const auto [rest, error] = std::from_chars(text.data(), end, value);
            const bool whole = error == std::errc() && rest == end;
            return whole ? std::string() : text + " is not a whole number of at most 64 bits";
          },
          "UINT64"};
}

// CLI11's own lets nan pass, and says what it refuses in 309 digits.
inline CLI::Validator positive_number() {
  return {[](std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value);
            return number && value > 0 && std::isfinite(value) ? std::string() : text + " is not a positive number";
          },
          "POSITIVE"};
}

// CLI11's Range lets nan pass.
inline CLI::Validator number_between(double least, double most) {
  const auto text_of = [](double value) {
    std::string text = std::to_string(value);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
    return text;
  };
  const std::string range = text_of(least) + " to " + text_of(most);
  return {[=](std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value);
            return number && value >= least && value <= most ? std::string() : text + " is not a number of " + range;
          },
          range};
}

// One of the names.
template <class Value>
CLI::IsMember one_of(const std::map<std::string, Value>& known) {
  std::vector<std::string> names;
  for (const auto& [name, value] : known) names.push_back(name);
  return CLI::IsMember(names);
}

}  // namespace computron
