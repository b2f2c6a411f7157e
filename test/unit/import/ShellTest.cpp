// The shell reader against bash itself: random scripts with a fixed seed, whose commands get the
// same words from both, or words that the reader calls unknown. The scripts hold what launch
// scripts do: quotes inside of words, escapes, `$'...'`, variables, arrays, operators, arithmetic,
// conditions; and loops, functions and here-documents, which the reader does not evaluate.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "compiler/upstream/Shell.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::upstream {
namespace {

constexpr unsigned kScripts = 1000;
constexpr unsigned kDepthMax = 3;

using Words = std::vector<std::string>;

/// Writes scripts whose commands are all calls of `P`.
class Draw {
public:
  explicit Draw(unsigned seed) : random_(seed) {}

  std::string script() {
    // What a script never sets stays visible here, and is empty for bash.
    std::string text = "v= w= n=1 a=() b=()\n";
    for (const char *name : {"v", "w"})
      text += std::string(name) + "=" + word() + "\n";
    for (const char *name : {"a", "b"})
      text += std::string(name) + "=(" + elements() + ")\n";
    size_t count = 1 + below(5);
    for (size_t i = 0; i < count; ++i)
      text += statement();
    return text;
  }

private:
  size_t below(size_t bound) { return random_() % bound; }
  template <typename... Options> std::string pick(Options... options) {
    const char *all[] = {options...};
    return all[below(sizeof...(options))];
  }

  std::string statement() {
    switch (below(16)) {
    case 0:
    case 1:
      return assignment() + "\n";
    case 2:
      return pick("a", "b") + pick("[0]", "[1]", "[4]", "[2+1]", "[-1]") + pick("=", "+=") +
             word() + "\n";
    case 3:
      return "f() { " + assignment() + "; " + command() + "}\nf " + words() + "\n";
    case 4:
      return document();
    case 5:
      return "export v=" + word() + " w=" + word() + "; " + command();
    case 6:
      return "u=" + word() + " " + command();
    case 7:
      return pick("true &&", "false ||", "! false &&", "false &&", "true ||",
                  (condition() + " &&").c_str(), (condition() + " ||").c_str()) +
             " " + pick(command().c_str(), (assignment() + "\n").c_str());
    case 8:
      return compound();
    case 9:
      return pick("((n += 1))\n", "read v <<< x\n", "set -- p \"q r\"\n", "unset v\n",
                  "printf -v w %s x\n", "let n=2\n", "v=$(echo 1)\n", "w=$((n++))\n",
                  "declare -i n=3\n", "declare -i v\n", "unset 'a[1]'\n", "[ x = x ] && v=3\n",
                  "v=2 | cat\n", "IFS=,\n");
    default:
      return command();
    }
  }

  std::string assignment() {
    if (below(2) != 0)
      return pick("v", "w", "n") + pick("=", "+=") + word();
    return pick("a", "b") + pick("=(", "+=(") + elements() + ")";
  }

  /// Something that guards an assignment and a command, as often as bash pleases.
  std::string compound() {
    std::string body = command() + assignment() + "\n" + command();
    switch (below(7)) {
    case 0:
      return "if " + condition() + pick("", " && true", " || false") + "; then\n" + body +
             pick("", ("elif " + condition() + "\nthen\n" + assignment() + "\n").c_str()) +
             "else\n" + command() + "fi\n" + command();
    case 1:
      return "for i in 1 2; do\n" + body + "done\n";
    case 2:
      return "for ((n = 0; n < 2; n++)); do\n" + body + "done\n";
    case 3:
      return "k=2\nwhile [ $k -gt 0 ]; do\n" + body + "k=$((k - 1))\ndone\n";
    case 4:
      return "case " + pick("$w", "\"$v\"", "x-1") + " in\n" +
             pick("x*", "(x|'*')", "*-*", "\"$w\"", "[x-z]", "x?y", "\"\"") + ") " + assignment() +
             pick(" ;;\n", " ;;\n", " ;&\n") + "*) " + assignment() + " ;;\nesac\n" + command();
    case 5:
      return "{\n" + body + "}\n";
    default:
      return "(\n" + body + ")\n";
    }
  }

  std::string condition() {
    switch (below(6)) {
    case 0:
      return pick("[ ", "! [ ! ", "[ ! ") + pick("-n", "-z") + " \"" + quoted() + "\" ]";
    case 1:
      return "[ " + word() + pick(" = ", " != ", " == ") + word() + " ]";
    case 2:
      return "[[ " + expansion(false) + pick(" == ", " != ", " = ") +
             pick("x*", "\"x\"*", "$v", "a?b", "''", "'*'", "x") +
             pick("", " && -n $w", " || $n -gt 1", " && ! -z \"$v\" || $w != x") + " ]]";
    case 3:
      return "[ $n " + pick("-eq", "-lt", "-ge", "-ne") + " " + pick("1", "01", "0x1", "$n") + " ]";
    case 4:
      return "[[ $n " + pick("-le", "-gt", "-eq") + " " + pick("1", "010", "n+1") + " ]]";
    default:
      return "[ " + words() + "]";
    }
  }

  /// `P`, and a number by which the call is found again.
  std::string command() {
    return "P " + std::to_string(++numCalls_) + " " + words() +
           pick("", "", " # it's \"", " >/dev/stdout") + "\n";
  }

  std::string words() {
    std::string text;
    size_t count = below(5);
    for (size_t i = 0; i < count; ++i)
      text += word() + pick(" ", " ", "  ", "\t", " \\\n ");
    return text;
  }

  std::string elements() {
    std::string text;
    size_t count = below(4);
    for (size_t i = 0; i < count; ++i)
      text += (below(8) == 0 ? "[" + pick("1", "3", "2*2") + "]=" : "") + word() + pick(" ", "\n ");
    return text;
  }

  /// A here-document for a shell of its own.
  std::string document() {
    bool strips = below(2) != 0;
    std::string tab = strips ? "\t" : "";
    std::string delimiter = pick("EOF", "'EOF'", "\"EOF\"", "\\EOF", "E'O'F");
    std::string text =
        std::string("bash <<") + (strips ? "-" : "") + pick("", " ") + delimiter + "\n";
    size_t count = 1 + below(3);
    for (size_t i = 0; i < count; ++i)
      text += tab + "true " + plainText() + " '" +
              pick("${#v}", "${#a[@]}", "\\$v", "a b", " EOF", "$((1+2))") + "' \"" +
              pick("x y", "'") + "\"\n";
    return text + (below(4) == 0 && !strips ? " EOF\n" : "") + tab + "EOF\n";
  }

  std::string word() {
    std::string text;
    size_t count = 1 + below(4);
    for (size_t i = 0; i < count; ++i)
      text += piece(i == 0);
    return text;
  }

  std::string plainText() {
    return pick("--lr", "x", "a=b", "1e-4", "/p/q.py", "a:b", "%u@h", "+x", "A,B", "model.n=2", "-",
                "*");
  }

  std::string piece(bool isFirst) {
    switch (below(13)) {
    case 0:
      return "'" + pick("", "a b", "$v", "\"", "\\", "#", "a\nb", "${x}") + "'";
    case 1:
      return "\"${" + pick("a", "b") + "[@]}\"";
    case 2:
      return "\"" + quoted() + "\"";
    case 3:
      return "$'" + ansi() + ansi() + "'";
    case 4:
      return "\\" + pick(" ", "\\", "\"", "'", "$", "a", "#", ";", "&", "\n", "(", "*", "{");
    case 5:
    case 6:
      return expansion(false);
    case 7:
      return isFirst ? "x#y" : "#";
    default:
      return plainText();
    }
  }

  std::string ansi() {
    return pick("a", " ", "\\n", "\\t", "\\\\", "\\'", "\\\"", "\\x41", "\\x7", "\\101", "\\60",
                "\\u00e9", "\\U0001F600", "\\e", "\\cA", "\\q", "\\?", "$v", "\"", "\\a", "\\0x");
  }

  std::string quoted() {
    std::string text;
    size_t count = below(4);
    for (size_t i = 0; i < count; ++i)
      text += below(2) ? expansion(true)
                       : pick("a b", "\\\"", "\\\\", "\\$v", "\\x", "'", "$ ", "$'", "\\\n", "#",
                              "  ", "\\`", "x");
    return text;
  }

  std::string argument(bool isQuoted) {
    if (depth_ >= kDepthMax)
      return "d";
    ++depth_;
    std::string text;
    size_t count = below(4);
    for (size_t i = 0; i < count; ++i)
      switch (below(6)) {
      case 0:
        text += isQuoted ? "x" : "'a b'";
        break;
      case 1:
        text += isQuoted ? "y" : "\"" + quoted() + "\"";
        break;
      case 2:
        text += expansion(isQuoted);
        break;
      case 3:
        text += " ";
        break;
      default:
        text += pick("x", "-1", "\\\\", "\\}", "a/b", "*");
      }
    --depth_;
    return text;
  }

  std::string expansion(bool isQuoted) {
    std::string name = pick("v", "w"), array = pick("a", "b");
    switch (below(13)) {
    case 0:
    case 1:
      return "$" + name + pick("/", "-", ".", ":"); // or what follows is part of the name
    case 2:
      return "${" + name + "}";
    case 3:
      return "${#" + pick("v", "w", "a", "a[@]", "b[*]", "a[1]") + "}";
    case 4:
      return "${" + array + "[" + pick("0", "1", "-1", "3", "1+1") + "]}";
    case 5:
    case 6:
      // What is empty beside an empty list, both in quotes, makes no word in some shells.
      return "${" + array + "[" + pick("@", "*") + "]}" + (isQuoted ? "x" : "");
    case 7:
      return "$" + array + pick("/", "-");
    case 8:
    case 9:
      return "${" + pick("v", "never", "a[1]", isQuoted ? "b[0]" : "b[@]") +
             pick(":-", "-", ":+", "+") + argument(isQuoted) + "}";
    case 10:
      return "${" + pick("v", "fresh") + pick(":=", "=") + argument(isQuoted) + "}";
    default:
      return "$((" + pick("1", "0x1f", "010", "-7", "(2 + 3)") + pick("+", " - ", "*", " / ", "%") +
             pick("3", "(1+1)", "-2", "12") + "))";
    }
  }

  std::mt19937 random_;
  unsigned depth_ = 0;
  unsigned numCalls_ = 0;
};

std::string readAll(FILE *pipe) {
  std::string out;
  char buffer[1 << 16];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    out.append(buffer, n);
  return out;
}

/// Calls of P by their numbers, each with its words.
using Calls = std::multimap<std::string, Words>;

/// What bash hands to P in each script.
std::vector<Calls> runBash(const std::vector<std::string> &scripts) {
  namespace fs = std::filesystem;
  test::TempFolder temporary(fs::temp_directory_path());
  fs::path folder = temporary.path();
  fs::create_directories(folder / "empty"); // where no pattern finds a file
  // Each in a shell of its own, so that none can end the others.
  std::string all = "P() { printf '%s\\0' \"$#\" \"$@\"; }\nexport -f P\n";
  for (size_t i = 0; i < scripts.size(); ++i) {
    std::string name = std::to_string(i) + ".sh";
    std::ofstream(folder / name) << scripts[i];
    all += "bash --norc ../" + name + "\nprintf 'end\\0'\n";
  }
  std::ofstream(folder / "all.sh") << all;
  FILE *pipe =
      ::popen(("cd '" + (folder / "empty").string() +
               "' && env -i PATH=\"$PATH\" LC_ALL=C.UTF-8 bash --norc ../all.sh 2>/dev/null")
                  .c_str(),
              "r");
  std::string out = readAll(pipe);
  ::pclose(pipe);
  std::vector<Calls> runs(1);
  size_t at = 0;
  auto next = [&] {
    size_t end = std::min(out.find('\0', at), out.size());
    std::string word = out.substr(at, end - at);
    at = end + 1;
    return word;
  };
  while (at < out.size()) {
    std::string word = next();
    if (word == "end") {
      runs.emplace_back();
      continue;
    }
    std::string number = next();
    Words words;
    for (size_t left = std::stoul(word) - 1; left > 0; --left)
      words.push_back(next());
    runs.back().emplace(number, std::move(words));
  }
  runs.pop_back();
  return runs;
}

std::string shown(const Words &words) {
  std::string out;
  for (const std::string &word : words)
    out += "<" + word + ">";
  return out;
}

struct Counts {
  size_t calls = 0, known = 0;
};

/// A description of the first call whose words are known to the reader and others to bash.
std::string compare(const std::string &script, const Calls &wanted, Counts &counts) {
  SourceManager sources;
  DiagEngine diags(sources);
  std::optional<ShellRun> run = readShell(sources.addBuffer("s.sh", script), {}, diags);
  if (!run)
    return "refused: " + diags.pending().front().text;
  for (const RanCommand &command : run->commands) {
    if (command.words.front().text != "P")
      continue;
    bool isKnown = true;
    Words got;
    for (size_t i = 2; i < command.words.size(); ++i) {
      isKnown &= command.words[i].unknown == nullptr;
      got.push_back(command.words[i].text);
    }
    ++counts.calls;
    counts.known += isKnown ? 1 : 0;
    auto [begin, end] = wanted.equal_range(command.words[1].text);
    for (auto at = begin; at != end && isKnown; ++at)
      if (at->second != got)
        return "bash: " + command.words[1].text + shown(at->second) + "\nhere: " + shown(got);
  }
  return {};
}

TEST(Shell, GivesTheWordsThatBashGivesOrNone) {
  std::vector<std::string> scripts;
  for (unsigned seed = 0; seed < kScripts; ++seed)
    scripts.push_back(Draw(seed).script());
  std::vector<Calls> wanted = runBash(scripts);
  ASSERT_EQ(wanted.size(), scripts.size());
  size_t numDifferent = 0;
  Counts counts;
  for (size_t i = 0; i < scripts.size(); ++i)
    if (std::string what = compare(scripts[i], wanted[i], counts);
        !what.empty() && ++numDifferent <= 10)
      ADD_FAILURE() << "seed " << i << ":\n" << scripts[i] << what;
  EXPECT_EQ(numDifferent, 0u);
  EXPECT_GT(counts.calls, 2 * scripts.size());
  EXPECT_GT(3 * counts.known, counts.calls) << counts.known << " of " << counts.calls;
}

} // namespace
} // namespace shardc::upstream
