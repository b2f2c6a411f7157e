// Carries out the statements of a script that run for certain: of an `if` or `case` whose words are
// known the branch that runs, and nothing else. What another condition, a loop or a function guards
// is looked through twice: for the variables that it may set, which are not known from there on,
// and for its launches.
#include <span>

#include "compiler/upstream/ShellWords.h"
#include "llvm/Support/GlobPattern.h"

namespace shardc::upstream {
namespace {

struct TestWord {
  std::string text;   ///< after expansion, without marks
  bool isBare = true; ///< stands so in the script: may be an operator of `[[`
};

using Words = std::span<const TestWord>;

/// Nothing for patterns with lists of characters.
std::optional<bool> matchesWord(llvm::StringRef pattern, llvm::StringRef text, bool isBare) {
  if (pattern.find_first_of(isBare ? "[\\(" : "[\\(*?") != llvm::StringRef::npos)
    return std::nullopt;
  llvm::Expected<llvm::GlobPattern> glob = llvm::GlobPattern::create(pattern);
  if (glob)
    return glob->match(text);
  llvm::consumeError(glob.takeError());
  return std::nullopt;
}

/// What becomes of a test whose words are known. `[[` has patterns and arithmetic, `[` texts and
/// decimal numbers alone.
class Test {
public:
  Test(bool isDouble, ShellValues &values) : isDouble_(isDouble), values_(values) {}

  /// `||` binds less than `&&`. What is behind a part that decides does not matter.
  std::optional<bool> of(Words words) const {
    for (llvm::StringRef op : {"||", "&&"})
      for (size_t at = 0; at < words.size() && isDouble_; ++at)
        if (isOperator(words[at], op)) {
          std::optional<bool> left = of(words.first(at));
          return left && *left != (op == "||") ? of(words.subspan(at + 1)) : left;
        }
    return term(words);
  }

private:
  bool isOperator(const TestWord &word, llvm::StringRef op) const {
    return word.text == op && (word.isBare || !isDouble_);
  }

  std::optional<bool> term(Words words) const {
    if (words.size() > 1 && isOperator(words[0], "!")) {
      if (words.size() == 3 && comparesText(words[1].text)) // `[ ! = x ]`
        return std::nullopt;
      std::optional<bool> rest = term(words.subspan(1));
      return rest ? std::optional(!*rest) : std::nullopt;
    }
    if (words.empty())
      return isDouble_ ? std::nullopt : std::optional(false);
    if (words.size() == 1)
      return !words[0].text.empty();
    if (words.size() == 2 && (isOperator(words[0], "-n") || isOperator(words[0], "-z")))
      return words[1].text.empty() == (words[0].text == "-z");
    return words.size() == 3 && (words[1].isBare || !isDouble_)
               ? compare(words[0].text, words[1].text, words[2])
               : std::nullopt;
  }

  static bool comparesText(llvm::StringRef op) { return op == "=" || op == "==" || op == "!="; }

  std::optional<bool> compare(llvm::StringRef left, llvm::StringRef op,
                              const TestWord &right) const {
    if (comparesText(op)) {
      std::optional<bool> isSame = isDouble_ ? matchesWord(right.text, left, right.isBare)
                                             : std::optional(left == right.text);
      return isSame ? std::optional(*isSame == (op != "!=")) : std::nullopt;
    }
    std::optional<int64_t> a = number(left), b = number(right.text);
    size_t which = llvm::StringRef("-eq-ne-lt-le-gt-ge").find(op);
    if (!a || !b || which == llvm::StringRef::npos || op.size() != 3 || which % 3 != 0)
      return std::nullopt;
    const bool results[] = {*a == *b, *a != *b, *a<*b, *a <= *b, *a> * b, *a >= *b};
    return results[which / 3];
  }

  std::optional<int64_t> number(llvm::StringRef text) const {
    if (isDouble_)
      return values_.evaluate(text);
    int64_t value = 0;
    return text.getAsInteger(10, value) ? std::nullopt : std::optional(value); // also 08
  }

  bool isDouble_;
  ShellValues &values_;
};

/// Whether the value begins with all of the variable, so that an assignment only adds to it.
bool beginsWith(llvm::StringRef script, llvm::StringRef name) {
  script = script.ltrim("( \t\r\n\"");
  if (!script.consume_front("$"))
    return false;
  bool isBraced = script.consume_front("{");
  if (!script.consume_front(name) ||
      (!script.empty() && (llvm::isAlnum(script.front()) || script.front() == '_')))
    return false;
  return !isBraced || script.startswith("}") || script.startswith("[@]}") ||
         script.startswith("[*]}");
}

class ShellReader : ShellWords {
public:
  ShellReader(BufferId script, const ShellSetting &setting, std::vector<ShellItem> items,
              DiagEngine &diags)
      : ShellWords(script, setting, diags), items_(std::move(items)),
        hasCases_(!text_.contains("nocasematch")) {}

  std::optional<ShellRun> run(std::vector<RanWord> directives) {
    run_.directives = std::move(directives);
    runList(0, items_.size());
    values_.finish(run_);
    return failed_ || !values_.spend(0) ? std::nullopt : std::optional(std::move(run_));
  }

private:
  using Kind = ShellItem::Kind;
  using After = ShellItem::After;
  using Status = std::optional<bool>; ///< nothing: not known

  bool hasEnded() const { return hasEnded_ || failed_; }

  // --- what runs
  // ----------------------------------------------------------------------------------
  Status runList(size_t begin, size_t end) {
    Status status = true;
    for (size_t i = begin; i < end && !hasEnded() && values_.spend(1); i = items_[i].end) {
      const ShellItem &item = items_[i];
      bool isJoined = item.after == After::Success || item.after == After::Failure;
      if (isJoined && status && *status != (item.after == After::Success))
        continue;
      bool isElsewhere = item.isElsewhere && item.kind != Kind::Command;
      Status own;
      if ((isJoined && !status) || isElsewhere)
        doubtRange(i, i, item.end);
      else
        own = runStatement(i);
      status = own && !item.isElsewhere ? Status(*own != item.isNegated) : std::nullopt;
    }
    return status;
  }

  Status runStatement(size_t i) {
    const ShellItem &item = items_[i];
    cause_ = causeOf(item);
    if (item.kind == Kind::Command)
      return runCommand(item);
    if (item.kind == Kind::Test)
      return runTest(item);
    if (item.word == "if" && item.kind == Kind::Keyword)
      return runIf(i);
    if (item.word == "case" && item.kind == Kind::Keyword)
      return runCase(i);
    if (item.word == "{" && item.kind == Kind::Keyword)
      return runList(i + 1, item.next);
    if (item.kind == Kind::Function)
      functions_[item.word.str()] = {i + 1};
    else
      doubtRange(i, i, item.end);
    return std::nullopt;
  }

  /// Its first line.
  SourceRange causeOf(const ShellItem &item) const {
    llvm::StringRef first = item.kind == Kind::Keyword ? item.word : item.text;
    return range(text_.substr(static_cast<size_t>(first.data() - text_.data())).split('\n').first);
  }

  /// Tries conditions in order, as long as they are known.
  Status runIf(size_t i) {
    for (size_t at = i; items_[at].word != "fi";) {
      bool isElse = items_[at].word == "else";
      size_t then = isElse ? at : items_[at].next;
      Status status = isElse ? Status(true) : runList(at + 1, then);
      if (hasEnded())
        return std::nullopt;
      if (!status) {
        doubtRange(i, then + 1, items_[i].end);
        return std::nullopt;
      }
      if (*status)
        return runList(then + 1, items_[then].next);
      at = items_[then].next;
    }
    return true;
  }

  Status runCase(size_t i) {
    doubtChanges(items_[i].words.front());
    std::string subject = valueOf(items_[i].words.front()).text;
    for (size_t at = items_[i].next; items_[at].kind == Kind::Pattern;) {
      size_t last = items_[at].next; // of its body
      Status status = matches(subject, items_[at]);
      if (!status || !(items_[last].word == ";;" || items_[last].word == "esac")) {
        doubtRange(i, at, items_[i].end);
        return std::nullopt;
      }
      if (*status)
        return runList(at + 1, last);
      at = items_[last].word == "esac" ? last : items_[last].next;
    }
    return true;
  }

  Status matches(llvm::StringRef subject, const ShellItem &patterns) {
    for (llvm::StringRef pattern : patterns.words) {
      doubtChanges(pattern);
      std::string value = valueOf(pattern).text;
      bool isKnown = hasCases_ && ShellValues::isKnown(subject) && ShellValues::isKnown(value);
      Status one = isKnown ? matchesWord(value, subject, value == pattern) : std::nullopt;
      if (!one || *one)
        return one;
    }
    return false;
  }

  Status runTest(const ShellItem &item) {
    std::vector<TestWord> words;
    bool isKnown = hasCases_;
    for (llvm::StringRef word : item.words) {
      doubtChanges(word);
      std::string text = valueOf(word).text;
      isKnown &= ShellValues::isKnown(text);
      words.push_back({text, text == word});
    }
    return isKnown ? Test(/*isDouble=*/true, values_).of(words) : std::nullopt;
  }

  // --- what may run
  // -------------------------------------------------------------------------------
  /// Items, because it is not known whether the statement runs.
  void doubtRange(size_t statement, size_t begin, size_t end) {
    cause_ = causeOf(items_[statement]);
    runs_ = false;
    for (bool doubts : {true, false}) {
      doubts_ = doubts;
      lookThrough(begin, end);
    }
    runs_ = doubts_ = true;
  }

  void lookThrough(size_t begin, size_t end) {
    for (size_t i = begin; i < end && !failed_ && values_.spend(1); ++i) {
      const ShellItem &item = items_[i];
      if (item.kind == Kind::Command) {
        runCommand(item);
        continue;
      }
      for (llvm::StringRef word : item.words)
        if (doubts_)
          doubtChanges(word);
      if (doubts_ && (item.word == "for" || item.word == "select") && !item.words.empty())
        doubt(item.words.front(), causeText(item));
      if (item.kind == Kind::Function) {
        functions_[item.word.str()].push_back(i + 1);
        i = item.end - 1;
      }
    }
  }

  /// The words of a loop.
  static llvm::StringRef causeText(const ShellItem &item) {
    const char *begin = item.words.front().data();
    return {begin, static_cast<size_t>(item.words.back().end() - begin)};
  }

  /// A function, or those of the name that may be defined.
  void call(const std::string &name) {
    if (!active_.insert(name).second)
      return;
    bool wasInFunction = std::exchange(values_.isInFunction, true);
    for (size_t body : std::vector(functions_[name]))
      if (runs_)
        doubtRange(body, body, items_[body].end);
      else
        lookThrough(body, items_[body].end);
    values_.isInFunction = wasInFunction;
    active_.erase(name);
  }

  // --- simple statements
  // --------------------------------------------------------------------------
  Status runCommand(const ShellItem &item) {
    if (doubts_)
      doubtChanges(item.text);
    bool isWhole = item.words.empty() || item.declares();
    bool changes = doubts_ && !(item.isElsewhere && item.words.empty());
    for (const ShellAssignment &assignment : item.assignments)
      if (isWhole && changes)
        assign(assignment);
    std::vector<ShellValue> words = fieldsOf(item.words);
    // The status of a program whose output an assignment has is that of the assignment.
    if (item.words.empty() && !item.text.contains("$(") && !item.text.contains('`'))
      return true;
    if (words.empty())
      return std::nullopt;
    if (item.declares())
      declare(words, item);
    else if (std::string name = words.front().text; functions_.count(name) != 0)
      call(name);
    else if (name == "true" || name == "false" || name == ":")
      return name != "false";
    else if (name == "[" || name == "test")
      return runBracket(words);
    else if (!runBuiltin(name, words, item.text) && (runs_ || !doubts_))
      launch(words, item);
    return std::nullopt;
  }

  void launch(const std::vector<ShellValue> &words, const ShellItem &item) {
    RanCommand command;
    command.range = range(item.text);
    for (const ShellValue &word : words)
      command.words.push_back(values_.resolve(word));
    for (const ShellAssignment &assignment : item.assignments)
      if (!assignment.values.empty())
        command.environment.emplace_back(assignment.name.str(),
                                         values_.resolve(valueOf(assignment.values.front())));
    run_.commands.push_back(std::move(command));
  }

  Status runBracket(const std::vector<ShellValue> &words) {
    bool isTest = words.front().text == "test";
    if (!isTest && (words.back().text != "]" || words.size() < 2))
      return std::nullopt;
    std::vector<TestWord> known;
    for (const ShellValue &word : llvm::ArrayRef(words).drop_front().drop_back(isTest ? 0 : 1)) {
      if (!ShellValues::isKnown(word.text))
        return std::nullopt;
      known.push_back({word.text});
    }
    return Test(/*isDouble=*/false, values_).of(known);
  }

  void assign(const ShellAssignment &assignment) {
    std::string name = assignment.name.str();
    splitsAsUsual_ &= name != "IFS";
    bool hasKeys = llvm::any_of(assignment.values, [&](llvm::StringRef value) {
      return assignment.isArray && value.startswith("[") && value.contains("=");
    });
    std::vector<ShellValue> values = assignment.isArray
                                         ? fieldsOf(assignment.values)
                                         : std::vector{valueOf(assignment.values.front())};
    bool isForeign = assignment.hasIndex || hasKeys;
    bool keepsHead = !isForeign && (assignment.append || beginsWith(assignment.script, name));
    SourceRange whole(range(assignment.name).begin, range(assignment.script).end);
    if (!runs_ || isForeign)
      return doubt(name, assignment.script, keepsHead);
    if (!assignment.isArray)
      values.front().range = whole;
    values_.assign(name, std::move(values), assignment.append, assignment.isArray, whole);
  }

  void declare(const std::vector<ShellValue> &words, const ShellItem &item) {
    bool exports = words.front().text == "export", isForeign = false;
    std::vector<std::string> names;
    for (const ShellAssignment &assignment : item.assignments)
      names.push_back(assignment.name.str());
    for (const ShellValue &value : llvm::ArrayRef(words).drop_front()) {
      llvm::StringRef word = value.text;
      bool isOption = word.startswith("-") || word.startswith("+");
      exports |= isOption && word.contains('x');
      isForeign |= isOption && word.find_first_not_of("-+xragf") != llvm::StringRef::npos;
      if (!isOption)
        names.push_back(word.str());
    }
    for (const std::string &name : names) {
      if (isForeign && doubts_) // such as -i and -A
        values_.setForeign(name);
      if (exports && (runs_ || values_.look(name, "", name).isSet()))
        values_.exportVariable(name);
    }
  }

  /// False where the words are a program's.
  bool runBuiltin(const std::string &name, std::vector<ShellValue> &words, llvm::StringRef script) {
    llvm::ArrayRef<ShellValue> operands = llvm::ArrayRef(words).drop_front();
    bool hasOption = !operands.empty() && llvm::StringRef(operands.front().text).startswith("-");
    if (isOneOf(name, {"read", "mapfile", "readarray", "getopts", "let", "printf"})) {
      for (const ShellValue &word : operands)
        if (doubts_ && (name != "printf" || operands.front().text == "-v"))
          doubt(llvm::StringRef(word.text).take_while(isNameChar), script);
    } else if (name == "unset") {
      for (const ShellValue &word : operands)
        if (doubts_ && operands.front().text != "-f")
          unset(word);
    } else if (name == "source" || name == ".") {
      if (doubts_)
        values_.doubtAll(cause_);
    } else if (name == "shift" ||
               (name == "set" && (!hasOption || operands.front().text == "--"))) {
      if (doubts_ && !values_.isInFunction)
        values_.doubtArguments(cause_);
    } else if (name == "exit" || name == "return") {
      hasEnded_ |= runs_;
    } else if (name == "eval") {
      return !openEval(words);
    } else if (name == "exec") {
      words.erase(words.begin());
      return words.empty();
    } else {
      return name == "set";
    }
    return true;
  }

  void unset(const ShellValue &word) {
    llvm::StringRef name = llvm::StringRef(word.text).take_while(isNameChar);
    if (runs_ && name == word.text)
      return values_.unset(name.str(), word.range);
    doubt(name, "");
    values_.exportVariable(name.str()); // its launches get it, or they do not
  }

  /// Words of eval that mean the same without it are those of the command; others can do anything.
  bool openEval(std::vector<ShellValue> &words) {
    std::vector<ShellValue> inner;
    bool isPlain = words.size() > 1;
    for (const ShellValue &word : llvm::ArrayRef(words).drop_front()) {
      llvm::SmallVector<llvm::StringRef> parts;
      llvm::StringRef text = word.text;
      isPlain &= text.find_first_of("'\"\\$`;&|<>(){}*?[~#!") == llvm::StringRef::npos;
      llvm::SplitString(text, parts, " \t\n");
      for (llvm::StringRef part : parts)
        inner.push_back({part.str(), word.range});
    }
    isPlain &= !inner.empty() && inner.front().text.find('=') == std::string::npos &&
               ShellValues::isKnown(inner.front().text);
    if (isPlain)
      words = std::move(inner);
    else if (doubts_)
      values_.doubtAll(cause_);
    return isPlain;
  }

  const std::vector<ShellItem> items_;
  const bool hasCases_; ///< of letters
  /// Of what may run, first the variables are doubted that it may set; then its launches are taken.
  bool doubts_ = true;
  std::map<std::string, std::vector<size_t>> functions_; ///< the first items of their bodies
  std::set<std::string> active_; ///< functions that are being looked through
  bool hasEnded_ = false;
  ShellRun run_;
};

} // namespace

std::optional<ShellRun> readShell(BufferId script, const ShellSetting &setting, DiagEngine &diags) {
  std::optional<ShellScript> parsed = parseShell(script, diags);
  if (!parsed)
    return std::nullopt;
  return ShellReader(script, setting, std::move(parsed->items), diags)
      .run(std::move(parsed->directives));
}

} // namespace shardc::upstream
