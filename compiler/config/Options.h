// The option table as types: the enumerator of every option, the type of its values, and the row
// with everything that explain, docs, import and export print. Options are declared only in
// Options.def, Enums.def, Sections.def and Aliases.def.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "compiler/predict/DeviceTable.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::config {

/// The options, in the order of Options.def.
enum class Opt : uint16_t {
#define OPTION(enumerator, ...) enumerator,
#include "compiler/config/Options.def"
};

inline constexpr unsigned kNumOptions = 0
#define OPTION(enumerator, ...) +1
#include "compiler/config/Options.def"
    ;

/// The sections of a recipe, in the order of Sections.def.
enum class Section : uint8_t {
#define SECTION(enumerator, ...) enumerator,
#include "compiler/config/Sections.def"
};

// One enum class for each row of Enums.def, with its enumerators.
#define V(enumerator, spelling) enumerator,
#define ENUM(name, values) enum class name : uint8_t { values };
#include "compiler/config/Enums.def"
#undef V
using predict::Gpu;

/// The enumeration of an option's values.
enum class EnumKind : uint8_t {
#define ENUM(name, values) name,
#include "compiler/config/Enums.def"
  Gpu,
};

/// The EnumKind of an enum class, so that getEnum<E> can check that E fits the option.
template <typename E> constexpr EnumKind enumKindOf();
#define ENUM(name, values)                                                                         \
  template <> constexpr EnumKind enumKindOf<name>() { return EnumKind::name; }
#include "compiler/config/Enums.def"
template <> constexpr EnumKind enumKindOf<Gpu>() { return EnumKind::Gpu; }

/// The spellings of an enumeration's values, in the order of their numbers.
llvm::ArrayRef<llvm::StringRef> enumSpellings(EnumKind kind);

/// The spelling of one enumerator.
template <typename E> llvm::StringRef spelling(E value) {
  return enumSpellings(enumKindOf<E>())[static_cast<size_t>(value)];
}

/// The types of values. Sizes and durations are whole numbers with units.
enum class ValueType : uint8_t {
  Bool,
  Int,
  Float,
  String,
  Size,     ///< bytes, an integer
  Duration, ///< milliseconds, an integer
  Enum,     ///< index of an enumerator
  IntList,
  FloatList,
  StringList,
  EnumList,
  Blend, ///< paths only, or weights and paths alternately
};

/// The unit of a duration without a unit.
enum class TimeUnit : uint8_t { Seconds, Minutes };

/// Milliseconds in one unit.
constexpr int64_t unitMs(TimeUnit unit) { return unit == TimeUnit::Minutes ? 60'000 : 1'000; }

struct OptionType {
  ValueType type;
  EnumKind enumKind = EnumKind::Gpu; ///< for Enum and EnumList
  TimeUnit unit = TimeUnit::Seconds; ///< for Duration
  bool isList() const { return type >= ValueType::IntList; }
};

/// A condition on a value, in addition to its type.
struct Constraint {
  enum class Kind : uint8_t { Any, AtLeast, Between, HalfOpen, Positive, Blend, Split };
  Kind kind = Kind::Any;
  double low = 0;
  double high = 0;
};

/// What shardc does with an option.
enum class OptionStatus : uint8_t {
  Executed,    ///< the plan or its run depends on it
  CheckedOnly, ///< says how upstream does it, plans do it otherwise; a remark if set
  NotExecuted, ///< changes training; a value other than the default is an error if it has an effect
  Planned,     ///< rules check it, but recipes that need it cannot be compiled yet
};

/// The reason why an option that is only checked does not change training.
enum class Ignored : uint8_t {
  Nothing,     ///< the option is not ignored
  Faithful,    ///< shardc's results are the requested ones, or at least as good
  Means,       ///< it concerns how, where or when something is computed, stored or sent
  SavesMemory, ///< it saves memory, and shardc has no way to save it; a warning if it is on
  Report,      ///< it concerns upstream's logs
  Inference,   ///< it concerns inference
  Library,     ///< it concerns upstream's libraries, processes and files
  Detail,      ///< it is a detail of an option that is refused
  Copied,      ///< its value is checked at the option to which it is copied
};

/// The reason in words, for docs and explain.
llvm::StringRef reasonOf(Ignored ignored);

/// One row of Options.def. Texts live as long as the program.
struct OptionInfo {
  Opt opt;
  Section section;
  llvm::StringRef path; ///< canonical
  llvm::StringRef name; ///< the path without its section; equal to the path for a section's kind
  OptionType type;
  llvm::StringRef defaultText; ///< in recipe syntax; null data: unset by default
  Constraint constraint;
  llvm::StringRef flag;   ///< Megatron-LM's, without the leading !; empty if there is none
  bool flagNegates;       ///< whether giving the flag switches the option off
  llvm::StringRef bridge; ///< Megatron-Bridge's path; empty if there is none
  OptionStatus status;
  Ignored ignored; ///< other than Nothing only for options that are only checked
  bool isReviewed; ///< the reason was confirmed although the doc mentions training
  /// Settings of which the option needs one to have an effect, such as `a = x or b > 1 or c`;
  /// empty: none.
  llvm::StringRef with;
  llvm::StringRef seen; ///< the kind of run in which it has an effect; empty: any run
  bool isCompiled;      ///< plans contain its effect, not the option itself
  bool isLayout;        ///< how ranks, memory and files hold the model, which stays the same
  /// For options that are not executed: what shardc does instead, or why it cannot execute them.
  llvm::StringRef why;
  llvm::StringRef feature; ///< what the option asks for, if no op implements that; otherwise empty
  llvm::StringRef doc;     ///< of executed options, one fragment; otherwise empty

  bool hasDefault() const { return defaultText.data() != nullptr; }
};

/// The row of an option.
const OptionInfo &info(Opt opt);

/// What the option does, in a fragment of a sentence; if it is not executed, why not.
llvm::StringRef summary(const OptionInfo &option);

/// All rows, in the order of Opt.
llvm::ArrayRef<OptionInfo> options();

/// One row of Sections.def.
struct SectionInfo {
  Section section;
  llvm::StringRef name;
  std::optional<Opt> kind; ///< the option that the word before the brace sets
  bool isOfModel;          ///< the model has the settings wherever it is loaded
  llvm::StringRef doc;
};

/// The row of a section, all rows, and the section with a name; empty if there is none.
const SectionInfo &info(Section section);
llvm::ArrayRef<SectionInfo> sections();
std::optional<Section> findSection(llvm::StringRef name);

/// The option with a canonical path (`model.num_layers`, `model`, `env.NCCL_ALGO`); empty if
/// unknown.
std::optional<Opt> findOption(llvm::StringRef path);

/// Another name for one or several options. The value of `betas`, for example, is a list with one
/// value for each target.
struct AliasInfo {
  llvm::StringRef path;
  llvm::ArrayRef<Opt> targets;
  llvm::StringRef doc;
};
/// All aliases, and the one with a path; null if there is none.
llvm::ArrayRef<AliasInfo> aliases();
const AliasInfo *findAlias(llvm::StringRef path);

/// A word that sets two options: `activation_func = swiglu` sets silu and the gated unit.
struct ShorthandInfo {
  Opt option;
  llvm::StringRef word;
  llvm::StringRef value; ///< value of `option`, in recipe syntax
  Opt other;
  llvm::StringRef otherValue;
};
llvm::ArrayRef<ShorthandInfo> shorthands();

/// The index of the enumerator that `word` names: by its spelling, by a synonym of Aliases.def, or
/// by a spelling with `-` instead of `_`.
std::optional<size_t> findEnumerator(EnumKind kind, llvm::StringRef word);

/// The type as the reference prints it: `integer`, `one of 'no_shard', ...`.
std::string describeType(const OptionType &type);

/// The constraint in words: `at least 1`, or empty.
std::string describeConstraint(const OptionInfo &option);

} // namespace shardc::config
