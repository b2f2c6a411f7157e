#include "compiler/model/Adapters.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace shardc::model {
namespace {

constexpr std::string_view kAll = "all-linear";
constexpr int kJoint = -1; ///< an entry for all parts of a layer

/// The condition under which a model has a layer.
enum class Where : uint8_t {
  Conv,
  Delta,
  Mamba,
  Plain,
  Latent,
  WholeQueries,
  LowQueries,
  Dense,
  Experts,
  Shared
};

/// Whether a row is only of models with gates, or only of those without.
enum class Gate : uint8_t { Any, With, Without };

/// A linear layer, or a part of one, with its paths in a decoder layer: Megatron-Core's path first,
/// then those of Hugging Face's models.
struct Row {
  const char *stem;
  Where where;
  const char *names;
  int part = kJoint;
  Gate gate = Gate::Any;
};
constexpr Row kRows[] = {
    {"short_conv.in_proj", Where::Conv, "short_conv.in_proj conv.in_proj"},
    {"short_conv.out_proj", Where::Conv, "short_conv.out_proj conv.out_proj"},
    {"self_attention.out_proj", Where::Delta, "self_attention.out_proj linear_attn.out_proj"},
    {"mixer.out_proj", Where::Mamba, "mixer.out_proj mamba.out_proj"},
    {"self_attention.linear_qkv", Where::Plain,
     "self_attention.linear_qkv self_attn.qkv_proj attn.c_attn"},
    {"self_attention.linear_qkv", Where::Plain, "self_attention.linear_q self_attn.q_proj", 0},
    {"self_attention.linear_qkv", Where::Plain, "self_attention.linear_k self_attn.k_proj", 1},
    {"self_attention.linear_qkv", Where::Plain, "self_attention.linear_v self_attn.v_proj", 2},
    {"self_attention.linear_q_proj", Where::WholeQueries,
     "self_attention.linear_q_proj self_attn.q_proj"},
    {"self_attention.linear_q_down_proj", Where::LowQueries,
     "self_attention.linear_q_down_proj self_attn.q_a_proj"},
    {"self_attention.linear_q_up_proj", Where::LowQueries,
     "self_attention.linear_q_up_proj self_attn.q_b_proj"},
    {"self_attention.linear_kv_down_proj", Where::Latent,
     "self_attention.linear_kv_down_proj self_attn.kv_a_proj_with_mqa"},
    {"self_attention.linear_kv_up_proj", Where::Latent,
     "self_attention.linear_kv_up_proj self_attn.kv_b_proj"},
    {"self_attention.linear_proj", Where::Plain,
     "self_attention.linear_proj self_attn.o_proj attn.c_proj self_attn.out_proj"},
    {"self_attention.linear_proj", Where::Latent, "self_attention.linear_proj self_attn.o_proj"},
    {"mlp.linear_fc1", Where::Dense, "mlp.linear_fc1 mlp.gate_up_proj mlp.c_fc"},
    {"mlp.linear_fc1", Where::Dense, "mlp.linear_fc1 mlp.up_proj", kJoint, Gate::Without},
    {"mlp.linear_fc1", Where::Dense, "mlp.linear_fc1_gate mlp.gate_proj feed_forward.w1", 0,
     Gate::With},
    {"mlp.linear_fc1", Where::Dense, "mlp.linear_fc1_up mlp.up_proj feed_forward.w3", 1,
     Gate::With},
    {"mlp.linear_fc2", Where::Dense, "mlp.linear_fc2 mlp.down_proj mlp.c_proj feed_forward.w2"},
    {"mlp.experts.linear_fc1", Where::Experts, "mlp.experts.linear_fc1 mlp.experts.gate_up_proj"},
    {"mlp.experts.linear_fc2", Where::Experts, "mlp.experts.linear_fc2 mlp.experts.down_proj"},
    {"mlp.shared_experts.linear_fc1", Where::Shared,
     "mlp.shared_experts.linear_fc1 mlp.shared_experts.gate_up_proj"},
    {"mlp.shared_experts.linear_fc1", Where::Shared,
     "mlp.shared_experts.linear_fc1_gate mlp.shared_experts.gate_proj "
     "mlp.shared_expert.gate_proj",
     0, Gate::With},
    {"mlp.shared_experts.linear_fc1", Where::Shared,
     "mlp.shared_experts.linear_fc1_up mlp.shared_experts.up_proj mlp.shared_expert.up_proj", 1,
     Gate::With},
    {"mlp.shared_experts.linear_fc2", Where::Shared,
     "mlp.shared_experts.linear_fc2 mlp.shared_experts.down_proj mlp.shared_expert.down_proj"},
};

/// Whether the text matches the pattern, in which `*` stands for any text.
bool matchesPattern(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, mark = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++mark;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

/// Whether the path ends with the entry, and the entry begins at the start of a name.
bool isEnd(std::string_view entry, std::string_view path) {
  return path.ends_with(entry) &&
         (path.size() == entry.size() || path[path.size() - entry.size() - 1] == '.');
}

bool names(const Row &row, std::string_view entry, int64_t layer) {
  std::string_view rest = row.names;
  auto isNamed = [&](const char *layers, std::string_view name) {
    std::string path = fmt::format("{}.{}.{}", layers, layer, name);
    return entry.find('*') != std::string_view::npos ? matchesPattern(entry, path)
                                                     : isEnd(entry, path);
  };
  for (bool isCore = true; !rest.empty(); isCore = false) {
    std::string_view name = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    if (isCore ? isNamed("decoder.layers", name)
               : isNamed("model.layers", name) || isNamed("transformer.h", name)) // GPT-2
      return true;
  }
  return false;
}

bool isOf(const Row &row, const AdaptedModel &model) {
  return row.gate == Gate::Any || (row.gate == Gate::With) == model.isGated;
}

/// Whether a layer has parts with rows of their own. If so, all-linear selects the parts.
bool hasParts(const Row &row, const AdaptedModel &model) {
  return std::ranges::any_of(kRows, [&](const Row &other) {
    return std::string_view(other.stem) == row.stem && other.part >= 0 && isOf(other, model);
  });
}

bool has(const AdaptedModel &model, const Row &row, LayerForm parts) {
  if (!isOf(row, model))
    return false;
  const bool isLatent = parts.mixer == Mixer::Latent,
             hasExperts = parts.feedForward == FeedForward::Experts;
  switch (row.where) {
  case Where::Conv:
    return parts.mixer == Mixer::ShortConv;
  case Where::Delta:
    return parts.mixer == Mixer::DeltaNet;
  case Where::Mamba:
    return parts.mixer == Mixer::Mamba;
  case Where::Plain:
    return parts.mixer == Mixer::Attention;
  case Where::Latent:
    return isLatent;
  case Where::WholeQueries:
    return isLatent && !model.compressesQueries;
  case Where::LowQueries:
    return isLatent && model.compressesQueries;
  case Where::Dense:
    return parts.feedForward == FeedForward::Dense;
  case Where::Experts:
    return hasExperts;
  case Where::Shared:
    return hasExperts && model.hasShared;
  }
  return false;
}

bool isInAnyLayer(const AdaptedModel &model, const Row &row) {
  return std::ranges::any_of(model.layers, [&](LayerForm parts) { return has(model, row, parts); });
}

/// A row's first path, such as `self_attention.linear_qkv`, and its last name.
std::string_view ownPath(const Row &row) {
  std::string_view path = row.names;
  return path.substr(0, path.find(' '));
}
std::string_view ownName(const Row &row) {
  return ownPath(row).substr(ownPath(row).rfind('.') + 1);
}

} // namespace

std::vector<std::string> pathsOf(const std::string &layer, const LayerAdapters &adapters) {
  std::vector<std::string> paths;
  for (const Row &row : kRows)
    if (auto found = adapters.find(std::string_view(row.stem)); found != adapters.end()) {
      const AdapterParts &parts = found->second;
      if (row.part == kJoint ? parts.isJoint : (parts.kept >> row.part & 1) != 0)
        paths.push_back(fmt::format("decoder.layers.{}.{}", layer, ownPath(row)));
    }
  return paths;
}

int64_t Adapter::columns() const { return rank * std::popcount(kept); }

void AdapterParts::setAlpha(int part, double alpha) {
  alphas.resize(std::max(alphas.size(), static_cast<size_t>(part) + 1));
  alphas[static_cast<size_t>(part)] = alpha;
}

double Adapters::scaleOf(std::string_view stem, int part) const {
  const std::vector<double> &alphas = parts.find(stem)->second.alphas;
  return perAlpha * (alphas.empty() ? alpha : alphas[static_cast<size_t>(part)]);
}

std::optional<Adapter> Adapters::find(std::string_view stem, int64_t in,
                                      const RowUnits &rows) const {
  auto found = parts.find(stem);
  if (found == parts.end())
    return std::nullopt;
  const int first = found->second.isJoint ? 0 : std::countr_zero(found->second.kept);
  Adapter adapter{rank, scaleOf(stem, first), dropout, {}};
  adapter.hasMagnitude = hasMagnitude, adapter.hasBias = hasBias;
  constexpr double kNormal = 0.2;
  adapter.initStd =
      isXavier ? std::sqrt(2.0 / (static_cast<double>(in) + static_cast<double>(rank))) : kNormal;
  if (!found->second.isJoint) {
    adapter.groups = rows.groups, adapter.units = rows.units, adapter.parts = rows.parts;
    adapter.kept = found->second.kept;
    for (int part = 0; part < static_cast<int>(rows.parts); ++part)
      if ((adapter.kept >> part & 1) != 0)
        adapter.scales.push_back(scaleOf(stem, part));
    if (std::ranges::all_of(adapter.scales, [&](double s) { return s == adapter.scale; }))
      adapter.scales.clear();
    else
      adapter.scale = 1;
  }
  return adapter;
}

bool AdaptedModel::has(Mixer mixer) const {
  return std::ranges::find(layers, mixer, &LayerForm::mixer) != layers.end();
}
bool AdaptedModel::has(FeedForward feedForward) const {
  return std::ranges::find(layers, feedForward, &LayerForm::feedForward) != layers.end();
}

AdapterTargets::AdapterTargets(std::span<const std::string> targets, std::span<const double> alphas,
                               std::span<const std::string> exclude, const AdaptedModel &model)
    : targets_(targets.begin(), targets.end()), exclude_(exclude.begin(), exclude.end()),
      alphas_(alphas.begin(), alphas.end()), model_(model) {
  for (const std::vector<std::string> *entries : {&targets_, &exclude_})
    for (const std::string &entry : *entries)
      areAlike_ &= entry.find('*') == std::string::npos && entry.find('.') == std::string::npos;
  findProblem();
}

LayerAdapters AdapterTargets::chosen(int64_t layer, std::vector<bool> &isUsed) const {
  LayerAdapters chosen;
  for (const Row &row : kRows) {
    if (!has(model_, row, model_.layers[static_cast<size_t>(layer)]))
      continue;
    bool isExcluded = false;
    size_t target = targets_.size(); // the first one that names the row
    for (size_t i = targets_.size(); i-- > 0;)
      if (targets_[i] == kAll
              ? row.where != Where::Experts && (row.part != kJoint || !hasParts(row, model_))
              : names(row, targets_[i], layer))
        target = i, isUsed[i] = true;
    for (size_t i = 0; i < exclude_.size(); ++i)
      if (names(row, exclude_[i], layer))
        isExcluded = isUsed[targets_.size() + i] = true;
    if (target == targets_.size() || isExcluded)
      continue;
    AdapterParts &parts = chosen[row.stem];
    if (target < alphas_.size())
      parts.setAlpha(std::max(row.part, 0), alphas_[target]);
    if (row.part == kJoint)
      parts.isJoint = true;
    else
      parts.kept |= uint64_t{1} << row.part;
  }
  return chosen;
}

LayerAdapters AdapterTargets::of(int64_t layer) const {
  if (areAlike_)
    return ofForms_.at(model_.layers[static_cast<size_t>(layer)]);
  std::vector<bool> isUsed(targets_.size() + exclude_.size());
  return chosen(layer, isUsed);
}

void AdapterTargets::findProblem() {
  std::vector<bool> isUsed(targets_.size() + exclude_.size());
  bool isAny = false;
  constexpr int64_t kLayersMax = 4096; // names of later layers are not checked
  const int64_t layers = std::ssize(model_.layers);
  for (int64_t layer = 0; layer < (areAlike_ ? layers : std::min(layers, kLayersMax)); ++layer) {
    const LayerForm parts = model_.layers[static_cast<size_t>(layer)];
    if (areAlike_ && ofForms_.contains(parts))
      continue;
    LayerAdapters found = chosen(layer, isUsed);
    for (const auto &[stem, adapters] : found) {
      isAny = true;
      if (adapters.isJoint && adapters.kept != 0 && problem_.empty())
        problem_ = fmt::format("entries name '{}' as a whole and parts of it", stem);
    }
    ofForms_.emplace(parts, std::move(found));
  }
  if (!problem_.empty())
    return;
  std::string known;
  for (const Row &row : kRows)
    if (isInAnyLayer(model_, row))
      if (std::string name = fmt::format("'{}'", ownName(row));
          known.find(name) == std::string::npos)
        known += (known.empty() ? "" : ", ") + name;
  for (size_t i = 0; i < isUsed.size(); ++i)
    if (!isUsed[i]) {
      isOfExclude_ = i >= targets_.size();
      const std::string &entry = isOfExclude_ ? exclude_[i - targets_.size()] : targets_[i];
      problem_ =
          entry.find('*') != std::string::npos
              ? fmt::format("'{}' matches no linear layer of this model; a pattern is for "
                            "whole paths, such as 'decoder.layers.0.mlp.linear_fc2'",
                            entry)
              : fmt::format("'{}' names no linear layer of this model; it has {}", entry, known);
      return;
    }
  if (!isAny)
    problem_ = "no linear layer is left";
}

} // namespace shardc::model
