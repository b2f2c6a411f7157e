// Parses the first line with its hash, roles with their cells and programs, and texts with several
// plans.
#include "runtime/plan/Text.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/plan/ParserImpl.h"

namespace shardc::plan {

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
  return true;
}

bool Parser::head() {
  int64_t version = 0;
  if (!in_.takeIf(std::string_view("shardc.plan")))
    return in_.fail(in_.next(), "plan-syntax",
                    "not a plan; the text needs to begin with 'shardc.plan {}', found {}",
                    kFormatVersion, in_.found());
  if (!in_.integer(version, "format version", 0, INT64_MAX))
    return false;
  if (version != kFormatVersion)
    return in_.fail(
        in_.last(), "plan-version",
        "the plan has format version {}, but this program reads version {}; compile the recipe "
        "again with this program, or run the plan with the program that wrote it",
        version, kFormatVersion);
  return enumerator(plan_.level, parseLevel, "plan level") && in_.string(plan_.name, "plan name") &&
         hash();
}

bool Parser::hash() {
  if (!in_.takeIf(std::string_view("hash")))
    return true;
  std::string_view said;
  if (!in_.word(said, "hash of the text below"))
    return false;
  size_t at = in_.last();
  std::string needed = fmt::format("{:0{}x}", textHash(in_.rest()), kHashDigits);
  return said == needed ||
         in_.fail(at, "plan-hash",
                  "the text below has hash {}, but the first line says {}; the plan was damaged or "
                  "edited: write it again, or remove 'hash {}' if the edit is intended",
                  needed, said.substr(0, 64), said.substr(0, 64));
}

Parser::Construct Parser::constructOf(std::string_view word) {
  struct Entry {
    std::string_view word;
    Construct parse;
  };
  static constexpr Entry kEntries[] = {
      {"param", &Parser::param},
      {"block", &Parser::block},
      {"unit", &Parser::unit},
      {"loc", &Parser::loc},
      {"role", &Parser::role},
      {"needs", &Parser::needs},
      {"job", &Parser::job},
      {"groups", &Parser::groups},
      {"mesh", &Parser::mesh},
      {"source", &Parser::source},
      {"data", &Parser::data},
      {"stream", &Parser::stream},
      {"channel", &Parser::channel},
      {"class", &Parser::paramClass},
      {"specification", &Parser::specification},
  };
  const Entry *found = std::ranges::find(kEntries, word, &Entry::word);
  return found == std::end(kEntries) ? nullptr : found->parse;
}

bool Parser::topLevel() {
  std::string_view word = in_.peekWord();
  if (Construct parse = constructOf(word)) {
    in_.takeIf(word);
    return (this->*parse)();
  }
  return in_.fail(
      in_.next(), "plan-syntax",
      "expected needs, job, mesh, groups, data, stream, channel, class, unit, block, param, "
      "loc, role, source or specification, found {}",
      in_.found());
}

bool Parser::role() {
  Role role;
  std::string_view name;
  if (!room(plan_.roles, limits::kRolesMax, "roles") || !in_.name(name, "role") ||
      !roles_.add(in_, name, static_cast<uint32_t>(plan_.roles.size()), "role") ||
      !in_.string(role.why, "what distinguishes the role") || !where(role) || !in_.expect('{'))
    return false;
  role.name = name;
  cells_ = NameTable();
  kinds_.clear();
  segments_ = NameTable();
  while (!in_.takeIf('}')) {
    bool ok = false;
    if (in_.takeIf(std::string_view("cell")))
      ok = cell(role);
    else if (in_.takeIf(std::string_view("segment")))
      ok = segment(role);
    else if (in_.takeIf(std::string_view("arenas")))
      ok = arenas(role);
    else if (in_.takeIf(std::string_view("beside")))
      ok = beside(role);
    else if (in_.takeIf(std::string_view("program")))
      ok = in_.expect('{') && program(role, role.program, 1);
    else
      in_.fail(in_.next(), "plan-syntax",
               "expected arenas, beside, cell, segment, program or '}}', found {}", in_.found());
    if (!ok)
      return false;
  }
  plan_.roles.push_back(std::move(role));
  return true;
}

bool Parser::where(Role &role) {
  if (!in_.takeIf(std::string_view("where")))
    return true;
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}')) {
    uint32_t axis = 0;
    AxisRange range{};
    if (!room(role.where, limits::kMeshAxesMax, "axes of a role") ||
        !lookUp(axes_, axis, "mesh axis") || !in_.expect('='))
      return false;
    int64_t last = plan_.mesh[axis].size - 1;
    if (!in_.integer(range.begin, "first coordinate", 0, last) ||
        !in_.expect(std::string_view("to")) ||
        !in_.integer(range.end, "last coordinate", range.begin, last))
      return false;
    range.axis = static_cast<uint16_t>(axis);
    ++range.end;
    role.where.push_back(range);
  }
  return true;
}

bool Parser::arenas(Role &role) {
  return byteTable(role.arenaBytes, parseArena, "arena", "bytes of an arena");
}

bool Parser::beside(Role &role) {
  return byteTable(role.besideBytes, parseBeside, "memory beside arenas",
                   "bytes beside the arenas");
}

bool Parser::cell(Role &role) {
  Cell cell;
  std::string_view name;
  if (!room(role.cells, limits::kCellsMax, "cells") || !in_.expect('@') ||
      !in_.name(name, "cell") ||
      !cells_.add(in_, name, static_cast<uint32_t>(role.cells.size()), "cell"))
    return false;
  cell.name = name;
  int64_t slots = 1;
  if (!cellKind(role, cell) ||
      (in_.takeIf(std::string_view("slots")) &&
       !in_.integer(slots, "slots of a ring", 2, limits::kSlotsMax)) ||
      !in_.expect(':') || !type(cell.type) || !in_.expect(std::string_view("in")) ||
      !enumerator(cell.arena, parseArena, "arena") || !in_.expect(std::string_view("for")) ||
      !enumerator(cell.purpose, parsePurpose, "purpose"))
    return false;
  cell.slots = static_cast<int32_t>(slots);
  if (in_.takeIf(std::string_view("at"))) {
    cell.place.arena = cell.arena;
    bool named = parseArena(in_.peekWord()).has_value();
    if ((named && !enumerator(cell.place.arena, parseArena, "arena")) || !offset(cell.place))
      return false;
    if (cell.isRing()) {
      cell.place.slots = cell.slots;
      if (!in_.expect(std::string_view("stride")) ||
          !in_.integer(cell.place.stride, "bytes from slot to slot", 0, limits::kBytesMax))
        return false;
    }
  }
  role.cells.push_back(std::move(cell));
  return true;
}

bool Parser::cellKind(const Role &role, Cell &cell) {
  if (in_.peek() == ':' || in_.peekWord() == "slots")
    return true;
  size_t at = in_.last();
  if (!enumerator(cell.kind, parseCellKind, "cell kind"))
    return false;
  const CellKindInfo &info = cellKindInfo(cell.kind);
  if (info.of != CellKindInfo::Nothing) {
    bool isOfBlock = info.of == CellKindInfo::Block;
    uint32_t index = 0;
    if (!in_.takeIf(std::string_view("of")))
      return in_.fail(in_.next(), "plan-syntax",
                      "a cell of kind '{}' is of a {}; expected 'of', found {}", info.word,
                      isOfBlock ? "block" : "parameter", in_.found());
    if (!lookUp(isOfBlock ? blocks_ : params_, index, isOfBlock ? "block" : "parameter"))
      return false;
    cell.of = static_cast<int32_t>(index);
  } else if (in_.takeIf(std::string_view("of"))) {
    return in_.fail(in_.last(), "plan-syntax", "a cell of kind '{}' is of no block or parameter",
                    info.word);
  }
  if (cell.kind == CellKind::Buffer)
    return true;
  auto [first, isNew] =
      kinds_.try_emplace({cell.kind, cell.of}, static_cast<uint32_t>(role.cells.size()), at);
  if (isNew)
    return true;
  std::string what(info.word);
  if (cell.of >= 0)
    what += fmt::format(" of {}", info.of == CellKindInfo::Block
                                      ? plan_.blocks[static_cast<size_t>(cell.of)].name
                                      : plan_.params[static_cast<size_t>(cell.of)].name);
  in_.fail(at, "plan-name", "cell '@{}' is '{}' like cell '@{}'; a role has one", cell.name, what,
           role.cells[first->second.first].name);
  in_.note(first->second.second, "first declared here");
  return false;
}

bool Parser::place(Place &out) {
  return enumerator(out.arena, parseArena, "arena") && offset(out) && ring(out);
}

bool Parser::ring(Place &out) {
  if (!in_.takeIf(std::string_view("slots")))
    return true;
  int64_t slots = 1;
  if (!in_.integer(slots, "slots of a ring", 2, limits::kSlotsMax) ||
      !in_.expect(std::string_view("stride")) ||
      !in_.integer(out.stride, "bytes from slot to slot", 0, limits::kBytesMax))
    return false;
  out.slots = static_cast<int32_t>(slots);
  return shift(out.shift);
}

bool Parser::signedTerm(int64_t &out, std::string_view what) {
  bool minus = in_.takeIf('-');
  if (!minus && !in_.takeIf('+'))
    return true;
  if (!in_.integer(out, what, 0, limits::kMicrobatchesMax))
    return false;
  out = minus ? -out : out;
  return true;
}

bool Parser::shift(int64_t &out) {
  return !in_.takeIf(std::string_view("mb")) || signedTerm(out, "distance between microbatches");
}

bool Parser::offset(Place &out) {
  out.placed = true;
  if (!in_.integer(out.offset, "offset", -limits::kBytesMax, limits::kBytesMax))
    return false;
  bool minus = in_.takeIf('-');
  if (!minus && !in_.takeIf('+'))
    return true;
  if (!in_.integer(out.coef, "coefficient of an index", 0, limits::kBytesMax) || !in_.expect('*') ||
      !groupOf(out.group))
    return false;
  if (out.coef == 0)
    out.group = -1;
  out.coef = minus ? -out.coef : out.coef;
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
  if (!in_.word(word, "start, run, steps, every, loop or '}'"))
    return false;
  if (word == "start" || word == "run") {
    node.kind = word == "start" ? ProgramNode::Start : ProgramNode::Run;
    return run(node);
  }
  if (word != "steps" && word != "every" && word != "loop")
    return in_.fail(in_.last(), "plan-syntax",
                    "expected start, run, steps, every, loop or '}}', found '{}'",
                    word.substr(0, 64));
  node.kind = word == "steps"   ? ProgramNode::Steps
              : word == "every" ? ProgramNode::Every
                                : ProgramNode::Loop;
  return in_.integer(node.count, word == "loop" ? "number of iterations" : "number of steps", 1,
                     limits::kCountMax) &&
         in_.expect('{') && program(role, node.children, depth + 1);
}

bool Parser::run(ProgramNode &node) {
  if (!lookUp(segments_, node.segment, "segment"))
    return false;
  if (in_.takeIf(std::string_view("mb")))
    return microbatch(node.microbatch.emplace());
  char c = in_.peek();
  return c < '0' || c > '9' || in_.integer(node.count, "number of runs", 1, limits::kCountMax);
}

bool Parser::microbatch(MicrobatchNumber &out) {
  if (in_.takeIf(std::string_view("i"))) {
    out.coef = 1;
    return signedTerm(out.base, "microbatch");
  }
  int64_t number = 0;
  if (!in_.integer(number, "microbatch", 0, limits::kMicrobatchesMax))
    return false;
  if (!in_.takeIf('*')) {
    out.base = number;
    return true;
  }
  out.coef = number;
  return in_.expect(std::string_view("i")) && signedTerm(out.base, "microbatch");
}

namespace {

Result<Plan> parseAfter(std::string_view text, std::string_view fileName, int64_t linesBefore) {
  if (static_cast<int64_t>(text.size()) > limits::kTextBytesMax)
    return makeStatus(report::PlanRefused,
                      "{}: error: the plan has {} bytes; the limit is {} [plan-limit]", fileName,
                      text.size(), limits::kTextBytesMax);
  Parser parser(text, fileName, linesBefore);
  if (!parser.run())
    return parser.status();
  return std::move(parser.plan());
}

} // namespace

Result<Plan> parse(std::string_view text, std::string_view fileName) {
  return parseAfter(text, fileName, 0);
}

std::vector<std::string_view> plansOf(std::string_view text) {
  static constexpr std::string_view kBegin = "\nshardc.plan ";
  constexpr size_t kNone = std::string_view::npos;
  std::vector<std::string_view> plans;
  for (size_t next = 0; next != kNone; text.remove_prefix(plans.back().size())) {
    // Text before the first line of the first plan belongs to that plan.
    size_t own = text.starts_with(kBegin.substr(1)) ? 0 : text.find(kBegin);
    next = own == kNone ? kNone : text.find(kBegin, own + 1);
    plans.push_back(text.substr(0, next == kNone ? kNone : next + 1));
  }
  return plans;
}

Result<std::vector<Plan>> parseJob(std::string_view text, std::string_view fileName) {
  std::vector<Plan> plans;
  int64_t lines = 0;
  for (std::string_view each : plansOf(text)) {
    ASSIGN_OR_RETURN(Plan plan, parseAfter(each, fileName, lines));
    plans.push_back(std::move(plan));
    lines += std::ranges::count(each, '\n');
  }
  return plans;
}

} // namespace shardc::plan
