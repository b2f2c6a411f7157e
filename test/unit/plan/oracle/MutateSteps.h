// Changes of the parts of steps: sums over ranks and microbatches, the program, types of state, ops
// that count and update, and which ranks have which role.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "Edits.h"

namespace shardc::plan::oracle {

/// Each change returns what was done; if it returns nothing, the plan is unchanged.
class StepMutator : private Edits {
public:
  StepMutator(Plan &plan, std::mt19937_64 &random, Role &role, Segment &segment)
      : Edits(plan, random) {
    role_ = &role, segment_ = &segment;
  }

  std::string doDropCollective();
  std::string doMoveTie();
  std::string doChangeNode();
  std::string doChangeParamType();
  std::string doChangeSplit();
  std::string doChangeMatrix();
  std::string doChangeStepOfMatrix();
  std::string doChangeKind();
  std::string doChangeClass();
  std::string doWriteFrozen();
  std::string doChangeStepOp();
  std::string doRepeatSum();
  std::string doChangeCopies();
  std::string doSplitRole();

private:
  std::string dropStepOp(uint32_t index, std::string_view name);
  std::string repeatStepOp(uint32_t index, std::string_view name);
  void repeat(uint32_t index);
};

} // namespace shardc::plan::oracle
