#include "src/report/svg.h"

#include "computron/base/utf8.h"
#include "computron/report/chart.h"
#include "computron/report/text.h"

namespace computron {
namespace {

constexpr double kSwatch = 10;
constexpr double kLegendRow = 18;

struct Colour {
  const char* name;  // class, and variable of the page
  const char* light;
  const char* dark;
};

// Okabe and Ito's palette, the yellow darkened so that it shows on white; indigo from Tol's.
constexpr Colour kColours[] = {
    {"m0", "#0072b2", "#4ba3dd"},   {"m1", "#e69f00", "#f0b43c"},   {"m2", "#009e73", "#2dc499"},
    {"m3", "#cc79a7", "#de9cc2"},   {"m4", "#56b4e9", "#8fd0f5"},   {"m5", "#332288", "#8f82e0"},
    {"m6", "#b5a800", "#e0d64a"},   {"mo", "#a0a4aa", "#7d838c"},   {"mw", "#d55e00", "#ff8742"},
    {"mr", "#3a3f47", "#d5d9df"},   {"ink", "#1b1f24", "#e8eaed"},  {"soft", "#5c6470", "#a3abb6"},
    {"grid", "#e3e6ea", "#343a42"}, {"paper", "#ffffff", "#181b20"}};

// What the classes are; `colour` gives a colour's value or variable.
template <class F>
std::string rules(const F& colour) {
  std::string css;
  for (const Colour& c : kColours) {
    css += fmt::format(".{0}{{fill:{1};stroke:{1}}}\n", c.name, colour(c));
  }
  const std::string ink = colour(kColours[10]), soft = colour(kColours[11]), grid = colour(kColours[12]);
  css += fmt::format("svg text{{fill:{};stroke:none;font:11px system-ui,sans-serif}}\n", soft);
  css += fmt::format("svg .title{{fill:{};font-size:14px;font-weight:600}}\n", ink);
  css += fmt::format("svg .name{{fill:{}}}\n", ink);
  css += fmt::format("svg .grid{{stroke:{};stroke-width:1;fill:none}}\n", grid);
  css += fmt::format("svg .axis{{stroke:{};stroke-width:1;fill:none}}\n", soft);
  css += "svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}\n";
  css += "svg .dashed{stroke-dasharray:5 4;stroke-width:1.4}\nsvg .area{stroke:none}\nsvg .faint{opacity:.45}\n";
  return css;
}

std::string variables(const char* Colour::*scheme) {
  std::string css;
  for (const Colour& c : kColours) css += fmt::format("--{}:{};", c.name, c.*scheme);
  return css;
}

std::string file_style() {
  return rules([](const Colour& c) { return std::string(c.light); }) + "svg .ground{fill:#fff;stroke:none}\n";
}

}  // namespace

std::string chart_style() {
  return rules([](const Colour& c) { return fmt::format("var(--{})", c.name); });
}
std::string page_colours() { return variables(&Colour::light); }
std::string page_dark_colours() { return variables(&Colour::dark); }

std::string palette_class(std::size_t index) {
  return index < static_cast<std::size_t>(kPaletteColours) ? fmt::format("m{}", index) : kOtherClass;
}

double text_width(std::string_view text) {
  std::size_t characters = 0;
  for (const char c : text) characters += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return 6.1 * static_cast<double>(characters);
}

std::string px(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view style) {
  put("<path class=\"{}\" d=\"M{} {}L{} {}\"/>\n", style, px(x1), px(y1), px(x2), px(y2));
}

void Svg::rect(const Box& box, std::string_view style) {
  put("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", style, px(box.left), px(box.top),
      px(box.width), px(box.height));
}

void Svg::text(double x, double y, std::string_view text, std::string_view anchor, std::string_view style) {
  put("<text x=\"{}\" y=\"{}\"", px(x), px(y));
  if (anchor != "start") put(" text-anchor=\"{}\"", anchor);
  if (!style.empty()) put(" class=\"{}\"", style);
  put(">{}</text>\n", escape_markup(text));
}

void Svg::path(std::string_view data, std::string_view style, std::string_view note) {
  if (data.empty()) return;
  put("<path class=\"{}\" d=\"{}\"", style, data);
  note.empty() ? put("/>\n") : put("><title>{}</title></path>\n", escape_markup(note));
}

double draw_legend(Svg& svg, const std::vector<LegendEntry>& entries, const Box& within) {
  if (entries.empty()) return 0;
  double x = within.left, y = within.top;
  for (const LegendEntry& entry : entries) {
    const std::string name = shorten(entry.name, 60);
    const double width = kSwatch + 5 + text_width(name) + 14;
    if (x > within.left && x + width > within.right()) {
      x = within.left;
      y += kLegendRow;
    }
    const double middle = y + kSwatch / 2;
    if (entry.line || entry.dashed) {
      svg.line(x, middle, x + kSwatch, middle, entry.colour + (entry.dashed ? " line dashed" : " line"));
    } else {
      svg.rect({x, y, kSwatch, kSwatch}, entry.colour + " area");
    }
    svg.text(x + kSwatch + 5, y + kSwatch - 1, name, "start", "name");
    x += width;
  }
  return y + kLegendRow - within.top;
}

void draw_x_axis(Svg& svg, const Axis& axis, const Box& plot, bool grid) {
  for (const Tick& tick : axis.ticks) {
    const double x = plot.left + axis.place(tick.value) * plot.width;
    svg.line(x, grid ? plot.top : plot.bottom(), x, plot.bottom() + 4, grid ? "grid" : "axis");
    svg.text(x, plot.bottom() + 6 + kTextHeight, tick.text, "middle");
  }
  svg.line(plot.left, plot.bottom(), plot.right(), plot.bottom(), "axis");
  svg.text(plot.left + plot.width / 2, plot.bottom() + 24 + kTextHeight, axis.label, "middle");
}

void draw_y_axis(Svg& svg, const Axis& axis, const Box& plot) {
  for (const Tick& tick : axis.ticks) {
    const double y = plot.bottom() - axis.place(tick.value) * plot.height;
    svg.line(plot.left, y, plot.right(), y, "grid");
    svg.text(plot.left - 7, y + 4, tick.text, "end");
  }
  svg.text(4, plot.top - 10, axis.label);
}

double draw_head(Svg& svg, const std::string& title, const std::string& subtitle, ChartPlace place) {
  if (place == ChartPlace::kPage) return 0;
  svg.text(4, 18, title, "start", "title");
  if (subtitle.empty()) return 32;
  svg.text(4, 35, subtitle);
  return 50;
}

std::string whole_svg(const std::string& content, std::string_view name, double width, double height,
                      ChartPlace place) {
  const bool file = place == ChartPlace::kFile;
  return fmt::format(
      "{}<svg {}viewBox=\"0 0 {} {}\"{} role=\"img\" aria-label=\"{}\">\n{}{}</svg>\n",
      file ? "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" : "", file ? "xmlns=\"http://www.w3.org/2000/svg\" " : "",
      px(width), px(height), file ? fmt::format(" width=\"{}\" height=\"{}\"", px(width), px(height)) : "",
      escape_markup(name),
      file ? fmt::format("<style>\n{}</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n", file_style())
           : "",
      content);
}

}  // namespace computron
