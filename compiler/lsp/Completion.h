// Completion: lists the sections, options, kinds, enumerators and constants that are allowed at a
// position.
#pragma once

#include <string>
#include <vector>

#include "compiler/lsp/Document.h"

namespace shardc::lsp {

/// `CompletionItemKind` of the Language Server Protocol.
enum class ItemKind : uint8_t {
  Module = 9,
  Property = 10,
  Value = 12,
  Keyword = 14,
  File = 17,
  Enumerator = 20,
  Constant = 21
};

struct CompletionItem {
  std::string label;
  ItemKind kind;
  std::string detail;
  std::string documentation;
  std::string newText; ///< replaces the word at the cursor
};

struct Completion {
  Position begin, end; ///< range of the word at the cursor
  std::vector<CompletionItem> items;
};

/// All candidates that begin with the word before `at`, ignoring case, in the order of the tables.
Completion complete(const Document &document, Position at);

} // namespace shardc::lsp
