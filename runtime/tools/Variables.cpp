#include "runtime/tools/Variables.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "runtime/base/RecipeVariables.h"
#include "runtime/base/Reports.h"
#include "runtime/launch/JobPosition.h"
#include "runtime/run/JobVariables.h"

namespace shardc::tools {

std::string backendNameOf(const plan::Plan &plan, const RunToolOptions &options) {
  if (!options.backend.empty())
    return options.backend;
  bool isHere = options.simulateRanks > 0 || plan.needsBackend.empty();
  return isHere ? "host" : plan.needsBackend;
}

Status setVariables(const plan::Plan &plan, const BackendEntry *backend,
                    const RunToolOptions &options) {
  for (const auto &[name, value] : plan.job.environment)
    switch (useOfVariable(name)) {
    case VariableUse::Position:
      return makeStatus(report::PlanVariableOfJob, name);
    case VariableUse::Secret:
      return makeStatus(report::PlanVariableSecret, name);
    case VariableUse::Other:
      if (std::ranges::find(options.allowedVariables, name) == options.allowedVariables.end())
        return makeStatus(report::PlanVariableNotAllowed, name, name);
      break;
    case VariableUse::Settable:
      break;
    }
  helperEnvironment(); // keeps the environment of before
  run::JobVariables variables = run::jobVariables(plan, ::getenv);
  for (const auto &[name, value] : variables.toSet)
    if (::setenv(name.c_str(), value.c_str(), /*overwrite=*/0) != 0)
      return makeStatus(report::VariableRefused, name);
  if (backend && backend->setVariables)
    backend->setVariables(plan);
  Result<launch::JobPosition> position = launch::findJobPosition(::getenv);
  if (position.isOk() && position->rank == 0)
    for (const std::string &name : variables.kept)
      options.console.emit(makeReport(report::VariableKept, name));
  return Status::ok();
}

Status checkVariables(const plan::Plan &plan, const RunToolOptions &options) {
  if (backendNameOf(plan, options) != "cuda") // holds even if this program was built without it
    return Status::ok();
  RETURN_IF_ERROR(run::checkConnections(plan, ::getenv));
  return options.noGraph ? Status::ok() : run::checkRegistration(plan, ::getenv);
}

} // namespace shardc::tools
