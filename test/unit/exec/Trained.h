// Results that tests compare between runs: the steps, and the ranks' tensors afterwards.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/run/RunLoop.h"

namespace shardc::test {

/// The steps of a run, and its tensors afterwards.
struct Trained : run::RunObserver {
  void begin(int64_t, int64_t) override {}
  void step(const StepState &state) override { steps.push_back(state); }
  void evaluated(const StepState &) override {}

  std::vector<StepState> steps;
  std::map<std::string, std::vector<float>> tensors;
};

/// Assembles each tensor from the ranks' rows or columns. Fails the test if a rank cannot be read.
void readTensors(exec::Executable &executable, Trained &trained);

} // namespace shardc::test
