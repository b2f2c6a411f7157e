// Prints cells, ops with their clauses, segments and programs.
#include <algorithm>

#include "runtime/plan/PrinterImpl.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {

void Writer::cell(const Cell &cell) {
  text("  cell @");
  name(cell.name);
  if (cell.kind != CellKind::Buffer || cell.of >= 0) {
    const CellKindInfo &info = cellKindInfo(cell.kind);
    text(" ");
    text(info.word);
    if (info.of != CellKindInfo::Nothing || cell.of >= 0) {
      text(" of ");
      if (info.of == CellKindInfo::Param)
        nameOf(plan_.params, cell.of);
      else
        nameOf(plan_.blocks, cell.of);
    }
  }
  if (cell.isRing()) {
    text(" slots ");
    integer(cell.slots);
  }
  text(" : ");
  type(cell.type);
  text(" in ");
  text(toString(cell.arena));
  text(" for ");
  text(toString(cell.purpose));
  if (cell.place.placed) {
    text(" at ");
    if (cell.place.arena != cell.arena) {
      text(toString(cell.place.arena));
      text(" ");
    }
    offset(cell.place);
    if (cell.isRing()) {
      text(" stride ");
      integer(cell.place.stride);
    }
  }
  text("\n");
}

void Writer::attr(const Attr &attr) {
  const AttrInfo &info = attrInfo(attr.key);
  text(info.name);
  text(" = ");
  switch (info.type) {
  case AttrInfo::Bool:
    text(attr.i != 0 ? "true" : "false");
    return;
  case AttrInfo::Int:
    integer(attr.i);
    return;
  case AttrInfo::Float:
    real(attr.f);
    return;
  case AttrInfo::Enum: {
    std::string_view word = enumeratorName(info, attr.i);
    if (word.empty()) {
      text("?");
      integer(attr.i);
    } else {
      text(word);
    }
    return;
  }
  }
}

void Writer::attrs(const Op &op) {
  std::string_view separator = " {";
  for (const Attr &each : op.attrs) {
    if (isDefault(each))
      continue;
    text(separator);
    attr(each);
    separator = "  ";
  }
  if (separator != " {")
    text("}");
}

void Writer::blocks(const Op &op) {
  auto isPlaced = [&](const ListedBlock &each) { return each.block == &each - op.blocks.data(); };
  auto isAlike = [&](const ListedBlock &each) { return each.copies == op.blocks[0].copies; };
  bool isImplied = op.blocks.size() == op.operands.size() &&
                   std::ranges::all_of(op.blocks, isPlaced) &&
                   std::ranges::all_of(op.blocks, isAlike);
  for (size_t i = 0; i < op.blocks.size();) {
    size_t first = i;
    for (; i < op.blocks.size() && op.blocks[i].copies == op.blocks[first].copies; ++i) {
      if (isImplied)
        continue;
      text(i == first ? " of [" : ", ");
      nameOf(plan_.blocks, op.blocks[i].block);
    }
    if (!isImplied)
      text("]");
    if (op.blocks[first].copies != 1) {
      text(" copies ");
      integer(op.blocks[first].copies);
    }
  }
}

void Writer::clauses(const Op &op) {
  if (op.role != impliedRole(op)) {
    text(" role ");
    text(toString(op.role));
  }
  bool isOfChannel = op.channel >= 0 && static_cast<size_t>(op.channel) < plan_.channels.size() &&
                     plan_.channels[static_cast<size_t>(op.channel)].group == op.group;
  if (op.channel != kNoChannel) {
    text(" channel ");
    nameOf(plan_.channels, op.channel);
  }
  if (op.group >= 0 && !isOfChannel) {
    text(" group ");
    nameOf(plan_.groups, op.group);
  }
  if (op.unit >= 0) {
    text(" unit ");
    nameOf(plan_.units, op.unit);
  }
  if (op.stream != plan_.defaultStream(op)) {
    text(" on ");
    nameOf(plan_.streams, op.stream);
  }
}

void Writer::ties(const Segment &segment, const Op &op) {
  for (const Tie &tie : op.ties) {
    text(tie.kind == Tie::Acc ? " acc(" : " else(");
    integer(tie.result);
    text(" = ");
    value(segment, tie.value);
    if (tie.pred != Pred::Always) {
      text(" if ");
      text(toString(tie.pred));
    }
    text(")");
  }
}

void Writer::waits(const Segment &segment, const Op &op) {
  std::string_view separator = " after ";
  for (uint32_t wait : op.waits) {
    text(separator);
    if (wait < segment.ops.size() && !segment.ops[wait].results.empty()) {
      value(segment, segment.ops[wait].results[0]);
    } else {
      text("#");
      integer(wait);
    }
    separator = ", ";
  }
}

void Writer::results(const Segment &segment, const Op &op) {
  std::string_view separator = " : ";
  for (ValueId id : op.results) {
    if (id >= segment.values.size())
      continue;
    const Value &result = segment.values[id];
    text(separator);
    type(result.type);
    countedRows(segment, result);
    text(" ");
    text(toString(result.purpose));
    if (result.place.placed) {
      text(" at ");
      place(result.place);
    }
    separator = ", ";
  }
}

void Writer::countedRows(const Segment &segment, const Value &of) {
  if (of.counts == kNone)
    return;
  text(" rows ");
  value(segment, of.counts);
}

void Writer::op(const Segment &segment, const Op &op) {
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (i > 0)
      text(", ");
    value(segment, op.results[i]);
  }
  if (!op.results.empty())
    text(" = ");
  text(opInfo(op).name);
  for (size_t i = 0; i < op.operands.size(); ++i) {
    text(i > 0 ? ", " : " ");
    value(segment, op.operands[i]);
  }
  attrs(op);
  blocks(op);
  clauses(op);
  ties(segment, op);
  if (op.pred != Pred::Always) {
    text(" if ");
    text(toString(op.pred));
  }
  waits(segment, op);
  results(segment, op);
  if (op.phase != segmentKindInfo(segment.kind).phase) {
    text(" ");
    text(toString(op.phase));
  }
  if (op.isRecomputed)
    text(" recomputed");
  if (op.loc != kNone) {
    text(" loc ");
    integer(op.loc);
  }
}

void Writer::boundaryIn(const Role &role, const Segment &segment, const Segment::Boundary &in) {
  text("    in ");
  value(segment, in.value);
  text(" = @");
  nameOf(role.cells, in.cell);
  shift(in.shift);
  if (in.value < segment.values.size() && in.cell < role.cells.size()) {
    const Value &live = segment.values[in.value];
    const Cell &cell = role.cells[in.cell];
    countedRows(segment, live);
    if (live.type != cell.type || live.purpose != cell.purpose) {
      text(" : ");
      type(live.type);
      text(" ");
      text(toString(live.purpose));
    }
    if (live.place.placed) {
      text(" at ");
      place(live.place);
    }
  }
  text("\n");
}

void Writer::segment(const Role &role, const Segment &segment) {
  text("  segment ");
  name(segment.name);
  if (segment.kind != SegmentKind::Other) {
    text(" ");
    text(segmentKindInfo(segment.kind).word);
  }
  if (segment.body)
    text(" body");
  if (segment.before != kNone) {
    text(" before ");
    nameOf(role.segments, segment.before);
  }
  text(" {\n");
  for (const Segment::Boundary &in : segment.ins)
    boundaryIn(role, segment, in);
  for (const Op &each : segment.ops) {
    text("    ");
    op(segment, each);
    text("\n");
  }
  for (const Segment::Boundary &boundary : segment.outs) {
    text("    out @");
    nameOf(role.cells, boundary.cell);
    text(" = ");
    value(segment, boundary.value);
    shift(boundary.shift);
    text(boundary.mayDrop ? " droppable\n" : "\n");
  }
  text("  }\n");
}

void Writer::microbatch(const MicrobatchNumber &number) {
  text(" mb ");
  if (number.coef == 0)
    return integer(number.base);
  if (number.coef != 1) {
    integer(number.coef);
    text("*");
  }
  text("i");
  signedTerm(number.base);
}

void Writer::program(const Role &role, const std::vector<ProgramNode> &nodes, int depth) {
  for (const ProgramNode &node : nodes) {
    for (int i = 0; i < depth; ++i)
      text("  ");
    bool nested = node.kind != ProgramNode::Start && node.kind != ProgramNode::Run;
    if (nested) {
      text(node.kind == ProgramNode::Steps   ? "steps "
           : node.kind == ProgramNode::Every ? "every "
                                             : "loop ");
      integer(node.count);
      text(" {\n");
      program(role, node.children, depth + 1);
      for (int i = 0; i < depth; ++i)
        text("  ");
      text("}");
    } else {
      text(node.kind == ProgramNode::Start ? "start " : "run ");
      nameOf(role.segments, node.segment);
      if (node.count != 1) {
        text(" ");
        integer(node.count);
      }
      if (node.microbatch)
        microbatch(*node.microbatch);
    }
    text("\n");
  }
}

void Writer::where(const Role &role) {
  if (role.where.empty())
    return;
  text(" where {");
  for (const AxisRange &range : role.where) {
    text(" ");
    nameOf(plan_.mesh, range.axis);
    text(" = ");
    integer(range.begin);
    text(" to ");
    integer(range.end - 1);
  }
  text(" }");
}

void Writer::beside(const Role &role) {
  if (std::ranges::all_of(role.besideBytes, [](int64_t bytes) { return bytes < 0; }))
    return;
  text("  beside {");
  for (int what = 0; what < kBesideCount; ++what)
    if (int64_t bytes = role.besideBytes[static_cast<size_t>(what)]; bytes >= 0) {
      text(" ");
      text(toString(static_cast<Beside>(what)));
      text(" = ");
      integer(bytes);
    }
  text(" }\n");
}

void Writer::role(const Role &role) {
  text("role ");
  name(role.name);
  text(" ");
  quoted(role.why);
  where(role);
  text(" {\n");
  if (role.arenaBytes != decltype(role.arenaBytes){}) {
    text("  arenas {");
    for (int arena = 0; arena < kArenaCount; ++arena) {
      text(arena == 0 ? " " : "  ");
      text(toString(static_cast<Arena>(arena)));
      text(" = ");
      integer(role.arenaBytes[static_cast<size_t>(arena)]);
    }
    text(" }\n");
  }
  beside(role);
  for (const Cell &each : role.cells)
    cell(each);
  for (const Segment &each : role.segments)
    segment(role, each);
  text("  program {\n");
  program(role, role.program, 2);
  text("  }\n}\n");
}

} // namespace shardc::plan
