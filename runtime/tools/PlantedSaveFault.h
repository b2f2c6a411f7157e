// A fault that is planted in the middle of a save (SHARDC_FAULT=KIND@RANK:STEP/save).
#pragma once

#include <memory>

#include "runtime/checkpoint/FileOps.h"
#include "runtime/run/Fault.h"
#include "runtime/tools/Job.h"

namespace shardc::tools {

/// For the saver of this process, whose context outlives it; null if no such fault is of this rank.
std::unique_ptr<checkpoint::FileFaults> plantInSaves(const run::Fault &fault,
                                                     const ProcessContext &process);

} // namespace shardc::tools
