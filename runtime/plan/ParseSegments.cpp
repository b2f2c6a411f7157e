// Parses segments: values, ops with their clauses, boundaries.
#include <algorithm>

#include "runtime/plan/ParserImpl.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {

bool Parser::segment(Role &role) {
  Segment segment;
  std::string_view name;
  if (!room(role.segments, limits::kSegmentsMax, "segments") || !in_.name(name, "segment") ||
      !segments_.add(in_, name, static_cast<uint32_t>(role.segments.size()), "segment"))
    return false;
  segment.name = name;
  std::string_view word = in_.peekWord();
  if (!word.empty() && word != "body" && word != "before" &&
      !enumerator(segment.kind, parseSegmentKind, "segment kind"))
    return false;
  segment.body = in_.takeIf(std::string_view("body"));
  if (in_.takeIf(std::string_view("before")) && !lookUp(segments_, segment.before, "segment"))
    return false;
  values_.clear();
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}'))
    if (!statement(role, segment))
      return false;
  role.segments.push_back(std::move(segment));
  return true;
}

bool Parser::statement(Role &role, Segment &segment) {
  if (in_.peek() != '%') {
    if (in_.takeIf(std::string_view("in")))
      return boundaryIn(role, segment);
    if (in_.takeIf(std::string_view("out")))
      return boundaryOut(segment);
  }
  return op(segment);
}

bool Parser::define(Segment &segment, std::string_view name, size_t at, Value value, ValueId &id) {
  id = static_cast<ValueId>(segment.values.size());
  if (!values_.try_emplace(name, id).second)
    return in_.fail(at, "plan-name", "value '%{}' is defined twice in segment '{}'", name,
                    segment.name);
  value.name = name;
  segment.values.push_back(std::move(value));
  return true;
}

bool Parser::valueUse(ValueId &out) {
  std::string_view name;
  if (!in_.expect('%') || !in_.name(name, "value"))
    return false;
  auto at = values_.find(name);
  if (at == values_.end())
    return in_.fail(in_.last(), "plan-name", "value '%{}' is not defined before this use", name);
  out = at->second;
  return true;
}

bool Parser::countedRows(Value &value) {
  return !in_.takeIf(std::string_view("rows")) || valueUse(value.counts);
}

bool Parser::boundaryIn(Role &role, Segment &segment) {
  if (!segment.ops.empty() || !segment.outs.empty())
    return in_.fail(in_.last(), "plan-syntax", "'in' lines need to come before the segment's ops");
  std::string_view name;
  uint32_t cell = 0;
  if (!in_.expect('%') || !in_.name(name, "value"))
    return false;
  size_t at = in_.last();
  int64_t distance = 0;
  if (!in_.expect('=') || !in_.expect('@') || !lookUp(cells_, cell, "cell") || !shift(distance))
    return false;
  Value value;
  value.type = role.cells[cell].type;
  value.purpose = role.cells[cell].purpose;
  if (!countedRows(value))
    return false;
  if (in_.takeIf(':') && !(type(value.type) && enumerator(value.purpose, parsePurpose, "purpose")))
    return false;
  if (in_.takeIf(std::string_view("at")) && !place(value.place))
    return false;
  Segment::Boundary boundary{kNone, cell, false, distance};
  if (!define(segment, name, at, std::move(value), boundary.value))
    return false;
  segment.ins.push_back(boundary);
  return true;
}

bool Parser::boundaryOut(Segment &segment) {
  Segment::Boundary boundary{};
  if (!room(segment.outs, limits::kCellsMax, "'out' lines") || !in_.expect('@') ||
      !lookUp(cells_, boundary.cell, "cell") || !in_.expect('=') || !valueUse(boundary.value) ||
      !shift(boundary.shift))
    return false;
  boundary.mayDrop = in_.takeIf(std::string_view("droppable"));
  segment.outs.push_back(boundary);
  return true;
}

bool Parser::op(Segment &segment) {
  if (!segment.outs.empty())
    return in_.fail(in_.next(), "plan-syntax",
                    "'out' lines need to come after the segment's ops, found {}", in_.found());
  if (!room(segment.ops, limits::kOpsMax, "ops in a segment") || !resultNames())
    return false;
  Op op{};
  std::string_view name;
  if (!in_.word(name, "an operation"))
    return false;
  std::optional<OpForm> form = parseOpForm(name);
  if (!form)
    return in_.fail(in_.last(), "plan-name", "unknown operation '{}'", name.substr(0, 64));
  const size_t at = in_.last();
  op.kind = form->kind;
  op.epilogue = form->epilogue;
  op.phase = segmentKindInfo(segment.kind).phase;
  if (!operands(op) || !attrs(op) || !blocks(op))
    return false;
  if (std::optional<AttrKey> lacking = missingAttr(op))
    return in_.fail(at, "plan-name", "'{}' needs {}", name, attrInfo(*lacking).name);
  op.role = impliedRole(op);
  if (!clauses(op) || !waits(segment, op) || !results(segment, op) || !phase(op))
    return false;
  if (in_.takeIf(std::string_view("loc"))) {
    int64_t index = 0;
    if (!in_.integer(index, "index of a recipe location", 0,
                     static_cast<int64_t>(plan_.locs.size()) - 1))
      return false;
    op.loc = static_cast<uint32_t>(index);
  }
  segment.ops.push_back(std::move(op));
  return true;
}

bool Parser::phase(Op &op) {
  if (parsePhase(in_.peekWord()) && !enumerator(op.phase, parsePhase, "phase"))
    return false;
  op.isRecomputed = in_.takeIf(std::string_view("recomputed"));
  return true;
}

bool Parser::resultNames() {
  resultNames_.clear();
  if (in_.peek() != '%')
    return true;
  do {
    std::string_view name;
    if (!room(resultNames_, limits::kResultsMax, "results of an operation") || !in_.expect('%') ||
        !in_.name(name, "value"))
      return false;
    resultNames_.push_back({name, in_.last()});
  } while (in_.takeIf(','));
  return in_.expect('=');
}

bool Parser::operands(Op &op) {
  if (in_.peek() != '%')
    return true;
  do {
    if (!room(op.operands, limits::kOperandsMax, "operands of an operation") ||
        !valueUse(op.operands.emplace_back()))
      return false;
  } while (in_.takeIf(','));
  return true;
}

bool Parser::attrs(Op &op) {
  if (!in_.takeIf('{'))
    return true;
  while (!in_.takeIf('}'))
    if (!attr(op))
      return false;
  return true;
}

bool Parser::attr(Op &op) {
  std::string_view name;
  if (!in_.word(name, "an attribute"))
    return false;
  std::optional<AttrKey> key = parseAttrKey(name);
  if (!key)
    return in_.fail(in_.last(), "plan-name", "unknown attribute '{}'", name.substr(0, 64));
  if (const OpInfo &row = opInfo(op); !row.attrs.has(*key))
    return in_.fail(in_.last(), "plan-name", "'{}' has no attribute '{}'; it has {}", row.name,
                    name, attrNames(row.attrs));
  for (const Attr &other : op.attrs)
    if (other.key == *key)
      return in_.fail(in_.last(), "plan-name", "attribute '{}' appears twice", name);
  if (!in_.expect('='))
    return false;
  const AttrInfo &info = attrInfo(*key);
  int64_t integer = 0;
  double real = 0;
  std::string_view word;
  switch (info.type) {
  case AttrInfo::Float:
    if (!in_.real(real, name))
      return false;
    op.set(*key, real);
    return true;
  case AttrInfo::Int:
    if (!in_.integer(integer, name, INT64_MIN, INT64_MAX))
      return false;
    break;
  case AttrInfo::Bool:
    if (!in_.word(word, "true or false"))
      return false;
    if (word != "true" && word != "false")
      return in_.fail(in_.last(), "plan-syntax", "expected true or false, found '{}'",
                      word.substr(0, 64));
    integer = word == "true";
    break;
  case AttrInfo::Enum: {
    if (!in_.word(word, name))
      return false;
    std::optional<int64_t> value = parseEnumerator(info, word);
    if (!value)
      return in_.fail(in_.last(), "plan-name", "'{}' is not a value of '{}'; it has {}",
                      word.substr(0, 64), name, info.enumerators);
    integer = *value;
    break;
  }
  }
  op.set(*key, integer);
  return true;
}

bool Parser::blocks(Op &op) {
  if (opInfo(op).block != BlockUse::List)
    return true;
  if (in_.peekWord() != "of") {
    ListedBlock each;
    if (in_.takeIf(std::string_view("copies")) &&
        !in_.integer(each.copies, "copies of a block", 1, limits::kWorldSizeMax))
      return false;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      each.block = static_cast<int32_t>(i);
      op.blocks.push_back(each);
    }
    return true;
  }
  while (in_.takeIf(std::string_view("of")))
    if (!listedBlocks(op))
      return false;
  return true;
}

bool Parser::listedBlocks(Op &op) {
  if (!in_.expect('['))
    return false;
  size_t first = op.blocks.size();
  do {
    uint32_t index = 0;
    if (!room(op.blocks, limits::kOperandsMax, "blocks of an operation") ||
        !lookUp(blocks_, index, "block"))
      return false;
    op.blocks.push_back({static_cast<int32_t>(index)});
  } while (in_.takeIf(','));
  int64_t copies = 1;
  if (!in_.expect(']') || (in_.takeIf(std::string_view("copies")) &&
                           !in_.integer(copies, "copies of a block", 1, limits::kWorldSizeMax)))
    return false;
  for (size_t i = first; i < op.blocks.size(); ++i)
    op.blocks[i].copies = copies;
  return true;
}

bool Parser::clauses(Op &op) {
  std::optional<StreamId> stream;
  while (true) {
    std::string_view word = in_.peekWord();
    static constexpr std::string_view kWords[] = {"group", "channel", "unit", "on",
                                                  "if",    "acc",     "else", "role"};
    if (std::find(std::begin(kWords), std::end(kWords), word) == std::end(kWords)) {
      op.stream = stream ? *stream : plan_.defaultStream(op);
      return true;
    }
    if (!in_.word(word, "a clause") || !clause(op, word))
      return false;
    if (word == "on")
      stream = op.stream;
  }
}

bool Parser::clause(Op &op, std::string_view word) {
  uint32_t index = 0;
  if (word == "acc" || word == "else")
    return tie(op, word == "acc" ? Tie::Acc : Tie::Else);
  if (word == "role")
    return enumerator(op.role, parseProductRole, "role of a product");
  if (word == "on") {
    bool ok = lookUp(streams_, index, "stream");
    op.stream = static_cast<StreamId>(index);
    return ok;
  }
  if (word == "if")
    return predicate(op.pred);
  if (word == "channel") {
    if (!lookUp(channels_, index, "channel"))
      return false;
    op.channel = static_cast<ChannelId>(index);
    op.group = plan_.channels[index].group;
    return true;
  }
  if (word == "group") {
    bool ok = lookUp(groups_, index, "group");
    op.group = static_cast<int16_t>(index);
    return ok;
  }
  bool ok = lookUp(units_, index, "unit");
  op.unit = static_cast<int32_t>(index);
  return ok;
}

bool Parser::predicate(Pred &out) {
  if (!in_.takeIf(std::string_view("mb")))
    return enumerator(out, parsePred, "predicate");
  out.kind = Pred::Kind::Within;
  if (!in_.integer(out.begin, "first microbatch", 0, limits::kMicrobatchesMax) ||
      !in_.expect(std::string_view("to")) ||
      !in_.integer(out.last, "last microbatch", out.begin, limits::kMicrobatchesMax))
    return false;
  if (!in_.takeIf(std::string_view("every")))
    return true;
  // An interval without repetition has no period, and adjacent intervals are written as one.
  if (!in_.integer(out.period, "period", out.last - out.begin + 2, limits::kMicrobatchesMax) ||
      !in_.expect(std::string_view("to")) ||
      !in_.integer(out.until, "last microbatch", out.begin + out.period, limits::kMicrobatchesMax))
    return false;
  repetitionCount_ += (out.until - out.begin) / out.period;
  if (repetitionCount_ > limits::kRepetitionsMax)
    return in_.fail(in_.next(), "plan-limit", "more than {} repetitions of predicates",
                    limits::kRepetitionsMax);
  return true;
}

bool Parser::tie(Op &op, Tie::Kind kind) {
  Tie tie{};
  tie.kind = kind;
  int64_t result = 0;
  int64_t resultLast = static_cast<int64_t>(resultNames_.size()) - 1;
  if (!room(op.ties, limits::kTiesMax, "ties of an operation") || !in_.expect('(') ||
      !in_.integer(result, "index of the tied result", 0, resultLast) || !in_.expect('=') ||
      !valueUse(tie.value))
    return false;
  tie.result = static_cast<uint8_t>(result);
  if (in_.takeIf(std::string_view("if")) && !predicate(tie.pred))
    return false;
  op.ties.push_back(tie);
  return in_.expect(')');
}

bool Parser::waits(const Segment &segment, Op &op) {
  if (!in_.takeIf(std::string_view("after")))
    return true;
  do {
    uint32_t awaited = 0;
    if (in_.takeIf('#')) {
      int64_t index = 0;
      if (!in_.integer(index, "index of an op", 0, static_cast<int64_t>(segment.ops.size()) - 1))
        return false;
      awaited = static_cast<uint32_t>(index);
    } else {
      ValueId value = 0;
      if (!valueUse(value))
        return false;
      awaited = segment.values[value].def;
      if (awaited == kNone)
        return in_.fail(in_.last(), "plan-name",
                        "'%{}' is a live-in, so there is no op to wait for",
                        segment.values[value].name);
    }
    if (!room(op.waits, limits::kWaitsMax, "waits of an operation"))
      return false;
    op.waits.push_back(awaited);
  } while (in_.takeIf(','));
  return true;
}

bool Parser::results(Segment &segment, Op &op) {
  if (resultNames_.empty())
    return true;
  for (size_t i = 0; i < resultNames_.size(); ++i) {
    if (!in_.expect(i == 0 ? ':' : ','))
      return false;
    Value value;
    value.def = static_cast<uint32_t>(segment.ops.size());
    value.defResult = static_cast<uint8_t>(i);
    ValueId id = 0;
    if (!type(value.type) || !countedRows(value) ||
        !enumerator(value.purpose, parsePurpose, "purpose") ||
        (in_.takeIf(std::string_view("at")) && !place(value.place)) ||
        !define(segment, resultNames_[i].name, resultNames_[i].at, std::move(value), id))
      return false;
    op.results.push_back(id);
  }
  return true;
}

} // namespace shardc::plan
