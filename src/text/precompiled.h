// SentencePiece's normalizer: replacements of short texts, compiled into a table (`precompiled_charsmap`).
#pragma once

#include <memory>

#include "src/text/normalizer.h"

namespace computron {

// CheckpointError naming what is wrong with the table.
std::unique_ptr<Normalizer> make_precompiled_normalizer(const JsonAt& json);

}  // namespace computron
