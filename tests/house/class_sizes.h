// How many member functions the classes of a header have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace computron::test {

struct ClassSize {
  std::string name;  // without what encloses it
  int methods = 0;   // declared or defined in the class, but for constructors, destructors, = default and = delete
};

// The classes and structs that `code` defines, in the order in which they end. `code` is the text of a header without
// comments and literals (code_only). Written for sources that compile: what it does not understand counts as nothing.
std::vector<ClassSize> class_sizes(std::string_view code);

}  // namespace computron::test
