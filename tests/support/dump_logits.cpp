// Prints the reference model's logits: a line a position, `vocab` numbers. For verify_reference.py.
//   dump_logits FILE.h5 TOKEN...
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "tests/support/reference_model.h"

int main(int argc, char** argv) try {
  if (argc < 3) throw std::runtime_error("usage: dump_logits FILE.h5 TOKEN...");
  std::vector<int> tokens;
  for (int i = 2; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
  for (const auto& row : computron::test::ReferenceModel(argv[1]).logits(tokens)) {
    for (const double logit : row) std::printf("%.17g ", logit);
    std::printf("\n");
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "dump_logits: %s\n", error.what());
  return 1;
}
