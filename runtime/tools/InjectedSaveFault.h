// A fault that is injected in the middle of a save (SHARDC_FAULT=KIND@RANK:STEP/save).
#pragma once

#include <memory>

#include "runtime/checkpoint/FileOps.h"
#include "runtime/run/Fault.h"
#include "runtime/tools/Job.h"

namespace shardc::tools {

/// Returns the file faults that are injected into the saver of this process; null if this rank has
/// none. The context must outlive them.
std::unique_ptr<checkpoint::FileFaults> injectIntoSaves(const run::Fault &fault,
                                                        const ProcessContext &process);

/// Returns the faults for images in memory: damages the first image of this rank from the given
/// step on, once it is also complete at the neighbour, and ends the process. Empty if none is
/// injected.
std::function<void(int64_t, std::span<uint8_t>)> injectIntoImages(const run::Fault &fault,
                                                                  const ProcessContext &process);

} // namespace shardc::tools
