// The interface of rule predicates: the configuration, and functions to change or check it. A
// predicate lists the options that are involved. From these follow the location of the message, its
// notes, and its suppression if one of the options could not be read.
#pragma once

#include <initializer_list>

#include "compiler/config/Rules.h"
#include "compiler/config/Steps.h"
#include "compiler/diag/Engine.h"
#include "llvm/ADT/SmallVector.h"

namespace shardc::config {

/// A value that a rule gives to an option.
struct NewValue {
  Value value;

  NewValue(Value of) : value(std::move(of)) {}
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T> NewValue(T of) : value(valueOf(of)) {}

private:
  template <typename T> static Value valueOf(T of) {
    if constexpr (std::is_same_v<T, bool>)
      return Value::ofBool(of);
    else if constexpr (std::is_enum_v<T>)
      return Value::ofEnum(of);
    else if constexpr (std::is_integral_v<T>)
      return Value::ofInt(of);
    else
      return Value::ofFloat(of);
  }
};

class RuleContext;

/// A message that is being built; empty if one of its options could not be read. Fix-its are
/// attached to the message itself. The notes about the other options are added by the destructor.
class RuleReport {
public:
  RuleReport() = default;
  RuleReport(DiagBuilder builder, const RuleContext &context, llvm::SmallVector<Opt, 4> others)
      : builder_(std::move(builder)), context_(&context), others_(std::move(others)) {}
  RuleReport(RuleReport &&other) noexcept;
  RuleReport(const RuleReport &) = delete;
  ~RuleReport() { addNotes(); }

  /// Adds a fix-it to the message, if there is one.
  RuleReport &fix(std::optional<FixIt> fix) {
    if (builder_ && fix)
      builder_->fixIt(std::move(*fix));
    return *this;
  }
  /// Adds RuleContext::fixSet() or fixRemove().
  RuleReport &set(Opt opt, const NewValue &value, FixItKind kind = FixItKind::Applied);
  RuleReport &remove(Opt opt, FixItKind kind = FixItKind::Applied);
  /// Adds a note after the notes about the other options. A later fix-it is attached to it.
  template <typename... Args>
  RuleReport &note(const TypedDiag<Args...> &row, SourceRange range,
                   std::type_identity_t<Args>... args) {
    addNotes();
    if (builder_)
      builder_->note(row, range, args...);
    return *this;
  }

private:
  void addNotes();

  std::optional<DiagBuilder> builder_;
  const RuleContext *context_ = nullptr;
  llvm::SmallVector<Opt, 4> others_; ///< options whose notes are still to be added
};

/// What one rule sees while it is evaluated: the configuration, and functions that change or report
/// it in the rule's name. It does not outlive the call of the predicate.
class RuleContext {
public:
  RuleContext(Config &config, DiagEngine &diags, const RuleInfo &rule)
      : d(config.derived()), config_(config), diags_(diags), rule_(rule) {}

  const Config &cfg() const { return config_; }
  const Derived &derived() const { return config_.derived(); }
  const RuleInfo &rule() const { return rule_; }
  const SourceManager &sources() const { return diags_.sources(); }

  // --- values that most rules need ---------------------------------------------------------------
  bool on(Opt opt) const { return config_.isOn(opt); }
  bool has(Opt opt) const { return config_.has(opt); }
  bool isWritten(Opt opt) const { return config_.isWritten(opt); }
  int64_t num(Opt opt) const { return config_.getIntOr(opt, 0); }
  /// Whether Megatron FSDP is requested, by one of its two flags or by the older name.
  bool wantsFsdp() const;
  /// The flag that requests Megatron FSDP; if two do, the one of higher precedence.
  Opt fsdpFlag() const;
  /// The value of an environment variable, whether or not it is an option; null if it is not set.
  const std::string *variable(llvm::StringRef name) const;

  // --- derive and adjust -------------------------------------------------------------------------
  /// Sets an option that has no value. A rule with a text reports it in a remark, whose arguments
  /// are the option's path, its new value, and `more`.
  void derive(Opt opt, NewValue value, std::optional<Opt> cause = {},
              llvm::ArrayRef<DiagArg> more = {});
  /// Replaces an option's value by that of the checkpoint, and reports it.
  void take(Opt opt, Value value, Opt cause, llvm::StringRef folder);
  /// Changes a value if it differs. The remark's arguments are path, old value and new value.
  void adjust(Opt opt, NewValue value, std::optional<Opt> cause = {});
  /// Whether derive or adjust changed anything.
  bool hasChanged() const { return hasChanged_; }

  // --- check -------------------------------------------------------------------------------------
  /// Reports the rule. The message is attached to the option of `sides` whose value has the highest
  /// precedence; within a file, the later value does. Each other option that was written, or
  /// changed because of a written one, gets a note.
  RuleReport report(std::initializer_list<Opt> sides, llvm::ArrayRef<DiagArg> args = {});
  /// Whether a message was reported.
  bool hasReported() const { return hasReported_; }
  /// Like report(), at the given location.
  RuleReport reportAt(SourceRange range, llvm::ArrayRef<DiagArg> args = {});

  /// A fix-it that sets the option: where it is written, or in a new line of the recipe. Empty if
  /// the option is set by --set, or by a file that is not one of the user's recipes.
  std::optional<FixIt> fixSet(Opt opt, const NewValue &value,
                              FixItKind kind = FixItKind::Applied) const;
  /// A fix-it that removes the line that sets the option.
  std::optional<FixIt> fixRemove(Opt opt, FixItKind kind = FixItKind::Applied) const;

  /// The location of the option. If it is not written, the head of its section, the last one if
  /// there are several.
  SourceRange placeOf(Opt opt) const;

  /// The option's value in the form of messages: without quotes.
  std::string text(Opt opt) const;

  /// Applies the rule.
  template <RuleId id> void apply();

private:
  // --- names for predicates (RulePredicates.h) ---------------------------------------------------
  using enum Opt;
  using enum FixItKind;
  RuleContext &ctx = *this;
  const Derived &d;

  bool isPoisoned(std::initializer_list<Opt> opts) const;
  /// The provenance of the option's last written value, even if a rule has changed it since; null
  /// if it was never written.
  const Provenance *lastWritten(Opt opt) const;
  void change(Opt opt, Value value, Origin origin, std::optional<Opt> cause);
  /// Where a fix-it inserts a new setting: in the section's body if the recipe has the section,
  /// with the indentation of its last item; otherwise as a dotted path at the end of the recipe.
  FixIt insertion(Opt opt, const std::string &value, FixItKind kind) const;
  const SectionSite *siteOf(Section section) const;

  Config &config_;
  DiagEngine &diags_;
  const RuleInfo &rule_;
  bool hasChanged_ = false;
  bool hasReported_ = false;
};

/// A value in the form of messages: recipe syntax without quotes around a string.
std::string plainText(const Value &value, const OptionType &type);

} // namespace shardc::config
