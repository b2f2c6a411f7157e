#include "Rivals.h"

#include <set>

namespace shardc::plan::oracle {

std::vector<std::pair<uint32_t, uint32_t>> rivalsIn(const Segment &segment,
                                                    const Positions &positions, int64_t rank) {
  struct Written {
    uint32_t op;
    Arena arena;
    int64_t begin, end;
  };
  std::vector<Written> all;
  for (uint32_t i = 0; i < segment.ops.size(); ++i)
    for (ValueId id : segment.ops[i].results)
      if (opInfo(segment.ops[i]).traits != OpTraits::Alias) {
        const Value &value = segment.values[id];
        int64_t begin = positions.begin(value.place, rank);
        all.push_back({i, value.place.arena, begin, begin + value.type.bytes()});
      }
  std::set<std::pair<uint32_t, uint32_t>> rivals;
  for (const Written &a : all)
    for (const Written &b : all)
      if (segment.ops[a.op].stream != segment.ops[b.op].stream && a.arena == b.arena &&
          a.begin < b.end && b.begin < a.end)
        rivals.emplace(a.op, b.op);
  return {rivals.begin(), rivals.end()};
}

} // namespace shardc::plan::oracle
