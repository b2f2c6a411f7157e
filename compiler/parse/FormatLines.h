// Output lines of the formatter, which are filled from the left and broken if they would be too
// wide. Internal to compiler/parse.
#pragma once

#include <string>

#include "compiler/basic/Utf8.h"
#include "compiler/parse/Format.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::parse {

/// Collects finished lines. A line is filled until it would be too wide.
class Lines {
public:
  void begin(size_t indent) {
    end();
    indent_ = indent;
  }
  /// Adds `text` to the line, after `gap` unless the line is empty. Starts a new line first if the
  /// line would be too wide. Text with several lines gets separate lines.
  void add(llvm::StringRef text, llvm::StringRef gap) {
    bool isBlock = text.contains('\n');
    size_t width = indent_ + countCodePoints(line_) + gap.size() + countCodePoints(text);
    if (isBlock || isAfterBlock_ || width > kFormatColumnsMax)
      end();
    if (!line_.empty())
      line_ += gap;
    line_ += text;
    isAfterBlock_ = isBlock;
  }
  /// Appends a comment to the line, even if the line becomes too wide.
  void addComment(llvm::StringRef text) {
    if (!line_.empty())
      line_ += "  ";
    line_ += text;
    end();
  }
  void blank() {
    end();
    if (!out_.empty())
      out_ += '\n';
  }
  void end() {
    if (!line_.empty())
      out_ += std::string(indent_, ' ') + line_ + "\n";
    line_.clear();
    isAfterBlock_ = false;
  }
  std::string take() {
    end();
    return std::move(out_);
  }

private:
  std::string out_;
  std::string line_;
  size_t indent_ = 0;
  bool isAfterBlock_ = false;
};

} // namespace shardc::parse
