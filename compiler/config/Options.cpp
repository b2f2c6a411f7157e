#include "compiler/config/Options.h"

#include <algorithm>
#include <deque>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/basic/Format.h"
#include "compiler/basic/Suggest.h"
#include "compiler/config/Config.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Job.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"

namespace shardc::config {

namespace {

// Names that the columns of Options.def use.
namespace columns {
constexpr OptionType Bool{ValueType::Bool};
constexpr OptionType Int{ValueType::Int};
constexpr OptionType Float{ValueType::Float};
constexpr OptionType String{ValueType::String};
constexpr OptionType Size{ValueType::Size};
constexpr OptionType IntList{ValueType::IntList};
constexpr OptionType FloatList{ValueType::FloatList};
constexpr OptionType StringList{ValueType::StringList};
constexpr OptionType Blend{ValueType::Blend};
constexpr TimeUnit Seconds = TimeUnit::Seconds;
constexpr TimeUnit Minutes = TimeUnit::Minutes;
constexpr OptionType Duration(TimeUnit unit) { return {ValueType::Duration, EnumKind::Gpu, unit}; }

constexpr const char *unset = nullptr;

constexpr Constraint any{};
constexpr Constraint positive{Constraint::Kind::Positive};
constexpr Constraint blend{Constraint::Kind::Blend};
constexpr Constraint split{Constraint::Kind::Split};
constexpr Constraint atLeast(double low) { return {Constraint::Kind::AtLeast, low}; }
constexpr Constraint between(double low, double high) {
  return {Constraint::Kind::Between, low, high};
}
constexpr Constraint halfOpen(double low, double high) {
  return {Constraint::Kind::HalfOpen, low, high};
}

/// How far an option is supported: its status, why it is ignored, whether it was reviewed against
/// upstream, and the settings that it needs. Rows of Options.def take one of the constants below
/// and add to it by with(), seen() and because().
struct Standing {
  OptionStatus status;
  Ignored ignored = Ignored::Nothing;
  bool isReviewed = false, isCompiled = false, isLayout = false;
  const char *needs = "", *shows = "", *reason = "", *feature = "", *path = nullptr;

  constexpr Standing with(const char *settings) const { return set(&Standing::needs, settings); }
  constexpr Standing seen(const char *where) const { return set(&Standing::shows, where); }
  constexpr Standing because(const char *why) const { return set(&Standing::reason, why); }
  constexpr Standing named(const char *name) const { return set(&Standing::path, name); }
  constexpr Standing compiled() const { return set(&Standing::isCompiled, true); }
  constexpr Standing layout() const { return set(&Standing::isLayout, true); }
  constexpr Standing reviewed() const { return set(&Standing::isReviewed, true); }
  template <typename T> constexpr Standing set(T Standing::*column, T value) const {
    Standing result = *this;
    result.*column = value;
    return result;
  }
};
constexpr Standing Executed{OptionStatus::Executed};
// Executed options that have an effect only with a feature.
constexpr Standing OfExperts = Executed.with("model.num_moe_experts"),
                   OfStages = Executed.with("model.pipeline_model_parallel_size > 1"),
                   OfLinear = Executed.with("model.linear_attention_freq"),
                   OfMamba = Executed.with("model.hybrid_layer_pattern"),
                   OfLatent = Executed.with("model.multi_latent_attention"),
                   OfYarn = Executed.with("model.position_embedding_type = yarn"),
                   OfFp8 = Executed.with("model.fp8"), OfFp16 = Executed.with("model.fp16"),
                   OfAdapters = Executed.with("peft.scheme"),
                   OfMuon = Executed.with(
                       "optimizer.optimizer = muon or optimizer.optimizer = dist_muon"),
                   OfMoments = Executed.with(
                       "optimizer.optimizer = adam or optimizer.optimizer = muon or "
                       "optimizer.optimizer = dist_muon or optimizer.optimizer = adaptive_muon or "
                       "optimizer.optimizer = soap"),
                   OfWsd = Executed.with("scheduler.lr_decay_style = WSD"),
                   OfLoads = Executed.with("checkpoint.load or checkpoint.pretrained_checkpoint"),
                   OfEvaluation = Executed.with("validation.eval_interval"),
                   OfEvents = Executed.with("logger.tensorboard_dir");
constexpr Standing NotExecuted{OptionStatus::NotExecuted};
constexpr Standing Planned{OptionStatus::Planned};
constexpr Standing Missing(const char *words) { return Planned.set(&Standing::feature, words); }
constexpr Standing PartOf(const char *settings) { return Planned.with(settings); }
constexpr Standing PartOfVariants = PartOf("model.experimental_attention_variant");
#define IGNORED(reason) constexpr Standing reason{OptionStatus::CheckedOnly, Ignored::reason};
IGNORED(Faithful)
IGNORED(Means)
IGNORED(SavesMemory)
IGNORED(Report)
IGNORED(Inference)
IGNORED(Library)
IGNORED(Detail)
IGNORED(Copied)
#undef IGNORED
} // namespace columns

// Interprets the columns of Job.def like those of Options.def.
namespace fields {
using columns::any, columns::positive, columns::atLeast, columns::between, columns::halfOpen;
template <ValueType Type> struct Plain { static constexpr OptionType kType{Type}; };
using Bool = Plain<ValueType::Bool>;
using Int = Plain<ValueType::Int>;
using Float = Plain<ValueType::Float>;
using String = Plain<ValueType::String>;
using Size = Plain<ValueType::Size>;
using IntList = Plain<ValueType::IntList>;
using FloatList = Plain<ValueType::FloatList>;
using StringList = Plain<ValueType::StringList>;
using Blend = Plain<ValueType::Blend>;
struct Minutes {
  static constexpr OptionType kType = columns::Duration(TimeUnit::Minutes);
};
template <typename E> struct Optional {
  static constexpr OptionType kType{ValueType::Enum, enumKindOf<E>()};
};
template <typename E> struct List {
  static constexpr OptionType kType{ValueType::EnumList, enumKindOf<E>()};
};
template <typename T> constexpr OptionType typeOf() {
  if constexpr (std::is_enum_v<T>)
    return Optional<T>::kType;
  else
    return T::kType;
}

struct Field {
  bool isSettable = false; ///< not for derived fields
  OptionType type{};
  const char *def = nullptr; ///< as in Job.def; null: unset
  Constraint constraint{};
};
constexpr Field kFields[] = {
#define RANGE(range, ...) range
#define JOB_FIELD(section, type, member, otherwise, ...)                                           \
  {true, typeOf<type>(), #otherwise, RANGE(__VA_ARGS__)},
#define JOB_UNSET(section, type, member, otherwise, ...)                                           \
  {true, typeOf<type>(), columns::unset, RANGE(__VA_ARGS__)},
#define JOB_DERIVED(type, member, name, otherwise, range, doc) {},
#include "runtime/plan/Job.def"
#undef RANGE
};
static_assert(std::size(kFields) == plan::kJobFields);

/// The default in recipe syntax. Words of enumerations and items of lists come from the job.
std::string defaultText(size_t index) {
  const Field &field = kFields[index];
  plan::JobValue value = plan::Job().value(static_cast<plan::JobField>(index));
  if (const auto *items = std::get_if<std::vector<std::string>>(&value))
    return fmt::format("[{}]", fmt::join(*items, ", "));
  if (const auto *word = std::get_if<std::string>(&value))
    return *word;
  if (field.type.type == ValueType::Size)
    return toRecipeText(Value::ofInt(std::get<int64_t>(value)), field.type);
  return field.def;
}
} // namespace fields

/// The columns of a row of Options.def. Without a type, Job.def has type, default and constraint.
struct Row {
  columns::Standing standing = columns::Executed;
  const char *doc = "";
  const char *flag = "=";
  const char *bridge = "=";
  std::optional<OptionType> type = {};
  const char *def = columns::unset;
  std::optional<Constraint> constraint = {};

  /// Sets what follows the documentation or the class, in the order of the columns.
  constexpr Row() = default;
  template <typename... Rest> constexpr Row(const char *of, Rest... rest) : doc(of) {
    if constexpr (sizeof...(rest) > 0)
      read(rest...);
  }
  template <typename... Rest> constexpr Row(columns::Standing of, Rest... rest) {
    read(of, rest...);
  }

private:
  template <typename... Rest> constexpr void read(columns::Standing of, Rest... rest) {
    standing = of;
    if constexpr (sizeof...(rest) > 0)
      read(rest...);
  }
  template <typename... Rest>
  constexpr void read(OptionType of, const char *otherwise, Rest... rest) {
    type = of;
    def = otherwise;
    constraint = columns::any;
    if constexpr (sizeof...(rest) > 0)
      read(rest...);
  }
  template <typename... Rest> constexpr void read(Constraint of, Rest... rest) {
    constraint = of;
    if constexpr (sizeof...(rest) > 0)
      read(rest...);
  }
  constexpr void read(const char *own, const char *path = "=") {
    flag = own;
    bridge = path;
  }
};

#define Enum(kind)                                                                                 \
  OptionType { ValueType::Enum, EnumKind::kind }
#define EnumList(kind)                                                                             \
  OptionType { ValueType::EnumList, EnumKind::kind }
llvm::ArrayRef<Row> rows() {
  using namespace columns;
  static constexpr Row kRows[] = {
#define OPTION(enumerator, ...) Row(__VA_ARGS__),
#include "compiler/config/Options.def"
  };
  return kRows;
}
#undef Enum
#undef EnumList

llvm::StringRef enumeratorOf(Opt opt) {
  static constexpr llvm::StringLiteral kNames[] = {
#define OPTION(enumerator, ...) #enumerator,
#include "compiler/config/Options.def"
  };
  return kNames[static_cast<size_t>(opt)];
}

/// Type, default and constraint of an option that is not executed and whose row has none.
constexpr Row kSwitch(columns::Planned, columns::Bool, "false");

/// Tables for lookups by name, created at the first lookup.
struct Tables {
  std::vector<OptionInfo> options;
  std::deque<std::string> texts; ///< paths, flags and defaults that other columns tell
  std::vector<SectionInfo> sections;
  std::vector<AliasInfo> aliases;
  llvm::StringMap<Opt> optionByPath;
  llvm::StringMap<size_t> aliasByPath;
  llvm::StringMap<Section> sectionByName;

  Tables() {
    addSections();
    addOptions();
    addAliases();
  }

  void addSections() {
    constexpr std::nullopt_t NoKind = std::nullopt;
    enum class Scope { OfModel, OfTraining };
    using enum Opt;
#define SECTION(enumerator, name, kind, scope, doc)                                                \
  sections.push_back({Section::enumerator, name, kind, Scope::scope == Scope::OfModel, doc});
#include "compiler/config/Sections.def"
    for (const SectionInfo &section : sections)
      sectionByName[section.name] = section.section;
  }

  /// The path that the enumerator of an option tells: the first words are a section's name, and
  /// `ModelTestMode` is `model.test_mode`.
  llvm::StringRef pathOf(Opt opt) {
    std::string &path = texts.emplace_back(llvm::convertToSnakeFromCamelCase(enumeratorOf(opt)));
    for (const SectionInfo &section : sections) {
      const size_t end = section.name.size();
      if (!llvm::StringRef(path).startswith(section.name) || path[end] != '_')
        continue;
      path[end] = '.';
      if (section.section == Section::Env)
        std::transform(path.begin() + end, path.end(), path.begin() + end, llvm::toUpper);
    }
    return path;
  }

  /// The flag of a row. A `!` before it marks a flag that switches the option off.
  llvm::StringRef flagOf(llvm::StringRef flag, llvm::StringRef name) {
    if (!flag.consume_back("="))
      return flag;
    std::string &text = texts.emplace_back(flag.empty() ? "--" : "!--no-");
    text += name;
    std::replace(text.begin(), text.end(), '_', '-');
    return text;
  }

  using Fields = llvm::StringMap<size_t>; ///< from paths to indices in fields::kFields

  /// The fields of Job.def that users can set.
  static Fields settableFields() {
    Fields settable;
    for (size_t i = 0; i < plan::kJobFields; ++i)
      if (llvm::StringRef path = plan::jobInfo(static_cast<plan::JobField>(i)).path;
          fields::kFields[i].isSettable)
        SHARDC_CHECK(settable.try_emplace(path, i).second, "two fields of Job.def are '{}'", path);
    return settable;
  }

  /// Takes type, default and constraint from the row, or else from the option's field of Job.def,
  /// which is then removed from `unused`.
  void setType(OptionInfo &option, const Row &row, Fields &unused) {
    std::optional<size_t> field;
    if (auto found = unused.find(option.path); found != unused.end()) {
      field = found->second;
      unused.erase(found);
    }
    const bool isExecuted = row.standing.status == OptionStatus::Executed;
    const bool isHeld = isExecuted && !row.standing.isCompiled;
    SHARDC_CHECK(field ? isHeld && !row.type : row.type || !isExecuted,
                 "option '{}' must have a type, or be executed and a field of Job.def",
                 option.path);
    const Row &own = row.type || field ? row : kSwitch;
    option.type = field ? fields::kFields[*field].type : *own.type;
    option.constraint = own.constraint ? *own.constraint : fields::kFields[*field].constraint;
    option.defaultText = own.def;
    if (field && fields::kFields[*field].def != nullptr)
      option.defaultText = texts.emplace_back(fields::defaultText(*field));
  }

  /// Builds the public rows from the rows of Options.def, and the index from paths to options.
  void addOptions() {
    Fields unused = settableFields();
    for (const Row &row : rows()) {
      OptionInfo option;
      option.opt = static_cast<Opt>(options.size());
      option.path = row.standing.path != nullptr ? row.standing.path : pathOf(option.opt);
      auto [section, name] = option.path.split('.');
      auto found = sectionByName.find(section);
      SHARDC_CHECK(found != sectionByName.end(), "option '{}' is in no section", option.path);
      option.section = found->second;
      option.name = name.empty() ? option.path : name;
      setType(option, row, unused);
      option.flag = flagOf(row.flag, option.name);
      option.flagNegates = option.flag.consume_front("!");
      option.bridge = llvm::StringRef(row.bridge) == "=" ? option.path : row.bridge;
      option.status = row.standing.status;
      option.ignored = row.standing.ignored;
      option.isReviewed = row.standing.isReviewed;
      option.with = row.standing.needs;
      option.seen = row.standing.shows;
      option.why = row.standing.reason;
      option.feature = row.standing.feature;
      option.isCompiled = row.standing.isCompiled;
      option.isLayout = row.standing.isLayout;
      option.doc = row.doc;
      SHARDC_CHECK(optionByPath.try_emplace(option.path, option.opt).second, "two options are '{}'",
                   option.path);
      options.push_back(option);
    }
    SHARDC_CHECK(unused.empty(), "field '{}' of Job.def needs a row in Options.def",
                 unused.begin()->first());
  }

  void addAliases() {
#define ALIAS(path, targets, doc)                                                                  \
  {                                                                                                \
    static constexpr Opt kTargets[] = {ALIAS_TARGETS targets};                                     \
    aliases.push_back({path, kTargets, doc});                                                      \
  }
#define ALIAS_TARGETS(...) __VA_ARGS__
#include "compiler/config/Aliases.def"
#undef ALIAS_TARGETS
    for (size_t i = 0; i < aliases.size(); ++i)
      aliasByPath[aliases[i].path] = i;
  }
};

const Tables &tables() {
  static const Tables kTables;
  return kTables;
}

struct OtherSpelling {
  EnumKind kind;
  llvm::StringRef word;
  size_t index;
};

llvm::ArrayRef<OtherSpelling> otherSpellings() {
  static constexpr OtherSpelling kSpellings[] = {
#define SPELLING(kind, word, enumerator)                                                           \
  {EnumKind::kind, word, static_cast<size_t>(kind::enumerator)},
#include "compiler/config/Aliases.def"
  };
  return kSpellings;
}

} // namespace

llvm::ArrayRef<llvm::StringRef> enumSpellings(EnumKind kind) {
#define V(enumerator, spelling) spelling,
  switch (kind) {
#define ENUM(name, values)                                                                         \
  case EnumKind::name: {                                                                           \
    static constexpr llvm::StringRef kSpellings[] = {values};                                      \
    return kSpellings;                                                                             \
  }
#include "compiler/config/Enums.def"
  case EnumKind::Gpu:
    return predict::deviceNames();
  }
#undef V
  return {};
}

std::optional<size_t> findEnumerator(EnumKind kind, llvm::StringRef word) {
  llvm::ArrayRef<llvm::StringRef> spellings = enumSpellings(kind);
  for (size_t i = 0; i < spellings.size(); ++i)
    if (spellings[i] == word)
      return i;
  for (const OtherSpelling &other : otherSpellings())
    if (other.kind == kind && other.word == word)
      return other.index;
  // Bridge registers its presets with and without the prefix; PyTorch writes torch.bfloat16, and
  // Python signal.SIGUSR1.
  if (word.consume_front("torch.") || word.consume_front("signal.") ||
      word.consume_front("Signals."))
    return findEnumerator(kind, word);
  std::string folded = word.str();
  std::replace(folded.begin(), folded.end(), '-', '_');
  return folded != word ? findEnumerator(kind, folded) : std::nullopt;
}

llvm::StringRef reasonOf(Ignored ignored) {
  switch (ignored) {
  case Ignored::Nothing:
    return {};
  case Ignored::Faithful:
    return "shardc's results are those that it asks for, or at least as good";
  case Ignored::Means:
    return "it says how, where or when upstream computes, stores or sends something, not what";
  case Ignored::SavesMemory:
    return "it saves memory upstream, but shardc has no such means";
  case Ignored::Report:
    return "it has no effect in shardc: it controls Megatron's logging";
  case Ignored::Inference:
    return "it is about inference";
  case Ignored::Library:
    return "it is about libraries, processes or files that shardc does not use";
  case Ignored::Detail:
    return "it gives details of an option that is refused";
  case Ignored::Copied:
    return "what it sets is judged at the option that it is copied to";
  }
  return {};
}

llvm::StringRef summary(const OptionInfo &option) {
  if (option.status == OptionStatus::Planned)
    return "recipes that need it cannot be compiled yet";
  return !option.doc.empty()   ? option.doc
         : !option.why.empty() ? option.why
                               : reasonOf(option.ignored);
}

const OptionInfo &info(Opt opt) { return tables().options[static_cast<size_t>(opt)]; }
llvm::ArrayRef<OptionInfo> options() { return tables().options; }
const SectionInfo &info(Section section) { return tables().sections[static_cast<size_t>(section)]; }
llvm::ArrayRef<SectionInfo> sections() { return tables().sections; }
llvm::ArrayRef<AliasInfo> aliases() { return tables().aliases; }

std::optional<Section> findSection(llvm::StringRef name) {
  auto found = tables().sectionByName.find(name);
  if (found == tables().sectionByName.end())
    return std::nullopt;
  return found->second;
}

std::optional<Opt> findOption(llvm::StringRef path) {
  auto found = tables().optionByPath.find(path);
  if (found != tables().optionByPath.end())
    return found->second;
  // The name of a section stands for its kind: `optimizer = adam`.
  if (std::optional<Section> section = findSection(path))
    return info(*section).kind;
  return std::nullopt;
}

const AliasInfo *findAlias(llvm::StringRef path) {
  auto found = tables().aliasByPath.find(path);
  return found == tables().aliasByPath.end() ? nullptr : &tables().aliases[found->second];
}

llvm::ArrayRef<ShorthandInfo> shorthands() {
  static constexpr ShorthandInfo kShorthands[] = {
#define SHORTHAND(option, word, value, other, otherValue)                                          \
  {Opt::option, word, value, Opt::other, otherValue},
#include "compiler/config/Aliases.def"
  };
  return kShorthands;
}

std::string describeType(const OptionType &type) {
  switch (type.type) {
  case ValueType::Bool:
    return "true or false";
  case ValueType::Int:
    return "an integer";
  case ValueType::Float:
    return "a number";
  case ValueType::String:
    return "a string";
  case ValueType::Size:
    return "a size in bytes";
  case ValueType::Duration:
    return type.unit == TimeUnit::Minutes ? "a duration (a bare number is in minutes)"
                                          : "a duration (a bare number is in seconds)";
  case ValueType::Enum:
    return "one of " + quotedList(enumSpellings(type.enumKind), 64);
  case ValueType::IntList:
    return "a list of integers";
  case ValueType::FloatList:
    return "a list of numbers";
  case ValueType::StringList:
    return "a list of strings";
  case ValueType::EnumList:
    return "a list of " + quotedList(enumSpellings(type.enumKind), 64);
  case ValueType::Blend:
    return "a list of paths, or of weights and paths in turn";
  }
  return {};
}

std::string describeConstraint(const OptionInfo &option) {
  const Constraint &limit = option.constraint;
  switch (limit.kind) {
  case Constraint::Kind::Any:
    return {};
  case Constraint::Kind::AtLeast:
    return fmt::format("at least {}", limit.low);
  case Constraint::Kind::Between:
    return fmt::format("from {} to {}", limit.low, limit.high);
  case Constraint::Kind::HalfOpen:
    return fmt::format("from {} to below {}", limit.low, limit.high);
  case Constraint::Kind::Positive:
    return "above 0";
  case Constraint::Kind::Blend:
    return "a weight before every path or before none";
  case Constraint::Kind::Split:
    return "two or three shares, separated by commas";
  }
  return {};
}

} // namespace shardc::config
