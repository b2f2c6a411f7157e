#include "runtime/tools/Variables.h"

#include <cstdlib>

#include <fmt/format.h>

#include "runtime/exec/JobVariables.h"
#include "runtime/launch/Place.h"
#include "runtime/plan/Syntax.h"

namespace shardc::tools {

std::string backendNameOf(const plan::Plan &plan, const RunToolOptions &options) {
  if (!options.backend.empty())
    return options.backend;
  bool isHere = options.simulateRanks > 0 || plan.needsBackend.empty();
  return isHere ? "host" : plan.needsBackend;
}

Status setVariables(const plan::Plan &plan, const BackendEntry *backend) {
  exec::JobVariables variables = exec::jobVariables(plan, ::getenv);
  for (const auto &[name, value] : variables.toSet)
    if (::setenv(name.c_str(), value.c_str(), /*overwrite=*/0) != 0)
      return makeStatus(StatusCode::InvalidInput,
                        "'{}' is not a valid name of an environment variable", name);
  if (backend && backend->setVariables)
    backend->setVariables();
  Result<launch::Place> place = launch::findPlace(::getenv);
  if (place.isOk() && place->rank == 0)
    for (const std::string &name : variables.kept)
      fmt::print(stderr,
                 "shardc-run: warning: the environment and the recipe set {} to different values; "
                 "the environment's value is used\n",
                 plan::printable(name));
  return Status::ok();
}

std::string checkVariables(const plan::Plan &plan, const RunToolOptions &options) {
  if (backendNameOf(plan, options) != "cuda") // also where this program was built without it
    return "";
  std::string problem = exec::checkConnections(plan, ::getenv);
  return problem.empty() && !options.noGraph ? exec::checkRegistration(plan, ::getenv) : problem;
}

} // namespace shardc::tools
