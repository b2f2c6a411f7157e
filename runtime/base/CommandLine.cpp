#include "runtime/base/CommandLine.h"

#include <deque>
#include <limits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/EditDistance.h"
#include "runtime/base/ExitStatus.h"
#include "runtime/base/Output.h"
#include "runtime/base/ParseNumber.h"

namespace shardc::cli {

struct Option::State {
  CLI::Option *option;
};

struct Command::State {
  std::unique_ptr<CLI::App> program; ///< null for a command, which belongs to its program's App
  CLI::App *app;
  std::deque<Option::State> options; ///< a deque, so that elements never move
  std::vector<std::unique_ptr<Command>> commands;
  std::vector<std::string> otherNames;
  UnknownHint unknownHint; ///< may be empty

  Option add(CLI::Option *option) { return Option(options.emplace_back(Option::State{option})); }
};

namespace {

/// CLI11's own range validators would print all 309 digits of a missing limit.
CLI::Validator inRange(int64_t least, int64_t most, std::string_view name) {
  bool isOpen = most == std::numeric_limits<int64_t>::max();
  std::string range = isOpen ? "at least " + std::to_string(least)
                             : std::to_string(least) + " to " + std::to_string(most);
  auto problem = [=](const std::string &text) {
    int64_t value = 0;
    return parseNumber(text, value) && value >= least && value <= most
               ? std::string()
               : "needs a whole number of " + range + "; found '" + text + "'";
  };
  return {problem, std::string(name)};
}

/// Formats up to twelve words as `'a', 'b', 'c'`.
std::string quotedList(const std::vector<std::string> &words) {
  constexpr size_t kShown = 12;
  std::string out;
  for (size_t i = 0; i < std::min(words.size(), kShown); ++i)
    out += fmt::format("{}'{}'", i ? ", " : "", words[i]);
  return words.size() > kShown ? out + fmt::format(", ... ({} more)", words.size() - kShown) : out;
}

/// Returns `; did you mean 'x'?` with the nearest word; empty if none is near.
std::string suggestion(std::string_view word, const std::vector<std::string> &known) {
  unsigned nearest = misspeltDistanceMax(word.size()) + 1;
  const std::string *found = nullptr;
  for (const std::string &each : known)
    if (unsigned distance = editDistance(word, each, nearest - 1); distance < nearest) {
      nearest = distance;
      found = &each;
    }
  return found ? fmt::format("; did you mean '{}'?", *found) : "";
}

/// CLI11's own validator would print the words in braces, also in the help.
CLI::Validator oneOfWords(const std::vector<std::string> &words) {
  auto problem = [words](const std::string &text) {
    if (std::ranges::find(words, text) != words.end())
      return std::string();
    std::string near = suggestion(text, words);
    return fmt::format("takes one of {}; found '{}'{}", quotedList(words), text, near);
  };
  return {problem, fmt::format("{{{}}}", fmt::join(words, ","))};
}

/// The full name and the App of the command that was given last, such as `shardc ckpt convert`.
std::pair<std::string, const CLI::App *> givenCommand(const CLI::App *app) {
  std::string name = app->get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().back();
    name += " " + app->get_name();
  }
  return {name, app};
}

std::string nameOf(const CLI::Option *option) {
  return option->get_positional() ? option->get_name() : option->get_name(false, true);
}

/// Names the first thing that is missing: a subcommand, or a required option with its description.
std::string explainMissing(const std::string &command, const CLI::App *app) {
  if (app->get_require_subcommand_min() > 0) {
    std::vector<std::string> names;
    for (const CLI::App *each : app->get_subcommands(nullptr))
      names.push_back(each->get_name());
    return fmt::format("'{}' needs a subcommand: {}", command, quotedList(names));
  }
  for (const CLI::Option *option : app->get_options())
    if (option->get_required() && option->count() == 0)
      return fmt::format("'{}' needs '{}': {}", command, nameOf(option), option->get_description());
  return fmt::format("'{}' needs more arguments", command);
}

/// A positional argument too many is reported as such. For an unknown option, the message suggests
/// a similar one, or what the command's hint says about it.
std::string explainExtra(const std::string &command, const CLI::App *app, const std::string &word,
                         const UnknownHint &hint) {
  if (word.empty() || word.front() != '-')
    return fmt::format("'{}' takes no further argument; found '{}'", command, word);
  std::vector<std::string> known;
  for (const CLI::Option *option : app->get_options())
    for (const std::string &name : option->get_lnames())
      known.push_back("--" + name);
  std::string name = word.substr(0, word.find('=')), near = suggestion(name, known);
  if (near.empty() && hint)
    near = hint(name);
  if (near.empty())
    near = fmt::format("; '{} --help' lists all options", command);
  return fmt::format("unknown option '{}'{}", word, near);
}

/// Explains what is wrong with a command line, in the wording of our messages.
std::string explain(const CLI::App *program, const CLI::ParseError &error,
                    const UnknownHint &hint) {
  auto [command, app] = givenCommand(program);
  std::string what = error.what();
  std::vector<std::string> extras = program->remaining(/*recurse=*/true);
  bool isRequired = dynamic_cast<const CLI::RequiredError *>(&error) != nullptr,
       isValidation = dynamic_cast<const CLI::ValidationError *>(&error) != nullptr;
  if (isRequired || isValidation) // an unknown option may be the cause
    for (const std::string &extra : extras)
      if (extra.size() > 2 && extra.starts_with("--"))
        return explainExtra(command, app, extra, hint);
  if (isRequired)
    return explainMissing(command, app);
  if (dynamic_cast<const CLI::ExtrasError *>(&error))
    return explainExtra(command, app, extras.empty() ? "" : extras.front(), hint);
  size_t colon = what.find(": ");
  std::string option = colon == std::string::npos ? "" : what.substr(0, colon);
  if (isValidation)
    return fmt::format("'{}' {}", option, what.substr(colon + 2));
  if (dynamic_cast<const CLI::ArgumentMismatch *>(&error))
    return fmt::format("'{}' needs a value", option);
  if (dynamic_cast<const CLI::ConversionError *>(&error)) { // text: `Could not convert: --role = x`
    size_t equals = what.find(" = ", colon);
    if (colon != std::string::npos && equals != std::string::npos)
      return fmt::format("'{}' needs a number; found '{}'",
                         what.substr(colon + 2, equals - colon - 2), what.substr(equals + 3));
  }
  if (size_t excludes = what.find(" excludes "); excludes != std::string::npos)
    return fmt::format("'{}' and '{}' cannot be given together", what.substr(0, excludes),
                       what.substr(excludes + 10));
  return what;
}

std::string str(std::string_view text) { return std::string(text); }

} // namespace

Option Option::required() {
  state_->option->required();
  return *this;
}

Option Option::oneOf(std::initializer_list<std::string_view> words) {
  return oneOf(std::vector<std::string>(words.begin(), words.end()));
}

Option Option::oneOf(const std::vector<std::string> &words) {
  state_->option->check(oneOfWords(words));
  return *this;
}

Option Option::between(int64_t least, int64_t most, std::string_view name) {
  state_->option->check(inRange(least, most, name));
  return *this;
}

Option Option::positive() { return between(1, std::numeric_limits<int64_t>::max(), "POSITIVE"); }

Option Option::nonNegative() {
  return between(0, std::numeric_limits<int64_t>::max(), "NONNEGATIVE");
}

Option Option::checked(std::function<std::string(const std::string &)> problem) {
  state_->option->check(
      CLI::Validator([problem](std::string &value) { return problem(value); }, ""));
  return *this;
}

Option Option::threadCount() { return between(1, 1024, "1..1024"); }

Option Option::repeatable() {
  state_->option->expected(1)->take_all();
  return *this;
}

Option Option::repeatableOneByOne() {
  state_->option->expected(1)->allow_extra_args(false)->take_all();
  return *this;
}

Option Option::takes(int least, int most) {
  state_->option->expected(least, most);
  return *this;
}

Option Option::showsDefault() {
  state_->option->capture_default_str();
  return *this;
}

Option Option::showsDefault(const std::string &text) {
  state_->option->default_str(text);
  return *this;
}

Option Option::hidden() {
  state_->option->group("");
  return *this;
}

Option Option::excludes(Option other) {
  state_->option->excludes(other.state_->option);
  return *this;
}

Command::Command(std::unique_ptr<State> state) : state_(std::move(state)) {}
Command::~Command() = default;

Option Command::option(std::string_view names, std::string &value, std::string_view about) {
  return state_->add(state_->app->add_option(str(names), value, str(about)));
}

Option Command::option(std::string_view names, std::vector<std::string> &values,
                       std::string_view about) {
  return state_->add(state_->app->add_option(str(names), values, str(about)));
}

Option Command::option(std::string_view names, int &value, std::string_view about) {
  return state_->add(state_->app->add_option(str(names), value, str(about)));
}

Option Command::option(std::string_view names, int64_t &value, std::string_view about) {
  return state_->add(state_->app->add_option(str(names), value, str(about)));
}

Option Command::option(std::string_view names, std::optional<uint64_t> &value,
                       std::string_view about) {
  return state_->add(state_->app->add_option(str(names), value, str(about)));
}

Option Command::flag(std::string_view names, bool &value, std::string_view about) {
  return state_->add(state_->app->add_flag(str(names), value, str(about)));
}

Option Command::flag(std::string_view names, std::string &value, std::string_view about) {
  return state_->add(state_->app->add_flag(str(names), value, str(about)));
}

Option Command::flag(std::string_view names, std::function<void()> action, std::string_view about) {
  auto run = [action = std::move(action)](int64_t) { action(); };
  CLI::Option *flag = state_->app->add_flag_function(str(names), run, str(about));
  return state_->add(flag->trigger_on_parse());
}

Command &Command::addCommand(std::string_view name, std::string_view about) {
  auto state = std::make_unique<State>();
  state->app = state_->app->add_subcommand(str(name), str(about));
  state_->commands.push_back(std::unique_ptr<Command>(new Command(std::move(state))));
  return *state_->commands.back();
}

Command &Command::alsoCalled(std::initializer_list<std::string_view> words) {
  state_->otherNames.assign(words.begin(), words.end());
  return *this;
}

Command &Command::hintsAtUnknown(UnknownHint hint) {
  state_->unknownHint = std::move(hint);
  return *this;
}

const UnknownHint &Command::givenHint() const {
  for (const std::unique_ptr<Command> &command : state_->commands)
    if (command->state_->app->parsed())
      return command->givenHint();
  return state_->unknownHint;
}

void Command::requireCommand() { state_->app->require_subcommand(1); }

void Command::onUse(std::function<void()> action) { state_->app->callback(std::move(action)); }

std::string Command::name() const { return state_->app->get_name(); }

bool Command::needsCommand() const { return state_->app->get_require_subcommand_min() > 0; }

std::vector<std::string> Command::commandNames() const {
  std::vector<std::string> names;
  for (const std::unique_ptr<Command> &command : state_->commands)
    names.push_back(command->name());
  return names;
}

const Command *Command::findCommand(std::string_view name) const {
  for (const std::unique_ptr<Command> &command : state_->commands)
    if (command->name() == name)
      return command.get();
  return nullptr;
}

std::optional<std::string> Command::findUnknown(std::span<const std::string> words) const {
  if (!needsCommand() || words.empty() || words.front().empty() || words.front().front() == '-')
    return std::nullopt;
  const std::string &word = words.front();
  if (const Command *command = findCommand(word))
    return command->findUnknown(words.subspan(1));
  std::vector<std::string> names = commandNames();
  std::string near = suggestion(word, names);
  for (const std::unique_ptr<Command> &command : state_->commands)
    if (std::ranges::find(command->state_->otherNames, word) != command->state_->otherNames.end())
      near = fmt::format("; did you mean '{}'?", command->name());
  return fmt::format("unknown subcommand '{}'{}", word,
                     near.empty() ? "; the subcommands are " + quotedList(names) : near);
}

std::string Command::help(const std::string &name) const {
  // CLI11's own help() would describe the command that was given.
  const CLI::App *app = state_->app;
  return app->get_formatter()->make_help(app, name, CLI::AppFormatMode::Normal);
}

Program::Program(std::string_view about, std::string_view name)
    : Command(std::make_unique<State>()) {
  state_->program = std::make_unique<CLI::App>(str(about), str(name));
  state_->app = state_->program.get();
}

Program::~Program() = default;

void Program::versionFlag(std::string_view names, std::function<std::string()> lines,
                          std::string_view about) {
  state_->app->set_version_flag(str(names), std::move(lines), str(about));
}

std::optional<int> Program::parse(int argc, const char *const *argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (std::optional<std::string> unknown = findUnknown(words))
    return refuse(*unknown);
  try {
    state_->app->parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    if (error.get_exit_code() == 0) // the help or the version was requested
      return state_->app->exit(error);
    return refuse(explain(state_->app, error, givenHint()));
  }
  return std::nullopt;
}

int Program::refuseWithout(const std::string &name) {
  const CLI::Option *option = state_->app->get_option(name);
  return refuse(
      fmt::format("'{}' needs '{}': {}", state_->app->get_name(), name, option->get_description()));
}

int Program::refuse(const std::string &text) const {
  printError("{}: error: {}\n", state_->app->get_name(), text);
  return kUsageStatus;
}

const char *libraryVersion() { return CLI11_VERSION; }

} // namespace shardc::cli
