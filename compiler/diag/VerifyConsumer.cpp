#include "compiler/diag/VerifyConsumer.h"

#include "compiler/basic/Format.h"

namespace shardc {

namespace {

constexpr llvm::StringLiteral kMark = "expected-";
constexpr llvm::StringLiteral kSplit = "// -----";

std::optional<Severity> takeSeverity(llvm::StringRef &text) {
  for (Severity severity : {Severity::Error, Severity::Warning, Severity::Remark, Severity::Note})
    if (text.consume_front(severityName(severity)))
      return severity;
  return std::nullopt;
}

/// The location at which a message is expected, as written after '@'.
struct Target {
  std::string file;
  unsigned line = 0;
};

/// Parses `@+2`, `@-1`, `@*`, `@7` or `@file:3`; without '@', the location is line `here`. Returns
/// false if it is malformed.
bool takeTarget(llvm::StringRef &text, unsigned here, Target &out) {
  out.line = here;
  if (!text.consume_front("@"))
    return true;
  if (text.consume_front("*")) {
    out.line = 0;
    return true;
  }
  unsigned number = 0;
  if (text.startswith("+") || text.startswith("-")) {
    bool back = text[0] == '-';
    text = text.drop_front();
    if (text.consumeInteger(10, number) || (back && number >= here))
      return false;
    out.line = back ? here - number : here + number;
    return true;
  }
  llvm::StringRef word = text.take_until([](char c) { return c == ' ' || c == '{'; });
  text = text.drop_front(word.size());
  auto [file, line] = word.contains(':') ? word.rsplit(':') : std::pair(llvm::StringRef(), word);
  if (line != "*" && (line.getAsInteger(10, out.line) || out.line == 0))
    return false;
  if (line == "*")
    out.line = 0;
  out.file = file.str();
  return true;
}

} // namespace

VerifyConsumer::VerifyConsumer(const SourceManager &sources, BufferId main, bool ignoreRemarks)
    : sources_(sources), mainName_(sources.name(main)), ignoreRemarks_(ignoreRemarks) {
  llvm::StringRef rest = sources.text(main);
  for (unsigned number = sources.firstLine(main); !rest.empty(); ++number) {
    auto [line, after] = rest.split('\n');
    readLine(line, number);
    rest = after;
  }
}

/// Reads the expectations in the comment of one line: severity, optional line offset, optional
/// count, and the text in double braces.
void VerifyConsumer::readLine(llvm::StringRef line, unsigned number) {
  size_t comment = line.find("//");
  if (comment == llvm::StringRef::npos)
    return;
  line = line.drop_front(comment);
  for (size_t at = line.find(kMark); at != llvm::StringRef::npos; at = line.find(kMark)) {
    line = line.drop_front(at + kMark.size());
    std::optional<Severity> severity = takeSeverity(line);
    if (!severity)
      continue; // other text that contains "expected-"
    Target target;
    bool isGood = takeTarget(line, number, target);
    unsigned count = 1;
    line = line.ltrim();
    if (!line.startswith("{{"))
      isGood &= !line.consumeInteger(10, count);
    line = line.ltrim();
    size_t close = line.find("}}");
    if (!isGood || !line.consume_front("{{") || close == llvm::StringRef::npos) {
      malformed_.push_back(fmt::format("{}:{}: this is not an expectation: write "
                                       "'expected-{} {{{{text}}}}'",
                                       mainName_, number, severityName(*severity)));
      continue;
    }
    llvm::StringRef text = line.take_front(close - 2);
    line = line.drop_front(close);
    expected_.push_back({*severity, target.file, target.line, text.str(), count, number});
  }
}

void VerifyConsumer::handle(const Diagnostic &diagnostic) {
  bool isOptional = ignoreRemarks_ && diagnostic.severity == Severity::Remark;
  auto add = [&](const Message &message) {
    LineColumn place;
    if (message.range.isValid())
      place = sources_.lineColumn(message.range.begin);
    seen_.push_back({message.severity, place.file.str(), place.line,
                     fmt::format("{} [{}]", message.text, message.id), isOptional});
  };
  add(diagnostic);
  for (const Message &note : diagnostic.notes)
    add(note);
}

bool VerifyConsumer::matches(const Expectation &expected, const Seen &seen) const {
  if (expected.severity != seen.severity)
    return false;
  bool isHere = expected.file.empty() ? seen.file == mainName_
                                      : llvm::StringRef(seen.file).endswith(expected.file);
  bool isAnywhere = expected.line == 0 && expected.file.empty();
  bool isLine = expected.line == 0 || expected.line == seen.line;
  return (isAnywhere || (isHere && isLine)) && llvm::StringRef(seen.text).contains(expected.text);
}

/// Matches each expectation with as many messages as it counts. Whatever is left on either side is
/// printed, and the result is false. Remarks are optional: they may be expected but need not be.
bool VerifyConsumer::check(llvm::raw_ostream &out) const {
  bool isGood = malformed_.empty();
  for (const std::string &line : malformed_)
    out << line << '\n';
  std::vector<bool> taken(seen_.size(), false);
  for (const Expectation &expected : expected_) {
    if (expected.count == 0) {
      isGood &= checkAbsent(expected, out);
      continue;
    }
    unsigned missing = expected.count;
    // Expectations are matched with required messages first, because the note of an optional remark
    // may equal that of an error.
    for (bool optional : {false, true})
      for (size_t i = 0; i < seen_.size() && missing > 0; ++i) {
        if (taken[i] || seen_[i].optional != optional || !matches(expected, seen_[i]))
          continue;
        taken[i] = true;
        --missing;
      }
    if (missing == 0)
      continue;
    isGood = false;
    out << fmt::format("{}:{}: expected {} was not reported: {}\n", mainName_, expected.writtenAt,
                       severityName(expected.severity), expected.text);
  }
  for (size_t i = 0; i < seen_.size(); ++i) {
    if (taken[i] || seen_[i].optional)
      continue;
    isGood = false;
    out << fmt::format("{}:{}: {} was not expected: {}\n",
                       seen_[i].file.empty() ? "<no place>" : seen_[i].file, seen_[i].line,
                       severityName(seen_[i].severity), seen_[i].text);
  }
  return isGood;
}

bool VerifyConsumer::checkAbsent(const Expectation &expected, llvm::raw_ostream &out) const {
  for (const Seen &seen : seen_)
    if (matches(expected, seen)) {
      out << fmt::format("{}:{}: {} was reported, and none was expected: {}\n", mainName_,
                         expected.writtenAt, severityName(expected.severity), seen.text);
      return false;
    }
  return true;
}

std::vector<InputPart> splitInput(llvm::StringRef text) {
  std::vector<InputPart> parts(1);
  unsigned number = 1;
  while (!text.empty()) {
    auto [line, after] = text.split('\n');
    if (line.startswith(kSplit))
      parts.push_back({"", number + 1});
    else
      parts.back().text += text.drop_back(after.size()).str();
    text = after;
    ++number;
  }
  return parts;
}

} // namespace shardc
