// The families, one a file (several where they share all but flags). Private to src/model.
#pragma once

#include "computron/model/family.h"

namespace computron {

extern const Family kOpt, kGpt2, kLlama, kQwen2, kMistral, kMixtral, kBert, kVit;

}  // namespace computron
