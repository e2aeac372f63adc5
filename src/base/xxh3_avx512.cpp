// Compiled with AVX-512; nothing here runs unless the processor has it.
#include "src/base/xxh3.h"

namespace computron {

const Xxh3 kXxh3Avx512 = compiled_xxh3();

}  // namespace computron
