#include "compiler/model/RecomputeLayers.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace shardc::model {
namespace {

constexpr std::string_view kFull = "full", kNothing = "none";

/// The names of modules, by their number.
const std::vector<std::string_view> &moduleWords() {
  return plan::jobInfo(plan::JobField::model_recomputeModules).words;
}

std::string textOf(LayerRecompute layer) {
  if (layer.isFull)
    return std::string(kFull);
  std::string text;
  const std::vector<std::string_view> &words = moduleWords();
  for (size_t module = 0; module < words.size(); ++module)
    if (layer.has(static_cast<RecomputeModule>(module)))
      text += fmt::format("{}{}", text.empty() ? "" : "+", words[module]);
  return text.empty() ? std::string(kNothing) : text;
}

/// Parses one entry. Empty if it has an unknown word, or a word twice.
std::optional<LayerRecompute> readLayer(std::string_view text) {
  if (text == kFull)
    return LayerRecompute{.isFull = true};
  LayerRecompute layer;
  if (text == kNothing)
    return layer;
  const std::vector<std::string_view> &words = moduleWords();
  for (bool isLast = false; !isLast;) {
    size_t end = text.find('+');
    isLast = end == std::string_view::npos;
    auto word = std::ranges::find(words, text.substr(0, end));
    if (word == words.end() || layer.has(static_cast<RecomputeModule>(word - words.begin())))
      return std::nullopt;
    layer.modules |= uint32_t{1} << (word - words.begin());
    text.remove_prefix(isLast ? text.size() : end + 1);
  }
  return layer;
}

} // namespace

/// Parses entries such as `2*core_attn+layernorm`: a count, and what is recomputed in that many
/// layers. Together they must have as many layers as the model.
RecomputeLayers readRecomputeLayers(std::span<const std::string> entries, int64_t layers) {
  RecomputeLayers read;
  int64_t left = layers;
  for (const std::string &entry : entries) {
    std::string_view text = entry;
    int64_t count = 1;
    if (size_t star = text.find('*'); star != std::string_view::npos) {
      auto [end, error] = std::from_chars(text.data(), text.data() + star, count);
      if (error != std::errc() || end != text.data() + star || count < 1) {
        read.problem = fmt::format("'{}' does not begin with a number of layers", entry);
        return read;
      }
      text.remove_prefix(star + 1);
    }
    std::optional<LayerRecompute> layer = readLayer(text);
    if (!layer) {
      read.problem = fmt::format("'{}' names neither '{}', '{}', nor modules joined by '+'", entry,
                                 kFull, kNothing);
      return read;
    }
    if (count > left) {
      read.problem = fmt::format("its entries have more layers than the model's {}", layers);
      return read;
    }
    left -= count;
    read.layers.insert(read.layers.end(), static_cast<size_t>(count), *layer);
  }
  if (left > 0)
    read.problem =
        fmt::format("its entries have {} of the model's {} layers", layers - left, layers);
  return read;
}

std::vector<std::string> recomputeLayersText(std::span<const LayerRecompute> layers) {
  std::vector<std::string> entries;
  for (size_t first = 0, next; first < layers.size(); first = next) {
    for (next = first + 1; next < layers.size() && layers[next] == layers[first];)
      ++next;
    std::string text = textOf(layers[first]);
    entries.push_back(next - first == 1 ? text : fmt::format("{}*{}", next - first, text));
  }
  return entries;
}

} // namespace shardc::model
