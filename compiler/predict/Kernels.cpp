#include "compiler/predict/Kernels.h"

#include <array>
#include <cstdlib>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/Float8.h"
#include "runtime/base/NewtonSchulz.h"
#include "runtime/plan/Factors.h"

namespace shardc::predict {

using plan::OpKind;
using Key = plan::AttrKey;

bool isAttentionBwd(OpKind kind) { return plan::opInfo(kind).work.isGradient; }

const plan::Type &keysOf(const plan::Segment &segment, const plan::Op &op) {
  return segment.values[op.operands[static_cast<size_t>(plan::opInfo(op).keys)]].type;
}

const plan::Type &valuesOf(const plan::Segment &segment, const plan::Op &op) {
  return segment.values[op.operands[static_cast<size_t>(plan::opInfo(op).values)]].type;
}

const plan::Type &queriesOf(const plan::Segment &segment, const plan::Op &op) {
  return segment.values[op.operands[static_cast<size_t>(plan::opInfo(op).queries)]].type;
}

/// Reads the properties from the op's attributes and the shapes of its operands, for separate and
/// for packed queries, keys and values.
AttentionKind attentionKindOf(const plan::Segment &segment, const plan::Op &op) {
  const plan::Type &q = queriesOf(segment, op);
  AttentionKind kind;
  kind.type = q.dtype;
  kind.drops = op.getFloat(Key::p) > 0;
  kind.hasDocuments = op.getBool(Key::reset_mask);
  kind.hasWindow = op.getInt(Key::window) >= 0;
  kind.hasChunks = op.getInt(Key::chunk) > 0;
  kind.isCapped = op.getFloat(Key::soft_cap) > 0;
  kind.packed = plan::opInfo(op).hasPackedHeads;
  kind.hasSlices = plan::opInfo(op).hasSlices;
  kind.isCausal = op.getBool(Key::causal);
  kind.hasAllKeys = kind.hasSlices && keysOf(segment, op).shape[1] > q.shape[1];
  kind.hasUnknownOrder = kind.hasSlices && op.getBool(Key::causal) && op.getInt(Key::slices) == 0;
  kind.isGradient = isAttentionBwd(op.kind);
  if (kind.packed) {
    kind.heads = op.getInt(Key::num_heads);
    kind.groups = op.getInt(Key::num_groups);
    kind.channels = kind.values = op.getInt(Key::head_dim);
  } else {
    kind.heads = q.shape[2];
    kind.groups = keysOf(segment, op).shape[2];
    kind.channels = q.shape[3];
    kind.values = valuesOf(segment, op).shape[3];
  }
  return kind;
}

bool isGrouped(const plan::Op &op) {
  return plan::opInfo(op).work.cost == plan::CostClass::Product &&
         plan::factorsOf(op).operand(0).atoms[0].isBound;
}

/// Operands are quantised, or have the type of the first one.
GroupedKind groupedKindOf(const plan::Segment &segment, const plan::Op &op) {
  auto typeOf = [&](size_t operand) -> const plan::Type & {
    return segment.values[op.operands[operand]].type;
  };
  const plan::Type &a = typeOf(0), &counts = typeOf(2), &c = segment.values[op.results[0]].type;
  const auto recipe = static_cast<Fp8Factors>(op.getInt(Key::fp8_recipe));
  GroupedKind kind;
  kind.k = a.shape[1], kind.m = c.shape[c.rank - 1], kind.groups = counts.numel();
  kind.hasSmallBlocks = recipe == Fp8Factors::Mxfp8;
  kind.type = recipe == Fp8Factors::None ? a.dtype : DType::F8E4M3;
  if (recipe == Fp8Factors::None)
    kind.hasOneType = typeOf(1).dtype == a.dtype &&
                      (c.dtype == a.dtype || (c.rank == 3 && c.dtype == DType::F32)) &&
                      (op.operands.size() <= 3 || typeOf(3).dtype == c.dtype);
  return kind;
}

namespace {
bool isScan(const plan::Op &op) {
  return op.kind == OpKind::StateScan || op.kind == OpKind::StateScanBwd;
}
} // namespace

bool isDelta(const plan::Op &op) {
  return plan::opInfo(op).workspace == plan::Workspace::Delta || isScan(op);
}

const plan::Type &deltaQueriesOf(const plan::Segment &segment, const plan::Op &op) {
  return segment.values[op.operands[op.results.size() > 1]].type; // behind the result's gradient
}

DeltaKind deltaKindOf(const plan::Segment &segment, const plan::Op &op) {
  const plan::Type &q = deltaQueriesOf(segment, op);
  const plan::Type &v = segment.values[op.operands[op.results.size() > 1 ? 3 : 2]].type;
  return {.type = q.dtype, .keys = q.shape[3], .values = v.shape[3], .isScan = isScan(op)};
}

GpuTraits traitsOf(const Device &device) {
  static const std::string kForced = [] {
    const char *text = std::getenv("SHARDC_KERNEL_PATH");
    return std::string(text ? text : "");
  }();
  GpuTraits gpu = packagedTraits(static_cast<int>(device.architecture));
  forcePaths(kForced, gpu);
  return gpu;
}

KernelPath pathOf(const Device &device, const plan::Segment &segment, const plan::Op &op) {
  if (plan::opInfo(op).work.cost == plan::CostClass::Attention)
    return kernelPath(attentionKindOf(segment, op), traitsOf(device));
  if (isGrouped(op))
    return kernelPath(groupedKindOf(segment, op), traitsOf(device));
  if (isDelta(op))
    return kernelPath(deltaKindOf(segment, op), traitsOf(device));
  bool isMuon = op.kind == OpKind::Muon || op.kind == OpKind::MuonStep;
  return isMuon && static_cast<NsProducts>(op.getInt(Key::products)) == NsProducts::Medium
             ? kernelPath(SymmetricKind(), traitsOf(device))
             : KernelPath::None;
}

bool isSlow(const Device &device, const plan::Segment &segment, const plan::Op &op) {
  return info(pathOf(device, segment, op)).isOnCudaCores() &&
         (isGrouped(op) ? groupedKindOf(segment, op).type
          : isDelta(op) ? deltaKindOf(segment, op).type
                        : queriesOf(segment, op).dtype) != DType::F32;
}

const char *pathRefusalOf(KernelPath path, const Device &device, const plan::Segment &segment,
                          const plan::Op &op) {
  return isGrouped(op) ? pathRefusal(path, groupedKindOf(segment, op), traitsOf(device))
         : isDelta(op) ? pathRefusal(path, deltaKindOf(segment, op), traitsOf(device))
                       : pathRefusal(path, attentionKindOf(segment, op), traitsOf(device));
}

std::string kernelsText(const Device &device, const plan::Plan &plan) {
  static constexpr std::array<std::string_view, kPathGroupCount> kNames = {
      "attention", "experts", "Muon", "launches", "recurrences"};
  struct Kernels {
    std::set<std::string> forward, backward;
  };
  std::array<Kernels, kPathGroupCount> groups;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const plan::Op &op : segment.ops)
        if (const KernelPathInfo &row = info(pathOf(device, segment, op));
            row.path != KernelPath::None) {
          Kernels &of = groups[static_cast<size_t>(row.group)];
          (op.phase == plan::Phase::Backward && !op.isRecomputed ? of.backward : of.forward)
              .insert(row.text);
        }
  std::string text;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto &[forward, backward] = groups[g];
    if (forward.empty() && backward.empty())
      continue;
    text += fmt::format("{}{} {}", text.empty() ? "kernels: " : ", ", kNames[g],
                        fmt::join(forward.empty() ? backward : forward, " and "));
    if (!forward.empty() && !backward.empty() && forward != backward)
      text += fmt::format(" (backward {})", fmt::join(backward, " and "));
  }
  return text;
}

} // namespace shardc::predict
