// The option table as types: the enumerator of every option, the form of its values, and the row
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

enum class Opt : uint16_t {
#define OPTION(enumerator, ...) enumerator,
#include "compiler/config/Options.def"
};

inline constexpr unsigned kNumOptions = 0
#define OPTION(enumerator, ...) +1
#include "compiler/config/Options.def"
    ;

enum class Section : uint8_t {
#define SECTION(enumerator, ...) enumerator,
#include "compiler/config/Sections.def"
};

inline constexpr unsigned kNumSections = 0
#define SECTION(enumerator, ...) +1
#include "compiler/config/Sections.def"
    ;

// One enum class for each row of Enums.def, with its enumerators.
#define V(enumerator, spelling) enumerator,
#define ENUM(name, values) enum class name : uint8_t { values };
#include "compiler/config/Enums.def"
#undef V
using predict::Gpu;

/// The enumeration that an option takes.
enum class EnumKind : uint8_t {
#define ENUM(name, values) name,
#include "compiler/config/Enums.def"
  Gpu,
};

/// The kind of an enum class, so that getEnum<E> can check that it fits the option.
template <typename E> constexpr EnumKind enumKindOf();
#define ENUM(name, values)                                                                         \
  template <> constexpr EnumKind enumKindOf<name>() { return EnumKind::name; }
#include "compiler/config/Enums.def"
template <> constexpr EnumKind enumKindOf<Gpu>() { return EnumKind::Gpu; }

/// The spellings of a kind's enumerators; an enumerator's value is its index.
llvm::ArrayRef<llvm::StringRef> enumSpellings(EnumKind kind);

/// The spelling of one enumerator.
template <typename E> llvm::StringRef spelling(E value) {
  return enumSpellings(enumKindOf<E>())[static_cast<size_t>(value)];
}

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
  Blend, ///< paths, or weights and paths in turn
};

/// The unit of an option's durations that are written without one.
enum class TimeUnit : uint8_t { Seconds, Minutes };

/// Milliseconds in one unit.
constexpr int64_t unitMs(TimeUnit unit) { return unit == TimeUnit::Minutes ? 60'000 : 1'000; }

struct OptionType {
  ValueType type;
  EnumKind enumKind = EnumKind::Gpu; ///< for Enum and EnumList
  TimeUnit unit = TimeUnit::Seconds; ///< for Duration
  bool isList() const { return type >= ValueType::IntList; }
};

/// A condition on a value in addition to its type.
struct Constraint {
  enum class Kind : uint8_t { Any, AtLeast, Between, HalfOpen, Positive, Blend, Split };
  Kind kind = Kind::Any;
  double low = 0;
  double high = 0;
};

enum class OptionStatus : uint8_t {
  Executed,    ///< the plan or its run depends on it
  CheckedOnly, ///< how upstream does what plans do otherwise; set, it gives a remark
  NotExecuted, ///< it changes training; where it has an effect, another value than its default is
               ///< an error
  Planned,     ///< takes part in the rules, and no plan can be made yet of what it asks for
};

/// Why an option that is only checked does not change what is trained.
enum class Ignored : uint8_t {
  Nothing,   ///< it is not ignored
  Faithful,  ///< shardc's results are those that it asks for, or at least as good
  Means,     ///< it says how, where or when something is computed, stored or sent, not what
  Report,    ///< it is about what upstream logs
  Inference, ///< it is about inference
  Library,   ///< it is about upstream's libraries, processes and files
  Detail,    ///< it gives details of an option that is refused
  Copied,    ///< what it sets is judged at the option that it is copied to
};

/// The reason in words, for docs and explain.
llvm::StringRef reasonOf(Ignored ignored);

struct OptionInfo {
  Opt opt;
  Section section;
  llvm::StringRef path; ///< canonical
  llvm::StringRef name; ///< the path without its section; equal to the path for a section's kind
  OptionType type;
  llvm::StringRef defaultText; ///< recipe text; null data if the option is unset by default
  Constraint constraint;
  llvm::StringRef flag;   ///< Megatron-LM's, without the mark of negation; empty if there is none
  bool flagNegates;       ///< whether giving the flag switches the option off
  llvm::StringRef bridge; ///< Megatron-Bridge's path; empty if there is none
  OptionStatus status;
  Ignored ignored; ///< Nothing, but for options that are only checked
  bool isReviewed; ///< somebody has confirmed that reason, for the doc sounds otherwise
  /// Settings of which it needs one to have an effect, `a = x or b > 1 or c`; empty: none.
  llvm::StringRef with;
  llvm::StringRef seen; ///< where its effect shows; empty: in any run
  bool isCompiled;      ///< plans have what the compiler makes of it, and not the option itself
  /// For options that are not executed: what shardc does instead, or why it cannot execute them.
  llvm::StringRef why;
  llvm::StringRef doc;

  bool hasDefault() const { return defaultText.data() != nullptr; }
};

/// The row of an option.
const OptionInfo &info(Opt opt);

/// All rows, in the order of Opt.
llvm::ArrayRef<OptionInfo> options();

struct SectionInfo {
  Section section;
  llvm::StringRef name;
  std::optional<Opt> kind; ///< the option that the word before the brace sets
  llvm::StringRef doc;
};

const SectionInfo &info(Section section);
llvm::ArrayRef<SectionInfo> sections();
std::optional<Section> findSection(llvm::StringRef name);

/// The option of a canonical path (`model.num_layers`, `model`, `env.NCCL_ALGO`), or nothing.
std::optional<Opt> findOption(llvm::StringRef path);

/// Shorthand for one or several options: the value of `betas` is a list with one value for each
/// target.
struct AliasInfo {
  llvm::StringRef path;
  llvm::ArrayRef<Opt> targets;
  llvm::StringRef doc;
};
llvm::ArrayRef<AliasInfo> aliases();
const AliasInfo *findAlias(llvm::StringRef path);

/// A word that an option takes as shorthand: `activation_func = swiglu` sets silu and the gated
/// unit.
struct ShorthandInfo {
  Opt option;
  llvm::StringRef word;
  llvm::StringRef value; ///< recipe text of the option's own value
  Opt other;
  llvm::StringRef otherValue;
};
llvm::ArrayRef<ShorthandInfo> shorthands();

/// The index of the enumerator that `word` names: a spelling, another word of Aliases.def, or a
/// spelling with `-` for `_`.
std::optional<size_t> findEnumerator(EnumKind kind, llvm::StringRef word);

/// The type as the reference prints it: `integer`, `one of 'no_shard', ...`.
std::string describeType(const OptionType &type);

/// The constraint in words: `at least 1`, or empty.
std::string describeConstraint(const OptionInfo &option);

} // namespace shardc::config
