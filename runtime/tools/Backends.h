// The backends that this build of shardc-run has.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/hal/Backend.h"
#include "runtime/hal/Peers.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// Names that --backend takes.
std::vector<std::string> backendNames();

/// What `--version` prints: the version with its commit, the backends, and the libraries.
std::string versionLines();

/// Where the named backend finds its kernels.
exec::FindKernel findKernelOf(const std::string &backend);

/// Holds the GPUs that this process sees against the plan: what keeps it from running on them, or
/// empty. A kind that the plan was not made for is warned of, by rank 0. `peers` is null where one
/// process has all ranks.
std::string judgeGpus(const plan::Plan &plan, const RunToolOptions &options, hal::Peers *peers);

/// What the backend has to decide before anything is captured; empty where there is nothing.
std::function<Status(exec::Executable &)> preparationOf(const plan::Plan &plan,
                                                        const RunToolOptions &options);

/// Makes the backend that the options name: with all of the plan's ranks in this process or, with
/// `peers`, which outlive it, with the one that they say.
Result<std::unique_ptr<hal::Backend>>
makeBackend(const plan::Plan &plan, const RunToolOptions &options, hal::Peers *peers = nullptr);

/// Ends what processes have found each other by, once all channels are made. All ranks call it
/// together.
Status endMeeting();

/// A line about how they have, where that is worth one; else empty.
std::string meetingText();

/// What the backend has to warn of since the last call, on this rank.
std::vector<std::string> takeWarnings();

/// Returns once nothing that makeBackend began runs concurrently with the caller. To be called
/// before the process ends, whatever became of the run.
void finishPreparation();

} // namespace shardc::tools
