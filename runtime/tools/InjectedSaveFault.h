// A fault that is injected in the middle of a save (SHARDC_FAULT=KIND@RANK:STEP/save).
#pragma once

#include <memory>

#include "runtime/checkpoint/FileOps.h"
#include "runtime/run/Fault.h"
#include "runtime/tools/Job.h"

namespace shardc::tools {

/// The file faults that are injected into this process' saver, whose context outlives it; null if
/// this rank has none.
std::unique_ptr<checkpoint::FileFaults> injectIntoSaves(const run::Fault &fault,
                                                        const ProcessContext &process);

/// The same for images in memory: spoils the first one of this rank from the step on, once it is
/// complete at the neighbour too, and ends the process. Empty if none is injected.
std::function<void(int64_t, std::span<uint8_t>)> injectIntoImages(const run::Fault &fault,
                                                                  const ProcessContext &process);

} // namespace shardc::tools
