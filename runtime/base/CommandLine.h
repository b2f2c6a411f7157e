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

/// Text to print after the name of an unknown option; empty if there is none.
using UnknownHint = std::function<std::string(const std::string &option)>;

/// An option, a flag or a positional argument, as its command made it; valid as long as the
/// program. Each function adds a condition or changes the help, and returns the option.
class Option {
public:
  Option required();
  /// The value is one of these words, which the help lists.
  Option oneOf(std::initializer_list<std::string_view> words);
  Option oneOf(const std::vector<std::string> &words);
  /// The value is a whole number in this range, ends included; the help calls it `name`.
  Option between(int64_t least, int64_t most, std::string_view name);
  Option positive();
  Option nonNegative();
  /// 1 to 1024: more threads than any machine has cores only take memory.
  Option threadCount();
  /// A list that grows each time that the option is given. The help shows one value, but words that
  /// follow it are values too where no positional argument waits for them.
  Option repeatable();
  /// The same, with exactly one value each time.
  Option repeatableOneByOne();
  /// A list of `least` to `most` values.
  Option takes(int least, int most);
  /// The help shows the variable's present value, or `text`.
  Option showsDefault();
  Option showsDefault(const std::string &text);
  /// The help does not list it.
  Option hidden();
  /// The two cannot be given together.
  Option excludes(Option other);

private:
  friend class Command;
  struct State;
  explicit Option(State &state) : state_(&state) {}

  State *state_;
};

/// A program or one of its commands. Variables are set when the command line is parsed, and outlive
/// that. Names are CLI11's: `-o,--output`; `folder` for a positional argument; `--fix{applied}` for
/// a flag that may have a value; `!--no-x` for a flag that sets false.
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
  /// `action` runs each time that the flag is read, in the order of the command line.
  Option flag(std::string_view names, std::function<void()> action, std::string_view about);

  Command &addCommand(std::string_view name, std::string_view about);
  /// Names that other programs use for this command: a user who types one gets this command's name.
  Command &alsoCalled(std::initializer_list<std::string_view> words);
  /// `hint` writes the message for an unknown option that resembles none of the command's options.
  Command &hintsAtUnknown(UnknownHint hint);
  /// Requires that the user names one of the commands.
  void requireCommand();
  /// Runs when the whole command line was read and is right.
  void onUse(std::function<void()> action);

  std::string name() const;
  /// Whether requireCommand() was called.
  bool needsCommand() const;
  std::vector<std::string> commandNames() const;
  /// An error about the first word that is not a command where one is required.
  std::optional<std::string> findUnknown(std::span<const std::string> words) const;
  /// The command of this name; null if there is none.
  const Command *findCommand(std::string_view name) const;
  /// What --help prints, with `name` in the usage.
  std::string help(const std::string &name) const;

private:
  friend class Program;
  struct State;
  explicit Command(std::unique_ptr<State> state);
  /// The hint for unknown words of the last command that was given.
  const UnknownHint &givenHint() const;

  std::unique_ptr<State> state_;
};

class Program : public Command {
public:
  Program(std::string_view about, std::string_view name);
  ~Program();

  /// `lines` makes what is printed.
  void versionFlag(std::string_view names, std::function<std::string()> lines,
                   std::string_view about);
  /// Parses the command line and runs the actions. Returns the exit status if the program is to end
  /// here: 0 after --help, kUsageStatus after an error. The text has then been printed.
  std::optional<int> parse(int argc, const char *const *argv);
  /// Prints that the option or positional argument is required; kUsageStatus.
  int refuseWithout(const std::string &name);
  /// Prints `program: error: text`; kUsageStatus.
  int refuse(const std::string &text) const;
};

/// CLI11's version.
const char *libraryVersion();

} // namespace shardc::cli
