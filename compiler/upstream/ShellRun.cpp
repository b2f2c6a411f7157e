// Runs a script's tree: does assignments, decides conditions where possible, and collects the
// commands. Programs are assumed to succeed.
#include <deque>

#include "compiler/upstream/ShellExpand.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"

namespace shardc::upstream {
namespace {

constexpr unsigned kRunDepthMax = 40;
constexpr size_t kCommandsRunMax = 20'000;

/// What a condition or a command comes to.
enum class Outcome : uint8_t { False, True, Unknown };

Outcome negate(Outcome outcome) {
  return outcome == Outcome::Unknown ? outcome
         : outcome == Outcome::True  ? Outcome::False
                                     : Outcome::True;
}

Outcome outcomeOf(bool value) { return value ? Outcome::True : Outcome::False; }

/// Whether the text still holds something that the script does not say.
bool isOpen(llvm::StringRef text) { return text.contains("${") || text.contains("$("); }

/// `*` and `?` of a pattern.
bool matches(llvm::StringRef pattern, llvm::StringRef text) {
  size_t p = 0, t = 0, star = llvm::StringRef::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != llvm::StringRef::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*')
    ++p;
  return p == pattern.size();
}

/// The words between `[` and `]`.
class Test {
public:
  explicit Test(std::vector<std::string> words) : words_(std::move(words)) {}

  Outcome run() {
    Outcome outcome = readOr();
    return at_ == words_.size() ? outcome : Outcome::Unknown;
  }

private:
  bool consume(llvm::StringRef a, llvm::StringRef b) {
    if (at_ >= words_.size() || (words_[at_] != a && words_[at_] != b))
      return false;
    ++at_;
    return true;
  }

  Outcome readOr() {
    Outcome left = readAnd();
    while (consume("-o", "||")) {
      Outcome right = readAnd();
      left = left == Outcome::True || right == Outcome::True     ? Outcome::True
             : left == Outcome::False && right == Outcome::False ? Outcome::False
                                                                 : Outcome::Unknown;
    }
    return left;
  }

  Outcome readAnd() {
    Outcome left = readNot();
    while (consume("-a", "&&")) {
      Outcome right = readNot();
      left = left == Outcome::False || right == Outcome::False ? Outcome::False
             : left == Outcome::True && right == Outcome::True ? Outcome::True
                                                               : Outcome::Unknown;
    }
    return left;
  }

  Outcome readNot() {
    bool negated = false;
    while (consume("!", "!"))
      negated = !negated;
    Outcome outcome = consume("(", "(") ? readGroup() : readOperator();
    return negated ? negate(outcome) : outcome;
  }

  Outcome readGroup() {
    if (++depth_ > kRunDepthMax)
      return Outcome::Unknown;
    Outcome outcome = readOr();
    --depth_;
    return consume(")", ")") ? outcome : Outcome::Unknown;
  }

  static bool isBinary(llvm::StringRef op) {
    for (llvm::StringRef known :
         {"=", "==", "!=", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "<", ">", "=~"})
      if (op == known)
        return true;
    return false;
  }

  Outcome readOperator() {
    if (at_ >= words_.size())
      return Outcome::False;
    std::string first = words_[at_++];
    if (at_ + 1 < words_.size() && isBinary(words_[at_])) {
      std::string op = words_[at_];
      std::string second = words_[at_ + 1];
      at_ += 2;
      return compare(first, op, second);
    }
    bool isUnary = first.size() == 2 && first.front() == '-' && at_ < words_.size();
    if (!isUnary)
      return isOpen(first) ? Outcome::Unknown : outcomeOf(!first.empty());
    std::string operand = words_[at_++];
    if (first != "-z" && first != "-n")
      return Outcome::Unknown; // about files, which are not looked at
    return isOpen(operand) ? Outcome::Unknown : outcomeOf(operand.empty() == (first == "-z"));
  }

  static Outcome compare(llvm::StringRef a, llvm::StringRef op, llvm::StringRef b) {
    if (isOpen(a) || isOpen(b) || op == "=~")
      return Outcome::Unknown;
    if (op == "=" || op == "==")
      return outcomeOf(matches(b, a));
    if (op == "!=")
      return outcomeOf(!matches(b, a));
    int64_t x = 0, y = 0;
    if (a.trim().getAsInteger(10, x) || b.trim().getAsInteger(10, y))
      return Outcome::Unknown;
    return llvm::StringSwitch<Outcome>(op)
        .Case("-eq", outcomeOf(x == y))
        .Case("-ne", outcomeOf(x != y))
        .Cases("-lt", "<", outcomeOf(x < y))
        .Case("-le", outcomeOf(x <= y))
        .Cases("-gt", ">", outcomeOf(x > y))
        .Case("-ge", outcomeOf(x >= y))
        .Default(Outcome::Unknown);
  }

  std::vector<std::string> words_;
  size_t at_ = 0;
  unsigned depth_ = 0;
};

/// Whether carrying the commands out could matter: they assign, or call something with flags.
bool matters(const ShellList &list) {
  for (const ShellLink &link : list) {
    const ShellNode &node = link.node;
    if (!node.assignments.empty() || matters(node.body))
      return true;
    for (const auto &[condition, body] : node.branches)
      if (matters(body))
        return true;
    for (const ShellCase &one : node.cases)
      if (matters(one.body))
        return true;
    if (node.kind == ShellNode::Kind::Simple && !node.words.empty()) {
      std::string name = node.words.front().plain();
      bool isSmall = llvm::StringSwitch<bool>(name)
                         .Cases("echo", "exit", "mkdir", "printf", "return", "sleep", "cd", true)
                         .Cases("rm", "cp", "mv", "set", "ls", "test", "[", "[[", "module", true)
                         .Default(false);
      if (!isSmall && node.words.size() > 1)
        return true;
    }
  }
  return false;
}

class Runner {
public:
  Runner(DiagEngine &diags, ShellRun &run) : diags_(diags), state_(diags), run_(run) {}

  ShellState &state() { return state_; }

  Outcome runList(const ShellList &list) {
    Outcome outcome = Outcome::True;
    std::string operation = ";";
    for (const ShellLink &link : list) {
      if (stopped_ || state_.isExhausted())
        return outcome;
      bool isSkipped = (operation == "&&" && outcome == Outcome::False) ||
                       (operation == "||" && outcome == Outcome::True);
      bool isGuarded = (operation == "&&" || operation == "||") && outcome == Outcome::Unknown;
      if (isGuarded && matters(link))
        leaveUndecided(link.node.range);
      if (!isSkipped && !isGuarded)
        outcome = runNode(link.node);
      operation = link.next;
    }
    return outcome;
  }

private:
  static bool matters(const ShellLink &link) {
    ShellList one(1);
    one.front().node = link.node;
    return upstream::matters(one);
  }
  static bool mattersAny(const ShellNode &node) {
    ShellList one(1);
    one.front().node = node;
    return upstream::matters(one);
  }

  void leaveUndecided(SourceRange range) { diags_.report(diag::ImportUndecided, range); }

  Outcome runNode(const ShellNode &node) {
    if (depth_ > kRunDepthMax || run_.commands.size() > kCommandsRunMax)
      return Outcome::Unknown;
    ++depth_;
    Outcome outcome = runAny(node);
    --depth_;
    return node.negated ? negate(outcome) : outcome;
  }

  Outcome runAny(const ShellNode &node) {
    switch (node.kind) {
    case ShellNode::Kind::Simple:
      return runSimple(node);
    case ShellNode::Kind::If:
      return runIf(node);
    case ShellNode::Kind::Case:
      return runCase(node);
    case ShellNode::Kind::Loop:
      if (mattersAny(node))
        leaveUndecided(node.range);
      return Outcome::Unknown;
    case ShellNode::Kind::Function:
      functions_[node.name] = &node.body;
      return Outcome::True;
    case ShellNode::Kind::Group:
      return runList(node.body);
    }
    return Outcome::Unknown;
  }

  Outcome runIf(const ShellNode &node) {
    for (const auto &[condition, body] : node.branches) {
      Outcome outcome = runList(condition);
      if (outcome == Outcome::True)
        return runList(body);
      if (outcome == Outcome::Unknown) {
        if (mattersAny(node))
          leaveUndecided(node.range);
        return Outcome::Unknown;
      }
    }
    return runList(node.body);
  }

  Outcome runCase(const ShellNode &node) {
    std::string subject = state_.expandOne(node.words.front(), /*unsetIsEmpty=*/true);
    if (isOpen(subject)) {
      if (mattersAny(node))
        leaveUndecided(node.range);
      return Outcome::Unknown;
    }
    for (const ShellCase &one : node.cases)
      for (const ShellWord &pattern : one.patterns)
        if (matches(state_.expandOne(pattern, true), subject))
          return runList(one.body);
    return Outcome::True;
  }

  Outcome runSimple(const ShellNode &node) {
    std::string name = node.words.empty() ? std::string() : node.words.front().plain();
    if (name == "[" || name == "[[" || name == "test")
      return runTest(node, name);
    RanCommand command;
    command.range = node.range;
    for (const ShellWord &word : node.words)
      for (RanWord &field : state_.expand(word))
        command.words.push_back(std::move(field));
    if (command.words.empty() || isDeclaration(name))
      return declare(node, command, name == "export");
    for (const ShellAssignment &assignment : node.assignments)
      command.environment.emplace_back(assignment.name, state_.expandOne(assignment.value));
    return runCommand(std::move(command), node);
  }

  static bool isDeclaration(llvm::StringRef name) {
    return name == "export" || name == "declare" || name == "local" || name == "readonly" ||
           name == "typeset";
  }

  /// Puts in place of a word what it expands to.
  void expandAhead(ShellWord &word) {
    ShellPart text;
    text.quoted = true;
    text.text = state_.expandOne(word);
    word.parts = {std::move(text)};
  }

  Outcome declare(const ShellNode &node, const RanCommand &command, bool exports) {
    for (const RanWord &word : command.words)
      exports |= word.text == "-x";
    // A command's words are expanded before it runs: `export A=1 B=$A` gives B the older A.
    std::vector<ShellAssignment> assignments = node.assignments;
    if (!command.words.empty())
      for (ShellAssignment &assignment : assignments)
        if (!assignment.isArray)
          expandAhead(assignment.value);
    for (const ShellAssignment &assignment : assignments) {
      state_.assign(assignment);
      unset_.erase(assignment.name);
      if (exports)
        state_.markExported(assignment.name);
    }
    for (size_t i = 1; i < command.words.size() && exports; ++i)
      if (state_.find(command.words[i].text) != nullptr)
        state_.markExported(command.words[i].text);
    return Outcome::True;
  }

  Outcome runTest(const ShellNode &node, llvm::StringRef name) {
    std::vector<std::string> words;
    for (size_t i = 1; i < node.words.size(); ++i)
      words.push_back(state_.expandOne(node.words[i], /*unsetIsEmpty=*/true));
    if (name != "test" && (words.empty() || words.back() != (name == "[" ? "]" : "]]")))
      return Outcome::Unknown;
    if (name != "test")
      words.pop_back();
    return Test(std::move(words)).run();
  }

  Outcome runCommand(RanCommand command, const ShellNode &node) {
    const std::string name = command.words.front().text;
    if (name == "true" || name == ":")
      return Outcome::True;
    if (name == "false")
      return Outcome::False;
    if (name == "exit" || name == "return") {
      stopped_ = true;
      return Outcome::True;
    }
    if (name == "unset") {
      unsetVariables(command);
      return Outcome::True;
    }
    if (name == "source" || name == ".") {
      leaveUndecided(command.range);
      return Outcome::True;
    }
    if (auto found = functions_.find(name); found != functions_.end())
      return callFunction(*found->second, command);
    runNested(command, node);
    run_.commands.push_back(std::move(command));
    return Outcome::True;
  }

  void unsetVariables(const RanCommand &command) {
    for (size_t i = 1; i < command.words.size(); ++i) {
      if (llvm::StringRef(command.words[i].text).startswith("-"))
        continue;
      state_.unset(command.words[i].text);
      unset_[command.words[i].text] = command.words[i].range;
    }
  }

  Outcome callFunction(const ShellList &body, const RanCommand &command) {
    std::vector<RanWord> arguments(command.words.begin() + 1, command.words.end());
    bool wasInFunction = std::exchange(state_.isInFunction, true);
    std::swap(state_.positional, arguments);
    Outcome outcome = runList(body);
    stopped_ = false; // a function's return
    std::swap(state_.positional, arguments);
    state_.isInFunction = wasInFunction;
    return outcome;
  }

  /// Scripts that a command is given: `bash -c "..."`, `--wrap=...`, and here-documents of shells
  /// and of sbatch.
  void runNested(const RanCommand &command, const ShellNode &node) {
    bool takesScript = false;
    for (size_t i = 0; i < command.words.size(); ++i) {
      llvm::StringRef word = command.words[i].text;
      llvm::StringRef program = word.substr(word.rfind('/') + 1);
      takesScript |= program == "bash" || program == "sh" || program == "sbatch";
      bool isFlag =
          takesScript && word.size() > 1 && word[0] == '-' && word[1] != '-' && word.endswith("c");
      if ((isFlag || word == "--wrap") && i + 1 < command.words.size())
        runText(command.words[i + 1].text, command.words[i + 1].range);
      else if (word.consume_front("--wrap="))
        runText(word, command.words[i].range);
    }
    for (const ShellWord &document : node.documents)
      if (takesScript)
        runText(state_.expandOne(document), document.range);
  }

public:
  void runText(llvm::StringRef text, SourceRange range) {
    if (depth_ + 1 > kRunDepthMax)
      return;
    // A value that the script builds: messages about it point to where it is used.
    texts_.push_back(text.str());
    ++depth_;
    if (std::optional<ShellScript> script =
            parseShell({texts_.back(), SourceLoc(), range}, diags_, depth_)) {
      scripts_.push_back(std::move(*script));
      takeDirectives(scripts_.back());
      runList(scripts_.back().list);
    }
    --depth_;
  }

  void takeDirectives(const ShellScript &script) {
    for (const ShellWord &word : script.directives)
      run_.directives.push_back({state_.expandOne(word), word.range});
  }

  void finish() {
    for (const std::string &name : state_.order()) {
      const ShellVariable *held = state_.find(name);
      if (held == nullptr)
        continue;
      if (held->exported && held->elements.size() == 1)
        run_.exported[name] = {held->elements.begin()->second.text, held->range};
      run_.arrays.push_back({name, held->isArray, held->words()});
    }
    for (const auto &[name, range] : unset_)
      run_.exported[name] = {std::nullopt, range};
  }

private:
  DiagEngine &diags_;
  ShellState state_;
  ShellRun &run_;
  std::map<std::string, const ShellList *> functions_;
  std::map<std::string, SourceRange> unset_;
  std::deque<std::string> texts_;
  std::deque<ShellScript> scripts_;
  unsigned depth_ = 0;
  bool stopped_ = false;
};

} // namespace

std::optional<ShellRun> runShell(const ShellText &text,
                                 const std::map<std::string, std::string> &variables,
                                 DiagEngine &diags) {
  std::optional<ShellScript> script = parseShell(text, diags);
  if (!script)
    return std::nullopt;
  ShellRun run;
  Runner runner(diags, run);
  for (const auto &[name, value] : variables)
    runner.state().set(name, value, {});
  runner.takeDirectives(*script);
  runner.runList(script->list);
  runner.finish();
  return run;
}

} // namespace shardc::upstream
