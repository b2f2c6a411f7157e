#include "runtime/tools/Variables.h"

#include <cstdlib>

#include <fmt/format.h>

#include "runtime/exec/JobVariables.h"
#include "runtime/launch/Place.h"
#include "runtime/plan/Syntax.h"
#ifdef SHARDC_HAS_CUDA
#include "runtime/backend/cuda/Options.h"
#endif

namespace shardc::tools {
namespace {

bool isOnGpus(const plan::Plan &plan, const RunToolOptions &options) {
  return options.backend.empty() ? plan.needsBackend == "cuda" && options.simulateRanks == 0
                                 : options.backend == "cuda";
}

} // namespace

Status setVariables(const plan::Plan &plan, [[maybe_unused]] const RunToolOptions &options) {
  exec::JobVariables variables = exec::jobVariables(plan, ::getenv);
  for (const auto &[name, value] : variables.toSet)
    if (::setenv(name.c_str(), value.c_str(), /*overwrite=*/0) != 0)
      return makeStatus(StatusCode::InvalidInput,
                        "'{}' is not a valid name of an environment variable", name);
#ifdef SHARDC_HAS_CUDA
  if (isOnGpus(plan, options))
    cuda::setVariables();
#endif
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
  if (!isOnGpus(plan, options))
    return "";
  std::string problem = exec::checkConnections(plan, ::getenv);
  return problem.empty() && !options.noGraph ? exec::checkRegistration(plan, ::getenv) : problem;
}

} // namespace shardc::tools
