#include "runtime/base/CommandLine.h"

#include <charconv>
#include <deque>
#include <limits>

#include <CLI/CLI.hpp>

#include "runtime/base/ExitStatus.h"

namespace shardc::cli {

struct Option::State {
  CLI::Option *option;
};

struct Command::State {
  std::unique_ptr<CLI::App> program; ///< null for a command, which belongs to its program
  CLI::App *app;
  std::deque<Option::State> options; ///< never move
  std::vector<std::unique_ptr<Command>> commands;

  Option add(CLI::Option *option) { return Option(options.emplace_back(Option::State{option})); }
};

namespace {

std::optional<int64_t> wholeNumber(const std::string &text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool isWhole = error == std::errc() && end == text.data() + text.size();
  return isWhole ? std::optional(value) : std::nullopt;
}

/// CLI11's own ranges print a limit that is not there with its 309 digits.
CLI::Validator inRange(int64_t least, int64_t most, std::string_view name) {
  bool isOpen = most == std::numeric_limits<int64_t>::max();
  std::string range = isOpen ? "at least " + std::to_string(least)
                             : std::to_string(least) + " to " + std::to_string(most);
  auto problem = [=](const std::string &text) {
    std::optional<int64_t> value = wholeNumber(text);
    return value && *value >= least && *value <= most
               ? std::string()
               : "needs a whole number of " + range + ", found '" + text + "'";
  };
  return {problem, std::string(name)};
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
  state_->option->check(CLI::IsMember(words));
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

std::string Command::help(const std::string &name) const {
  // Not CLI11's help(), which describes the command that was given.
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
  try {
    state_->app->parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    return state_->app->exit(error) == 0 ? 0 : kUsageStatus;
  }
  return std::nullopt;
}

int Program::refuseWithout(const std::string &name) {
  state_->app->exit(CLI::RequiredError(name));
  return kUsageStatus;
}

const char *libraryVersion() { return CLI11_VERSION; }

} // namespace shardc::cli
