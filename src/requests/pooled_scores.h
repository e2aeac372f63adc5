// What the values of encoders and embedders come to in results: vectors of length 1, probabilities, scores of pairs.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "computron/model/config.h"
#include "computron/requests/request_reader.h"
#include "computron/sched/request.h"

namespace computron {

// In place; a vector of zeros stays one.
void scale_to_length_1(std::vector<float>& vector);

// Of one input's scores of classes.
std::vector<float> activated(const std::vector<float>& scores, ClassScores kind);

// A score of each pair of texts that the parts of a request are: the one class, or the cosine of two embeddings.
std::vector<float> pair_scores(std::span<const Completion> parts, const PooledOutput& output,
                               const ModelConfig& config);

// Indices of the `most` best scores, all with 0; of equal ones the earlier comes first.
std::vector<std::size_t> best_first(const std::vector<float>& scores, std::size_t most);

}  // namespace computron
