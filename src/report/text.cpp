#include "computron/report/text.h"

#include <fmt/format.h>

#include <cmath>

#include "computron/base/utf8.h"

namespace computron {
namespace {

constexpr const char* kNoValue = "–";

void append_escaped(std::string& out, std::string_view character) {
  const auto c = static_cast<unsigned char>(character.front());
  switch (c) {
    case '&':
      out += "&amp;";
      return;
    case '<':
      out += "&lt;";
      return;
    case '>':
      out += "&gt;";
      return;
    case '"':
      out += "&quot;";
      return;
    case '\'':
      out += "&#39;";
      return;
    default:
      break;
  }
  const bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
  out += control ? kReplacementCharacter : character;
}

// "1234567" → "1,234,567".
std::string with_separators(const std::string& digits) {
  std::string out;
  const std::size_t sign = digits.starts_with('-') ? 1 : 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

// Three significant digits without an exponent.
std::string three_digits(double value) {
  const double rounded = std::stod(fmt::format("{:.2e}", value));  // 0.9999 is 1.00
  const int before = static_cast<int>(std::floor(std::log10(std::abs(rounded)) + 1e-9)) + 1;
  return fmt::format("{:.{}f}", value, std::max(0, 3 - before));
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Head head = utf8_head(text);
    if (head.kind == Utf8Head::kCharacter) {
      append_escaped(out, text.substr(0, head.bytes));
    } else {
      out += kReplacementCharacter;
    }
    text.remove_prefix(head.bytes);
  }
  return out;
}

std::string shorten(std::string_view text, std::size_t limit) {
  std::size_t at = 0;
  for (std::size_t taken = 0; at < text.size(); ++taken) {
    if (taken == limit) return std::string(text.substr(0, at)) + "…";
    at += utf8_head(text.substr(at)).bytes;
  }
  return std::string(text);
}

std::string format_number(double value) {
  if (!std::isfinite(value)) return kNoValue;
  if (value == 0) return "0";
  if (std::abs(value) >= 1e15 || std::abs(value) < 1e-6) return fmt::format("{:.3g}", value);
  if (std::abs(value) >= 999.5 || value == std::round(value)) return with_separators(fmt::format("{:.0f}", value));
  return three_digits(value);
}

std::string format_time(double seconds) {
  if (!std::isfinite(seconds)) return kNoValue;
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size < 999.5e-6) return format_number(seconds * 1e6) + " µs";
  if (size < 999.5e-3) return format_number(seconds * 1e3) + " ms";
  if (size < 99.95) return format_number(seconds) + " s";
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string format_percent(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f} %", 100 * fraction) : kNoValue;
}

}  // namespace computron
