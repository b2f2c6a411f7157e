// Names of plans that nearly all passes use.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::passes {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

} // namespace shardc::passes
