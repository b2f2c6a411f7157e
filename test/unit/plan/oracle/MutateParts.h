// Changes of the parts that ranks take, and of the ranks that a channel connects.
#pragma once

#include <random>
#include <string>

#include "Edits.h"

namespace shardc::plan::oracle {

/// Each change returns what was done; if it returns nothing, the plan is unchanged.
class PartMutator : private Edits {
public:
  PartMutator(Plan &plan, std::mt19937_64 &random, Role &role, Segment &segment)
      : Edits(plan, random) {
    role_ = &role, segment_ = &segment;
  }

  std::string doChangeView();
  std::string doChangeIndex();
  std::string doChangeChannelGroup();
  std::string doChangeRows();
  std::string doDropConjugate();
  std::string doDropStatistic();
  std::string doDropContribution();

private:
  bool isTakenOnce(ValueId value) const;
  bool hasSameRanks(int16_t group, int16_t other) const;
};

} // namespace shardc::plan::oracle
