#include "computron/base/base64.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace computron {
namespace {

using testing::ElementsAreArray;

TEST(Base64, IsThatOfTheStandard) {
  const std::pair<const char*, const char*> known[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"\xff\xfe", "//4="},
                                                       {"\xfb\xef\xbe", "++++"}};
  for (const auto& [plain, text] : known) {
    const auto bytes = std::as_bytes(std::span(plain, std::strlen(plain)));
    EXPECT_EQ(encode_base64(bytes), text);
    const auto decoded = decode_base64(text);
    ASSERT_TRUE(decoded) << text;
    EXPECT_THAT(*decoded, ElementsAreArray(bytes.begin(), bytes.end()));
  }
}

TEST(Base64, AnythingElseIsRefused) {
  for (const char* bad : {"Z", "Zg", "Zg=", "Zg===", "====", "Z===", "Zh==", "Zm9=", "Zm9v\n", "Zm 9", "Zm-_",
                          "Zg==Zg==", "=Zg=", "Z\xc3\xa9v"}) {
    EXPECT_FALSE(decode_base64(bad)) << bad;
  }
}

}  // namespace
}  // namespace computron
