#include "compiler/model/LayerList.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace shardc::model {
namespace {

constexpr std::string_view kNothing = "none";

/// The names of modules, by their numbers.
const std::vector<std::string_view> &modulesOf(const LayerWords &words) {
  return plan::jobInfo(words.modules).words;
}

std::string textOf(LayerParts layer, const LayerWords &words) {
  if (layer.isFull)
    return std::string(words.whole);
  std::string text;
  const std::vector<std::string_view> &modules = modulesOf(words);
  for (size_t module = 0; module < modules.size(); ++module)
    if (layer.has(module))
      text += fmt::format("{}{}", text.empty() ? "" : "+", modules[module]);
  return text.empty() ? std::string(kNothing) : text;
}

/// Parses one entry. Empty if it has an unknown word, or a word twice.
std::optional<LayerParts> readLayer(std::string_view text, const LayerWords &words) {
  if (text == words.whole)
    return LayerParts{.isFull = true};
  LayerParts layer;
  if (text == kNothing)
    return layer;
  const std::vector<std::string_view> &modules = modulesOf(words);
  for (bool isLast = false; !isLast;) {
    size_t end = text.find('+');
    isLast = end == std::string_view::npos;
    auto word = std::ranges::find(modules, text.substr(0, end));
    if (word == modules.end() || layer.has(word - modules.begin()))
      return std::nullopt;
    layer.modules |= uint32_t{1} << (word - modules.begin());
    text.remove_prefix(isLast ? text.size() : end + 1);
  }
  return layer;
}

} // namespace

/// Parses entries such as `2*core_attn+layernorm`: a count, and what is recomputed in that many
/// layers. Together they must have as many layers as the model.
LayerList readLayerList(std::span<const std::string> entries, int64_t layers,
                        const LayerWords &words) {
  LayerList read;
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
    std::optional<LayerParts> layer = readLayer(text, words);
    if (!layer) {
      read.problem = fmt::format("'{}' names neither '{}', '{}', nor modules joined by '+'", entry,
                                 words.whole, kNothing);
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

std::string layerEntry(int64_t count, LayerParts layer, const LayerWords &words) {
  std::string text = textOf(layer, words);
  return count == 1 ? text : fmt::format("{}*{}", count, text);
}

std::vector<std::string> layerListText(std::span<const LayerParts> layers,
                                       const LayerWords &words) {
  std::vector<std::string> entries;
  for (size_t first = 0, next; first < layers.size(); first = next) {
    for (next = first + 1; next < layers.size() && layers[next] == layers[first];)
      ++next;
    entries.push_back(layerEntry(static_cast<int64_t>(next - first), layers[first], words));
  }
  return entries;
}

} // namespace shardc::model
