// The families, one a file (several where they share all but flags). Private to src/model.
#pragma once

#include "computron/model/family.h"

namespace computron {

extern const Family kOpt, kGpt2, kLlama, kQwen2, kQwen3, kMistral, kMixtral, kGemma2, kGemma3, kOlmo2, kOlmo3, kGranite,
    kPhi3, kGptNeox, kBert, kRoberta, kXlmRoberta, kDistilBert, kModernBert, kVit, kQwen2Moe, kQwen3Moe, kOlmoe,
    kGptOss;

}  // namespace computron
