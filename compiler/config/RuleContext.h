// The interface of rule predicates: the configuration, and functions to change or check it. A
// predicate lists the options involved. The location of the message, its notes, and its suppression
// if one of the options could not be read, follow from them.
#pragma once

#include <initializer_list>

#include "compiler/config/Rules.h"
#include "compiler/config/Steps.h"
#include "compiler/diag/Engine.h"
#include "llvm/ADT/SmallVector.h"

namespace shardc::config {

/// A message being made, or nothing if one of its options could not be read. Repairs are at the
/// message itself; the notes about the other options follow when it goes away.
class RuleReport {
public:
  RuleReport() = default;
  RuleReport(DiagBuilder builder, const Config *config, llvm::SmallVector<Opt, 4> others)
      : builder_(std::move(builder)), config_(config), others_(std::move(others)) {}
  RuleReport(RuleReport &&other) noexcept;
  RuleReport(const RuleReport &) = delete;
  ~RuleReport() { addNotes(); }

  /// Offers a repair, if there is one.
  RuleReport &fix(std::optional<FixIt> fix) {
    if (builder_ && fix)
      builder_->fixIt(std::move(*fix));
    return *this;
  }
  /// Adds a note after those about the other options; a later repair belongs to it.
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
  const Config *config_ = nullptr;
  llvm::SmallVector<Opt, 4> others_; ///< options that still get a note
};

class RuleContext {
public:
  RuleContext(Config &config, DiagEngine &diags, const RuleInfo &rule)
      : config_(config), diags_(diags), rule_(rule) {}

  const Config &cfg() const { return config_; }
  const Derived &derived() const { return config_.derived(); }
  const RuleInfo &rule() const { return rule_; }
  const SourceManager &sources() const { return diags_.sources(); }

  // --- the values that most rules ask for --------------------------------------------------------
  bool on(Opt opt) const { return config_.isOn(opt); }
  bool has(Opt opt) const { return config_.has(opt); }
  bool isWritten(Opt opt) const { return config_.isWritten(opt); }
  int64_t num(Opt opt) const { return config_.getIntOr(opt, 0); }
  /// Whether Megatron FSDP is asked for, by one of its two flags or their older name.
  bool wantsFsdp() const;
  /// The flag that requests Megatron FSDP; if both do, the one of higher precedence.
  Opt fsdpFlag() const;
  /// The value of an environment variable, known or not; null if it is not set.
  const std::string *variable(llvm::StringRef name) const;

  // --- derive and adjust -------------------------------------------------------------------------
  /// Gives a value to an option that has none. A rule with a text says so in a remark whose
  /// arguments are the option's path and its new value, then `more`.
  void derive(Opt opt, Value value, std::optional<Opt> cause = {},
              llvm::ArrayRef<DiagArg> more = {});
  /// Replaces an option's value by the checkpoint's, and reports it.
  void take(Opt opt, Value value, Opt cause, llvm::StringRef folder);
  /// Changes a value if it is another one; arguments of the remark: path, old value, new value.
  void adjust(Opt opt, Value value, std::optional<Opt> cause = {});
  /// Whether derive or adjust changed anything.
  bool hasChanged() const { return hasChanged_; }

  // --- judge -------------------------------------------------------------------------------------
  /// Reports the rule. The message is attached to the option of `sides` whose value has the highest
  /// precedence, in one file at the later one; every other one that was written, or changed because
  /// of something written, gets a note.
  RuleReport report(std::initializer_list<Opt> sides, llvm::ArrayRef<DiagArg> args = {});
  /// Whether a message was given.
  bool hasReported() const { return hasReported_; }
  /// The same at a place of its own.
  RuleReport reportAt(SourceRange range, llvm::ArrayRef<DiagArg> args = {});

  /// Sets the option: where it is written, or as a new line of the recipe. Nothing if --set, or a
  /// file that is not a recipe of the user's, sets the option.
  std::optional<FixIt> fixSet(Opt opt, const Value &value,
                              FixItKind kind = FixItKind::Applied) const;
  /// Removes the line that sets the option.
  std::optional<FixIt> fixRemove(Opt opt, FixItKind kind = FixItKind::Applied) const;

  /// The location of the option, otherwise the head of the section that it belongs to, the last one
  /// if there are several.
  SourceRange placeOf(Opt opt) const;

  /// The option's value as a message prints it: without quotes.
  std::string text(Opt opt) const;

private:
  bool isPoisoned(std::initializer_list<Opt> opts) const;
  const Provenance *lastWritten(Opt opt) const;
  void change(Opt opt, Value value, Origin origin, std::optional<Opt> cause);
  FixIt insertion(Opt opt, const std::string &value, FixItKind kind) const;
  const SectionSite *siteOf(Section section) const;

  Config &config_;
  DiagEngine &diags_;
  const RuleInfo &rule_;
  bool hasChanged_ = false;
  bool hasReported_ = false;
};

/// A value as messages print it: recipe text without quotes round a string.
std::string plainText(const Value &value, const OptionType &type);

} // namespace shardc::config
