// The statements of a script. Those that run for certain are carried out. Of an `if` or `case`
// whose words are known the branch that runs is, and nothing else. What another condition, a loop
// or a function guards is read twice: first for the variables that it may set, which are not known
// from there on, then for the launches in it.
#include "compiler/upstream/ShellStatus.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

constexpr size_t kCommandsMax = 20'000;

struct Assignment {
  std::string name;
  std::optional<std::string> index; ///< of the one element that is assigned
  bool append = false;
  bool isArray = false;
  bool isForeign = false;         ///< an array with keys
  std::vector<ShellValue> values; ///< one, or the elements
  llvm::StringRef script;         ///< what stands right of the name
  SourceRange range;
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

class ShellReader : ShellTests {
public:
  ShellReader(BufferId script, const ShellSetting &setting, DiagEngine &diags)
      : ShellTests(script, setting, diags) {
    values_.isJob = text_.contains("\n#SBATCH");
  }

  std::optional<ShellRun> run() {
    if (text_.find_first_of(llvm::StringRef("\x01\x02", 2)) != llvm::StringRef::npos)
      fail("it has control characters");
    readList({});
    if (!failed_ && !hasEnded_ && at_ < end_)
      fail("this closes nothing that is open");
    if (failed_)
      return std::nullopt;
    values_.finish(run_);
    return std::move(run_);
  }

private:
  using Closers = std::initializer_list<llvm::StringRef>;

  /// Whether launches count here.
  bool records() const { return mode_ == Mode::Run || mode_ == Mode::Maybe; }

  /// What is read in a mode, from here.
  template <typename Read> auto inMode(Mode mode, const Read &read) {
    Mode before = std::exchange(mode_, mode);
    auto result = read();
    mode_ = before;
    return result;
  }

  /// Reads the same text again, or something else of it.
  struct Place {
    size_t at, documentsEnd, numCommands;
  };
  Place place() const { return {at_, documentsEnd_, numCommands_}; }
  void goBack(const Place &place) {
    if (!failed_)
      at_ = place.at;
    documentsEnd_ = place.documentsEnd;
    numCommands_ = place.numCommands;
  }

  // --- between statements
  // -------------------------------------------------------------------------
  /// Blanks, continued lines and comments; `#SBATCH` comments are kept.
  void skipBlanks() {
    while (!atEnd())
      if (isBlank(peek()))
        ++at_;
      else if (!consume("\\\n") && !consume("\\\r\n") && !skipComment())
        return;
  }

  bool skipComment() {
    bool isLineBegin = at_ == 0 || text_[at_ - 1] == '\n';
    bool isFence = isLineBegin && startsWith("```");
    bool isWordBegin = at_ == 0 || endsWord(text_[at_ - 1]);
    if (!isFence && !(peek() == '#' && isWordBegin))
      return false;
    size_t begin = at_;
    at_ = std::min(text_.find('\n', at_), end_);
    llvm::StringRef line = slice(begin).rtrim();
    if (isLineBegin && line.consume_front("#SBATCH") && records()) {
      llvm::SmallVector<llvm::StringRef> words;
      llvm::SplitString(line.split(" #").first, words, " \t");
      for (llvm::StringRef word : words)
        run_.directives.push_back({word.str(), range(begin), nullptr});
    }
    return true;
  }

  void skipLines() {
    skipBlanks();
    while (!atEnd() && (peek() == '\n' || (peek() == ';' && peek(1) != ';' && peek(1) != '&'))) {
      if (peek() == '\n' && documentsEnd_ > at_)
        at_ = documentsEnd_ - 1;
      ++at_;
      skipBlanks();
    }
  }

  void expectWord(llvm::StringRef word) {
    skipLines();
    if (!hasEnded_ && peekWord() != word)
      fail(("expected '" + word + "'").str());
    at_ += hasEnded_ ? 0 : word.size();
  }

  /// Whether a statement runs, by the operator before it.
  enum class Runs : uint8_t { Surely, Maybe, Never };

  /// Statements until one of the words that close them, which is not consumed.
  void readList(Closers closers) {
    if (!enter())
      return;
    skipLines();
    Runs runs = Runs::Surely;
    std::optional<bool> status; // of the statement before the operator
    while (!atEnd() && !hasEnded_ && peek() != ')' && !startsWith(";;") && !startsWith(";&") &&
           !llvm::is_contained(closers, peekWord())) {
      size_t before = at_;
      std::optional<bool> own = readStatement(runs);
      status = runs == Runs::Never ? status : own;
      runs = readOperator(status);
      skipLines();
      if (++numCommands_ > kCommandsMax)
        fail("it has too many commands");
      if (at_ == before)
        fail("this is not allowed here");
      failed_ |= values_.isExhausted(); // reported
    }
    --depth_;
  }

  /// Whether the next statement runs in this shell.
  Runs readOperator(std::optional<bool> status) {
    skipBlanks();
    for (llvm::StringRef op : {"&&", "||", "|&", "|"})
      if (consume(op)) {
        skipLines();
        bool decides = (op == "&&" || op == "||") && status;
        return !decides ? Runs::Maybe : *status == (op == "&&") ? Runs::Surely : Runs::Never;
      }
    if (!startsWith(";;") && !startsWith(";&") && (peek() == '&' || peek() == ';'))
      ++at_;
    return Runs::Surely;
  }

  /// Its status, if it is a test that is known. Reads what may not run twice: for its assignments,
  /// and for its launches.
  std::optional<bool> readStatement(Runs runs) {
    skipBlanks();
    statement_ = at_;
    if (mode_ != Mode::Run) {
      readCommand();
      return std::nullopt;
    }
    if (runs == Runs::Never) {
      mode_ = Mode::Skip;
      readCommand();
      mode_ = Mode::Run;
      return std::nullopt;
    }
    if (runs == Runs::Surely) {
      Place begin = place();
      std::optional<bool> status = inMode(Mode::Skip, [&] { return readStatus(); });
      goBack(begin);
      if (status || !beginsCompound()) {
        assigns_ = false;
        readCommand();
        return assigns_ ? true : status;
      }
      if (readBranches())
        return std::nullopt;
    }
    readDoubtful();
    return std::nullopt;
  }

  void readDoubtful() {
    Place begin = place();
    cause_ = range(at_, std::min(text_.find('\n', at_), end_));
    mode_ = Mode::Collect;
    readCommand();
    goBack(begin);
    mode_ = Mode::Maybe;
    if (!failed_)
      readCommand();
    mode_ = Mode::Run;
  }

  bool beginsCompound() const {
    return peek() == '(' || isFunctionHead() ||
           isOneOf(peekWord(), {"if", "case", "for", "while", "until", "select", "{", "function"});
  }

  // --- branches that are known
  // ----------------------------------------------------------------------
  /// Of tests in a row, up to `then`; stays where it is.
  std::optional<bool> peekCondition() {
    Place begin = place();
    std::optional<bool> status = readStatus();
    while (status && (startsWith("&&") || startsWith("||"))) {
      bool isBoth = consume("&&");
      at_ += isBoth ? 0 : 2;
      skipLines();
      std::optional<bool> next = readStatus();
      status = next ? std::optional(isBoth ? *status && *next : *status || *next) : std::nullopt;
    }
    skipLines();
    bool isWhole = peekWord() == "then";
    goBack(begin);
    return isWhole ? status : std::nullopt;
  }

  /// Which branch of an `if` or `case` runs: sought while all of it is skipped, and then read.
  struct Choice {
    bool isSought = true, isUnknown = false;
    std::optional<size_t> taken;
    size_t branch = 0; ///< the next one

    bool isOpen() const { return isSought && !isUnknown && !taken; }
    void take(std::optional<bool> isTaken) {
      if (isOpen() && isTaken.value_or(false))
        taken = branch;
      else if (isOpen())
        isUnknown = !isTaken;
    }
  };

  /// False if it is not known which one runs; then nothing has been read.
  bool readBranches() {
    if (!isOneOf(peekWord(), {"if", "case"}))
      return false;
    Choice choice;
    Place begin = place();
    mode_ = Mode::Skip;
    readCommand(&choice);
    goBack(begin);
    if (!choice.isUnknown && !failed_) {
      choice.isSought = false;
      choice.branch = 0;
      readCommand(&choice);
    }
    mode_ = Mode::Run;
    return failed_ || !choice.isUnknown;
  }

  void readBranch(Closers closers, Choice *choice) {
    bool runs = choice != nullptr && !choice->isSought && choice->taken == choice->branch;
    mode_ = runs ? Mode::Run : mode_;
    readList(closers);
    mode_ = runs ? Mode::Skip : mode_;
    if (choice != nullptr)
      ++choice->branch;
  }

  // --- compound statements
  // ------------------------------------------------------------------------
  void readCommand(Choice *choice = nullptr) {
    if (!enter())
      return;
    skipBlanks();
    llvm::StringRef word = peekWord();
    if (word == "!" || word == "time") {
      at_ += word.size();
      readCommand();
    } else if (word == "if") {
      readIf(choice);
    } else if (word == "case") {
      readCase(choice);
    } else if (isOneOf(word, {"for", "select", "while", "until"})) {
      readLoop(word);
    } else if (startsWith("((")) {
      size_t end = passBrackets(at_, '(', ')');
      doubtExpression(text_.slice(at_ + 2, end - 2));
      at_ = failed_ ? at_ : end;
    } else if (word == "{" || peek() == '(') {
      readGroup();
    } else if (word == "function" || isFunctionHead()) {
      readFunction();
    } else {
      readSimple();
    }
    skipBlanks();
    std::vector<ShellValue> words;
    while (!atEnd() && skipRedirection(words))
      skipBlanks();
    --depth_;
  }

  void readIf(Choice *choice) {
    at_ += 2;
    do {
      if (choice != nullptr && choice->isOpen())
        choice->take(peekCondition());
      readList({"then"});
      expectWord("then");
      readBranch({"elif", "else", "fi"}, choice);
    } while (!failed_ && !hasEnded_ && consume("elif"));
    if (!hasEnded_ && peekWord() == "else") {
      at_ += 4;
      if (choice != nullptr)
        choice->take(true);
      readBranch({"fi"}, choice);
    }
    expectWord("fi");
  }

  void readCase(Choice *choice) {
    at_ += 4;
    skipBlanks();
    changesSkipped_ = false;
    ShellValue subject = readValue();
    bool isKnown = ShellValues::isKnown(subject.text) && !changesSkipped_;
    expectWord("in");
    skipLines();
    while (!atEnd() && !hasEnded_ && peekWord() != "esac") {
      consume("(");
      do {
        skipBlanks();
        std::optional<bool> matches = readPattern(subject.text);
        if (choice != nullptr)
          choice->take(isKnown ? matches : std::nullopt);
        skipBlanks();
      } while (consume("|"));
      if (!consume(")"))
        fail("expected ')' after a pattern");
      readBranch({"esac"}, choice);
      bool fallsThrough = startsWith(";;&") || startsWith(";&");
      if (choice != nullptr && choice->isSought)
        choice->isUnknown |= fallsThrough;
      for (llvm::StringRef end : {";;&", ";;", ";&"})
        if (consume(end))
          break;
      skipLines();
    }
    expectWord("esac");
  }

  void readLoop(llvm::StringRef word) {
    bool counts = word == "for" || word == "select";
    at_ += word.size();
    skipBlanks();
    if (counts && startsWith("((")) {
      size_t end = passBrackets(at_, '(', ')');
      doubtExpression(text_.slice(at_ + 2, end - 2));
      at_ = failed_ ? at_ : end;
    } else if (counts) {
      size_t begin = at_, line = std::min(text_.find_first_of("\n;", at_), end_);
      while (isNameChar(peek()))
        ++at_;
      if (mode_ == Mode::Collect)
        doubtIn(slice(begin).str(), text_.slice(at_, line));
      while (!atEnd() && peek() != ';' && peek() != '\n') {
        size_t before = at_;
        skipBlanks();
        readFields();
        if (at_ == before)
          return fail("this is not allowed in a loop's words");
      }
    } else {
      readList({"do"});
    }
    expectWord("do");
    readList({"done"});
    expectWord("done");
  }

  void readGroup() {
    bool isBrace = peek() == '{';
    ++at_;
    if (isBrace)
      readList({"}"});
    else
      readList({});
    if (!failed_ && !consume(isBrace ? "}" : ")"))
      fail(isBrace ? "expected '}'" : "expected ')'");
  }

  bool isFunctionHead() const {
    size_t end = at_;
    while (end < end_ && (isNameChar(text_[end]) || llvm::StringRef("-:.").contains(text_[end])))
      ++end;
    llvm::StringRef behind = text_.substr(end).ltrim(" \t");
    return end > at_ && behind.consume_front("(") && behind.ltrim(" \t").startswith(")");
  }

  void readFunction() {
    if (consume("function"))
      skipBlanks();
    size_t begin = at_;
    while (!atEnd() && !endsWord(peek()))
      ++at_;
    if (mode_ != Mode::Skip)
      functions_.insert(slice(begin).str());
    skipBlanks();
    if (consume("(")) {
      skipBlanks();
      consume(")");
    }
    skipLines();
    bool wasInFunction = std::exchange(values_.isInFunction, true);
    if (beginsCompound())
      readCommand();
    else
      fail("expected '{' after a function's name");
    values_.isInFunction = wasInFunction;
  }

  // --- simple statements
  // --------------------------------------------------------------------------
  void readSimple() {
    size_t begin = at_;
    std::vector<ShellValue> words;
    std::vector<Assignment> assignments;
    bool declares = false, tests = false;
    while (true) {
      skipBlanks();
      if (tests && !atEnd()) {
        tests = readTestWord();
        continue;
      }
      if (atEnd() || peek() == '\n' || peek() == ';' || peek() == '|' || peek() == ')' ||
          (peek() == '&' && peek(1) != '>'))
        break;
      if (skipRedirection(words))
        continue;
      if (peek() == '(')
        return fail("a bracket is not allowed here");
      std::optional<Assignment> assignment;
      if (words.empty() || declares)
        assignment = readAssignment();
      if (assignment) {
        if (!declares)
          leaveSequence(*assignment, assignments);
        assignments.push_back(std::move(*assignment));
        continue;
      }
      bool isFirst = words.empty();
      for (ShellValue &word : readFields())
        words.push_back(std::move(word));
      declares |=
          isFirst && !words.empty() &&
          isOneOf(words.front().text, {"export", "declare", "local", "readonly", "typeset"});
      tests = isFirst && !words.empty() && words.front().text == "[[";
    }
    // In a pipeline or the background, another shell would do the assignments.
    bool isElsewhere = (peek() == '|' || peek() == '&') && peek(1) != peek();
    if (isElsewhere && words.empty())
      return;
    finishSimple(words, assignments, declares, begin);
  }

  /// Between `[[` and `]]`, where operators of the shell are ordinary words; false at the end.
  bool readTestWord() {
    size_t begin = at_;
    for (llvm::StringRef op : {"&&", "||", "<", ">", "(", ")", "|", "\n"})
      if (consume(op))
        return true;
    bool isLast = peekWord() == "]]";
    readFields();
    if (at_ == begin)
      fail("a test must end with ']]' before this");
    return !isLast;
  }

  std::optional<Assignment> readAssignment() {
    size_t begin = at_, end = at_;
    if (!isNameStart(peek()))
      return std::nullopt;
    while (end < end_ && isNameChar(text_[end]))
      ++end;
    Assignment assignment;
    assignment.name = text_.slice(at_, end).str();
    std::optional<llvm::StringRef> subscript = peekSubscript(end);
    end += subscript ? subscript->size() + 2 : 0;
    llvm::StringRef behind = text_.slice(end, end_);
    assignment.append = behind.consume_front("+=");
    if (!assignment.append && !behind.consume_front("="))
      return std::nullopt;
    if (subscript)
      assignment.index = expandIndex(*subscript);
    at_ = end + (assignment.append ? 2 : 1);
    size_t value = at_;
    if (peek() == '(' && !subscript)
      readElements(assignment);
    else
      assignment.values.push_back(readValue());
    assignment.script = slice(value);
    assignment.range = range(begin);
    return assignment;
  }

  /// `A=1 B=$A`: what B becomes depends on whether a command follows.
  void leaveSequence(Assignment &assignment, const std::vector<Assignment> &before) {
    for (const Assignment &earlier : before)
      if (assignment.script.contains(earlier.name) && assignment.script.contains('$'))
        for (ShellValue &value : assignment.values)
          value.text = values_.markAs(assignment.script, value.text);
  }

  void readElements(Assignment &assignment) {
    ++at_;
    assignment.isArray = true;
    while (!failed_) {
      skipBlanks();
      if (consume("\n"))
        continue;
      if (atEnd() || consume(")"))
        break;
      size_t before = at_;
      std::optional<llvm::StringRef> key = peekSubscript(at_);
      assignment.isForeign |= key && !key->empty();
      for (ShellValue &value : readFields())
        assignment.values.push_back(std::move(value));
      if (at_ == before)
        fail("this is not allowed in an array");
    }
    if (!failed_ && text_[at_ - 1] != ')')
      fail("expected ')' at the end of an array");
  }

  void finishSimple(std::vector<ShellValue> &words, std::vector<Assignment> &assignments,
                    bool declares, size_t begin) {
    if (failed_)
      return;
    if (words.empty() || declares) {
      // The status of a program whose output a value has is that of the assignment.
      assigns_ = words.empty() && !slice(begin).contains("$(") && !slice(begin).contains('`');
      for (Assignment &assignment : assignments)
        assign(assignment);
      if (declares)
        declare(words, assignments, begin);
      return;
    }
    std::string name = words.front().text;
    if (runBuiltin(name, words, begin) || !records() ||
        functions_.count(name) != 0) // whose body has the launch
      return;
    RanCommand command;
    command.range = range(begin);
    for (const ShellValue &word : words)
      command.words.push_back(values_.resolve(word));
    for (const Assignment &assignment : assignments)
      if (!assignment.values.empty())
        command.environment.emplace_back(assignment.name,
                                         values_.resolve(assignment.values.front()));
    run_.commands.push_back(std::move(command));
  }

  void assign(Assignment &assignment) {
    const std::string &name = assignment.name;
    bool keepsHead = !assignment.index && !assignment.isForeign &&
                     (assignment.append || beginsWith(assignment.script, name));
    splitsAsUsual_ &= name != "IFS" || mode_ == Mode::Skip;
    if (mode_ != Mode::Run)
      return doubtIn(name, assignment.script, keepsHead);
    if (assignment.isForeign)
      doubtIn(name, assignment.script);
    else if (assignment.isArray)
      values_.assignArray(name, std::move(assignment.values), assignment.append, assignment.range);
    else if (assignment.index)
      values_.assignElement(name, *assignment.index, std::move(assignment.values.front()),
                            assignment.append);
    else
      values_.assign(name, std::move(assignment.values.front()), assignment.append);
  }

  void declare(const std::vector<ShellValue> &words, const std::vector<Assignment> &assignments,
               size_t begin) {
    if (mode_ == Mode::Skip)
      return;
    bool exports = words.front().text == "export", isForeign = false;
    std::vector<std::string> names;
    for (const Assignment &assignment : assignments)
      names.push_back(assignment.name);
    for (size_t i = 1; i < words.size(); ++i) {
      llvm::StringRef word = words[i].text;
      bool isOption = word.startswith("-") || word.startswith("+");
      exports |= isOption && word.contains('x');
      isForeign |= isOption && word.find_first_not_of("-+xragf") != llvm::StringRef::npos;
      if (!isOption)
        names.push_back(word.str());
    }
    for (const std::string &name : names) {
      if (isForeign) // such as -i, after which assignments mean something else
        doubtIn(name, slice(begin), /*keepsHead=*/false, /*isAnytime=*/true);
      if (exports && mode_ == Mode::Run)
        values_.exportVariable(name);
      else if (exports && values_.look(name, "", name).isSet())
        values_.exportVariable(name); // to what is not known
    }
  }

  // --- builtin commands
  // ---------------------------------------------------------------------------
  /// False where the words are a program's.
  bool runBuiltin(const std::string &name, std::vector<ShellValue> &words, size_t begin) {
    bool isSure = mode_ == Mode::Run;
    if (isOneOf(name, {"read", "mapfile", "readarray", "getopts", "let", "printf"})) {
      bool assigns = name != "printf" || (words.size() > 1 && words[1].text == "-v");
      for (size_t i = 1; i < words.size() && assigns; ++i) {
        llvm::StringRef target = llvm::StringRef(words[i].text).take_while(isNameChar);
        if (!target.empty() && isNameStart(target.front()))
          doubtIn(target.str(), slice(begin));
      }
    } else if (name == "unset") {
      bool isFunctions = words.size() > 1 && words[1].text == "-f";
      for (size_t i = 1; i < words.size() && !isFunctions; ++i)
        if (isSure && llvm::all_of(words[i].text, isNameChar))
          values_.unset(words[i].text, words[i].range);
        else
          doubtUnset(llvm::StringRef(words[i].text).take_while(isNameChar).str());
    } else if (isOneOf(name, {"source", "."})) {
      doubtAll(begin);
    } else if (name == "set" || name == "shift") {
      setArguments(name, words, begin);
    } else if (name == "exit" || name == "return") {
      hasEnded_ |= isSure;
    } else if (name == "eval") {
      return !openEval(words, begin);
    } else if (name == "exec") {
      words.erase(words.begin());
      return words.empty();
    } else {
      return false;
    }
    return true;
  }

  /// Its launches get the variable, or they do not.
  void doubtUnset(const std::string &name) {
    if (name.empty() || mode_ == Mode::Skip) // an option
      return;
    doubtIn(name, "");
    values_.exportVariable(name);
  }

  void doubtAll(size_t begin) {
    if (mode_ == Mode::Run || mode_ == Mode::Collect)
      values_.doubtAll(mode_ == Mode::Run ? range(begin) : cause_);
  }

  void setArguments(const std::string &name, std::vector<ShellValue> &words, size_t begin) {
    size_t count = 1;
    bool sets = name == "set" && words.size() > 1 &&
                (words[1].text == "--" || !llvm::StringRef(words[1].text).startswith("-")) &&
                !llvm::StringRef(words[1].text).startswith("+");
    if (mode_ == Mode::Maybe || mode_ == Mode::Skip || (name == "set" && !sets) ||
        values_.isInFunction)
      return;
    bool isKnown =
        llvm::all_of(words, [](const ShellValue &word) { return ShellValues::isKnown(word.text); });
    bool isNumber = words.size() < 2 || !llvm::StringRef(words[1].text).getAsInteger(10, count);
    if (mode_ == Mode::Collect || !isKnown || (name == "shift" && !isNumber))
      return values_.doubtArguments(mode_ == Mode::Collect ? cause_ : range(begin));
    if (name == "shift")
      return values_.shiftArguments(count);
    words.erase(words.begin(), words.begin() + (words[1].text == "--" ? 2 : 1));
    values_.setArguments(words);
  }

  /// Words of eval that mean the same without it are those of the command; others can do anything.
  bool openEval(std::vector<ShellValue> &words, size_t begin) {
    std::vector<ShellValue> inner;
    bool isPlain = words.size() > 1;
    for (size_t i = 1; i < words.size(); ++i) {
      llvm::SmallVector<llvm::StringRef> parts;
      isPlain &= llvm::StringRef(words[i].text).find_first_of("'\"\\$`;&|<>(){}*?[~#!") ==
                 llvm::StringRef::npos;
      llvm::SplitString(words[i].text, parts, " \t\n");
      for (llvm::StringRef part : parts)
        inner.push_back({part.str(), words[i].range});
    }
    isPlain &= !inner.empty() && inner.front().text.find('=') == std::string::npos &&
               ShellValues::isKnown(inner.front().text);
    if (!isPlain) {
      doubtAll(begin);
      return false;
    }
    words = std::move(inner);
    return true;
  }

  // --- redirections
  // -------------------------------------------------------------------------------
  /// `<(...)` is a word, the rest concerns files.
  bool skipRedirection(std::vector<ShellValue> &words) {
    size_t begin = at_, ahead = 0;
    if ((peek() == '<' || peek() == '>') && peek(1) == '(') {
      at_ = passBrackets(at_ + 1, '(', ')');
      words.push_back({values_.mark(slice(begin)), range(begin)});
      return !failed_;
    }
    while (llvm::isDigit(peek(ahead)))
      ++ahead;
    bool isBoth = ahead == 0 && peek() == '&' && peek(1) == '>';
    if (peek(ahead) != '<' && peek(ahead) != '>' && !isBoth)
      return false;
    at_ += ahead + (isBoth ? 1 : 0);
    bool isString = consume("<<<");
    if (!isString && consume("<<")) {
      skipDocument(consume("-"));
      return true;
    }
    at_ += isString ? 0 : 1;
    for (llvm::StringRef more : {">", "&", "|"})
      consume(more);
    skipBlanks();
    if ((peek() == '<' || peek() == '>') && peek(1) == '(')
      at_ = passBrackets(at_ + 1, '(', ')');
    else
      readValue();
    return !failed_;
  }

  /// A here-document begins behind the line, or behind the last one that the line has opened.
  void skipDocument(bool stripsTabs) {
    skipBlanks();
    size_t begin = at_;
    readValue();
    std::string delimiter;
    for (char c : slice(begin))
      if (c != '\'' && c != '"' && c != '\\')
        delimiter += c;
    if (delimiter.empty())
      return fail("expected the word that ends the here-document");
    size_t line = std::min(text_.find('\n', at_), end_);
    size_t at = documentsEnd_ > at_ ? documentsEnd_ : std::min(line + 1, end_);
    while (at < end_) {
      size_t next = std::min(text_.find('\n', at), end_);
      llvm::StringRef text = text_.slice(at, next).rtrim('\r');
      at = std::min(next + 1, end_);
      if ((stripsTabs ? text.ltrim('\t') : text) == delimiter)
        break;
    }
    documentsEnd_ = at;
  }

  size_t documentsEnd_ = 0; ///< of the here-documents that the current line has opened
  size_t numCommands_ = 0;
  bool hasEnded_ = false;
  bool assigns_ = false; ///< the last statement does nothing else, and succeeds
  ShellRun run_;
};

} // namespace

std::optional<ShellRun> readShell(BufferId script, const ShellSetting &setting, DiagEngine &diags) {
  return ShellReader(script, setting, diags).run();
}

} // namespace shardc::upstream
