#include "compiler/config/RuleContext.h"

#include "compiler/basic/Format.h"
#include "llvm/ADT/STLExtras.h"

namespace shardc::config {

namespace {

/// The precedence of a value: later values are stronger; a value that nobody wrote has 0.
uint64_t precedence(const Config &config, Opt opt) {
  SourceRange range = config.range(opt);
  if (!range.isValid())
    return 0;
  const Provenance *from = &config[opt].from;
  for (unsigned steps = 0; !from->isWritten() && from->cause && steps < kNumOptions; ++steps)
    from = &config[*from->cause].from;
  return (uint64_t{from->rank} + 1) << 32 | range.begin.raw(); // 49 bits
}

/// Says where the value of an option comes from: a line of the recipe, a family, a precision
/// preset, or a rule. Default values get no note.
void addNote(DiagBuilder &builder, const Config &config, Opt opt) {
  const Setting &setting = config[opt];
  llvm::StringRef path = info(opt).path;
  std::string value = toRecipeText(config, opt);
  if (setting.from.isWritten())
    builder.note(diag::OptionIsSetHere, setting.from.value, path, value);
  else if (setting.from.origin == Origin::Family)
    builder.note(diag::OptionIsFamilyDefault, config.range(opt), path, value,
                 toRecipeText(config, Opt::ModelFamily));
  else if (setting.from.origin == Origin::Preset && config.has(Opt::MixedPrecisionPreset))
    builder.note(diag::OptionIsPreset, config.range(opt), path, value,
                 toRecipeText(config, Opt::MixedPrecisionPreset));
  else if (setting.from.rule)
    builder.note(diag::OptionIsFromRule, config.range(opt), path, value,
                 info(*setting.from.rule).id);
}

} // namespace

std::string plainText(const Value &value, const OptionType &type) {
  if (const std::string *text = value.asString())
    return *text;
  if (const Value::Enumerator *enumerator = value.asEnum())
    return enumSpellings(type.enumKind)[enumerator->index].str();
  return toRecipeText(value, type);
}

RuleReport::RuleReport(RuleReport &&other) noexcept
    : builder_(std::move(other.builder_)), context_(other.context_),
      others_(std::move(other.others_)) {
  other.builder_.reset();
  other.others_.clear();
}

void RuleReport::addNotes() {
  if (builder_)
    for (Opt other : others_)
      addNote(*builder_, context_->cfg(), other);
  others_.clear();
}

RuleReport &RuleReport::set(Opt opt, const NewValue &value, FixItKind kind) {
  return builder_ ? fix(context_->fixSet(opt, value, kind)) : *this;
}

RuleReport &RuleReport::remove(Opt opt, FixItKind kind) {
  return builder_ ? fix(context_->fixRemove(opt, kind)) : *this;
}

std::string RuleContext::text(Opt opt) const {
  return plainText(config_[opt].value, info(opt).type);
}

bool RuleContext::wantsFsdp() const {
  return on(Opt::DistUseMegatronFsdp) || on(Opt::DdpUseMegatronFsdp) || on(Opt::DdpUseCustomFsdp);
}

Opt RuleContext::fsdpFlag() const {
  Opt strongest = Opt::DistUseMegatronFsdp;
  uint64_t best = 0;
  for (Opt flag : {Opt::DistUseMegatronFsdp, Opt::DdpUseMegatronFsdp, Opt::DdpUseCustomFsdp}) {
    // A flag that a rule set has the location of the flag that caused it. Of these two, the written
    // one is stronger.
    uint64_t strength = on(flag) ? precedence(config_, flag) * 2 + isWritten(flag) + 1 : 0;
    if (strength > best) {
      strongest = flag;
      best = strength;
    }
  }
  return strongest;
}

const std::string *RuleContext::variable(llvm::StringRef name) const {
  if (std::optional<Opt> opt = findOption("env." + name.str()))
    return config_[*opt].value.asString();
  for (const EnvVariable &variable : config_.env())
    if (variable.name == name)
      return variable.setting.value.asString();
  return nullptr;
}

bool RuleContext::isPoisoned(std::initializer_list<Opt> opts) const {
  return llvm::any_of(opts, [&](Opt opt) { return config_[opt].isPoisoned; });
}

void RuleContext::change(Opt opt, Value value, Origin origin, std::optional<Opt> cause) {
  Setting &setting = config_.setting(opt);
  if (setting.from.origin != Origin::Unset)
    setting.history.emplace_back(std::move(setting.value), setting.from);
  setting.value = std::move(value);
  setting.from = {};
  setting.from.origin = origin;
  setting.from.rule = rule_.rule;
  setting.from.cause = cause;
  hasChanged_ = true;
}

void RuleContext::derive(Opt opt, NewValue value, std::optional<Opt> cause,
                         llvm::ArrayRef<DiagArg> more) {
  if (has(opt) || config_[opt].isPoisoned)
    return;
  change(opt, std::move(value.value), Origin::Derived, cause);
  if (rule_.text.empty())
    return;
  llvm::SmallVector<DiagArg, 4> args{DiagArg(info(opt).path), DiagArg(text(opt))};
  args.append(more.begin(), more.end());
  diags_.report(rule_.diagInfo(), cause ? config_.range(*cause) : SourceRange(), args)
      .asConsequence(cause.has_value());
}

void RuleContext::take(Opt opt, Value value, Opt cause, llvm::StringRef folder) {
  const Setting &setting = config_[opt];
  if (setting.isPoisoned || setting.value == value)
    return;
  bool isWritten = setting.from.isWritten();
  SourceRange place = isWritten ? setting.from.value : config_.range(cause);
  std::string before = isWritten ? fmt::format("; the recipe has {}", text(opt)) : "";
  change(opt, std::move(value), Origin::Derived, cause);
  diags_.report(diag::TakenFromCheckpoint, place, info(opt).path, text(opt), folder, before);
}

void RuleContext::adjust(Opt opt, NewValue value, std::optional<Opt> cause) {
  const Setting &setting = config_[opt];
  if (setting.isPoisoned || setting.value == value.value || (cause && config_[*cause].isPoisoned))
    return;
  // The remark is attached to the written value that is replaced, otherwise to the cause. If nobody
  // set the option and the plan does not depend on it, nothing is reported; explain shows the
  // change.
  bool isDefault = setting.from.origin == Origin::Default;
  bool isMoot = isDefault && info(opt).status != OptionStatus::Executed;
  std::string before = text(opt);
  SourceRange written = setting.from.isWritten() ? setting.from.value : SourceRange();
  change(opt, std::move(value.value), Origin::Rule, cause);
  if (isMoot)
    return;
  SourceRange because = cause ? config_.range(*cause) : SourceRange();
  DiagBuilder builder =
      diags_.report(rule_.diagInfo(), written.isValid() ? written : because,
                    {DiagArg(info(opt).path), DiagArg(before), DiagArg(text(opt))});
  builder.asConsequence(isDefault);
  if (written.isValid() && because.isValid())
    addNote(builder, config_, *cause);
}

SourceRange RuleContext::placeOf(Opt opt) const {
  SourceRange place = config_.range(opt);
  for (const SectionSite &site : llvm::reverse(config_.sites()))
    if (!place.isValid() && site.section == info(opt).section)
      place = site.head;
  return place;
}

RuleReport RuleContext::reportAt(SourceRange range, llvm::ArrayRef<DiagArg> args) {
  hasReported_ = true;
  return {diags_.report(rule_.diagInfo(), range, args), *this, {}};
}

RuleReport RuleContext::report(std::initializer_list<Opt> sides, llvm::ArrayRef<DiagArg> args) {
  if (isPoisoned(sides))
    return {};
  hasReported_ = true;
  Opt strongest = *std::max_element(sides.begin(), sides.end(), [&](Opt a, Opt b) {
    return precedence(config_, a) < precedence(config_, b);
  });
  SourceRange place = config_.range(strongest);
  llvm::SmallVector<Opt, 4> others;
  for (Opt side : sides) {
    SourceRange other = config_.range(side);
    bool isNew = llvm::none_of(others, [&](Opt seen) { return config_.range(seen) == other; });
    if (side != strongest && other.isValid() && other != place && isNew)
      others.push_back(side);
  }
  return {diags_.report(rule_.diagInfo(), place, args), *this, std::move(others)};
}

// --- fix-its -----------------------------------------------------------------------------------

const SectionSite *RuleContext::siteOf(Section section) const {
  const SectionSite *last = nullptr;
  for (const SectionSite &site : config_.sites())
    if (site.section == section && site.closeBrace.isValid() &&
        sources().bufferOf(site.openBrace) == config_.buffer())
      last = &site;
  return last;
}

FixIt RuleContext::insertion(Opt opt, const std::string &value, FixItKind kind) const {
  const OptionInfo &option = info(opt);
  const SectionSite *site = option.path == option.name ? nullptr : siteOf(option.section);
  if (!site) {
    std::string line = fmt::format("{} = {}", option.path, value);
    SourceLoc end = config_.bodyEnd();
    SourceLoc begin = sources().lineBegin(end);
    bool isAlone = sources().text(SourceRange(begin, end)).trim().empty();
    return isAlone ? FixIt::insert(begin, "  " + line + "\n", kind)
                   : FixIt::insert(end, " " + line + " ", kind);
  }
  std::string line = fmt::format("{} = {}", option.name, value);
  unsigned closeLine = sources().lineColumn(site->closeBrace).line;
  if (sources().lineColumn(site->openBrace).line == closeLine)
    return FixIt::insert(site->lastItemEnd, " " + line, kind);
  SourceLoc lineBegin = sources().lineBegin(site->lastItemEnd);
  llvm::StringRef lineText = sources().lineText(site->lastItemEnd);
  std::string indent = lineText.take_while([](char c) { return c == ' ' || c == '\t'; }).str();
  bool isHeadLine = sources().lineBegin(site->openBrace) == lineBegin;
  if (isHeadLine && sources().lineText(site->openBrace).trim().endswith("{"))
    indent += "  ";
  else if (isHeadLine) // items follow the brace on its line: align with the first
    indent.append(
        sources().offset(site->openBrace) - sources().offset(lineBegin) + 2 - indent.size(), ' ');
  // The position after the last item, and after a comment on its line, but before the closing
  // brace.
  bool isCloseLine = sources().lineColumn(site->lastItemEnd).line == closeLine;
  SourceLoc at =
      isCloseLine ? site->lastItemEnd : lineBegin.advanced(static_cast<int64_t>(lineText.size()));
  return FixIt::insert(at, "\n" + indent + line, kind);
}

const Provenance *RuleContext::lastWritten(Opt opt) const {
  const Setting &setting = config_[opt];
  if (setting.from.isWritten())
    return &setting.from;
  for (auto past = setting.history.rbegin(); past != setting.history.rend(); ++past)
    if (past->second.isWritten())
      return &past->second;
  return nullptr;
}

std::optional<FixIt> RuleContext::fixSet(Opt opt, const NewValue &value, FixItKind kind) const {
  std::string text = toRecipeText(value.value, info(opt).type);
  if (const Provenance *from = lastWritten(opt)) {
    if (from->origin == Origin::CommandLine)
      return std::nullopt;
    if (from->origin == Origin::Overlay ||
        sources().bufferOf(from->value.begin) == config_.buffer())
      return FixIt::replace(from->value, text, kind);
  }
  if (!config_.bodyEnd().isValid())
    return std::nullopt;
  return insertion(opt, text, kind);
}

std::optional<FixIt> RuleContext::fixRemove(Opt opt, FixItKind kind) const {
  const Provenance *from = lastWritten(opt);
  // The word after a section's name can only be removed with its section.
  if (!from || from->origin == Origin::CommandLine || from->name == from->value)
    return std::nullopt;
  if (from->origin == Origin::Recipe && sources().bufferOf(from->value.begin) != config_.buffer()) {
    // An inherited line is not deleted in its base; the option is set to `none` here.
    if (!config_.bodyEnd().isValid())
      return std::nullopt;
    return insertion(opt, "none", kind);
  }
  return FixIt::remove(sources().removalRange(from->item), kind);
}

} // namespace shardc::config
