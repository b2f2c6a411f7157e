// Plan to plan, one purpose a pass. A pass reads what it needs from the plan alone (its job table
// holds the recipe's effective options), so any pass runs on plan text with shardc-opt.
// Pipeline.cpp has the order and its reasons.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

enum class PassId : uint8_t {
#define PASS(enumerator, flag, level, doc) enumerator,
#include "compiler/passes/Passes.def"
};

struct PassInfo {
  std::string_view name; ///< class name
  std::string_view flag; ///< for shardc-opt and --print-after
  plan::Level level;     ///< of the plan afterwards
  std::string_view doc;
};

const PassInfo &passInfo(PassId id);
std::optional<PassId> findPass(std::string_view flag);
std::vector<PassId> allPasses();

/// What a pass tells the user: the difference that it made.
struct Note {
  std::string text;
  std::string id; ///< stable, in brackets
  uint32_t loc = plan::kNone;
};

using Notes = std::vector<Note>;

/// InvalidInput where the pass does not take the plan: it is of another level than what the passes
/// before make, or has a parameter outside of the blocks of units.
Status checkInput(PassId id, const plan::Plan &plan);

/// Runs one pass on a plan that is verified and that it takes.
void runPass(PassId id, plan::Plan &plan, Notes &notes);

// The passes; each in the file of its name.
#define PASS(enumerator, flag, level, doc) void run##enumerator(plan::Plan &plan, Notes &notes);
#include "compiler/passes/Passes.def"

} // namespace shardc::passes
