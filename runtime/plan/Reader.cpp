// Reads names, types, options and texts of a plan.
#include "runtime/plan/Reader.h"

#include "runtime/plan/Text.h"

namespace shardc::plan {

bool Reader::add(NameKind kind, std::string_view name, uint32_t index) {
  auto [at, isNew] = names_[static_cast<size_t>(kind)].try_emplace(name, Entry{index, last()});
  return isNew ||
         failTwice(last(), at->second.offset, "{} '{}' is declared twice", info(kind).what, name);
}

std::optional<uint32_t> Reader::find(NameKind kind) {
  std::string_view name;
  if (!Cursor::name(name, info(kind).what))
    return std::nullopt;
  const auto &names = names_[static_cast<size_t>(kind)];
  if (auto at = names.find(name); at != names.end())
    return at->second.index;
  fail(last(), "plan-name", "unknown {} '{}'", info(kind).what, name);
  return std::nullopt;
}

void Reader::beginRole() {
  names_[static_cast<size_t>(NameKind::Cell)].clear();
  names_[static_cast<size_t>(NameKind::Segment)].clear();
  kinds_.clear();
}

bool Reader::term(int64_t &out, std::string_view what, int64_t max) {
  bool minus = takeIf('-');
  if (!minus && !takeIf('+'))
    return false;
  integer(out, what, 0, max);
  out = minus ? -out : out;
  return true;
}

void Reader::checkOnly(const Plan &plan, const Role &role, const Cell &cell, size_t at) {
  if (cell.kind == CellKind::Buffer || failed())
    return;
  auto [first, isNew] =
      kinds_.try_emplace({cell.kind, cell.of}, static_cast<uint32_t>(role.cells.size()), at);
  if (isNew)
    return;
  const CellKindInfo &info = cellKindInfo(cell.kind);
  std::string what(info.word);
  if (cell.of >= 0)
    what += fmt::format(" of {}", info.of == CellKindInfo::Block
                                      ? plan.blocks[static_cast<size_t>(cell.of)].name
                                      : plan.params[static_cast<size_t>(cell.of)].name);
  failTwice(at, first->second.second, "cell '@{}' is '{}' like cell '@{}'; a role has one",
            cell.name, what, role.cells[first->second.first].name);
}

void Reader::value(const Segment &, ValueId &out) {
  std::string_view name;
  if (!expect('%') || !Cursor::name(name, "value"))
    return;
  if (auto at = values_.find(name); at != values_.end())
    out = at->second;
  else
    fail(last(), "plan-name", "value '%{}' is not defined before this use", name);
}

void Reader::define(Segment &segment, const ResultName &name, Value value, ValueId &id) {
  id = static_cast<ValueId>(segment.values.size());
  if (!values_.try_emplace(name.name, id).second)
    fail(name.at, "plan-name", "value '%{}' is defined twice in segment '{}'", name.name,
         segment.name);
  value.name = name.name;
  segment.values.push_back(std::move(value));
}

void Reader::resultName(const Segment &, ResultName &out) {
  if (expect('%') && Cursor::name(out.name, "value"))
    out.at = last();
}

void Reader::head(Plan &plan) {
  int64_t version = 0;
  if (!takeIf(std::string_view("shardc.plan"))) {
    fail(next(), "plan-syntax",
         "not a plan; the text needs to begin with 'shardc.plan {}', found {}", kFormatVersion,
         found());
    return;
  }
  integer(version, "format version", 0, INT64_MAX);
  if (version != kFormatVersion)
    fail(last(), "plan-version",
         "the plan has format version {}, but this program reads version {}; compile the recipe "
         "again with this program, or run the plan with the program that wrote it",
         version, kFormatVersion);
  oneOf(plan.level, parseLevel, "plan level");
  quoted(plan.name, "plan name");
  if (takeIf(std::string_view("hash")))
    hash();
}

void Reader::hash() {
  std::string_view said;
  if (!word(said, "hash of the text below"))
    return;
  size_t at = last();
  std::string needed = fmt::format("{:0{}x}", textHash(rest()), kHashDigits);
  if (said != needed)
    fail(at, "plan-hash",
         "the text below has hash {}, but the first line says {}; the plan was damaged or edited: "
         "write it again, or remove 'hash {}' if the edit is intended",
         needed, said.substr(0, 64), said.substr(0, 64));
}

void Reader::job(Job &out) {
  while (!failed() && peek() != '}') {
    std::string_view path;
    if (!hasRoom(out.environment, info(NameKind::Option).max, info(NameKind::Option).plural) ||
        !name(path, "option path") || !add(NameKind::Option, path, 0))
      return;
    size_t pathAt = last();
    sign('=');
    size_t valueAt = next();
    JobValue value;
    jobValue(value);
    if (failed())
      return;
    Job::Fault fault = out.set(path, value);
    if (fault != Job::Fault::None)
      fail(fault == Job::Fault::Unknown ? pathAt : valueAt,
           fault == Job::Fault::Type    ? "plan-syntax"
           : fault == Job::Fault::Range ? "plan-limit"
                                        : "plan-name",
           "{}", describeFault(fault, path, value));
  }
}

void Reader::jobValue(JobValue &out) {
  std::string_view word = peekWord();
  if (peek() == '"') {
    quoted(out.emplace<std::string>(), "option value");
  } else if (takeIf('[')) {
    auto &items = out.emplace<std::vector<std::string>>();
    if (peek() != ']')
      separated(items, limits::kJobListMax, "list items",
                [&](std::string &item) { quoted(item, "list item"); });
    sign(']');
  } else if (word == "true" || word == "false") {
    out = takeIf(std::string_view("true")) || !takeIf(std::string_view("false"));
  } else if (!word.empty() && word.find_first_not_of("0123456789-") == std::string_view::npos) {
    integer(out.emplace<int64_t>(), "option value", INT64_MIN, INT64_MAX);
  } else {
    real(out.emplace<double>(), "option value");
  }
}

void Reader::groupKinds(Plan &plan, const Group &group) {
  while (!failed() && peek() != '=') {
    GroupKind kind = GroupKind::Data;
    std::string_view text;
    if (!word(text, "group kind or '='"))
      return;
    if (std::optional<GroupKind> found = parseGroupKind(text))
      kind = *found;
    if (kind == GroupKind::Data)
      fail(last(), "plan-name", "unknown group kind '{}'", text.substr(0, 64));
    int16_t &of = plan.kindGroup(kind);
    if (of == static_cast<int16_t>(plan.groups.size()))
      fail(last(), "plan-name", "kind '{}' appears twice", text);
    if (of >= 0 && !failed())
      fail(last(), "plan-name", "groups '{}' and '{}' are both of the kind '{}'",
           plan.groups[static_cast<size_t>(of)].name, group.name, text);
    of = static_cast<int16_t>(plan.groups.size());
  }
}

void Reader::pieces(std::string &out, std::string_view what, size_t) {
  sign('{');
  std::string piece;
  while (!failed() && peek() != '}') {
    quoted(piece, what);
    out += piece;
    if (static_cast<int64_t>(out.size()) > limits::kSourceBytesMax)
      fail(last(), "plan-limit", "the {} has more than {} bytes", what, limits::kSourceBytesMax);
  }
  sign('}');
}

void Reader::type(Type &out) {
  size_t at = next();
  oneOf(out.dtype, parseDType, "element type");
  shape(out, at);
}

void Reader::shape(Type &out, size_t at) {
  sign('[');
  out.rank = 0;
  int64_t elementsMax = limits::kBytesMax / dtypeBytes(out.dtype);
  int64_t elements = 1;
  do {
    if (out.rank == out.shape.size()) {
      fail(next(), "plan-limit", "a type has at most {} dimensions", out.shape.size());
      return;
    }
    int64_t &extent = out.shape[out.rank++];
    if (!Cursor::integer(extent, "extent of a dimension", 1, limits::kExtentMax))
      return;
    if (elements > elementsMax / extent) {
      fail(at, "plan-limit", "the type has more than {} bytes", limits::kBytesMax);
      return;
    }
    elements *= extent;
  } while (takeIf(','));
  sign(']');
}

void Reader::opName(Op &out) {
  std::string_view name;
  if (!word(name, "an operation"))
    return;
  std::optional<OpForm> form = parseOpForm(name);
  if (form)
    out.kind = form->kind, out.epilogue = form->epilogue;
  else
    fail(last(), "plan-name", "unknown operation '{}'", name.substr(0, 64));
}

void Reader::attrName(const Op &op, AttrKey &out) {
  std::string_view name;
  if (!word(name, "an attribute"))
    return;
  std::optional<AttrKey> key = parseAttrKey(name);
  if (const OpInfo &row = opInfo(op); !key)
    fail(last(), "plan-name", "unknown attribute '{}'", name.substr(0, 64));
  else if (!row.attrs.has(*key))
    fail(last(), "plan-name", "'{}' has no attribute '{}'; it has {}", row.name, name,
         attrNames(row.attrs));
  else if (std::ranges::find(op.attrs, *key, &Attr::key) != op.attrs.end())
    fail(last(), "plan-name", "attribute '{}' appears twice", name);
  else
    out = *key;
}

void Reader::setAttr(Op &op, const Attr &attr) {
  if (failed())
    return;
  if (attrInfo(attr.key).type == AttrInfo::Float)
    op.set(attr.key, attr.f);
  else
    op.set(attr.key, attr.i);
}

void Reader::enumerated(const AttrInfo &info, int64_t &out) {
  std::string_view text;
  if (!word(text, info.name))
    return;
  if (std::optional<int64_t> value = parseEnumerator(info, text))
    out = *value;
  else
    fail(last(), "plan-name", "'{}' is not a value of '{}'; it has {}", text.substr(0, 64),
         info.name, info.enumerators);
}

void Reader::boolean(int64_t &out) {
  std::string_view text;
  if (!word(text, "true or false"))
    return;
  out = text == "true";
  if (text != "true" && text != "false")
    fail(last(), "plan-syntax", "expected true or false, found '{}'", text.substr(0, 64));
}

void Reader::countNode() {
  if (++nodeCount_ > limits::kProgramNodesMax)
    fail(next(), "plan-limit", "more than {} program nodes", limits::kProgramNodesMax);
}

void Reader::countRepetitions(const Pred &pred) {
  repetitionCount_ += failed() ? 0 : (pred.until - pred.begin) / pred.period;
  if (repetitionCount_ > limits::kRepetitionsMax)
    fail(next(), "plan-limit", "more than {} repetitions of predicates", limits::kRepetitionsMax);
}

} // namespace shardc::plan
