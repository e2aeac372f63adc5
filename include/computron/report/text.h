// Numbers and foreign text as a report shows them.
#pragma once

#include <string>
#include <string_view>

namespace computron {

// `text` as content or attribute of HTML and SVG: markup characters as entities, ill-formed UTF-8 and control
// characters as U+FFFD.
std::string escape_markup(std::string_view text);

// At most `limit` characters of well-formed text, with an ellipsis if any were left out.
std::string shorten(std::string_view text, std::size_t limit);

// "12,345"; with three significant digits below 1,000: "123", "12.3", "0.00123". "–" for what is no number.
std::string format_number(double value);
// "850 µs", "12.3 ms", "1.23 s", "2 min 05 s", "3 h 20 min".
std::string format_time(double seconds);
// "97.3 %".
std::string format_percent(double fraction);

}  // namespace computron
