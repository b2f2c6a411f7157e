// The interface of passes. Each pass transforms a plan for one purpose. It reads everything that it
// needs from the plan, whose job table holds the effective options, so shardc-opt can run any pass
// on plan text. Passes.def lists the passes in order, with reasons.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/passes/PlanNames.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// The passes, in the order in which they run.
enum class PassId : uint8_t {
#define PASS(enumerator, ...) enumerator,
#include "compiler/passes/Passes.def"
};

enum class PassRuns : uint8_t { Always, Optional, OnRequest };

/// One row of Passes.def.
struct PassInfo {
  std::string_view name; ///< class name
  std::string_view flag; ///< for shardc-opt and --print-after
  plan::Level level;     ///< the plan's level after the pass
  PassRuns runs;
  std::string_view doc;
};

const PassInfo &passInfo(PassId id);
/// The pass with this flag; nothing if there is none.
std::optional<PassId> findPass(std::string_view flag);
std::vector<PassId> allPasses();

/// A message of a pass for the user: what the pass changed.
struct Note {
  std::string text;
  std::string id; ///< stable identifier, printed in brackets
  uint32_t loc = plan::kNone;
};

using Notes = std::vector<Note>;

/// Checks the plan before a pass. Returns the error `pass-refuses-plan` if the plan does not have
/// the level that the preceding passes produce, or if a precondition does not hold (PassInputs.h).
Status checkInput(PassId id, const plan::Plan &plan);

/// Runs one pass. The plan must be verified and accepted by checkInput().
void runPass(PassId id, plan::Plan &plan, Notes &notes);

/// Number of ops before the first backward op; all ops if there is none.
size_t countForwardOps(const plan::Segment &segment);

// The passes; each is defined in the file with its name.
#define PASS(enumerator, ...) void run##enumerator(plan::Plan &plan, Notes &notes);
#include "compiler/passes/Passes.def"

} // namespace shardc::passes
