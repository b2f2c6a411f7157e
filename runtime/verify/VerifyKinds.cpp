// Checks kinds. A cell belongs to the block or parameter that its kind asks for, and is the only
// one of its kind there. A segment has the form of its kind. A plan has one stream of each kind.
#include <algorithm>
#include <map>

#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

SegmentKindInfo::Form formOf(const Segment &segment) {
  if (segment.body)
    return SegmentKindInfo::Body;
  return segment.before == kNone ? SegmentKindInfo::Straight : SegmentKindInfo::Background;
}
/// Names of segment forms, for messages.
constexpr std::string_view kForms[] = {"any", "a body", "straight-line", "in the background"};

class KindCheck : RoleCheck {
public:
  KindCheck(Inspection &inspection, uint32_t roleIndex) : RoleCheck(inspection, roleIndex) {}

  void run() {
    checkCells();
    checkSegments();
  }

private:
  void checkCells() {
    std::map<std::pair<CellKind, int32_t>, uint32_t> first;
    for (uint32_t c = 0; c < role_.cells.size() && !report_.isFull(); ++c) {
      const Cell &cell = role_.cells[c];
      if (cell.kind == CellKind::Buffer)
        continue;
      auto [at, isNew] = first.try_emplace({cell.kind, cell.of}, c);
      if (!isNew)
        addCell(finding::CellsOfOneKind, c, role_.cells[at->second].name,
                cellKindInfo(cell.kind).word, cell.of < 0 ? "" : " of the same");
    }
  }

  void checkSegments() {
    std::map<SegmentKind, uint32_t> first;
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s) {
      const Segment &segment = role_.segments[s];
      const SegmentKindInfo &info = segmentKindInfo(segment.kind);
      SegmentKindInfo::Form form = formOf(segment);
      if (info.form != SegmentKindInfo::Any && info.form != form)
        scope(s).add(finding::SegmentForm, kNone, info.word, kForms[form], kForms[info.form]);
      if (info.form == SegmentKindInfo::Straight)
        if (auto [at, isNew] = first.try_emplace(segment.kind, s); !isNew)
          scope(s).add(finding::SegmentsOfOneKind, kNone, role_.segments[at->second].name,
                       info.word);
    }
  }
};

} // namespace

void checkStreamKinds(Inspection &inspection) {
  const std::vector<Stream> &streams = inspection.plan().streams;
  for (size_t s = 0; s < streams.size(); ++s) {
    StreamKind kind = streams[s].kind;
    auto first = std::ranges::find(streams, kind, &Stream::kind) - streams.begin();
    if (kind != StreamKind::Other && static_cast<size_t>(first) < s)
      inspection.add(finding::StreamsOfOneKind, Spot{}, streams[static_cast<size_t>(first)].name,
                     streams[s].name, toString(kind));
  }
}

void checkKinds(Inspection &inspection, uint32_t role) { KindCheck(inspection, role).run(); }

} // namespace shardc::plan::verifier
