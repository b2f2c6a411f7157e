// Quantises the operands of the layers' products to 8 bits, as the job's fp8 recipe says. A product
// x·wᵀ and the two products of its gradients become products of quantised operands. Recipe
// tensorwise: each operand has one scale, from its current amax. Recipe delayed: the scale follows
// from amax values of earlier steps. Recipes blockwise and mxfp8: each block has a scale. Under
// `hybrid`, gradients are e5m2 and everything else is e4m3.
//
// GPUs multiply 8-bit operands only if both are stored along the dimension that is summed, so
// weights and activations are also stored transposed. All forms of a value are computed where the
// first of them is read. The backward pass quantises again
//   - weights, unless their transposes are kept (`keep_fp8_transpose_cache`), since it has the
//     weights anyway;
//   - activations that other ops of the backward pass read, since these are kept anyway.
// Grouped products of experts quantise their operands themselves, as an attribute says. Under
// recipe delayed they read the amax values of their experts; the rank's index in the group of ranks
// with other experts tells where its own begin. Routers' products are not quantised; upstream they
// are not layers of Transformer Engine either. The backward pass uses the amax values of the
// forward pass, so that both quantise alike. If ranks have parts of weights and activations, the
// amax is the maximum over these ranks, so that all of them have the same scale.
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "compiler/passes/DelayedScaling.h"
#include "compiler/passes/OpWriter.h"
#include "compiler/passes/PassInputs.h"
#include "runtime/base/Float8.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Factors.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/WeightScales.h"

namespace shardc::passes {
namespace {

using plan::Job;

/// The job's settings for quantisation.
struct Recipe {
  /// Shape of the blocks that share a scale, for weights and for other operands; empty: one scale
  /// per tensor.
  std::optional<ScaleBlocks> weightBlocks, blocks;
  Fp8Factors ofExperts = Fp8Factors::None;
  DType gradients = DType::F8E4M3;
  bool weightGradients = true;
  bool keepsTransposed = false;
  bool gathersWeights = false;      ///< trained weights are gathered in 8 bits
  bool keepsBase = false;           ///< frozen weights below adapters are stored in 8 bits
  std::vector<uint8_t> isQuantised; ///< by unit
  int16_t group = -1;               ///< the group that shards layers; -1: none

  bool holds(int32_t unit) const {
    return unit >= 0 && isQuantised[static_cast<size_t>(unit)] != 0;
  }
  bool isProduct(const Op &op) const {
    return op.kind == OpKind::MatMul && holds(op.unit) &&
           (op.role != plan::ProductRole::WeightGradient || weightGradients);
  }
  bool isGrouped(const Op &op) const {
    bool isGradient = op.kind == OpKind::GroupedMatMulBwd;
    return (op.kind == OpKind::GroupedMatMul || (isGradient && weightGradients)) && holds(op.unit);
  }
};

/// The incoming gradient is the first operand of both backward products.
bool isForward(const Op &product) { return product.role == plan::ProductRole::Forward; }

/// The units that are quantised: all layers except the first and last ones that the job excludes,
/// and except multi-token prediction blocks, which upstream does not count as layers.
std::vector<uint8_t> quantisedUnits(const plan::Plan &plan) {
  const Job::Model &model = plan.job.model;
  std::vector<size_t> layers;
  for (size_t unit = 0; unit < plan.units.size(); ++unit)
    if (plan::isLayer(plan, static_cast<int32_t>(unit)))
      layers.push_back(unit);
  auto count = static_cast<int64_t>(layers.size());
  int64_t first = model.firstLastLayersBf16 ? model.numLayersAtStartInBf16 : 0;
  int64_t last = count - (model.firstLastLayersBf16 ? model.numLayersAtEndInBf16 : 0);
  std::vector<uint8_t> isQuantised(plan.units.size(), 0);
  for (int64_t layer = first; layer < last; ++layer)
    isQuantised[layers[static_cast<size_t>(layer)]] = 1;
  for (size_t unit = 0; unit < plan.units.size(); ++unit)
    if (plan.units[unit].kind == plan::UnitKind::Prediction)
      isQuantised[unit] = 1;
  return isQuantised;
}

/// Translates the job's fp8 options to the recipe of this pass. Nothing if the job has no fp8, or a
/// recipe that shardc does not support.
std::optional<Recipe> readRecipe(const plan::Plan &plan) {
  const Job::Model &model = plan.job.model;
  if (!model.fp8)
    return std::nullopt;
  Recipe recipe;
  switch (model.fp8Recipe) {
  case Job::Fp8Recipe::Tensorwise:
    recipe.ofExperts = Fp8Factors::Tensorwise;
    break;
  case Job::Fp8Recipe::Delayed:
    recipe.ofExperts = Fp8Factors::Delayed;
    break;
  case Job::Fp8Recipe::Blockwise:
    recipe.weightBlocks = ScaleBlocks::Squares128;
    recipe.blocks = ScaleBlocks::Rows128;
    recipe.ofExperts = Fp8Factors::Blockwise;
    break;
  case Job::Fp8Recipe::Mxfp8:
    recipe.weightBlocks = recipe.blocks = ScaleBlocks::Rows32;
    recipe.ofExperts = Fp8Factors::Mxfp8;
    break;
  case Job::Fp8Recipe::Custom:
    return std::nullopt;
  }
  recipe.gradients = *model.fp8 == Job::Fp8Format::Hybrid ? DType::F8E5M2 : DType::F8E4M3;
  recipe.weightGradients = model.fp8Wgrad;
  recipe.gathersWeights = plan.job.ddp.fp8ParamGather;
  recipe.keepsBase = plan.job.peft.quantize == Job::WeightFormat::Fp8;
  recipe.keepsTransposed = plan.job.ddp.keepFp8TransposeCache;
  recipe.isQuantised = quantisedUnits(plan);
  recipe.group = plan::groupToCutOf(plan, plan::GroupKind::Tensor);
  return recipe;
}

/// The products of a segment whose operands are quantised.
class Products {
public:
  Products(const plan::Plan &plan, const plan::Role &role, const plan::Segment &segment,
           const Recipe &recipe)
      : plan_(plan), recipe_(recipe), params_(paramsOfValues(role, segment)),
        isOfRouter_(plan.params.size()) {
    for (const Op &op : segment.ops)
      if (std::optional<size_t> logits = plan::factorsOf(op).chosenBy())
        markRouter(segment, op.operands[*logits]);
  }

  bool has(const Op &op) const {
    if (!recipe_.isProduct(op))
      return false;
    int32_t param = weightOf(op);
    bool isOfRouter = param >= 0 && isOfRouter_[static_cast<size_t>(param)] != 0;
    return isOfUnit(param, op.unit) && !isOfRouter && !isOfAdapter(param);
  }
  /// Whether the product is one of experts and quantises its operands itself.
  bool hasGrouped(const Op &op) const {
    return recipe_.isGrouped(op) && !isOfAdapter(weightOf(op));
  }
  int32_t weightOf(const Op &op) const {
    bool isGradient =
        op.role == plan::ProductRole::WeightGradient || op.kind == OpKind::GroupedMatMulBwd;
    return params_[isGradient ? op.results[0] : op.operands[1]];
  }
  int32_t paramOf(ValueId value) const { return params_[value]; }

private:
  /// Whether the weight belongs to the unit. Multi-token prediction blocks also have products with
  /// the head's weight, which belongs to another unit.
  bool isOfUnit(int32_t param, int32_t unit) const {
    int32_t block = param < 0 ? -1 : plan_.params[static_cast<size_t>(param)].block;
    return block < 0 ? plan::isLayer(plan_, unit)
                     : plan_.blocks[static_cast<size_t>(block)].unit == unit;
  }

  /// Whether the product is one of adapters: it has no frozen weight. Adapters are not quantised.
  bool isOfAdapter(int32_t param) const {
    return plan_.job.peft.scheme && (param < 0 || !plan::isOfBase(plan_, blockOf(param)));
  }
  const plan::Block &blockOf(int32_t param) const {
    return plan_.blocks[static_cast<size_t>(plan_.params[static_cast<size_t>(param)].block)];
  }

  /// Marks the weight of the product that computes a router's logits, possibly through a bias or a
  /// cast.
  void markRouter(const plan::Segment &segment, ValueId logits) {
    for (uint32_t def = segment.values[logits].def; def != kNone;
         def = segment.values[logits].def) {
      const Op &producer = segment.ops[def];
      if (producer.kind == OpKind::MatMul && params_[producer.operands[1]] >= 0)
        isOfRouter_[static_cast<size_t>(params_[producer.operands[1]])] = 1;
      if (producer.kind == OpKind::MatMul || producer.operands.empty())
        return;
      logits = producer.operands[0];
    }
  }

  const plan::Plan &plan_;
  const Recipe &recipe_;
  std::vector<int32_t> params_;     ///< by value
  std::vector<uint8_t> isOfRouter_; ///< by parameter
};

/// A quantised copy of a value, for one of the two passes.
struct Copy {
  ValueId of = kNone;
  DType type = DType::F8E4M3;
  bool isBackward = false; ///< computed in the backward pass, from a value of the forward pass
  auto operator<=>(const Copy &) const = default;
};
struct Forms {
  bool needsPlain = false, needsTransposed = false;
  bool isMade = false;
  ValueId plain = kNone, plainScale = kNone, transposed = kNone, transposedScale = kNone;
};

/// One operand of a product: a copy, and whether it is read transposed.
struct Operand {
  Copy copy;
  bool isTransposed = false;
};

class Quantizer : OpWriter {
public:
  Quantizer(const plan::Plan &plan, const plan::Role &role, plan::Segment &segment,
            const Recipe &recipe, const std::optional<DelayedScaling> &delayed)
      : OpWriter(segment), plan_(plan), role_(role), recipe_(recipe),
        products_(plan, role, segment, recipe), delayed_(delayed),
        isWeight_(segment.values.size(), 0), staysForBackward_(segment.values.size(), 0) {
    for (const plan::Segment::Boundary &in : segment.ins)
      isWeight_[in.value] = role.cells[in.cell].kind == plan::CellKind::Param;
    for (const Op &op : segment.ops)
      if (isBackward(op) && !products_.has(op))
        for (ValueId operand : op.operands)
          staysForBackward_[operand] = 1;
  }

  /// First finds which forms (plain, transposed) of each operand are needed, so that each is
  /// quantised only once. Then products are replaced one by one.
  void run() {
    for (const Op &op : segment_.ops)
      if (products_.has(op))
        for (size_t i = 0; i < 2; ++i) {
          Operand operand = operandOf(op, i);
          Forms &forms = forms_[operand.copy];
          (operand.isTransposed ? forms.needsTransposed : forms.needsPlain) = true;
        }
    auto isGrouped = [&](const Op &op) { return products_.hasGrouped(op); };
    if (forms_.empty() && std::ranges::none_of(segment_.ops, isGrouped))
      return;
    if (delayed_)
      beginDelayed();
    for (const Op &op : segment_.ops)
      if (isGrouped(op) && op.kind == OpKind::GroupedMatMul && isBackward(op))
        gradients_.insert(op.operands[0]);
    rewrite([&](Op op) {
      if (products_.has(op))
        replace(op);
      else if (isGrouped(op))
        quantiseOperands(op);
      ops_.push_back(std::move(op));
    });
    if (seen_ != kNone)
      segment_.outs.push_back({seen_, delayed_->seen});
  }

private:
  static bool isBackward(const Op &op) { return op.phase == plan::Phase::Backward; }

  /// The new product sums along the rows of both operands, so some must be transposed.
  Operand operandOf(const Op &op, size_t i) const {
    ValueId value = op.operands[i];
    bool isTransposed = i == 0 ? op.getBool(Key::trans_a) : !op.getBool(Key::trans_b);
    bool isGradient = i == 0 && !isForward(op);
    bool isAgain = isWeight_[value] ? !recipe_.keepsTransposed : staysForBackward_[value] != 0;
    DType type = isGradient ? recipe_.gradients : DType::F8E4M3;
    return {{value, type, isAgain && isBackward(op)}, isTransposed};
  }

  void replace(Op &op) {
    std::vector<ValueId> matrices, scales;
    for (size_t i = 0; i < 2; ++i) {
      Operand operand = operandOf(op, i);
      Forms &forms = forms_[operand.copy];
      if (!forms.isMade)
        make(operand.copy, forms, op, i);
      matrices.push_back(operand.isTransposed ? forms.transposed : forms.plain);
      scales.push_back(operand.isTransposed ? forms.transposedScale : forms.plainScale);
    }
    bool isFast = isForward(op) && !recipe_.blocks;
    op.kind = OpKind::MatMulScaled;
    op.operands.erase(op.operands.begin(), op.operands.begin() + 2);
    op.operands.insert(op.operands.begin(), scales.begin(), scales.end());
    op.operands.insert(op.operands.begin(), matrices.begin(), matrices.end());
    op.attrs.clear();
    op.role = plan::ProductRole::Forward;
    if (isFast) // as in Transformer Engine: other products accumulate with full precision
      op.set(Key::fast_accum, int64_t{1});
  }

  /// Computes the needed forms of a copy, before the first product that reads one of them.
  void make(const Copy &copy, Forms &forms, const Op &product, size_t index) {
    forms.isMade = true;
    if (isIn8Bits(copy.of))
      return takeGathered(copy, forms, product);
    if (!recipe_.blocks)
      return quantise(copy, forms, product, index);
    if (forms.needsPlain)
      std::tie(forms.plain, forms.plainScale) = quantiseBlocks(copy, false, product);
    if (forms.needsTransposed)
      std::tie(forms.transposed, forms.transposedScale) = quantiseBlocks(copy, true, product);
  }

  std::string nameOfCopy(const Copy &copy) const {
    return nameOf(copy.of) + (copy.isBackward ? ".again" : "");
  }
  Type typeOfCopy(const Copy &copy, bool isTransposed) const {
    Type type = typeOf(copy.of);
    type.dtype = copy.type;
    int64_t cols = type.shape[type.rank - 1];
    return isTransposed ? Type::of(copy.type, {cols, type.numel() / cols}) : type;
  }

  /// Quantises a value into the forms that are needed. One op computes both forms, which have the
  /// same scale.
  void quantise(const Copy &copy, Forms &forms, const Op &product, size_t index) {
    std::string name = nameOfCopy(copy);
    Op op = delayed_ ? delayedOp(copy.of, product, index)
                     : opLike(product, OpKind::Quantize, {copy.of, magnitudeOf(copy.of, product)});
    if (!forms.needsPlain)
      op.set(Key::transposed, int64_t{1});
    ValueId &first = forms.needsPlain ? forms.plain : forms.transposed;
    first = addResult(op, name + (forms.needsPlain ? ".q" : ".qt"),
                      typeOfCopy(copy, !forms.needsPlain));
    forms.plainScale = addResult(op, name + ".scale", Type::of(DType::F32, {1}));
    forms.transposedScale = forms.plainScale;
    if (op.kind == OpKind::QuantizeDelayed)
      addSeen(op, name);
    if (forms.needsPlain && forms.needsTransposed)
      forms.transposed = addResult(op, name + ".qt", typeOfCopy(copy, true));
    ops_.push_back(std::move(op));
  }

  // ---- weights that are stored in 8 bits ----

  bool isIn8Bits(ValueId value) const {
    int32_t param = isWeight_[value] ? products_.paramOf(value) : -1;
    return param >= 0 && plan::isKeptIn8Bits(plan_.params[static_cast<size_t>(param)]);
  }

  /// Uses the stored weight, and transposes it if needed. All forms have the same scale.
  void takeGathered(const Copy &copy, Forms &forms, const Op &product) {
    forms.plain = copy.of;
    forms.plainScale = forms.transposedScale = scaleOf(copy.of, product);
    if (!forms.needsTransposed)
      return;
    const Type &type = typeOf(copy.of);
    Op op = opLike(product, OpKind::Transpose, {copy.of});
    op.set(Key::outer, type.shape[0]);
    op.set(Key::inner, type.shape[1]);
    forms.transposed = emit(std::move(op), nameOfCopy(copy) + ".qt", typeOfCopy(copy, true));
  }

  /// The scale of a stored weight. For stacked experts: the rows of the rank's own experts.
  ValueId scaleOf(ValueId weight, const Op &product) {
    auto [at, isNew] = scaleOf_.try_emplace(weight, kNone);
    if (!isNew)
      return at->second;
    if (scales_ == kNone)
      scales_ = plan::addLiveIn(segment_, "weight_scales", role_,
                                plan::findCell(role_, plan::CellKind::WeightScales));
    Op op = opLike(product, OpKind::View, {scales_});
    int32_t param = products_.paramOf(weight);
    Type type = Type::of(DType::F32, {1});
    if (isStacked(param)) {
      type = Type::of(DType::F32, {typeOf(weight).shape[0], plan::kScaleStride});
      op.group = groupOfExperts(param);
      op.set(Key::coef, op.group < 0 ? 0 : type.numel());
    }
    op.set(Key::offset,
           plan::kScaleStride * plan::numberOfScale(plan_, static_cast<size_t>(param)));
    return at->second = emit(std::move(op), nameOf(weight) + ".scale", type);
  }

  // ---- products of experts ----

  bool isStacked(int32_t param) const {
    return plan_.params[static_cast<size_t>(param)].isStacked();
  }
  /// The group in which ranks have different experts; -1 if all ranks have all experts.
  int16_t groupOfExperts(int32_t param) const {
    const plan::Param &stack = plan_.params[static_cast<size_t>(param)];
    auto split = std::ranges::find(stack.splits, 0, &plan::Split::dim);
    return split == stack.splits.end() || stack.isUncut() ? int16_t{-1} : split->group;
  }

  /// Sets the attributes by which a grouped product quantises its operands, and adds amaxes or
  /// scales. Experts' weights have shape [E, m, k], so gradients are the first operands of both
  /// products with them.
  void quantiseOperands(Op &op) {
    bool takesGradient = isBackward(op) && !op.isRecomputed;
    bool takesWeight = op.kind == OpKind::GroupedMatMul;
    int32_t param = products_.weightOf(op);
    ValueId first = op.operands[0];
    op.set(Key::fp8_recipe, static_cast<int64_t>(recipe_.ofExperts));
    op.set(Key::e5m2, int64_t{takesGradient && recipe_.gradients == DType::F8E5M2});
    if (takesWeight && isIn8Bits(op.operands[1])) {
      op.kind = OpKind::GroupedMatMulScaled;
      op.operands.push_back(scaleOf(op.operands[1], op));
    }
    if (!delayed_)
      return;
    SHARDC_CHECK(param >= 0, "product of '{}' is that of no weight", nameOf(first));
    op.group = groupOfExperts(param);
    op.set(Key::slot,
           delayed_->slotOf(param, takesGradient ? Quantised::Gradient : Quantised::Activation));
    if (op.kind != OpKind::GroupedMatMulScaled)
      op.set(Key::b_slot,
             delayed_->slotOf(param, takesWeight ? Quantised::Weight : Quantised::Activation));
    op.operands.push_back(amax_);
    // The amax of a value is recorded only once. That of a gradient is recorded by the product for
    // the input gradient, for which other ops wait.
    bool isAgain = op.isRecomputed || (!takesWeight && gradients_.contains(first));
    if (seen_ == kNone || isAgain)
      return;
    op.operands.push_back(seen_);
    addSeen(op, nameOf(op.results[0]));
  }

  // ---- recipe delayed: evaluations record no amax values ----

  void beginDelayed() {
    amax_ = plan::addLiveIn(segment_, "amax", role_, delayed_->amax);
    if (segment_.kind != plan::SegmentKind::Eval)
      seen_ = plan::addLiveIn(segment_, "amax_seen", role_, delayed_->seen);
  }

  /// The op that quantises a value. Only the first one records the amax of the value.
  Op delayedOp(ValueId value, const Op &product, size_t index) {
    bool isOfGradient = product.role == plan::ProductRole::WeightGradient;
    int32_t param = products_.weightOf(product);
    SHARDC_CHECK(param >= 0, "product of '{}' is that of no weight", nameOf(value));
    Quantised tensor = index == 1
                           ? (isOfGradient ? Quantised::Activation : Quantised::Weight)
                           : (isForward(product) ? Quantised::Activation : Quantised::Gradient);
    int64_t slot = delayed_->slotOf(param, tensor);
    bool isSeen = seen_ == kNone || !seenValues_.insert(value).second;
    Op op = isSeen ? opLike(product, OpKind::Quantize, {value, amax_})
                   : opLike(product, OpKind::QuantizeDelayed, {value, amax_, seen_});
    op.set(Key::slot, slot);
    return op;
  }

  /// Blocks lie along rows of the form that is multiplied, so the two forms have separate scales.
  std::pair<ValueId, ValueId> quantiseBlocks(const Copy &copy, bool isTransposed,
                                             const Op &product) {
    Type type = typeOfCopy(copy, isTransposed);
    ScaleBlocks blocks = *(isWeight_[copy.of] ? recipe_.weightBlocks : recipe_.blocks);
    int64_t cols = type.shape[type.rank - 1];
    Extents scales = scalesOf(blocks, {type.numel() / cols, cols});
    std::string name = nameOfCopy(copy) + (isTransposed ? ".qt" : ".q");
    Op op = opLike(product, OpKind::QuantizeBlocks, {copy.of});
    if (isTransposed)
      op.set(Key::transposed, int64_t{1});
    ValueId q = addResult(op, name, type);
    DType scaleType = blocks == ScaleBlocks::Rows32 ? DType::U8 : DType::F32;
    ValueId scale = addResult(op, name + ".scale", Type::of(scaleType, {scales.rows, scales.cols}));
    ops_.push_back(std::move(op));
    return {q, scale};
  }

  /// The amax of the value over all ranks that have parts of it. It is computed only once.
  ValueId magnitudeOf(ValueId value, const Op &product) {
    auto [at, isNew] = amaxes_.try_emplace(value, kNone);
    if (!isNew)
      return at->second;
    std::string name = nameOf(value) + ".amax";
    Type scalar = Type::of(DType::F32, {1});
    ValueId largest = emit(opLike(product, OpKind::Amax, {value}), name, scalar);
    if (recipe_.group >= 0) {
      Op all = opLike(product, OpKind::AllReduceMax, {largest});
      all.group = recipe_.group;
      largest = emit(std::move(all), name + ".all", scalar);
    }
    return amaxes_[value] = largest;
  }

  ValueId addResult(Op &op, std::string name, const Type &type,
                    plan::Purpose purpose = plan::Purpose::Activations) {
    op.results.push_back(plan::addValue(segment_, std::move(name), type, purpose));
    return op.results.back();
  }
  /// The amax values that the op has observed too.
  void addSeen(Op &op, const std::string &name) {
    seen_ = addResult(op, name + ".seen", Type(typeOf(seen_)), plan::Purpose::Step);
  }

  /// An op of the same unit, phase and recipe line as the product.
  static Op opLike(const Op &product, OpKind kind, std::initializer_list<ValueId> operands) {
    Op op = plan::makeOp(kind, operands, product.unit, product.loc);
    op.phase = product.phase;
    op.isRecomputed = product.isRecomputed;
    op.pred = product.pred;
    return op;
  }

  const plan::Plan &plan_;
  const plan::Role &role_;
  const Recipe &recipe_;
  Products products_;                            ///< before any change
  const std::optional<DelayedScaling> &delayed_; ///< with recipe delayed
  ValueId scales_ = kNone;                       ///< scales of weights that are stored in 8 bits
  std::map<ValueId, ValueId> scaleOf_;           ///< by stored weight
  ValueId amax_ = kNone, seen_ = kNone;          ///< amax values: expected, and observed so far
  std::vector<uint8_t> isWeight_;                ///< by value
  std::vector<uint8_t> staysForBackward_;        ///< by value: whether other backward ops read it
  std::set<ValueId> seenValues_;
  std::set<ValueId> gradients_; ///< gradients that products with experts' weights read
  std::map<Copy, Forms> forms_;
  std::map<ValueId, ValueId> amaxes_;
};

bool isForwardOfExperts(const Op &op, const Products &products) {
  return op.kind == OpKind::GroupedMatMul && products.hasGrouped(op) &&
         op.phase != plan::Phase::Backward;
}

/// The weights of quantised products, including those of experts, in order of their index.
std::vector<int32_t> quantisedParams(const plan::Plan &plan, const plan::Role &role,
                                     const Recipe &recipe) {
  std::vector<int32_t> found;
  for (const plan::Segment &segment : role.segments) {
    if (!segment.body)
      continue;
    Products products(plan, role, segment, recipe);
    for (const Op &op : segment.ops)
      if ((products.has(op) && isForward(op)) || isForwardOfExperts(op, products))
        found.push_back(products.weightOf(op));
  }
  return found;
}

/// Stores these weights in 8 bits, with their scales. Trained ones are quantised from masters in
/// each step, those of a base once, at the start of a run. Other frozen weights stay unchanged.
void keepIn8Bits(plan::Plan &plan, plan::Role &role, const std::vector<int32_t> &params,
                 const Recipe &recipe) {
  for (int32_t index : params) {
    plan::Param &param = plan.params[static_cast<size_t>(index)];
    bool isTrained = plan.classOf(plan.blocks[static_cast<size_t>(param.block)]).isTrained;
    if (!(isTrained ? recipe.gathersWeights : recipe.keepsBase))
      continue;
    param.type.dtype = DType::F8E4M3;
    if (param.whole.rank > 0)
      param.whole.dtype = DType::F8E4M3;
  }
  for (plan::Cell &cell : role.cells)
    if (cell.kind == plan::CellKind::Param)
      cell.type.dtype = plan.params[static_cast<size_t>(cell.of)].type.dtype;
  for (plan::Segment &segment : role.segments)
    for (const plan::Segment::Boundary &in : segment.ins)
      if (role.cells[in.cell].kind == plan::CellKind::Param)
        segment.values[in.value].type.dtype = role.cells[in.cell].type.dtype;
  if (plan::countWeightScales(plan) == 0)
    return;
  addCell(role, "weight_scales", plan::CellKind::WeightScales,
          Type::of(DType::F32, {plan::countWeightScales(plan), plan::kScaleStride}),
          plan::Arena::State, plan::Purpose::Params);
}

} // namespace

std::optional<std::string> findNeededByQuantize(const plan::Plan &plan) {
  std::optional<Recipe> recipe = readRecipe(plan);
  bool isDelayed = plan.job.model.fp8Recipe == Job::Fp8Recipe::Delayed;
  if (!recipe || (!isDelayed && !recipe->gathersWeights && !recipe->keepsBase))
    return std::nullopt;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments) {
      if (!segment.body)
        continue;
      Products products(plan, role, segment, *recipe);
      for (const Op &op : segment.ops)
        if ((products.has(op) || products.hasGrouped(op)) && products.weightOf(op) < 0)
          return fmt::format("products with parameters; '{}' of segment '{}' takes none",
                             segment.values[op.results[0]].name, segment.name);
    }
  return std::nullopt;
}

void runQuantize(plan::Plan &plan, Notes &) {
  std::optional<Recipe> recipe = readRecipe(plan);
  if (!recipe)
    return;
  for (plan::Role &role : plan.roles) {
    std::optional<DelayedScaling> delayed;
    std::vector<int32_t> params = quantisedParams(plan, role, *recipe);
    if (params.empty())
      continue;
    if (plan.job.model.fp8Recipe == Job::Fp8Recipe::Delayed)
      delayed = addDelayedScaling(plan, role, params);
    if (recipe->gathersWeights || recipe->keepsBase)
      keepIn8Bits(plan, role, params, *recipe);
    for (plan::Segment &segment : role.segments)
      if (segment.body)
        Quantizer(plan, role, segment, *recipe, delayed).run();
  }
}

} // namespace shardc::passes
