// Completion: sections, options, kinds and enumerators, constants that are allowed at a position.
#pragma once

#include <string>
#include <vector>

#include "compiler/lsp/Document.h"

namespace shardc::lsp {

/// The protocol's numbers for kinds of items.
enum class ItemKind : uint8_t {
  Module = 9,
  Property = 10,
  Value = 12,
  Keyword = 14,
  Enumerator = 20,
  Constant = 21
};

struct CompletionItem {
  std::string label;
  ItemKind kind;
  std::string detail;
  std::string documentation;
  std::string newText; ///< replaces the word that is being typed
};

struct Completion {
  Position begin, end; ///< the word that is being typed
  std::vector<CompletionItem> items;
};

/// Everything that matches the typed prefix, in the order of the tables.
Completion complete(const Document &document, Position at);

} // namespace shardc::lsp
