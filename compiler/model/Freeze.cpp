#include "compiler/model/Freeze.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/ParseNumber.h"

namespace shardc::model {
namespace {

std::optional<ParamKind> findKind(std::string_view word) {
  const ParamKindInfo *found = std::ranges::find(kParamKinds, word, &ParamKindInfo::word);
  if (found == std::end(kParamKinds))
    return std::nullopt;
  return static_cast<ParamKind>(found - kParamKinds);
}

/// Removes the text up to the next dot, and returns it.
std::string_view takeWord(std::string_view &text) {
  size_t dot = std::min(text.find('.'), text.size());
  std::string_view word = text.substr(0, dot);
  text.remove_prefix(std::min(dot + 1, text.size()));
  return word;
}

/// Parses `3` or `0-11`. Returns false for any other text.
bool readRange(std::string_view text, Frozen::Entry &entry) {
  size_t dash = text.find('-');
  std::optional<int64_t> first = parseCount(text.substr(0, dash));
  std::optional<int64_t> last =
      dash == std::string_view::npos ? first : parseCount(text.substr(dash + 1));
  if (!first || !last || *last < *first)
    return false;
  entry.first = *first, entry.last = *last;
  return true;
}

std::string kindWords() {
  std::string words;
  for (const ParamKindInfo &kind : kParamKinds)
    words += fmt::format("{}'{}'", words.empty() ? "" : ", ", kind.word);
  return words;
}

constexpr std::pair<std::string_view, Frozen::Place> kPlaces[] = {
    {"layers", Frozen::Place::Layers}, {"mtp", Frozen::Place::Mtp}, {"base", Frozen::Place::Base}};

/// Parses an entry. Returns the reason if it is invalid, otherwise an empty text.
std::string read(std::string_view text, int64_t layers, Frozen::Entry &entry) {
  std::string_view rest = text, word = takeWord(rest);
  auto place = std::ranges::find(kPlaces, word, [](const auto &row) { return row.first; });
  if (place != std::end(kPlaces)) {
    entry.place = place->second;
    bool hasRange = entry.place == Frozen::Place::Layers && !rest.empty() && rest.front() >= '0' &&
                    rest.front() <= '9';
    if (hasRange && !readRange(takeWord(rest), entry))
      return fmt::format("'{}' has no range of layers such as 'layers.0-11'", text);
    if (hasRange && entry.last >= layers)
      return fmt::format("'{}' names layer {}; the model has layers 0 to {}", text, entry.last,
                         layers - 1);
    if (rest.empty())
      return "";
    word = takeWord(rest);
  } else if (!rest.empty()) {
    entry.module = text;
    return "";
  }
  entry.kind = findKind(word);
  if (!entry.kind || !rest.empty())
    return fmt::format(
        "'{}' names no parameters; it needs to be 'layers', layers by number such as "
        "'layers.0-11', 'mtp', 'base', a path such as 'decoder.final_layernorm', or one of {}",
        text, kindWords());
  return "";
}

bool isAt(const Frozen::Entry &entry, plan::UnitKind unit, int64_t layer) {
  switch (entry.place) {
  case Frozen::Place::Model:
    return true;
  case Frozen::Place::Layers:
    return unit == plan::UnitKind::Layer && layer >= entry.first && layer <= entry.last;
  case Frozen::Place::Mtp:
    return unit == plan::UnitKind::Prediction;
  case Frozen::Place::Base:
    return unit != plan::UnitKind::Prediction;
  }
  return false;
}

} // namespace

std::string frozenText(const Frozen::Entry &entry) {
  std::string text = entry.module;
  for (const auto &[word, place] : kPlaces)
    if (place == entry.place)
      text = word;
  if (entry.last != Frozen::kLast)
    text += entry.last == entry.first ? fmt::format(".{}", entry.first)
                                      : fmt::format(".{}-{}", entry.first, entry.last);
  if (entry.kind)
    text += fmt::format("{}{}", text.empty() ? "" : ".", paramKindInfo(*entry.kind).word);
  return text;
}

Frozen readFrozen(std::span<const std::string> entries, int64_t layers) {
  Frozen frozen;
  for (const std::string &text : entries) {
    frozen.problem = read(text, layers, frozen.entries.emplace_back());
    if (!frozen.isValid())
      break;
  }
  return frozen;
}

Frozen readSaved(std::span<const std::string> entries, int64_t layers, bool isTied) {
  std::vector<std::string> own(entries.begin(), entries.end());
  for (std::string &entry : own)
    if (entry == "embed_tokens" || entry == "word_embeddings" || entry == "wte")
      entry = "embedding";
    else if (entry == "lm_head" || entry == "output_layer")
      entry = "head";
  Frozen saved = readFrozen(own, layers);
  saved.isInverse = true;
  auto head = std::ranges::find(own, "head");
  if (saved.isValid() && isTied && head != own.end())
    saved.problem =
        fmt::format("'{}' is the embedding in this model; name 'embed_tokens' to train both",
                    entries[static_cast<size_t>(head - own.begin())]);
  return saved;
}

bool Frozen::Entry::names(ParamKind ofKind, std::string_view name, plan::UnitKind unit,
                          int64_t layer) const {
  return module.empty() ? isAt(*this, unit, layer) && (!kind || *kind == ofKind)
                        : name.starts_with(module) &&
                              (name == module || name[module.size()] == '.');
}

bool Frozen::has(ParamKind kind, std::string_view name, plan::UnitKind unit, int64_t layer) const {
  const bool isNamed = std::ranges::any_of(
      entries, [&](const Entry &entry) { return entry.names(kind, name, unit, layer); });
  return isInverse ? !isNamed && !isOfAdapter(kind) : isNamed;
}

} // namespace shardc::model
