// Reads characters, words, numbers and strings, then names, types, options and texts of a plan.
#include "runtime/plan/Reader.h"

#include <algorithm>
#include <charconv>

#include "runtime/base/Reports.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {
namespace {

constexpr size_t kShownBytesMax = 32; ///< bytes of a token that a message shows
constexpr size_t kLineShownMax = 160; ///< bytes of the source line that are shown below a message
constexpr size_t kContextBefore = 80;

bool isContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

} // namespace

Reader::Reader(std::string_view text, std::string_view fileName, int64_t linesBefore)
    : text_(text), fileName_(fileName), linesBefore_(linesBefore) {
  add(NameKind::Stream, kComputeStreamName, kComputeStream);
  add(NameKind::Class, kJobClassName, 0);
}

/// Skips blanks, and comments, which begin with `//` and end with the line.
size_t Reader::next() {
  while (pos_ < text_.size()) {
    char c = text_[pos_];
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r')
      ++pos_;
    else if (text_.substr(pos_).starts_with("//"))
      pos_ = std::min(text_.find('\n', pos_), text_.size());
    else
      break;
  }
  return pos_;
}

bool Reader::takeIf(char c) {
  bool isNext = peek() == c && !atEnd();
  if (isNext)
    take(1);
  return isNext;
}

std::string_view Reader::peekWord() {
  size_t end = next();
  while (end < text_.size() && isWordChar(text_[end]))
    ++end;
  return text_.substr(pos_, end - pos_);
}

bool Reader::takeIf(std::string_view word) {
  bool isNext = peekWord() == word;
  if (isNext)
    take(word.size());
  return isNext;
}

void Reader::sign(char c) {
  if (!takeIf(c))
    fail(pos_, "plan-syntax", "expected '{}', found {}", c, found());
}

void Reader::token(std::string_view word) {
  if (!takeIf(word))
    fail(pos_, "plan-syntax", "expected '{}', found {}", word, found());
}

std::string_view Reader::word(std::string_view what) {
  std::string_view out = peekWord();
  if (out.empty())
    fail(pos_, "plan-syntax", "expected {}, found {}", what, found());
  else
    take(out.size());
  return out;
}

std::string_view Reader::name(std::string_view what) {
  std::string_view out;
  if (peek() == '"') {
    quoted(unquoted_.emplace_back(), what);
    out = unquoted_.back();
  } else {
    out = word(what);
  }
  if (out.size() > limits::kNameBytesMax)
    fail(last_, "plan-limit", "{} has {} bytes; the limit is {}", what, out.size(),
         limits::kNameBytesMax);
  return out;
}

void Reader::escape(std::string &out) {
  char c = pos_ + 1 < text_.size() ? text_[pos_ + 1] : '\0';
  size_t length = 2;
  if (c == '"' || c == '\\') {
    out += c;
  } else if (c == 'n') {
    out += '\n';
  } else if (c == 'x') {
    unsigned value = 0;
    const char *begin = text_.data() + std::min(pos_ + 2, text_.size());
    const char *end = text_.data() + std::min(pos_ + 4, text_.size());
    auto [stop, error] = std::from_chars(begin, end, value, 16);
    if (error != std::errc() || stop != begin + 2)
      return void(fail(pos_, "plan-syntax", "expected two hexadecimal digits after '\\x'"));
    out += static_cast<char>(value);
    length = 4;
  } else {
    return void(fail(pos_, "plan-syntax", "expected '\"', '\\', 'n' or 'x' after '\\'"));
  }
  pos_ += length;
}

void Reader::quoted(std::string &out, std::string_view what) {
  out.clear();
  if (peek() != '"') {
    fail(pos_, "plan-syntax", "expected {} in quotes, found {}", what, found());
    return;
  }
  const size_t begin = pos_++;
  while (!failed()) {
    size_t stop = std::min(text_.find_first_of("\"\\\n", pos_), text_.size());
    out.append(text_.substr(pos_, stop - pos_));
    pos_ = stop;
    if (static_cast<int64_t>(out.size()) > limits::kStringBytesMax)
      fail(begin, "plan-limit", "{} is longer than {} bytes", what, limits::kStringBytesMax);
    else if (pos_ >= text_.size() || text_[pos_] == '\n')
      fail(begin, "plan-syntax", "{} has no closing '\"' on its line", what);
    else if (text_[pos_] == '"')
      break;
    else
      escape(out);
  }
  pos_ = std::min(pos_ + 1, text_.size());
  last_ = begin;
}

std::optional<int64_t> Reader::number(std::string_view what, int64_t min, int64_t max) {
  std::string_view digits = peekWord();
  int64_t out = 0;
  auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  bool isTooLarge = error == std::errc::result_out_of_range;
  if (digits.empty() || stop != digits.data() + digits.size() ||
      (error != std::errc() && !isTooLarge))
    fail(pos_, "plan-syntax", "expected {} as an integer, found {}", what, found());
  else if (isTooLarge || out < min || out > max)
    fail(pos_, "plan-limit", "{} is {}; it needs to be between {} and {}", what,
         printable(digits.substr(0, kShownBytesMax)), min, max);
  if (failed())
    return std::nullopt;
  take(digits.size());
  return out;
}

void Reader::real(double &out, std::string_view what) {
  std::string_view digits = peekWord();
  // The plus sign of an exponent is not a word character.
  if (size_t end = pos_ + digits.size(); digits.ends_with('e') && text_.substr(end, 1) == "+") {
    while (++end < text_.size() && isWordChar(text_[end]))
      continue;
    digits = text_.substr(pos_, end - pos_);
  }
  auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (digits.empty() || stop != digits.data() + digits.size() || error != std::errc())
    fail(pos_, "plan-syntax", "expected {} as a number, found {}", what, found());
  else
    take(digits.size());
  out += 0.0; // zero has one sign
}

std::string Reader::found() {
  if (atEnd())
    return "end of file";
  std::string_view token = peekWord();
  if (token.empty()) {
    size_t end = pos_ + 1;
    while (end < text_.size() && isContinuation(text_[end]))
      ++end;
    token = text_.substr(pos_, end - pos_);
  }
  bool cut = token.size() > kShownBytesMax;
  return fmt::format("'{}{}'", printable(token.substr(0, kShownBytesMax)), cut ? "..." : "");
}

bool Reader::record(size_t at, std::string_view id, std::string text) {
  if (!failed()) {
    id_ = id;
    message_ = render(at, "error", text);
    pos_ = text_.size();
  }
  return false;
}

void Reader::recordTwice(size_t at, size_t before, std::string text) {
  if (failed())
    return;
  record(at, "plan-name", std::move(text));
  message_ += "\n" + render(before, "note", "first declared here");
}

/// Renders a message in the form of compilers: `file:line:column: severity: text [id]`, the line,
/// and a caret. Columns and the caret count characters, not bytes. Long lines are cut around the
/// place.
std::string Reader::render(size_t at, std::string_view severity, std::string_view text) const {
  at = std::min(at, text_.size());
  size_t lineBegin = at == 0 ? std::string_view::npos : text_.rfind('\n', at - 1);
  lineBegin = lineBegin == std::string_view::npos ? 0 : lineBegin + 1;
  auto lineNumber =
      1 + linesBefore_ +
      std::count(text_.begin(), text_.begin() + static_cast<int64_t>(lineBegin), '\n');
  std::string_view before = text_.substr(lineBegin, at - lineBegin);
  auto column =
      1 + std::count_if(before.begin(), before.end(), [](char c) { return !isContinuation(c); });
  std::string_view line =
      text_.substr(lineBegin, std::min(text_.find('\n', lineBegin), text_.size()) - lineBegin);
  if (line.size() > kLineShownMax) {
    size_t cut = before.size() > kContextBefore ? before.size() - kContextBefore : 0;
    while (cut > 0 && isContinuation(line[cut]))
      --cut;
    before.remove_prefix(cut);
    line = line.substr(cut, kLineShownMax);
  }
  std::string shownBefore = printable(before);
  auto caret = std::count_if(shownBefore.begin(), shownBefore.end(),
                             [](char c) { return !isContinuation(c); });
  return fmt::format("{}:{}:{}: {}: {} [{}]\n{}\n{:{}}^", fileName_, lineNumber, column, severity,
                     text, id_, printable(line), "", caret);
}

Status Reader::status() const {
  return failed() ? makeStatus(report::PlanRefused, message_) : Status::ok();
}

void Reader::add(NameKind kind, std::string_view name, uint32_t index) {
  auto [at, isNew] = names_[static_cast<size_t>(kind)].try_emplace(name, Entry{index, last()});
  if (!isNew)
    recordTwice(last(), at->second.offset,
                fmt::format("{} '{}' is declared twice", info(kind).what, name));
}

std::optional<uint32_t> Reader::find(NameKind kind) {
  std::string_view own = name(info(kind).what);
  const auto &names = names_[static_cast<size_t>(kind)];
  if (auto at = names.find(own); at != names.end())
    return at->second.index;
  fail(last(), "plan-name", "unknown {} '{}'", info(kind).what, own);
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
  recordTwice(at, first->second.second,
              fmt::format("cell '@{}' is '{}' like cell '@{}'; a role has one", cell.name, what,
                          role.cells[first->second.first].name));
}

void Reader::value(const Segment &, ValueId &out) {
  sign('%');
  std::string_view own = name("value");
  if (auto at = values_.find(own); at != values_.end())
    out = at->second;
  else
    fail(last(), "plan-name", "value '%{}' is not defined before this use", own);
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
  sign('%');
  out.name = name("value");
  out.at = last();
}

void Reader::head(Plan &plan) {
  int64_t version = 0;
  if (!takeIf("shardc.plan")) {
    fail(next(), "plan-syntax", "not a plan; the text needs to begin with 'shardc.plan {}'",
         kFormatVersion);
    // Shows nothing of a file that is not a plan: a stranger's link may lead to a key.
    message_.resize(std::min(message_.find('\n'), message_.size()));
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
  if (takeIf("hash"))
    hash();
}

void Reader::hash() {
  std::string_view said = word("hash of the text below");
  size_t at = last();
  std::string needed = fmt::format("{:0{}x}", textHash(text_.substr(next())), kHashDigits);
  if (said != needed)
    fail(at, "plan-hash",
         "the text below has hash {}, but the first line says {}; the plan was damaged or edited: "
         "write it again, or remove 'hash {}' if the edit is intended",
         needed, said.substr(0, 64), said.substr(0, 64));
}

void Reader::job(Job &out) {
  while (!failed() && peek() != '}') {
    hasRoom(out.environment, info(NameKind::Option).max, info(NameKind::Option).plural);
    std::string_view path = name("option path");
    add(NameKind::Option, path, 0);
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
    out = word == "true";
    take(word.size());
  } else if (!word.empty() && word.find_first_not_of("0123456789-") == std::string_view::npos) {
    integer(out.emplace<int64_t>(), "option value", INT64_MIN, INT64_MAX);
  } else {
    real(out.emplace<double>(), "option value");
  }
}

void Reader::groupKinds(Plan &plan, const Group &group) {
  while (!failed() && peek() != '=') {
    GroupKind kind = GroupKind::Data;
    std::string_view text = word("group kind or '='");
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
    extent = 1; // after an error
    integer(extent, "extent of a dimension", 1, limits::kExtentMax);
    if (elements > elementsMax / extent) {
      fail(at, "plan-limit", "the type has more than {} bytes", limits::kBytesMax);
      return;
    }
    elements *= extent;
  } while (takeIf(','));
  sign(']');
}

void Reader::opName(Op &out) {
  std::string_view name = word("an operation");
  if (std::optional<OpKind> kind = parseOpKind(name))
    out.kind = *kind;
  else
    fail(last(), "plan-name", "unknown operation '{}'", name.substr(0, 64));
}

void Reader::attrName(const Op &op, AttrKey &out) {
  std::string_view name = word("an attribute");
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
  std::string_view text = word(info.name);
  if (std::optional<int64_t> value = parseEnumerator(info, text))
    out = *value;
  else
    fail(last(), "plan-name", "'{}' is not a value of '{}'; it has {}", text.substr(0, 64),
         info.name, info.enumerators);
}

void Reader::boolean(int64_t &out) {
  std::string_view text = word("true or false");
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
