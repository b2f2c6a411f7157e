// Environment variables of a run: those that the recipe's `env` section asks for, and what FSDP
// demands of the ones that are there.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// Value of an environment variable, or null.
using GetVariable = std::function<const char *(const char *name)>;

/// What the plan's job sets, by name, and what stands in its way.
struct JobVariables {
  std::vector<std::pair<std::string, std::string>> toSet; ///< name and value
  std::vector<std::string> kept; ///< names that the environment has with another value
};

/// A variable that the environment has is never changed.
JobVariables jobVariables(const plan::Plan &plan, const GetVariable &get);

/// Why a plan with sums that are exchanged cannot run on GPUs where the environment lets NCCL
/// register what it meets in a capture: sends did not end then. Empty if nothing forbids it.
std::string checkRegistration(const plan::Plan &plan, const GetVariable &get);

/// Why a plan that shards on GPUs cannot run with the hardware queues that the environment, with
/// the job's own variables in it, allows; with the id of the recipe's rule. Empty if nothing
/// forbids it.
std::string checkConnections(const plan::Plan &plan, const GetVariable &get);

} // namespace shardc::exec
