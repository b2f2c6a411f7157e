// What the host takes part in: cells that it writes at any time have their bytes to themselves, ops
// of the program write nothing in its arena, and 'start' fills what a load fills.
#include "runtime/base/StepState.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/VerifyImpl.h"
#include "runtime/plan/VerifyRange.h"

namespace shardc::plan::verifier {
namespace {

class HostCheck {
public:
  HostCheck(Report &report, uint32_t roleIndex)
      : report_(report), roleIndex_(roleIndex), role_(report.plan().roles[roleIndex]),
        dps_(dpsOf(report.plan(), role_)), isSnapshot_(role_.cells.size()) {
    for (const Segment &segment : role_.segments)
      if (segment.before != kNone)
        for (const Segment::Boundary &out : segment.outs)
          isSnapshot_[out.cell] = true;
  }

  void run() {
    for (uint32_t c = 0; c < role_.cells.size() && !report_.isFull(); ++c)
      checkCell(c);
    if (!report_.plan().blocks.empty())
      checkStarts(role_.program);
  }

private:
  template <typename... Args>
  Finding *add(uint32_t cell, fmt::format_string<Args...> text, Args &&...args) {
    return report_.add(Rule::Host, spotOfCell(report_, roleIndex_, cell),
                       fmt::format(text, std::forward<Args>(args)...), role_.cells[cell].name);
  }

  void checkCell(uint32_t c) {
    const Cell &cell = role_.cells[c];
    std::optional<HostCell> host = parseHostCell(cell.name);
    if (cell.arena == Arena::Host && !isWrittenByHost(cell) && !isSnapshot_[c]) {
      add(c,
          "cell '@{}' lies in arena host, but neither the host nor a background segment fills it",
          cell.name);
      return;
    }
    if (!host)
      return;
    const HostCellInfo &info = hostCellInfo(*host);
    if (cell.arena != info.arena)
      add(c, "the host uses cell '@{}', which lies in arena {}; it has to lie in arena {}",
          cell.name, toString(cell.arena), toString(info.arena));
    if (*host == HostCell::Step && cell.type.bytes() != static_cast<int64_t>(sizeof(StepState)))
      add(c, "cell '@{}' has {} bytes; a step state has {}", cell.name, cell.type.bytes(),
          sizeof(StepState));
    if (info.use == HostCellInfo::Written)
      checkApart(c);
  }

  /// The host writes when it likes.
  void checkApart(uint32_t c) {
    Range own = Range::of(role_.cells[c], dps_);
    for (uint32_t other = 0; other < role_.cells.size(); ++other) {
      const Cell &cell = role_.cells[other];
      if (other == c || cell.arena != role_.cells[c].arena)
        continue;
      Range common = own.intersect(Range::of(cell, dps_), dps_);
      std::optional<int64_t> dp = common.findDp(dps_);
      if (!dp)
        continue;
      ByteRange bytes{common.arena(), common.begin(*dp), common.end(*dp), *dp};
      if (Finding *finding =
              add(c,
                  "the host writes cell '@{}' at any time; cell '@{}' has bytes in common with it, "
                  "{}",
                  role_.cells[c].name, cell.name, toString(bytes)))
        finding->bytes = bytes;
    }
  }

  /// A run that loads a checkpoint does not start, and has to find the same cells filled.
  void checkStarts(const std::vector<ProgramNode> &nodes) {
    std::vector<bool> isHeld;
    for (const ProgramNode &node : nodes) {
      if (node.kind != ProgramNode::Start)
        continue;
      if (isHeld.empty())
        isHeld = cellsInCheckpoint(report_.plan(), role_);
      for (const Segment::Boundary &out : role_.segments[node.segment].outs)
        if (!isHeld[out.cell])
          add(out.cell,
              "'start' fills cell '@{}', which no checkpoint holds: a run that loads one would "
              "not have it",
              role_.cells[out.cell].name);
    }
  }

  Report &report_;
  uint32_t roleIndex_;
  const Role &role_;
  DpRange dps_;
  std::vector<bool> isSnapshot_; ///< of each cell: a background segment fills it for the host
};

} // namespace

void checkHostCells(Report &report, uint32_t role) { HostCheck(report, role).run(); }

} // namespace shardc::plan::verifier
