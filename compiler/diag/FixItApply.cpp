#include "compiler/diag/FixItApply.h"

#include <algorithm>

namespace shardc {

namespace {

bool sameEdit(const TextEdit &a, const TextEdit &b) {
  return a.range == b.range && a.text == b.text;
}

/// Whether two edits conflict: they change the same bytes, or insert at the same location, in which
/// case their order would be arbitrary.
bool overlap(const TextEdit &a, const TextEdit &b) {
  if (a.range.begin == b.range.begin)
    return true;
  return a.range.begin < b.range.end && b.range.begin < a.range.end;
}

class Applier {
public:
  Applier(const SourceManager &sources, bool recommended)
      : sources_(sources), recommended_(recommended) {}

  void message(const Message &message) {
    for (const FixIt &fix : message.fixIts) {
      bool isWanted =
          fix.kind == FixItKind::Applied || (fix.kind == FixItKind::Recommended && recommended_);
      if (isWanted)
        take(fix);
    }
  }

  FixItResult finish() {
    std::sort(edits_.begin(), edits_.end(), [](const TextEdit &a, const TextEdit &b) {
      return a.range.begin > b.range.begin; // from the end, so that earlier offsets stay valid
    });
    for (const TextEdit &edit : edits_) {
      BufferId id = sources_.bufferOf(edit.range.begin);
      auto [found, isNew] = result_.texts.try_emplace(id);
      if (isNew)
        found->second = sources_.text(id).str();
      found->second.replace(sources_.offset(edit.range.begin), edit.range.sizeBytes(), edit.text);
    }
    return std::move(result_);
  }

private:
  bool isMade(const TextEdit &edit) const {
    return std::any_of(edits_.begin(), edits_.end(),
                       [&](const TextEdit &made) { return sameEdit(made, edit); });
  }
  bool fits(const TextEdit &edit) const {
    bool isFree = std::none_of(edits_.begin(), edits_.end(),
                               [&](const TextEdit &made) { return overlap(made, edit); });
    return edit.range.isValid() && sources_.isFile(sources_.bufferOf(edit.range.begin)) &&
           (isFree || isMade(edit));
  }

  void take(const FixIt &fix) {
    if (!std::all_of(fix.edits.begin(), fix.edits.end(),
                     [&](const TextEdit &edit) { return fits(edit); })) {
      ++result_.numConflicts;
      return;
    }
    for (const TextEdit &edit : fix.edits)
      if (!isMade(edit))
        edits_.push_back(edit);
    ++result_.numApplied;
  }

  const SourceManager &sources_;
  bool recommended_;
  std::vector<TextEdit> edits_;
  FixItResult result_;
};

} // namespace

FixItResult applyFixIts(const SourceManager &sources, llvm::ArrayRef<Diagnostic> diagnostics,
                        bool recommended) {
  Applier applier(sources, recommended);
  for (const Diagnostic &diagnostic : diagnostics) {
    applier.message(diagnostic);
    for (const Message &note : diagnostic.notes)
      applier.message(note);
  }
  return applier.finish();
}

} // namespace shardc
