// Changes to the values that stages of a pipeline exchange, to the time of the exchange, and to the
// place where values are kept.
#pragma once

#include <random>
#include <string>

#include "Edits.h"

namespace shardc::plan::oracle {

/// Each change returns what was done; if it returns nothing, the plan is unchanged.
class PipelineMutator : private Edits {
public:
  PipelineMutator(Plan &plan, std::mt19937_64 &random, Role &role, Segment &segment)
      : Edits(plan, random) {
    role_ = &role, segment_ = &segment;
  }

  std::string doChangeTransfer();
  std::string doChangeSlots();
  std::string doChangeSchedule();

private:
  std::string dropTransfer(uint32_t i);
  std::string moveTransfer(uint32_t i);
  std::string delayTransfer(uint32_t i, const std::vector<uint32_t> &transfers);
  std::string changeWhen(uint32_t i);
  void setSlots(Cell &ring, int32_t slots);
  std::string changeShift();
};

} // namespace shardc::plan::oracle
