#include "Facts.h"

namespace shardc::plan::oracle {

Facts factsOf(OpKind kind) {
  switch (kind) {
#define ROW(op, ...)                                                                               \
  case OpKind::op:                                                                                 \
    return {__VA_ARGS__};
#include "Facts.def"
  }
  return {};
}

} // namespace shardc::plan::oracle
