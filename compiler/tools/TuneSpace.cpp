#include "compiler/tools/TuneSpace.h"

#include <map>
#include <sstream>

#include <fmt/format.h>

#include "runtime/base/Status.h"

namespace shardc::tools {
namespace {

constexpr KnobInfo kKnobs[] = {
#define KNOB(enumerator, column, part, kind, doc) {column, KnobPart::part, kind, doc},
#include "compiler/tools/TuneKnobs.def"
};

/// One choice of a knob: its word, its size if the knob is a number, and the settings that make it.
struct Choice {
  Knob knob;
  std::string word;
  int64_t size = 1;
  std::vector<std::string> settings;
};

std::vector<std::string> separated(const std::string &text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// Calls `take` with each choice that the table lists for a knob and a layout.
void forEachChoice(Knob of, const TuneSizes &s, const Layout &l,
                   const std::function<void(Choice)> &take) {
#define WAY(knob, word, condition, settings)                                                       \
  if (of == Knob::knob && (condition))                                                             \
    take({Knob::knob, word, 1, separated(settings)});
#define SIZES(knob, option, further, least, most, condition)                                       \
  if (of == Knob::knob)                                                                            \
    for (int64_t n = least, all = most; n <= all; ++n)                                             \
      if (all % n == 0 && (condition)) {                                                           \
        std::vector<std::string> settings = separated(further);                                    \
        settings.push_back(fmt::format("{}={}", option, n));                                       \
        take({Knob::knob, std::to_string(n), n, std::move(settings)});                             \
      }
#include "compiler/tools/TuneKnobs.def"
}

/// The options that a choice of the knob resets to their defaults, unless it sets them.
std::vector<std::string> resetsOf(Knob of) {
  std::vector<std::string> paths;
#define RESETS(knob, options)                                                                      \
  if (of == Knob::knob)                                                                            \
    paths = separated(options);
#include "compiler/tools/TuneKnobs.def"
  return paths;
}

/// The text of a value for comparisons, without the characters in which spellings of one value
/// differ.
std::string plain(std::string text) {
  std::erase_if(text, [](char c) { return c == '_' || c == '[' || c == ']' || c == ' '; });
  return text;
}

class Maker {
public:
  Maker(const config::Config &config, const TuneSizes &sizes,
        const std::function<bool(config::Opt)> &isFixed)
      : config_(config), isFixed_(isFixed) {
    space_.sizes = sizes;
  }

  TuneSpace run() {
    std::map<std::string, size_t> meshesOf;
    for (size_t knob = 0; knob < kKnobCount; ++knob) {
      Choice choice = given(static_cast<Knob>(knob));
      space_.own.words[knob] = choice.word;
      space_.own.sizes[knob] = choice.size;
    }
    choose(KnobPart::Body, 0, Layout(), [&](const Layout &body) { space_.bodies.push_back(body); });
    for (const Layout &body : space_.bodies) {
      std::string asked;
      for (Knob knob : kMeshAsks)
        asked += body.word(knob) + " ";
      auto [at, isFirst] = meshesOf.emplace(std::move(asked), space_.meshes.size());
      if (isFirst)
        space_.meshes.push_back(meshes(body));
      space_.meshesOf.push_back(at->second);
    }
    return std::move(space_);
  }

private:
  /// The recipe's value of the option `path`, if the user has fixed it.
  std::optional<std::string> fixedValue(std::string_view path) {
    std::optional<config::Opt> option = config::findOption(llvm::StringRef(path));
    SHARDC_CHECK(option, "TuneKnobs.def names '{}', which is no option", path);
    if (!isFixed_(*option))
      return std::nullopt;
    std::string value = config::toRecipeText(config_, *option);
    std::string line = fmt::format("{} = {}", path, value);
    if (std::ranges::find(space_.kept, line) == space_.kept.end())
      space_.kept.push_back(line);
    return value;
  }

  /// Whether the choice agrees with all values that the user has fixed.
  bool agrees(const Choice &choice) {
    constexpr config::Opt kFile = config::Opt::ModelPipelineScheduleCsv; // names the schedule
    bool all = choice.knob != Knob::Schedule || !config_.has(kFile) ||
               !fixedValue(config::info(kFile).path.str());
    for (const std::string &setting : choice.settings) {
      size_t equals = setting.find('=');
      std::optional<std::string> value = fixedValue(setting.substr(0, equals));
      all &= !value || plain(*value) == plain(setting.substr(equals + 1));
    }
    return all;
  }

  /// Adds settings for options that the choice resets to their defaults, if the recipe has other
  /// values.
  void addResets(Choice &choice) {
    for (const std::string &path : resetsOf(choice.knob)) {
      bool isSet = std::ranges::any_of(choice.settings, [&](const std::string &setting) {
        return setting.starts_with(path + "=");
      });
      config::Opt option = *config::findOption(path);
      const config::OptionInfo &info = config::info(option);
      if (isSet || fixedValue(path) || !config_.isWritten(option))
        continue;
      choice.settings.push_back(path + "=" + (info.hasDefault() ? info.defaultText.str() : "none"));
    }
  }

  /// The recipe's own value of a knob, as a choice without settings, if the table does not list it.
  Choice given(Knob knob) const {
    const config::Derived &d = config_.derived();
    Choice choice{knob, "given", 1, {}};
    switch (knob) {
    case Knob::Tensor:
      choice.size = d.tensorParallel;
      break;
    case Knob::Context:
      choice.size = d.contextParallel;
      break;
    case Knob::Experts:
      choice.size = d.expertParallel;
      break;
    case Knob::ExpertTensor:
      choice.size = d.expertTensorParallel;
      break;
    case Knob::Schedule:
      choice.word = config_.has(config::Opt::ModelPipelineScheduleCsv)
                        ? "file"
                        : config::toRecipeText(config_, config::Opt::ModelPipelineSchedule);
      return choice;
    case Knob::Stages:
      choice.size = d.pipelineParallel;
      break;
    case Knob::Chunks:
      choice.size = d.virtualStages;
      break;
    case Knob::Instances:
      choice.size = d.dataParallelOuter;
      break;
    case Knob::MicroBatch:
      choice.size = d.microBatch;
      break;
    default:
      return choice;
    }
    choice.word = std::to_string(choice.size);
    return choice;
  }

  std::vector<Layout> meshes(const Layout &body) {
    std::vector<Layout> found;
    Layout start;
    for (Knob knob : kMeshAsks) {
      start.sizes[static_cast<size_t>(knob)] = body.size(knob);
      start.words[static_cast<size_t>(knob)] = body.word(knob);
    }
    if (space_.sizes.ranks % (body.size(Knob::Tensor) * body.size(Knob::Context)) == 0)
      choose(KnobPart::Mesh, 0, start, [&](const Layout &mesh) { found.push_back(mesh); });
    return found;
  }

  void choose(KnobPart part, size_t knob, const Layout &before,
              const std::function<void(const Layout &)> &take) {
    for (; knob < kKnobCount && kKnobs[knob].part != part; ++knob)
      ;
    if (knob == kKnobCount)
      return take(before);
    std::vector<Choice> choices;
    forEachChoice(static_cast<Knob>(knob), space_.sizes, before, [&](Choice choice) {
      if (!agrees(choice))
        return;
      addResets(choice);
      choices.push_back(std::move(choice));
    });
    if (choices.empty())
      choices.push_back(given(static_cast<Knob>(knob)));
    for (Choice &choice : choices) {
      Layout layout = before;
      layout.words[knob] = std::move(choice.word);
      layout.sizes[knob] = choice.size;
      layout.settings[knob] = std::move(choice.settings);
      int64_t ranks =
          layout.size(Knob::Tensor) * layout.size(Knob::Context) * layout.size(Knob::Stages);
      if (space_.sizes.ranks % ranks == 0)
        choose(part, knob + 1, layout, take);
    }
  }

  const config::Config &config_;
  const std::function<bool(config::Opt)> &isFixed_;
  TuneSpace space_;
};

} // namespace

const KnobInfo &knobInfo(Knob knob) { return kKnobs[static_cast<size_t>(knob)]; }

std::vector<std::string> Layout::sets() const {
  std::vector<std::string> all;
  for (const std::vector<std::string> &of : settings)
    all.insert(all.end(), of.begin(), of.end());
  return all;
}

std::string Layout::kindKey() const {
  std::string key;
  for (size_t knob = 0; knob < kKnobCount; ++knob)
    if (kKnobs[knob].isKind)
      key += words[knob] + " ";
  return key;
}

int64_t microbatchesOf(const Layout &body, const Layout &mesh, const TuneSizes &s) {
  int64_t samples = mesh.replicas(s) * body.size(Knob::MicroBatch);
  return s.batch % samples == 0 ? s.batch / samples : 0;
}

Layout joined(const Layout &body, const Layout &mesh) {
  Layout layout = body;
  for (size_t knob = 0; knob < kKnobCount; ++knob)
    if (kKnobs[knob].part == KnobPart::Mesh) {
      layout.words[knob] = mesh.words[knob];
      layout.sizes[knob] = mesh.sizes[knob];
      layout.settings[knob] = mesh.settings[knob];
    }
  return layout;
}

size_t TuneSpace::count() const {
  size_t sum = 0;
  for (size_t of : meshesOf)
    sum += meshes[of].size();
  return sum;
}

bool isSearched(config::Opt opt) {
  for (const char *settings : {
#define SIZES(knob, option, further, least, most, condition) option, further,
#define WAY(knob, word, condition, settings) settings,
#define RESETS(knob, options) options,
#include "compiler/tools/TuneKnobs.def"
       })
    for (const std::string &setting : separated(settings))
      if (config::findOption(setting.substr(0, setting.find('='))) == opt)
        return true;
  return false;
}

TuneSpace makeSpace(const config::Config &config, const TuneSizes &sizes,
                    const std::function<bool(config::Opt)> &isFixed) {
  return Maker(config, sizes, isFixed).run();
}

} // namespace shardc::tools
