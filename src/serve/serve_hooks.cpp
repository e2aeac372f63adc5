#include "computron/serve/serve_hooks.h"

namespace computron {

ServeHooks& no_hooks() {
  static ServeHooks none;
  return none;
}

}  // namespace computron
