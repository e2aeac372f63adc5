// The tokenizers that the job's checkpoints carry.
#pragma once

#include <string>
#include <vector>

#include "computron/serve/model_set.h"

namespace computron {

// Whether it carries one, which may be damaged still.
bool has_tokenizer(const CheckpointIndex& index);

// What each of the model's tokens adds to a text; nothing where it is special. Thread-safe. CheckpointError,
// Error{kIo}.
std::vector<std::string> token_texts(const CheckpointIndex& index);

// Rank 0: reads each model's tokenizer from its checkpoint. One that cannot be used is warned of and said so to whoever
// sends text; its model still takes token ids. Error{kIo} or CheckpointError if the checkpoint's bytes are damaged.
void load_tokenizers(const ModelSet& loaded, std::vector<ServedModel>& models);

}  // namespace computron
