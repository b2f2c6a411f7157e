// Tables of reference pages in Markdown, which are generated from tables of the program.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace shardc {

/// Escapes text for a table cell: the characters of `special`, and ends of lines.
inline std::string cell(std::string_view text, std::string_view special = "|*<") {
  std::string out;
  for (char c : text) {
    if (special.find(c) != std::string_view::npos)
      out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}
/// Escapes bars alone, as between backticks, or where the text is Markdown.
inline std::string markedCell(std::string_view text) { return cell(text, "|"); }
inline std::string code(std::string_view text) { return fmt::format("`{}`", text); }
inline std::string orDash(std::string_view text) { return text.empty() ? "-" : std::string(text); }

/// The texts of a page's tables.
class Tables {
public:
  /// Begins a text with a table. The column heads are separated by bars; numbers are in columns
  /// whose head ends with ` >`.
  void begin(std::string_view heads) {
    texts.emplace_back();
    add(heads);
  }
  /// Adds a table to the last text, under a heading if that is not empty.
  void section(std::string_view heading, std::string_view heads) {
    texts.resize(std::max<size_t>(texts.size(), 1));
    texts.back() += heading.empty() ? "\n" : fmt::format("\n{}\n\n", heading);
    add(heads);
  }
  void row(auto &&...cells) {
    texts.back() += "|";
    ((texts.back() += fmt::format(" {} |", std::forward<decltype(cells)>(cells))), ...);
    texts.back() += "\n";
  }

  std::vector<std::string> texts;

private:
  void add(std::string_view heads) {
    std::string line = "|";
    for (size_t at = 0, end = 0; end != heads.npos; at = end + 1) {
      end = heads.find('|', at);
      const std::string_view head = heads.substr(at, end - at);
      line += head.find('>') != head.npos ? "--:|" : "---|";
    }
    std::string shown(heads);
    for (size_t mark = 0; (mark = shown.find(" >")) != shown.npos;)
      shown.erase(mark, 2);
    texts.back() += fmt::format("| {} |\n{}\n", shown, line);
  }
};

} // namespace shardc
