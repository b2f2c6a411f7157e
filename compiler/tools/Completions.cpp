// Completions for bash, zsh and fish. All of them complete subcommands, options, and the words that
// an option takes. After --set and explain they complete names of the option table, elsewhere
// files.
#include <fmt/format.h>

#include "compiler/basic/ShellWord.h"
#include "compiler/tools/CommandHelp.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::tools {
namespace {

std::string joined(const std::vector<std::string> &words, const char *separator = " ") {
  std::string out;
  for (const std::string &word : words)
    out += (out.empty() ? "" : separator) + word;
  return out;
}

/// The command of a page as a key: `shardc ckpt convert`.
std::string keyOf(const HelpPage &page) { return joined(page.words); }

void flatten(const HelpPage &page, std::vector<const HelpPage *> &out) {
  out.push_back(&page);
  for (const HelpPage &child : page.children)
    flatten(child, out);
}

std::vector<const HelpPage *> allPages(const std::vector<HelpPage> &programs) {
  std::vector<const HelpPage *> pages;
  for (const HelpPage &program : programs)
    flatten(program, pages);
  return pages;
}

std::vector<std::string> optionNames(const HelpPage &page) {
  std::vector<std::string> names;
  for (const HelpEntry &entry : page.options)
    names.insert(names.end(), entry.names.begin(), entry.names.end());
  return names;
}

/// The words for a positional argument: its choices or, for explain, names of the tables.
std::vector<std::string> argumentWords(const HelpPage &page, const CompletionWords &words) {
  if (page.words.size() == 2 && page.words.back() == "explain") {
    std::vector<std::string> names = words.explainable;
    names.emplace_back("adjustments");
    return names;
  }
  return page.positionals.empty() ? std::vector<std::string>() : page.positionals.front().choices;
}

std::string programNames(const std::vector<HelpPage> &programs) {
  std::string out;
  for (const HelpPage &program : programs)
    out += (out.empty() ? "" : " ") + program.words.front();
  return out;
}

} // namespace

/// Bash completes by tables that this function writes: subcommands, options and words of arguments
/// of each command, and the choices of each option.
std::string bashCompletion(const std::vector<HelpPage> &programs, const CompletionWords &words) {
  std::string out = "# Completion of shardc's programs for bash, made from their help.\n"
                    "_shardc_settings=" +
                    shellQuoted(joined(words.settings)) +
                    "\n_shardc_groups=" + shellQuoted(joined(words.groups)) +
                    "\n\n# _shardc_words COMMAND: subcommands, options, words of an argument.\n"
                    "_shardc_words() {\n  case $1 in\n";
  for (const HelpPage *page : allPages(programs)) {
    std::vector<std::string> names;
    for (const HelpPage &child : page->children)
      names.push_back(child.words.back());
    out += fmt::format("  {}) commands={} options={} arguments={} ;;\n", shellQuoted(keyOf(*page)),
                       shellQuoted(joined(names)), shellQuoted(joined(optionNames(*page))),
                       shellQuoted(joined(argumentWords(*page, words))));
  }
  out += "  esac\n}\n\n# _shardc_choices COMMAND OPTION: what the option takes.\n"
         "_shardc_choices() {\n  case \"$1 $2\" in\n";
  for (const HelpPage *page : allPages(programs))
    for (const HelpEntry &entry : page->options)
      for (const std::string &name : entry.names)
        if (!entry.choices.empty())
          out += fmt::format("  {}) choices={} ;;\n", shellQuoted(keyOf(*page) + " " + name),
                             shellQuoted(joined(entry.choices)));
  out += R"(  esac
}

_shardc() {
  local commands options arguments choices word at command=${COMP_WORDS[0]##*/}
  local current=${COMP_WORDS[COMP_CWORD]}
  local last=${COMP_WORDS[COMP_CWORD-1]}
  # '=' is a separate word in bash's list: `model.` follows `--set` or `--set` `=`.
  [ "$last" = = ] && last=${COMP_WORDS[COMP_CWORD-2]}
  [ "$current" = = ] && current= last=${COMP_WORDS[COMP_CWORD-1]}
  _shardc_words "$command"
  for ((at = 1; at < COMP_CWORD; ++at)); do
    word=${COMP_WORDS[at]}
    case " $commands " in *" $word "*) command="$command $word" && _shardc_words "$command" ;; esac
  done
  _shardc_choices "$command" "$last"
  COMPREPLY=()
  if [ "$last" = --set ]; then
    compopt -o nospace 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -W "$_shardc_settings" -- "$current")
  elif [ -n "$choices" ]; then
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
  elif [[ $current == -W* ]]; then
    mapfile -t COMPREPLY < <(compgen -P -W -W "error $_shardc_groups no-${_shardc_groups// / no-}" \
      -- "${current#-W}")
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [ -n "$commands" ]; then
    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$current")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -W "$arguments" -- "$current"; compgen -f -- "$current")
  fi
}
)";
  return out + "complete -F _shardc " + programNames(programs) + "\n";
}

std::string zshCompletion(const std::vector<HelpPage> &programs, const CompletionWords &words) {
  std::string out = "#compdef " + programNames(programs) +
                    "\n# Completion of shardc's programs for zsh, made from their help.\n"
                    "local -a settings=(" +
                    joined(words.settings) + ")\nlocal -a groups=(" + joined(words.groups) +
                    ")\nlocal -a commands options arguments choices\n"
                    "local command=${words[1]:t} word last=${words[CURRENT-1]}\n"
                    "_shardc_words() {\n  commands=() options=() arguments=()\n  case $1 in\n";
  auto described = [](llvm::StringRef name, llvm::StringRef text) {
    std::string escaped;
    for (char c : name)
      escaped += c == ':' ? std::string("\\:") : std::string(1, c);
    return shellQuoted(escaped + ":" + text.str());
  };
  for (const HelpPage *page : allPages(programs)) {
    out += fmt::format("  {}) commands=(", shellQuoted(keyOf(*page)));
    for (const HelpPage &child : page->children)
      out += described(child.words.back(), child.summary) + " ";
    out += ")\n    options=(";
    for (const HelpEntry &entry : page->options)
      for (const std::string &name : entry.names)
        out += described(name, entry.text) + " ";
    out += fmt::format(")\n    arguments=({}) ;;\n", joined(argumentWords(*page, words)));
  }
  out += "  esac\n}\n_shardc_choices() {\n  choices=()\n  case \"$1 $2\" in\n";
  for (const HelpPage *page : allPages(programs))
    for (const HelpEntry &entry : page->options)
      for (const std::string &name : entry.names)
        if (!entry.choices.empty())
          out += fmt::format("  {}) choices=({}) ;;\n", shellQuoted(keyOf(*page) + " " + name),
                             joined(entry.choices));
  out += R"(  esac
}
_shardc_words $command
for word in ${words[2,CURRENT-1]}; do
  [[ -n ${(M)commands:#$word:*} ]] && command="$command $word" && _shardc_words $command
done
if compset -P '--set='; then last=--set; elif compset -P '--*='; then last=${IPREFIX%=}; fi
_shardc_choices $command $last
if [[ $last == --set ]]; then
  compadd -S '' -a settings
elif (( $#choices )); then
  compadd -a choices
elif compset -P '-W'; then
  compadd error $groups no-$^groups
elif [[ $PREFIX == -* ]]; then
  _describe option options
elif (( $#commands )); then
  _describe command commands
else
  compadd -a arguments
  _files
fi
)";
  return out;
}

/// Fish takes one line per subcommand and option, with a condition on the subcommands that were
/// typed before.
std::string fishCompletion(const std::vector<HelpPage> &programs, const CompletionWords &words) {
  std::string out = "# Completion of shardc's programs for fish, made from their help.\n"
                    "set -g __shardc_settings " +
                    joined(words.settings) + "\nset -g __shardc_groups " + joined(words.groups) +
                    "\n";
  for (const HelpPage *page : allPages(programs)) {
    const std::string &program = page->words.front();
    std::string here;
    for (size_t i = 1; i < page->words.size(); ++i)
      here += fmt::format("{}__fish_seen_subcommand_from {}", here.empty() ? "" : "; and ",
                          page->words[i]);
    std::string more = here;
    for (const HelpPage &child : page->children)
      more += fmt::format("{}not __fish_seen_subcommand_from {}", more.empty() ? "" : "; and ",
                          child.words.back());
    std::string begin = fmt::format("complete -c {}", program);
    std::string seen = here.empty() ? "" : " -n " + shellQuoted(here);
    for (const HelpPage &child : page->children)
      out += fmt::format("{} -f -n {} -a {} -d {}\n", begin, shellQuoted(more), child.words.back(),
                         shellQuoted(child.summary));
    for (const HelpEntry &entry : page->options) {
      std::string line = begin + seen;
      for (const std::string &name : entry.names)
        line += name.rfind("--", 0) == 0 ? " -l " + name.substr(2) : " -o " + name.substr(1);
      if (!entry.choices.empty())
        line += " -x -a " + shellQuoted(joined(entry.choices));
      else if (entry.names.front() == "--set")
        line += " -x -a '$__shardc_settings'";
      else if (entry.names.front() == "-W")
        line += " -x -a '$__shardc_groups'";
      else if (!entry.isFlag())
        line += " -r";
      out += line + " -d " + shellQuoted(entry.text) + "\n";
    }
    if (std::vector<std::string> arguments = argumentWords(*page, words); !arguments.empty())
      out += begin + seen + " -a " + shellQuoted(joined(arguments)) + "\n";
  }
  return out;
}

} // namespace shardc::tools
