#include "runtime/plan/Printer.h"

#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "runtime/plan/Syntax.h"

namespace shardc::plan {
namespace {

/// Appends to one buffer; nothing is allocated a token.
class Writer {
public:
  explicit Writer(const Plan &plan) : plan_(plan) {}

  void head();
  void tables();
  void role(const Role &role);
  void op(const Segment &segment, const Op &op);
  void type(const Type &type);
  void place(const Place &place);
  void text(std::string_view s) { out_.append(s.data(), s.data() + s.size()); }
  std::string take() const { return fmt::to_string(out_); }

private:
  void integer(int64_t value);
  void real(double value);
  void quoted(std::string_view s);
  void name(std::string_view s);
  template <typename T> void nameOf(const std::vector<T> &table, int64_t index);
  void value(const Segment &segment, ValueId id);
  void offset(const Place &place);
  void jobValue(const JobValue &value);
  void attrs(const Op &op);
  void attr(const Attr &attr);
  void clauses(const Op &op);
  void ties(const Segment &segment, const Op &op);
  void waits(const Segment &segment, const Op &op);
  void results(const Segment &segment, const Op &op);
  void cell(const Cell &cell);
  void segment(const Role &role, const Segment &segment);
  void boundaryIn(const Role &role, const Segment &segment, const Segment::Boundary &in);
  void where(const Role &role);
  void program(const Role &role, const std::vector<ProgramNode> &nodes, int depth);
  void param(const Param &param);

  const Plan &plan_;
  fmt::memory_buffer out_;
};

void Writer::integer(int64_t value) {
  fmt::format_int digits(value);
  out_.append(digits.data(), digits.data() + digits.size());
}

/// Shortest text that reads back as the same number; never looks like an integer.
void Writer::real(double value) {
  if (!std::isfinite(value)) {
    text(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    return;
  }
  size_t begin = out_.size();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  std::string_view written(out_.data() + begin, out_.size() - begin);
  if (written.find_first_of(".e") == std::string_view::npos)
    text(".0");
}

void Writer::quoted(std::string_view s) {
  text("\"");
  for (char c : s) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out_.push_back('\\');
      out_.push_back(c);
    } else if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(out_), "\\x{:02x}", byte);
    } else {
      out_.push_back(c);
    }
  }
  text("\"");
}

void Writer::name(std::string_view s) {
  if (isPlainName(s))
    text(s);
  else
    quoted(s);
}

template <typename T> void Writer::nameOf(const std::vector<T> &table, int64_t index) {
  if (index >= 0 && static_cast<size_t>(index) < table.size()) {
    name(table[static_cast<size_t>(index)].name);
  } else { // a broken plan prints, but does not parse
    text("?");
    integer(index);
  }
}

void Writer::value(const Segment &segment, ValueId id) {
  text("%");
  nameOf(segment.values, id);
}

void Writer::offset(const Place &place) {
  integer(place.offset);
  if (place.coefDp == 0)
    return;
  text(place.coefDp < 0 ? " - " : " + ");
  // Written as unsigned: the smallest integer has no positive counterpart.
  uint64_t magnitude = static_cast<uint64_t>(place.coefDp);
  fmt::format_int digits(place.coefDp < 0 ? 0 - magnitude : magnitude);
  out_.append(digits.data(), digits.data() + digits.size());
  text("*dp");
}

void Writer::place(const Place &place) {
  text(toString(place.arena));
  text(" ");
  offset(place);
}

void Writer::type(const Type &type) {
  text(dtypeName(type.dtype));
  text("[");
  for (size_t d = 0; d < type.rank && d < type.shape.size(); ++d) {
    if (d > 0)
      text(",");
    integer(type.shape[d]);
  }
  text("]");
}

void Writer::jobValue(const JobValue &value) {
  if (const bool *b = std::get_if<bool>(&value))
    text(*b ? "true" : "false");
  else if (const int64_t *i = std::get_if<int64_t>(&value))
    integer(*i);
  else if (const double *f = std::get_if<double>(&value))
    real(*f);
  else if (const std::string *s = std::get_if<std::string>(&value))
    quoted(*s);
  else {
    text("[");
    std::string_view separator = "";
    for (const std::string &item : std::get<std::vector<std::string>>(value)) {
      text(separator);
      quoted(item);
      separator = ", ";
    }
    text("]");
  }
}

void Writer::head() {
  text("shardc.plan ");
  integer(kFormatVersion);
  text(" ");
  text(toString(plan_.level));
  text(" ");
  quoted(plan_.name);
  text("\n");
}

void Writer::tables() {
  text("needs { backend = ");
  name(plan_.needsBackend);
  text("  gpu = ");
  quoted(plan_.needsGpu);
  text("  device_bytes = ");
  integer(plan_.deviceBytes);
  text(" }\njob {\n");
  for (const auto &[path, value] : plan_.job) {
    text("  ");
    name(path);
    text(" = ");
    jobValue(value);
    text("\n");
  }
  text("}\nmesh {");
  for (const MeshAxis &axis : plan_.mesh) {
    text(" ");
    name(axis.name);
    text(" = ");
    integer(axis.size);
  }
  text(" }\ngroups {");
  for (const Group &group : plan_.groups) {
    text(" ");
    name(group.name);
    text(" = [");
    for (size_t i = 0; i < group.axes.size(); ++i) {
      if (i > 0)
        text(", ");
      nameOf(plan_.mesh, group.axes[i]);
    }
    text("]");
  }
  text(" }\n");
  for (const Unit &unit : plan_.units) {
    text("unit ");
    name(unit.name);
    text("\n");
  }
  for (const Block &block : plan_.blocks) {
    text("block ");
    name(block.name);
    if (block.unit >= 0) {
      text(" unit ");
      nameOf(plan_.units, block.unit);
    }
    text(" numel ");
    integer(block.numel);
    text(" shard ");
    integer(block.shard);
    text("\n");
  }
  for (const Param &each : plan_.params)
    param(each);
  for (size_t i = 0; i < plan_.locs.size(); ++i) {
    text("loc ");
    integer(static_cast<int64_t>(i));
    text(" ");
    quoted(plan_.locs[i].file);
    text(" ");
    integer(plan_.locs[i].line);
    text(" ");
    integer(plan_.locs[i].column);
    text("\n");
  }
}

void Writer::param(const Param &param) {
  text("param ");
  quoted(param.name);
  text(" : ");
  type(param.type);
  if (param.block >= 0) {
    text(" block ");
    nameOf(plan_.blocks, param.block);
    text(" at ");
    integer(param.offset);
  }
  if (param.lrMult != 1) {
    text(" lr ");
    real(param.lrMult);
  }
  if (param.wdMult != 1) {
    text(" wd ");
    real(param.wdMult);
  }
  text(" init ");
  text(toString(param.init));
  if (param.init == InitKind::Normal) {
    text(" ");
    real(param.initStd);
  }
  text("\n");
}

void Writer::cell(const Cell &cell) {
  text("  cell @");
  name(cell.name);
  text(" : ");
  type(cell.type);
  text(" in ");
  text(toString(cell.arena));
  text(" for ");
  text(toString(cell.purpose));
  if (cell.place.placed) {
    text(" at ");
    if (cell.place.arena != cell.arena)
      place(cell.place);
    else
      offset(cell.place);
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

void Writer::clauses(const Op &op) {
  if (op.group >= 0) {
    text(" group ");
    nameOf(plan_.groups, op.group);
  }
  if (op.channel != Channel::None) {
    text(" channel ");
    text(toString(op.channel));
  }
  if (op.transport != Transport::Nccl) {
    text(" via ");
    text(toString(op.transport));
  }
  if (op.unit >= 0) {
    text(" unit ");
    nameOf(plan_.units, op.unit);
  }
  if (op.stream != Stream::Compute) {
    text(" on ");
    text(toString(op.stream));
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
    text(" ");
    text(toString(result.purpose));
    if (result.place.placed) {
      text(" at ");
      place(result.place);
    }
    separator = ", ";
  }
}

void Writer::op(const Segment &segment, const Op &op) {
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (i > 0)
      text(", ");
    value(segment, op.results[i]);
  }
  if (!op.results.empty())
    text(" = ");
  text(opInfo(op.kind).name);
  for (size_t i = 0; i < op.operands.size(); ++i) {
    text(i > 0 ? ", " : " ");
    value(segment, op.operands[i]);
  }
  attrs(op);
  clauses(op);
  ties(segment, op);
  if (op.pred != Pred::Always) {
    text(" if ");
    text(toString(op.pred));
  }
  waits(segment, op);
  results(segment, op);
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
  if (in.value < segment.values.size() && in.cell < role.cells.size()) {
    const Value &live = segment.values[in.value];
    const Cell &cell = role.cells[in.cell];
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
  text(segment.body ? " body {\n" : " {\n");
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
    text("\n");
  }
  text("  }\n");
}

void Writer::program(const Role &role, const std::vector<ProgramNode> &nodes, int depth) {
  for (const ProgramNode &node : nodes) {
    for (int i = 0; i < depth; ++i)
      text("  ");
    bool nested = node.kind == ProgramNode::Steps || node.kind == ProgramNode::Every;
    if (nested) {
      text(node.kind == ProgramNode::Steps ? "steps " : "every ");
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
  for (const Cell &each : role.cells)
    cell(each);
  for (const Segment &each : role.segments)
    segment(role, each);
  text("  program {\n");
  program(role, role.program, 2);
  text("  }\n}\n");
}

} // namespace

std::string print(const Plan &plan, std::string_view page) {
  Writer writer(plan);
  writer.head();
  writer.text(page);
  writer.tables();
  for (const Role &role : plan.roles)
    writer.role(role);
  return writer.take();
}

std::string printOp(const Plan &plan, const Segment &segment, uint32_t opIndex) {
  Writer writer(plan);
  writer.op(segment, segment.ops[opIndex]);
  return writer.take();
}

std::string printType(const Type &type) {
  static const Plan kEmpty;
  Writer writer(kEmpty);
  writer.type(type);
  return writer.take();
}

std::string printPlace(const Place &place) {
  if (!place.placed)
    return "nowhere";
  static const Plan kEmpty;
  Writer writer(kEmpty);
  writer.place(place);
  return writer.take();
}

} // namespace shardc::plan
