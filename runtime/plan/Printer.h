// Plan -> text. The form is described in docs/plan.md; parsing it gives the plan back, and printing
// is deterministic. Prints plans of any level, also ones that verify refuses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// The complete plan. `page` is put below the first line: comment lines for people, each beginning
/// with `//` and ending with a newline, for example from summary().
std::string print(const Plan &plan, std::string_view page = {});

/// One op as its line in the text, without indentation and newline; for messages and dumps.
std::string printOp(const Plan &plan, const Segment &segment, uint32_t opIndex);

/// `bf16[2,128,64]`.
std::string printType(const Type &type);

/// `work 65536` or `state 4096 + 500*all`, with the name of the group that it moves with; `nowhere`
/// if it is not placed.
std::string printPlace(const Plan &plan, const Place &place);

/// Which op of its segment is meant, for messages: `matmul %y (a.recipe:12)`.
std::string opLabel(const Plan &plan, const Segment &segment, const Op &op);

/// `micro: matmul %y (a.recipe:12)`, one for each op of the segment.
std::vector<std::string> opLabels(const Plan &plan, const Segment &segment);

} // namespace shardc::plan
