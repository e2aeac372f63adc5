#include "computron/report/text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace computron {
namespace {

TEST(EscapeMarkup, NothingOfAForeignTextIsMarkup) {
  EXPECT_EQ(escape_markup(R"(<script a="b" c='d'>&amp;)"), "&lt;script a=&quot;b&quot; c=&#39;d&#39;&gt;&amp;amp;");
  EXPECT_EQ(escape_markup("naïve 模型"), "naïve 模型");
}

TEST(EscapeMarkup, WhatNoXmlMayHoldIsReplaced) {
  EXPECT_EQ(escape_markup(std::string_view("a\0b\x1b[1m\x7f", 8)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD[1m\xEF\xBF\xBD");
  EXPECT_EQ(escape_markup("\xff\xc3"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(escape_markup("a\tb\n"), "a\tb\n");
}

TEST(Shorten, CutsBetweenCharacters) {
  EXPECT_EQ(shorten("模型模型", 4), "模型模型");
  EXPECT_EQ(shorten("模型模型", 3), "模型模…");
  EXPECT_EQ(shorten("", 3), "");
}

TEST(FormatNumber, ThreeDigitsOrAll) {
  EXPECT_EQ(format_number(0), "0");
  EXPECT_EQ(format_number(1234567), "1,234,567");
  EXPECT_EQ(format_number(-1234), "-1,234");
  EXPECT_EQ(format_number(999.7), "1,000");
  EXPECT_EQ(format_number(12.345), "12.3");
  EXPECT_EQ(format_number(0.012345), "0.0123");
  EXPECT_EQ(format_number(42), "42");
  EXPECT_EQ(format_number(NAN), "–");
  EXPECT_EQ(format_number(1e300), "1e+300");
}

TEST(FormatTime, UnitsThatPeopleRead) {
  EXPECT_EQ(format_time(0), "0 s");
  EXPECT_EQ(format_time(12.34e-6), "12.3 µs");
  EXPECT_EQ(format_time(0.0123), "12.3 ms");
  EXPECT_EQ(format_time(0.9999), "1.00 s");
  EXPECT_EQ(format_time(1.5), "1.50 s");
  EXPECT_EQ(format_time(125), "2 min 05 s");
  EXPECT_EQ(format_time(119.6), "2 min 00 s");
  EXPECT_EQ(format_time(7505), "2 h 05 min");
}

TEST(FormatPercent, OneDecimal) {
  EXPECT_EQ(format_percent(0.9734), "97.3 %");
  EXPECT_EQ(format_percent(INFINITY), "–");
}

}  // namespace
}  // namespace computron
