// Command lines: the commands of a program, their options, flags and positional arguments, and the
// constraints on values. CLI11 parses them and prints the help. Its headers take seconds to
// compile, so only CommandLine.cpp includes them.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::cli {

/// Returns a text to print after the name of an unknown option; empty if it has none.
using UnknownHint = std::function<std::string(const std::string &option)>;

/// An option, a flag or a positional argument of a command; valid as long as the program. Each
/// function adds a condition or changes the help, and returns the option.
class Option {
public:
  Option required();
  /// Requires one of these words, which the help lists.
  Option oneOf(std::initializer_list<std::string_view> words);
  Option oneOf(const std::vector<std::string> &words);
  /// Requires a whole number from `least` to `most`, both included; the help calls it `name`.
  Option between(int64_t least, int64_t most, std::string_view name);
  Option positive();
  Option nonNegative();
  /// Requires a value of which `problem` says nothing.
  Option checked(std::function<std::string(const std::string &value)> problem);
  /// Requires 1 to 1024: more threads than a machine has cores only use memory.
  Option threadCount();
  /// Makes a list that grows each time the option is given. Words that follow the first value are
  /// values too, unless a positional argument needs them. The help shows one value.
  Option repeatable();
  /// Like repeatable(), but each time takes exactly one value.
  Option repeatableOneByOne();
  /// Requires a list of `least` to `most` values.
  Option takes(int least, int most);
  /// Shows the variable's present value, or `text`, as the default in the help.
  Option showsDefault();
  Option showsDefault(const std::string &text);
  /// Omits the option from the help.
  Option hidden();
  /// Refuses command lines with both options.
  Option excludes(Option other);

private:
  friend class Command;
  struct State;
  explicit Option(State &state) : state_(&state) {}

  State *state_;
};

/// A program or one of its commands. Variables are set when the command line is parsed, so they
/// must outlive that. Names have CLI11's form: `-o,--output`; `folder` for a positional argument;
/// `--fix{applied}` for a flag that may have a value; `!--no-x` for a flag that sets false.
class Command {
public:
  ~Command();
  Command(const Command &) = delete;
  Command &operator=(const Command &) = delete;

  Option option(std::string_view names, std::string &value, std::string_view about);
  Option option(std::string_view names, std::vector<std::string> &values, std::string_view about);
  Option option(std::string_view names, int &value, std::string_view about);
  Option option(std::string_view names, int64_t &value, std::string_view about);
  Option option(std::string_view names, std::optional<uint64_t> &value, std::string_view about);
  Option flag(std::string_view names, bool &value, std::string_view about);
  Option flag(std::string_view names, std::string &value, std::string_view about);
  /// Runs `action` each time the flag is read, in the order of the command line.
  Option flag(std::string_view names, std::function<void()> action, std::string_view about);

  Command &addCommand(std::string_view name, std::string_view about);
  /// Names that other programs use for this command. A user who types one is told the name of this
  /// command.
  Command &alsoCalled(std::initializer_list<std::string_view> words);
  /// `hint` provides the message for an unknown option that resembles none of the command's
  /// options.
  Command &hintsAtUnknown(UnknownHint hint);
  /// Requires that the user names one of the commands.
  void requireCommand();
  /// Runs `action` after the whole command line was parsed without errors.
  void onUse(std::function<void()> action);

  std::string name() const;
  /// Whether requireCommand() was called.
  bool needsCommand() const;
  std::vector<std::string> commandNames() const;
  /// An error about the first word that is not a command, if a command is required.
  std::optional<std::string> findUnknown(std::span<const std::string> words) const;
  /// The command with this name; null if there is none.
  const Command *findCommand(std::string_view name) const;
  /// The text that --help prints, with `name` in the usage line.
  std::string help(const std::string &name) const;

private:
  friend class Program;
  struct State;
  explicit Command(std::unique_ptr<State> state);
  /// The hint for unknown options of the command that was given last.
  const UnknownHint &givenHint() const;

  std::unique_ptr<State> state_;
};

/// The whole command line. Its commands and options live as long as it.
class Program : public Command {
public:
  Program(std::string_view about, std::string_view name);
  ~Program();

  /// Adds a flag that prints the result of `lines` and ends the program.
  void versionFlag(std::string_view names, std::function<std::string()> lines,
                   std::string_view about);
  /// Parses the command line and runs the actions. Returns an exit status if the program must end:
  /// 0 after --help, kUsageStatus after an error. The text has been printed in both cases.
  std::optional<int> parse(int argc, const char *const *argv);
  /// Prints that the option or positional argument is required, and returns kUsageStatus.
  int refuseWithout(const std::string &name);
  /// Prints `program: error: text`, and returns kUsageStatus.
  int refuse(const std::string &text) const;
};

/// The version of CLI11.
const char *libraryVersion();

} // namespace shardc::cli
