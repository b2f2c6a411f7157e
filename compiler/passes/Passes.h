// The interface of passes: plan to plan, with one purpose each. A pass reads everything it needs
// from the plan (its job table holds the recipe's effective options), so any pass runs on plan text
// with shardc-opt. Pipeline.cpp has the order and its reasons.
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

/// A message of a pass for the user: the difference that the pass made.
struct Note {
  std::string text;
  std::string id; ///< stable, in brackets
  uint32_t loc = plan::kNone;
};

using Notes = std::vector<Note>;

/// The error `pass-refuses-plan` if the pass does not accept the plan: its level differs from the
/// level that the preceding passes produce, or it lacks something (PassInputs.h).
Status checkInput(PassId id, const plan::Plan &plan);

/// Runs one pass on a verified plan that it accepts.
void runPass(PassId id, plan::Plan &plan, Notes &notes);

/// Ops of a segment before its first backward op; all ops if there is none.
size_t countForwardOps(const plan::Segment &segment);

// The passes; each is in the file with its name.
#define PASS(enumerator, flag, level, doc) void run##enumerator(plan::Plan &plan, Notes &notes);
#include "compiler/passes/Passes.def"

} // namespace shardc::passes
