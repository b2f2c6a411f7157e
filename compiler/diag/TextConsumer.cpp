// Prints diagnostics with source lines, carets, ranges and replacements.
#include "compiler/diag/Consumers.h"

#include <algorithm>
#include <cstdlib>

#include "compiler/basic/Format.h"
#include "compiler/basic/Utf8.h"
#include "compiler/diag/Remarks.h"

namespace shardc {

namespace {

/// Source lines that are longer than this are cut around the caret.
constexpr size_t kLineWidthMax = 200;
constexpr size_t kContextBefore = 80;

constexpr llvm::raw_ostream::Colors colorOf(Severity severity) {
  switch (severity) {
  case Severity::Error:
    return llvm::raw_ostream::RED;
  case Severity::Warning:
    return llvm::raw_ostream::MAGENTA;
  case Severity::Remark:
    return llvm::raw_ostream::BLUE;
  case Severity::Note:
    return llvm::raw_ostream::CYAN;
  }
  return llvm::raw_ostream::WHITE;
}

/// Whether NO_COLOR disables colour: it does so if it is not empty (https://no-color.org).
bool isColorRefused() {
  const char *refused = std::getenv("NO_COLOR");
  return refused && *refused;
}

bool wantsColor(ColorMode mode, llvm::raw_ostream &out) {
  return mode == ColorMode::Always ||
         (mode == ColorMode::Auto && !isColorRefused() && out.has_colors());
}

/// The part of `range` on one line, as byte offsets in the line. If the range is beyond the line,
/// it is empty and at the end of the line.
struct LineSpan {
  size_t begin = 0;
  size_t end = 0;
};

LineSpan spanOnLine(SourceRange range, SourceLoc lineBegin, size_t lineBytes) {
  auto offset = [&](SourceLoc loc) {
    return loc <= lineBegin ? size_t{0} : std::min<size_t>(loc.raw() - lineBegin.raw(), lineBytes);
  };
  return {offset(range.begin), offset(range.end)};
}

/// Puts `mark` below the characters of `span`.
void underline(std::string &marks, llvm::StringRef line, LineSpan span, char mark) {
  size_t column = countCodePoints(line.take_front(span.begin));
  size_t end = column + countCodePoints(line.slice(span.begin, span.end));
  if (marks.size() < end)
    marks.resize(end, ' ');
  for (; column < end; ++column)
    if (marks[column] == ' ')
      marks[column] = mark;
}

/// Replaces blanks of the mark line by tabs where the source line has tabs, so that marks line up.
void alignTabs(std::string &marks, llvm::StringRef line) {
  size_t column = 0;
  for (size_t i = 0; i < line.size() && column < marks.size(); ++i) {
    if (line[i] == '\t' && marks[column] == ' ')
      marks[column] = '\t';
    // Continuation bytes share the column of their first byte.
    bool lastOfCodePoint = i + 1 >= line.size() || (line[i + 1] & 0xC0) != 0x80;
    column += lastOfCodePoint;
  }
}

class TextConsumer : public DiagConsumer {
public:
  TextConsumer(const SourceManager &sources, llvm::raw_ostream &out, TextOptions options)
      : sources_(sources), out_(out), options_(std::move(options)),
        color_(wantsColor(options_.color, out)) {
    if (color_)
      out_.enable_colors(true);
  }

  void handle(const Diagnostic &diagnostic) override {
    if (diagnostic.severity == Severity::Remark && options_.remarks != RemarkMode::Full) {
      if (options_.remarks == RemarkMode::Lines)
        printHead(diagnostic);
      else if (options_.remarks == RemarkMode::Counted)
        counts_.add(diagnostic.group, diagnostic.isConsequence);
      return;
    }
    if (diagnostic.severity == Severity::Error)
      counts_ = {}; // what was derived matters once the errors are gone
    printMessage(diagnostic);
    for (const Message &note : diagnostic.notes)
      printMessage(note);
  }

  void finish() override {
    if (std::string counts = counts_.text(); !counts.empty()) {
      std::string recipe = printable(options_.recipe);
      std::string list = options_.explain.empty() ? "--remarks" : printable(options_.explain);
      out_ << (recipe.empty() ? "shardc" : recipe) << ": " << counts << " (list them: " << list
           << ")\n";
    }
    counts_ = {};
  }

private:
  void printMessage(const Message &message) {
    printHead(message);
    if (message.range.isValid())
      printSource(message);
  }

  /// Prints location, severity, text and id on one line.
  void printHead(const Message &message) {
    if (color_)
      out_.changeColor(llvm::raw_ostream::SAVEDCOLOR, /*Bold=*/true);
    if (message.range.isValid()) {
      LineColumn place = sources_.lineColumn(message.range.begin);
      out_ << fmt::format("{}:{}:{}: ", printable(place.file), place.line, place.column);
    } else {
      out_ << "shardc: ";
    }
    if (color_)
      out_.changeColor(colorOf(message.severity), /*Bold=*/true);
    out_ << severityName(message.severity) << ": ";
    if (color_) {
      out_.resetColor();
      out_.changeColor(llvm::raw_ostream::SAVEDCOLOR, /*Bold=*/true);
    }
    out_ << printable(message.text) << " [" << message.id << "]";
    if (color_)
      out_.resetColor();
    out_ << '\n';
  }

  /// Prints the line of the message, marks below it (`^` for the caret, `~` for ranges), and
  /// fix-its. Long lines are cut around the caret. Columns count characters, so marks stand below
  /// the right ones after non-ASCII text.
  void printSource(const Message &message) {
    SourceLoc lineBegin = sources_.lineBegin(message.range.begin);
    const auto size = static_cast<int64_t>(sources_.lineText(message.range.begin).size());
    llvm::StringRef line = sources_.shown({lineBegin, lineBegin.advanced(size)});
    LineSpan caret = spanOnLine(message.range, lineBegin, line.size());
    size_t cutBytes = 0;
    if (line.size() > kLineWidthMax) {
      cutBytes = caret.begin > kContextBefore ? caret.begin - kContextBefore : 0;
      while (cutBytes > 0 && (line[cutBytes] & 0xC0) == 0x80)
        --cutBytes;
      size_t endBytes = std::min(line.size(), cutBytes + kLineWidthMax);
      while (endBytes < line.size() && (line[endBytes] & 0xC0) == 0x80)
        ++endBytes;
      line = line.slice(cutBytes, endBytes);
    }
    SourceLoc shownBegin = lineBegin.advanced(static_cast<int64_t>(cutBytes));
    std::string marks;
    underline(marks, line, spanOnLine(message.range, shownBegin, line.size()), '~');
    for (SourceRange range : message.highlights)
      if (range.isValid() && sources_.lineBegin(range.begin) == lineBegin)
        underline(marks, line, spanOnLine(range, shownBegin, line.size()), '~');
    size_t caretColumn = countCodePoints(line.take_front(caret.begin - cutBytes));
    if (marks.size() <= caretColumn)
      marks.resize(caretColumn + 1, ' ');
    marks[caretColumn] = '^';
    alignTabs(marks, line);
    out_ << printable(line, /*keepTabs=*/true) << '\n';
    if (color_)
      out_.changeColor(llvm::raw_ostream::GREEN, /*Bold=*/true);
    out_ << marks;
    if (color_)
      out_.resetColor();
    out_ << '\n';
    printFixIts(message);
  }

  /// Prints the replacement text of a fix-it below the caret, if it is short and the fix-it is on
  /// the caret's line.
  void printFixIts(const Message &message) {
    SourceLoc lineBegin = sources_.lineBegin(message.range.begin);
    llvm::StringRef line = sources_.lineText(message.range.begin);
    if (message.fixIts.empty() || line.size() > kLineWidthMax)
      return;
    for (const FixIt &fix : message.fixIts) {
      bool isSimple = fix.edits.size() == 1 && !llvm::StringRef(fix.edits[0].text).trim().empty() &&
                      llvm::StringRef(fix.edits[0].text).find('\n') == llvm::StringRef::npos;
      if (!isSimple || sources_.lineBegin(fix.edits[0].range.begin) != lineBegin)
        continue;
      LineSpan span = spanOnLine(fix.edits[0].range, lineBegin, line.size());
      std::string marks(countCodePoints(line.take_front(span.begin)), ' ');
      alignTabs(marks, line);
      out_ << marks << printable(fix.edits[0].text) << '\n';
    }
  }

  const SourceManager &sources_;
  llvm::raw_ostream &out_;
  TextOptions options_;
  bool color_;
  RemarkCounts counts_; ///< remarks that were neither printed nor counted in a line yet
};

} // namespace

std::unique_ptr<DiagConsumer> makeTextConsumer(const SourceManager &sources, llvm::raw_ostream &out,
                                               TextOptions options) {
  return std::make_unique<TextConsumer>(sources, out, std::move(options));
}

} // namespace shardc
