// touched-memory P.plan...: runs each plan twice on the host backend, over memory filled with two
// different patterns, and compares the changed bytes with the bytes of the plan's values and cells.
// A written byte cannot keep both patterns. Exits with 1 if a byte outside every value changed, or
// if one inside did not, except for padding at the end of a block, which only collectives move.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/base/Io.h"
#include "runtime/exec/Ranges.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/run/JobData.h"
#include "runtime/run/RunLoop.h"
#include "runtime/verify/Verify.h"

namespace shardc {
namespace {

constexpr uint8_t kPatterns[] = {0x11, 0xee};

/// By rank and arena: one flag for each byte of the arena.
using Flags = std::vector<std::array<std::vector<bool>, plan::kArenaCount>>;

class Silent final : public run::RunObserver {
public:
  void begin(int64_t, int64_t) override {}
  void step(const StepState &) override {}
  void evaluated(const StepState &) override {}
};

/// All slots of a place.
void markPlace(const plan::Place &place, int64_t bytes, const exec::Arenas &arenas,
               std::array<std::vector<bool>, plan::kArenaCount> &flags) {
  auto &arena = flags[static_cast<size_t>(place.arena)];
  for (int64_t slot = 0; slot < place.slots; ++slot) {
    auto begin = arena.begin() + (place.offset + slot * place.stride +
                                  place.coef * arenas.indices().of(place.group));
    std::fill(begin, begin + bytes, true);
  }
}

/// The bytes that the plan gives to values and cells.
Flags planned(const exec::Executable &executable) {
  Flags flags(executable.rankCount());
  for (size_t rank = 0; rank < flags.size(); ++rank) {
    const exec::Arenas &arenas = executable.arenas(rank);
    for (int a = 0; a < plan::kArenaCount; ++a)
      flags[rank][static_cast<size_t>(a)].resize(
          static_cast<size_t>(arenas.bytes(static_cast<plan::Arena>(a))));
    const plan::Role &role = executable.roleOf(rank);
    for (const plan::Cell &cell : role.cells)
      markPlace(cell.place, cell.type.bytes(), arenas, flags[rank]);
    for (const plan::Segment &segment : role.segments)
      for (const plan::Value &value : segment.values)
        markPlace(value.place, value.type.bytes(), arenas, flags[rank]);
  }
  return flags;
}

/// True for the elements of a block that belong to no parameter.
std::vector<bool> paddingOf(const plan::Plan &plan, size_t block) {
  std::vector<bool> padding(static_cast<size_t>(plan.blocks[block].numel), true);
  for (const plan::Param &param : plan.params)
    if (param.block == static_cast<int32_t>(block))
      std::fill_n(padding.begin() + param.offset, param.type.numel(), false);
  return padding;
}

/// Bytes of padding in what is packed and reduced: a whole block, or the rank's shard of it.
Flags paddings(const plan::Plan &plan, const exec::Executable &executable, const Flags &like) {
  Flags flags(like.size());
  for (size_t rank = 0; rank < flags.size(); ++rank) {
    const exec::Arenas &arenas = executable.arenas(rank);
    for (size_t a = 0; a < plan::kArenaCount; ++a)
      flags[rank][a].resize(like[rank][a].size());
    for (const plan::Segment &segment : executable.roleOf(rank).segments)
      for (const plan::Op &op : segment.ops) {
        bool ofBlock = op.kind == plan::OpKind::Pack || op.kind == plan::OpKind::ReduceScatter;
        if (!ofBlock || op.getInt(plan::AttrKey::block) < 0)
          continue;
        auto block = static_cast<size_t>(op.getInt(plan::AttrKey::block));
        std::vector<bool> padding = paddingOf(plan, block);
        const plan::Value &value = segment.values[op.results[0]];
        int64_t first = exec::pieceBegin(plan.blocks[block], value.type.numel(), arenas.indices());
        int64_t size = dtypeBytes(value.type.dtype);
        plan::Place element = value.place;
        for (int64_t i = 0; i < value.type.numel(); ++i, element.offset += size)
          if (padding[static_cast<size_t>(first + i)])
            markPlace(element, size, arenas, flags[rank]);
      }
  }
  return flags;
}

/// Runs the plan over memory filled with `pattern`, and marks the bytes that changed.
Status run(const plan::Plan &plan, uint8_t pattern, Flags &expected, Flags &padding,
           Flags &touched) {
  host::Options options;
  options.ranks = static_cast<int>(plan.worldSize());
  ASSIGN_OR_RETURN(auto backend, host::makeBackend(options));
  ASSIGN_OR_RETURN(auto executable,
                   exec::Executable::create(plan, *backend, kernels::findHostKernel, {}));
  ASSIGN_OR_RETURN(auto source, run::openJobData(plan));
  expected = planned(*executable);
  padding = paddings(plan, *executable, expected);
  touched.resize(expected.size());
  for (size_t rank = 0; rank < expected.size(); ++rank)
    for (size_t a = 0; a < plan::kArenaCount; ++a) {
      std::memset(executable->arenas(rank).base(static_cast<plan::Arena>(a)), pattern,
                  expected[rank][a].size());
      touched[rank][a].resize(expected[rank][a].size());
    }
  Silent observer;
  RETURN_IF_ERROR(run::runProgram(*executable, *source, observer, {}).status());
  for (size_t rank = 0; rank < expected.size(); ++rank)
    for (size_t a = 0; a < plan::kArenaCount; ++a) {
      const uint8_t *base = executable->arenas(rank).base(static_cast<plan::Arena>(a));
      for (size_t at = 0; at < expected[rank][a].size(); ++at)
        if (base[at] != pattern)
          touched[rank][a][at] = true;
    }
  return Status::ok();
}

/// Prints the differences. Returns the number of differing bytes.
int64_t compare(const std::string &path, const Flags &expected, const Flags &padding,
                const Flags &touched) {
  int64_t wrong = 0;
  for (size_t rank = 0; rank < expected.size(); ++rank)
    for (size_t a = 0; a < plan::kArenaCount; ++a) {
      const auto &planned = expected[rank][a], &found = touched[rank][a];
      int64_t unused = 0;
      for (size_t at = 0; at < planned.size(); ++at)
        unused += planned[at] && !found[at] && padding[rank][a][at];
      fmt::print("{}: rank {}: arena {}: {} bytes in the plan, {} touched, {} of padding\n", path,
                 rank, toString(static_cast<plan::Arena>(a)),
                 std::count(planned.begin(), planned.end(), true),
                 std::count(found.begin(), found.end(), true), unused);
      for (size_t at = 0; at < planned.size(); ++at)
        if (planned[at] != found[at] && !(planned[at] && padding[rank][a][at]) && wrong++ < 10)
          fmt::print("{}: rank {}: byte {} of arena {} is {}\n", path, rank, at,
                     toString(static_cast<plan::Arena>(a)),
                     found[at] ? "touched and nobody's" : "a value's and not touched");
    }
  return wrong;
}

Result<int64_t> check(const std::string &path) {
  ASSIGN_OR_RETURN(std::string text, readFile(path, plan::limits::kTextBytesMax));
  ASSIGN_OR_RETURN(plan::Plan plan, plan::parse(text, path));
  RETURN_IF_ERROR(plan::verified(plan));
  Flags expected, padding, touched;
  for (uint8_t pattern : kPatterns)
    RETURN_IF_ERROR(run(plan, pattern, expected, padding, touched));
  return compare(path, expected, padding, touched);
}

} // namespace
} // namespace shardc

int main(int argc, char **argv) {
  int status = argc > 1 ? 0 : 2;
  for (int i = 1; i < argc; ++i) {
    shardc::Result<int64_t> wrong = shardc::check(argv[i]);
    if (!wrong.isOk())
      fmt::print(stderr, "touched-memory: error: {}\n", wrong.status().message());
    status |= !wrong.isOk() || *wrong > 0;
  }
  return status;
}
