// How weights lie in tests of layouts, which pack none: plain rows, padded to whole blocks of 64.
#pragma once

#include <gtest/gtest.h>

#include "computron/model/shard_layout.h"

namespace computron {

class PlainFormat : public WeightFormat {
 public:
  int row_block() const override { return 64; }
  std::size_t panel_bytes(int rows, int in, const WeightType& type) const override {
    return static_cast<std::size_t>(type.bytes(round_up(rows, 64), in));
  }
  void pack(std::byte*, int, const WeightType&, int, int, int, int, const std::byte*, std::size_t,
            std::size_t) const override {
    FAIL() << "a layout packs nothing";
  }
  void pack_scales(std::byte*, int, const WeightType&, int, int, int, int, const std::byte*, std::size_t,
                   std::size_t) const override {
    FAIL() << "a layout packs nothing";
  }
};

}  // namespace computron
