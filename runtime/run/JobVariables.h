// Environment variables of a run: those that the recipe's `env` section sets, and FSDP's
// requirements on existing variables.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::run {

/// Returns the value of an environment variable, or null.
using GetVariable = std::function<const char *(const char *name)>;

/// The variables that the plan's job sets, and conflicts with the environment.
struct JobVariables {
  std::vector<std::pair<std::string, std::string>> toSet; ///< name and value
  std::vector<std::string> kept; ///< names with another value in the environment
};

/// Computes which variables to set. Variables that exist in the environment are never changed.
JobVariables jobVariables(const plan::Plan &plan, const GetVariable &get);

/// InvalidInput if a plan with exchanged sums cannot run on GPUs because the environment lets NCCL
/// register buffers during capture, which makes sends hang.
Status checkRegistration(const plan::Plan &plan, const GetVariable &get);

/// InvalidInput, with the id of the recipe's rule, if a plan that shards on GPUs cannot run with
/// the number of hardware queues in the environment (including the job's variables).
Status checkConnections(const plan::Plan &plan, const GetVariable &get);

} // namespace shardc::run
