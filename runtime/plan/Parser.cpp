#include "runtime/plan/Parser.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "runtime/plan/Cursor.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Syntax.h"

namespace shardc::plan {
namespace {

/// Names of one kind with the index they stand for and the place of their first mention.
class NameTable {
public:
  /// False, with an error and a note, if the name is taken.
  bool add(Cursor &in, std::string_view name, uint32_t index, std::string_view what) {
    auto [at, isNew] = map_.try_emplace(name, Entry{index, in.last()});
    if (isNew)
      return true;
    in.fail(in.last(), "plan-name", "{} '{}' is declared twice", what, name);
    in.note(at->second.offset, "first declared here");
    return false;
  }
  std::optional<uint32_t> find(std::string_view name) const {
    auto at = map_.find(name);
    return at == map_.end() ? std::nullopt : std::optional(at->second.index);
  }
  void reserve(size_t count) { map_.reserve(count); }

private:
  struct Entry {
    uint32_t index;
    size_t offset;
  };
  std::unordered_map<std::string_view, Entry> map_;
};

/// One function a construct; each returns false after an error, which the cursor keeps.
class Parser {
public:
  Parser(std::string_view text, std::string_view fileName) : in_(text, fileName) {}

  bool run();
  Plan &plan() { return plan_; }
  Status status() const { return in_.status(); }

private:
  // Parser.cpp: the head and the tables
  bool head();
  bool topLevel();
  bool needs();
  bool job();
  bool jobEntry();
  bool jobValue(JobValue &out);
  bool mesh();
  bool groups();
  bool group();
  bool unit();
  bool block();
  bool param();
  bool paramClauses(Param &param);
  bool paramInit(Param &param);
  bool loc();
  bool type(Type &out);
  bool lookUp(const NameTable &table, uint32_t &out, std::string_view what);
  template <typename E>
  bool enumerator(E &out, std::optional<E> (*parseName)(std::string_view), std::string_view what);
  template <typename T> bool room(const std::vector<T> &table, int64_t max, std::string_view what);

  // roles
  bool role();
  bool arenas(Role &role);
  bool cell(Role &role);
  bool place(Place &out);
  bool offset(Place &out);
  bool program(Role &role, std::vector<ProgramNode> &out, int depth);
  bool programNode(Role &role, ProgramNode &node, int depth);

  // segments and ops
  bool segment(Role &role);
  bool statement(Role &role, Segment &segment);
  bool boundaryIn(Role &role, Segment &segment);
  bool boundaryOut(Role &role, Segment &segment);
  bool op(Segment &segment);
  bool resultNames();
  bool operands(Op &op);
  bool attrs(Op &op);
  bool attr(Op &op);
  bool clauses(Op &op);
  bool clause(Op &op, std::string_view word);
  bool tie(Op &op, Tie::Kind kind);
  bool waits(const Segment &segment, Op &op);
  bool results(Segment &segment, Op &op);
  bool define(Segment &segment, std::string_view name, size_t at, Value value, ValueId &id);
  bool valueUse(ValueId &out);

  struct ResultName {
    std::string_view name;
    size_t at;
  };

  Cursor in_;
  Plan plan_;
  NameTable jobs_, axes_, groups_, units_, blocks_, params_, roles_;
  NameTable cells_, segments_;                           ///< of the role under way
  std::unordered_map<std::string_view, ValueId> values_; ///< of the segment under way
  std::vector<ResultName> resultNames_;                  ///< of the op under way
  int64_t nodeCount_ = 0;
};

template <typename E>
bool Parser::enumerator(E &out, std::optional<E> (*parseName)(std::string_view),
                        std::string_view what) {
  std::string_view word;
  if (!in_.word(word, what))
    return false;
  std::optional<E> value = parseName(word);
  if (!value)
    return in_.fail(in_.last(), "plan-name", "'{}' is no {}", word.substr(0, 64), what);
  out = *value;
  return true;
}

template <typename T>
bool Parser::room(const std::vector<T> &table, int64_t max, std::string_view what) {
  return static_cast<int64_t>(table.size()) < max ||
         in_.fail(in_.next(), "plan-limit", "more than {} {}", max, what);
}

bool Parser::lookUp(const NameTable &table, uint32_t &out, std::string_view what) {
  std::string_view name;
  if (!in_.name(name, what))
    return false;
  std::optional<uint32_t> index = table.find(name);
  if (!index)
    return in_.fail(in_.last(), "plan-name", "unknown {} '{}'", what, name);
  out = *index;
  return true;
}

bool Parser::run() {
  if (!head())
    return false;
  while (!in_.atEnd())
    if (!topLevel())
      return false;
  std::sort(plan_.job.begin(), plan_.job.end(),
            [](const auto &a, const auto &b) { return a.first < b.first; });
  return true;
}

bool Parser::head() {
  int64_t version = 0;
  if (!in_.takeIf(std::string_view("shardc.plan")))
    return in_.fail(in_.next(), "plan-syntax",
                    "not a plan; the text has to begin with 'shardc.plan {}', found {}",
                    kFormatVersion, in_.found());
  if (!in_.integer(version, "format version", 0, INT64_MAX))
    return false;
  if (version != kFormatVersion)
    return in_.fail(
        in_.last(), "plan-version",
        "the plan has format version {}, this program reads version {}; compile the recipe "
        "again with this program, or run the plan with the one that made it",
        version, kFormatVersion);
  return enumerator(plan_.level, parseLevel, "plan level") && in_.string(plan_.name, "plan name");
}

bool Parser::topLevel() {
  struct Entry {
    std::string_view word;
    bool (Parser::*parse)();
  };
  static constexpr Entry kEntries[] = {
      {"param", &Parser::param}, {"block", &Parser::block},   {"unit", &Parser::unit},
      {"loc", &Parser::loc},     {"role", &Parser::role},     {"needs", &Parser::needs},
      {"job", &Parser::job},     {"groups", &Parser::groups}, {"mesh", &Parser::mesh},
  };
  for (const Entry &entry : kEntries)
    if (in_.takeIf(entry.word))
      return (this->*entry.parse)();
  return in_.fail(in_.next(), "plan-syntax",
                  "expected needs, job, mesh, groups, unit, block, param, loc or role, found {}",
                  in_.found());
}

bool Parser::needs() {
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}')) {
    std::string_view key;
    if (!in_.word(key, "a key of 'needs'"))
      return false;
    size_t at = in_.last();
    if (!in_.expect('='))
      return false;
    std::string_view backend;
    bool ok = true;
    if (key == "backend") {
      ok = in_.name(backend, "backend");
      plan_.needsBackend = backend;
    } else if (key == "gpu") {
      ok = in_.string(plan_.needsGpu, "GPU name");
    } else if (key == "device_bytes") {
      ok = in_.integer(plan_.deviceBytes, "device_bytes", 0, limits::kBytesMax);
    } else {
      return in_.fail(at, "plan-name",
                      "unknown key '{}' in 'needs'; it has backend, gpu and device_bytes",
                      key.substr(0, 64));
    }
    if (!ok)
      return false;
  }
  return true;
}

bool Parser::job() {
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}'))
    if (!jobEntry())
      return false;
  return true;
}

bool Parser::jobEntry() {
  std::string_view path;
  if (!room(plan_.job, limits::kJobEntriesMax, "job entries") || !in_.name(path, "option path") ||
      !jobs_.add(in_, path, 0, "option") || !in_.expect('='))
    return false;
  JobValue value;
  if (!jobValue(value))
    return false;
  plan_.job.emplace_back(std::string(path), std::move(value));
  return true;
}

bool Parser::jobValue(JobValue &out) {
  if (in_.peek() == '"') {
    std::string text;
    bool ok = in_.string(text, "option value");
    out = std::move(text);
    return ok;
  }
  if (in_.takeIf('[')) {
    std::vector<std::string> items;
    while (!in_.takeIf(']')) {
      if (!room(items, limits::kJobListMax, "list items") || (!items.empty() && !in_.expect(',')))
        return false;
      if (!in_.string(items.emplace_back(), "list item"))
        return false;
    }
    out = std::move(items);
    return true;
  }
  std::string_view word = in_.peekWord();
  if (word == "true" || word == "false") {
    out = word == "true";
    return in_.word(word, "option value");
  }
  bool isInteger = !word.empty() && word.find_first_not_of("0123456789-") == std::string_view::npos;
  if (isInteger) {
    int64_t number = 0;
    bool ok = in_.integer(number, "option value", INT64_MIN, INT64_MAX);
    out = number;
    return ok;
  }
  double number = 0;
  bool ok = in_.real(number, "option value");
  out = number;
  return ok;
}

bool Parser::mesh() {
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}')) {
    std::string_view name;
    MeshAxis axis;
    if (!room(plan_.mesh, limits::kMeshAxesMax, "mesh axes") || !in_.name(name, "mesh axis") ||
        !axes_.add(in_, name, static_cast<uint32_t>(plan_.mesh.size()), "mesh axis") ||
        !in_.expect('=') ||
        !in_.integer(axis.size, "size of a mesh axis", 1, limits::kWorldSizeMax))
      return false;
    axis.name = name;
    plan_.mesh.push_back(std::move(axis));
    // One axis at a time, so that the product of 8 sizes below 2^20 does not overflow.
    if (plan_.worldSize() > limits::kWorldSizeMax)
      return in_.fail(in_.last(), "plan-limit", "the mesh has {} ranks; at most {} are read",
                      plan_.worldSize(), limits::kWorldSizeMax);
  }
  return true;
}

bool Parser::groups() {
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}'))
    if (!group())
      return false;
  return true;
}

bool Parser::group() {
  std::string_view name;
  Group group;
  if (!room(plan_.groups, limits::kGroupsMax, "groups") || !in_.name(name, "group") ||
      !groups_.add(in_, name, static_cast<uint32_t>(plan_.groups.size()), "group") ||
      !in_.expect('=') || !in_.expect('['))
    return false;
  group.name = name;
  while (!in_.takeIf(']')) {
    uint32_t axis = 0;
    if ((!group.axes.empty() && !in_.expect(',')) || !lookUp(axes_, axis, "mesh axis"))
      return false;
    if (std::find(group.axes.begin(), group.axes.end(), axis) != group.axes.end())
      return in_.fail(in_.last(), "plan-name", "mesh axis '{}' stands twice in group '{}'",
                      plan_.mesh[axis].name, name);
    group.axes.push_back(static_cast<uint16_t>(axis));
  }
  plan_.groups.push_back(std::move(group));
  return true;
}

bool Parser::unit() {
  std::string_view name;
  if (!room(plan_.units, limits::kUnitsMax, "units") || !in_.name(name, "unit") ||
      !units_.add(in_, name, static_cast<uint32_t>(plan_.units.size()), "unit"))
    return false;
  plan_.units.push_back({std::string(name)});
  return true;
}

bool Parser::block() {
  std::string_view name;
  Block block;
  if (!room(plan_.blocks, limits::kBlocksMax, "blocks") || !in_.name(name, "block") ||
      !blocks_.add(in_, name, static_cast<uint32_t>(plan_.blocks.size()), "block"))
    return false;
  block.name = name;
  if (in_.takeIf(std::string_view("unit"))) {
    uint32_t index = 0;
    if (!lookUp(units_, index, "unit"))
      return false;
    block.unit = static_cast<int32_t>(index);
  }
  bool ok = in_.expect(std::string_view("numel")) &&
            in_.integer(block.numel, "elements of a block", 0, limits::kElementsMax) &&
            in_.expect(std::string_view("shard")) &&
            in_.integer(block.shard, "elements of a shard", 0, limits::kElementsMax);
  plan_.blocks.push_back(std::move(block));
  return ok;
}

bool Parser::param() {
  Param param;
  std::string_view name;
  if (!room(plan_.params, limits::kParamsMax, "parameters") || !in_.name(name, "parameter") ||
      !params_.add(in_, name, static_cast<uint32_t>(plan_.params.size()), "parameter"))
    return false;
  param.name = name;
  if (!in_.expect(':') || !type(param.type) || !paramClauses(param))
    return false;
  plan_.params.push_back(std::move(param));
  return true;
}

bool Parser::paramClauses(Param &param) {
  if (in_.takeIf(std::string_view("block"))) {
    uint32_t index = 0;
    if (!lookUp(blocks_, index, "block") || !in_.expect(std::string_view("at")) ||
        !in_.integer(param.offset, "offset of a parameter", 0, limits::kElementsMax))
      return false;
    param.block = static_cast<int32_t>(index);
  }
  if (in_.takeIf(std::string_view("lr")) && !in_.real(param.lrMult, "learning-rate multiplier"))
    return false;
  if (in_.takeIf(std::string_view("wd")) && !in_.real(param.wdMult, "weight-decay multiplier"))
    return false;
  return paramInit(param);
}

bool Parser::paramInit(Param &param) {
  if (!in_.expect(std::string_view("init")) ||
      !enumerator(param.init, parseInitKind, "initialisation"))
    return false;
  return param.init != InitKind::Normal || in_.real(param.initStd, "standard deviation");
}

bool Parser::loc() {
  Loc loc;
  int64_t index = 0, line = 0, column = 0;
  if (!room(plan_.locs, limits::kLocsMax, "recipe locations"))
    return false;
  auto expected = static_cast<int64_t>(plan_.locs.size());
  if (!in_.integer(index, "index of a recipe location", expected, expected) ||
      !in_.string(loc.file, "recipe file") || !in_.integer(line, "line", 0, INT32_MAX) ||
      !in_.integer(column, "column", 0, INT32_MAX))
    return false;
  loc.line = static_cast<int32_t>(line);
  loc.column = static_cast<int32_t>(column);
  plan_.locs.push_back(std::move(loc));
  return true;
}

bool Parser::type(Type &out) {
  size_t at = in_.next();
  if (!enumerator(out.dtype, parseDType, "element type") || !in_.expect('['))
    return false;
  out.rank = 0;
  int64_t elementsMax = limits::kBytesMax / dtypeBytes(out.dtype);
  int64_t elements = 1;
  do {
    if (out.rank == out.shape.size())
      return in_.fail(in_.next(), "plan-limit", "a type has at most {} dimensions",
                      out.shape.size());
    int64_t &extent = out.shape[out.rank++];
    if (!in_.integer(extent, "extent of a dimension", 1, limits::kExtentMax))
      return false;
    if (elements > elementsMax / extent)
      return in_.fail(at, "plan-limit", "the type has more than {} bytes", limits::kBytesMax);
    elements *= extent;
  } while (in_.takeIf(','));
  return in_.expect(']');
}

bool Parser::role() {
  Role role;
  std::string_view name;
  if (!room(plan_.roles, limits::kRolesMax, "roles") || !in_.name(name, "role") ||
      !roles_.add(in_, name, static_cast<uint32_t>(plan_.roles.size()), "role") ||
      !in_.string(role.why, "what distinguishes the role") || !in_.expect('{'))
    return false;
  role.name = name;
  cells_ = NameTable();
  segments_ = NameTable();
  while (!in_.takeIf('}')) {
    bool ok = false;
    if (in_.takeIf(std::string_view("cell")))
      ok = cell(role);
    else if (in_.takeIf(std::string_view("segment")))
      ok = segment(role);
    else if (in_.takeIf(std::string_view("arenas")))
      ok = arenas(role);
    else if (in_.takeIf(std::string_view("program")))
      ok = in_.expect('{') && program(role, role.program, 1);
    else
      in_.fail(in_.next(), "plan-syntax",
               "expected arenas, cell, segment, program or '}}', found {}", in_.found());
    if (!ok)
      return false;
  }
  plan_.roles.push_back(std::move(role));
  return true;
}

bool Parser::arenas(Role &role) {
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}')) {
    Arena arena = Arena::State;
    if (!enumerator(arena, parseArena, "arena") || !in_.expect('=') ||
        !in_.integer(role.arenaBytes[static_cast<size_t>(arena)], "bytes of an arena", 0,
                     limits::kBytesMax))
      return false;
  }
  return true;
}

bool Parser::cell(Role &role) {
  Cell cell;
  std::string_view name;
  if (!room(role.cells, limits::kCellsMax, "cells") || !in_.expect('@') ||
      !in_.name(name, "cell") ||
      !cells_.add(in_, name, static_cast<uint32_t>(role.cells.size()), "cell") ||
      !in_.expect(':') || !type(cell.type) || !in_.expect(std::string_view("in")) ||
      !enumerator(cell.arena, parseArena, "arena") || !in_.expect(std::string_view("for")) ||
      !enumerator(cell.purpose, parsePurpose, "purpose"))
    return false;
  cell.name = name;
  if (in_.takeIf(std::string_view("at"))) {
    cell.place.arena = cell.arena;
    bool named = parseArena(in_.peekWord()).has_value();
    if (!(named ? place(cell.place) : offset(cell.place)))
      return false;
  }
  role.cells.push_back(std::move(cell));
  return true;
}

bool Parser::place(Place &out) { return enumerator(out.arena, parseArena, "arena") && offset(out); }

bool Parser::offset(Place &out) {
  out.placed = true;
  if (!in_.integer(out.offset, "offset", -limits::kBytesMax, limits::kBytesMax))
    return false;
  bool minus = in_.takeIf('-');
  if (!minus && !in_.takeIf('+'))
    return true;
  if (!in_.integer(out.coefDp, "coefficient of dp", 0, limits::kBytesMax) || !in_.expect('*') ||
      !in_.expect(std::string_view("dp")))
    return false;
  out.coefDp = minus ? -out.coefDp : out.coefDp;
  return true;
}

bool Parser::program(Role &role, std::vector<ProgramNode> &out, int depth) {
  if (depth > limits::kNestingMax)
    return in_.fail(in_.last(), "plan-limit", "program nodes are nested more than {} deep",
                    limits::kNestingMax);
  while (!in_.takeIf('}'))
    if (!programNode(role, out.emplace_back(), depth))
      return false;
  return true;
}

bool Parser::programNode(Role &role, ProgramNode &node, int depth) {
  if (++nodeCount_ > limits::kProgramNodesMax)
    return in_.fail(in_.next(), "plan-limit", "more than {} program nodes",
                    limits::kProgramNodesMax);
  std::string_view word;
  if (!in_.word(word, "start, run, steps, every or '}'"))
    return false;
  if (word == "start" || word == "run") {
    node.kind = word == "start" ? ProgramNode::Start : ProgramNode::Run;
    if (!lookUp(segments_, node.segment, "segment"))
      return false;
    char c = in_.peek();
    return c < '0' || c > '9' || in_.integer(node.count, "number of runs", 1, limits::kCountMax);
  }
  if (word != "steps" && word != "every")
    return in_.fail(in_.last(), "plan-syntax",
                    "expected start, run, steps, every or '}}', found '{}'", word.substr(0, 64));
  node.kind = word == "steps" ? ProgramNode::Steps : ProgramNode::Every;
  return in_.integer(node.count, "number of steps", 1, limits::kCountMax) && in_.expect('{') &&
         program(role, node.children, depth + 1);
}

bool Parser::segment(Role &role) {
  Segment segment;
  std::string_view name;
  if (!room(role.segments, limits::kSegmentsMax, "segments") || !in_.name(name, "segment") ||
      !segments_.add(in_, name, static_cast<uint32_t>(role.segments.size()), "segment"))
    return false;
  segment.name = name;
  segment.body = in_.takeIf(std::string_view("body"));
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
      return boundaryOut(role, segment);
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

bool Parser::boundaryIn(Role &role, Segment &segment) {
  if (!segment.ops.empty() || !segment.outs.empty())
    return in_.fail(in_.last(), "plan-syntax", "'in' has to stand before the segment's ops");
  std::string_view name;
  uint32_t cell = 0;
  if (!in_.expect('%') || !in_.name(name, "value"))
    return false;
  size_t at = in_.last();
  if (!in_.expect('=') || !in_.expect('@') || !lookUp(cells_, cell, "cell"))
    return false;
  Value value;
  value.type = role.cells[cell].type;
  value.purpose = role.cells[cell].purpose;
  if (in_.takeIf(':') && !(type(value.type) && enumerator(value.purpose, parsePurpose, "purpose")))
    return false;
  if (in_.takeIf(std::string_view("at")) && !place(value.place))
    return false;
  Segment::Boundary boundary{kNone, cell};
  if (!define(segment, name, at, std::move(value), boundary.value))
    return false;
  segment.ins.push_back(boundary);
  return true;
}

bool Parser::boundaryOut(Role &role, Segment &segment) {
  Segment::Boundary boundary{};
  if (!room(segment.outs, limits::kCellsMax, "'out' lines") || !in_.expect('@') ||
      !lookUp(cells_, boundary.cell, "cell") || !in_.expect('=') || !valueUse(boundary.value))
    return false;
  (void)role;
  segment.outs.push_back(boundary);
  return true;
}

bool Parser::op(Segment &segment) {
  if (!segment.outs.empty())
    return in_.fail(in_.next(), "plan-syntax",
                    "'out' lines have to stand behind the segment's ops, found {}", in_.found());
  if (!room(segment.ops, limits::kOpsMax, "ops in a segment") || !resultNames())
    return false;
  Op op{};
  std::string_view name;
  if (!in_.word(name, "an operation"))
    return false;
  std::optional<OpKind> kind = parseOpKind(name);
  if (!kind)
    return in_.fail(in_.last(), "plan-name", "unknown operation '{}'", name.substr(0, 64));
  op.kind = *kind;
  if (!operands(op) || !attrs(op) || !clauses(op) || !waits(segment, op) || !results(segment, op))
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
  for (const Attr &other : op.attrs)
    if (other.key == *key)
      return in_.fail(in_.last(), "plan-name", "attribute '{}' stands twice", name);
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
      return in_.fail(in_.last(), "plan-name", "'{}' is no value of '{}'; it has {}",
                      word.substr(0, 64), name, info.enumerators);
    integer = *value;
    break;
  }
  }
  op.set(*key, integer);
  return true;
}

/// What may stand between attributes and waits, in any order.
bool Parser::clauses(Op &op) {
  while (true) {
    std::string_view word = in_.peekWord();
    static constexpr std::string_view kWords[] = {"group", "channel", "via", "unit",
                                                  "on",    "if",      "acc", "else"};
    if (std::find(std::begin(kWords), std::end(kWords), word) == std::end(kWords))
      return true;
    if (!in_.word(word, "a clause") || !clause(op, word))
      return false;
  }
}

bool Parser::clause(Op &op, std::string_view word) {
  uint32_t index = 0;
  if (word == "acc" || word == "else")
    return tie(op, word == "acc" ? Tie::Acc : Tie::Else);
  if (word == "on")
    return enumerator(op.stream, parseStream, "stream");
  if (word == "if")
    return enumerator(op.pred, parsePred, "predicate");
  if (word == "channel")
    return enumerator(op.channel, parseChannel, "channel");
  if (word == "via")
    return enumerator(op.transport, parseTransport, "transport");
  if (word == "group") {
    bool ok = lookUp(groups_, index, "group");
    op.group = static_cast<int16_t>(index);
    return ok;
  }
  bool ok = lookUp(units_, index, "unit");
  op.unit = static_cast<int32_t>(index);
  return ok;
}

bool Parser::tie(Op &op, Tie::Kind kind) {
  Tie tie{};
  tie.kind = kind;
  int64_t result = 0;
  auto resultLast = std::max<int64_t>(static_cast<int64_t>(resultNames_.size()) - 1, 0);
  if (!room(op.ties, limits::kTiesMax, "ties of an operation") || !in_.expect('(') ||
      !in_.integer(result, "index of the tied result", 0, resultLast) || !in_.expect('=') ||
      !valueUse(tie.value))
    return false;
  tie.result = static_cast<uint8_t>(result);
  if (in_.takeIf(std::string_view("if")) && !enumerator(tie.pred, parsePred, "predicate"))
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
                        "'%{}' is there from the segment's start; no op is awaited",
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
    if (!type(value.type) || !enumerator(value.purpose, parsePurpose, "purpose") ||
        (in_.takeIf(std::string_view("at")) && !place(value.place)) ||
        !define(segment, resultNames_[i].name, resultNames_[i].at, std::move(value), id))
      return false;
    op.results.push_back(id);
  }
  return true;
}

} // namespace

Result<Plan> parse(std::string_view text, std::string_view fileName) {
  if (static_cast<int64_t>(text.size()) > limits::kTextBytesMax)
    return makeStatus(StatusCode::InvalidInput,
                      "{}: error: the plan has {} bytes; at most {} are read [plan-limit]",
                      fileName, text.size(), limits::kTextBytesMax);
  Parser parser(text, fileName);
  if (!parser.run())
    return parser.status();
  return std::move(parser.plan());
}

} // namespace shardc::plan
