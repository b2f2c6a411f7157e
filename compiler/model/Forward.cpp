#include "compiler/model/Forward.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/Status.h"

namespace shardc::model {

using plan::kNone;

Forward::Forward(const plan::Plan &plan, const plan::Role &role, plan::Segment &segment,
                 const BodySettings &settings)
    : plan_(plan), role_(role), segment_(segment), settings_(settings),
      cells_(plan::findCells(role, plan::CellKind::Param, plan.params.size())),
      weights_(plan.params.size(), kNone) {
  for (uint32_t i = 0; i < plan.params.size(); ++i)
    params_.emplace(plan.params[i].name, i);
}

void Forward::enter(int32_t unit, uint32_t loc, std::string paramPrefix, std::string valuePrefix) {
  unit_ = unit;
  loc_ = loc;
  paramPrefix_ = std::move(paramPrefix);
  valuePrefix_ = std::move(valuePrefix);
}

ValueId Forward::weight(const std::string &name) {
  auto at = params_.find(paramPrefix_ + name);
  SHARDC_CHECK(at != params_.end(), "no module declares the parameter '{}{}'", paramPrefix_, name);
  ValueId &value = weights_[at->second];
  if (value != kNone)
    return value;
  const plan::Param &param = plan_.params[at->second];
  value = plan::addLiveIn(segment_, "w." + param.name, role_, cells_[at->second]);
  if (isRecord(param.type.dtype)) {
    Type type = plan::numbersOf(param.type);
    type.dtype = settings_.compute;
    value =
        emit(op(param.type.dtype == DType::NF4x64 ? OpKind::Dequantize : OpKind::DequantizeNested,
                {value}),
             "w." + param.name + ".numbers", type);
  }
  return value;
}

Op Forward::op(OpKind kind, std::initializer_list<ValueId> operands) const {
  return plan::makeOp(kind, operands, unit_, loc_);
}

ValueId Forward::emit(Op op, std::string name, const Type &type) {
  ValueId result = plan::addValue(segment_, std::move(name), type);
  op.results = {result};
  plan::append(segment_, std::move(op));
  return result;
}

ValueId Forward::emitRows(Op op, std::string name, const Type &type, ValueId counts) {
  ValueId result = emit(std::move(op), std::move(name), type);
  segment_.values[result].counts = counts;
  return result;
}

ValueId Forward::reshaped(ValueId value, const char *what, std::initializer_list<int64_t> shape) {
  const plan::Value like = segment_.values[value];
  ValueId result = emit(op(OpKind::View, {value}), name(what), Type::of(like.type.dtype, shape));
  setPurpose(result, like.purpose);
  return result;
}

std::vector<ValueId> Forward::emitMany(Op op,
                                       const std::vector<std::pair<const char *, Type>> &results) {
  std::vector<ValueId> values;
  for (const auto &[what, type] : results)
    values.push_back(plan::addValue(segment_, name(what), type));
  op.results = values;
  plan::append(segment_, std::move(op));
  return values;
}

void Forward::loadBatch(uint32_t feedCell, int64_t slots, uint32_t loc) {
  Type ids = Type::of(DType::I32, {settings_.microBatch, settings_.seqLength});
  Type mask = Type::of(DType::F32, {settings_.microBatch, settings_.seqLength});
  Type samples = Type::of(DType::I64, {settings_.microBatch});
  Op load = op(OpKind::BatchLoad, {plan::addLiveIn(segment_, "feed", role_, feedCell)});
  load.loc = loc;
  load.set(Key::slots, slots);
  std::vector<std::pair<const char *, Type>> fields = {{"tokens", ids}, {"labels", ids},
                                                       {"mask", mask},  {"positions", ids},
                                                       {"docs", ids},   {"samples", samples}};
  if (settings_.hasPairs)
    fields.emplace_back("reference", mask);
  auto v = emitMany(std::move(load), fields);
  for (ValueId value : v)
    segment_.values[value].purpose = plan::Purpose::Data;
  batch_ = {v[0], v[1], v[2], v[3], v[4], v[5], settings_.hasPairs ? v.back() : kNone};
}

void Forward::setDropout(Op &op, double p) {
  ++salt_; // also counted in evaluation, so that a place in the model always has the same salt
  if (settings_.training && p > 0)
    op.set(Key::p, p).set(Key::salt, salt_).set(Key::seed, settings_.seed);
}

ValueId Forward::dropout(ValueId x, double p, const char *what) {
  Op drop = op(OpKind::Dropout, {x, batch_.samples});
  setDropout(drop, p);
  Type type = typeOf(x);
  type.dtype = settings_.residual;
  return drop.getFloat(Key::p) > 0 ? emit(std::move(drop), name(what), type) : x;
}

ValueId Forward::adapterDropout(ValueId x, double p, const char *what) {
  constexpr int64_t kBehindModel = 1 << 24;
  ++adapterSalt_;
  if (!settings_.training || p == 0)
    return x;
  Op drop = op(OpKind::Dropout, {x, batch_.samples});
  drop.set(Key::p, p).set(Key::salt, kBehindModel + adapterSalt_).set(Key::seed, settings_.seed);
  return emit(std::move(drop), name(what), typeOf(x));
}

ValueId Forward::scaled(ValueId x, double factor, const char *what) {
  if (factor == 1)
    return x;
  Op scale = op(OpKind::Cast, {x});
  scale.set(Key::scale, factor);
  return emitRows(std::move(scale), name(what), typeOf(x), segment_.values[x].counts);
}

ValueId Forward::jittered(ValueId x, double jitter, const char *what) {
  if (jitter == 0)
    return x;
  Op draw = op(OpKind::Dropout, {x, batch_.samples});
  draw.set(Key::jitter, jitter).set(Key::salt, ++salt_).set(Key::seed, settings_.seed);
  return emit(std::move(draw), name(what), typeOf(x));
}

ValueId Forward::expertBias(int64_t layer, int64_t experts) {
  uint32_t cell = plan::findCell(role_, plan::CellKind::ExpertBias);
  if (cell == kNone)
    return kNone;
  if (bias_ == kNone)
    bias_ = plan::addLiveIn(segment_, "expert_bias", role_, cell);
  return row(bias_, layer, Type::of(DType::F32, {experts}), "router.bias");
}

bool Forward::tallies(std::string_view cell) const {
  return settings_.training &&
         std::ranges::find(role_.cells, cell, &plan::Cell::name) != role_.cells.end();
}

ValueId Forward::tally(std::string_view cell, ValueId x, int64_t slot, double scale, ValueId n) {
  auto at = std::ranges::find(role_.cells, cell, &plan::Cell::name);
  SHARDC_CHECK(at != role_.cells.end(), "there is no cell '{}'", cell);
  auto index = static_cast<uint32_t>(at - role_.cells.begin());
  auto sums = std::ranges::find(sums_, index, &Sums::cell);
  if (sums == sums_.end())
    sums =
        sums_.insert(sums, {index, plan::addLiveIn(segment_, at->name + ".before", role_, index)});
  Op add = op(OpKind::Tally, {x});
  if (n != kNone)
    add.operands.push_back(n);
  add.set(Key::slots, at->type.shape[0]).set(Key::slot, slot).set(Key::scale, scale);
  add.ties.push_back(
      {plan::Tie::Acc, 0, sums->value, sums->isFirst ? plan::Pred::NotFirst : plan::Pred::Always});
  std::string what = fmt::format("{}.{}", at->name, slot);
  sums->value = emit(std::move(add), name(what.c_str()), at->type);
  sums->isFirst = false;
  setPurpose(sums->value, at->purpose);
  return sums->value;
}

int64_t Forward::columnsOf(std::string_view cell) const {
  auto at = std::ranges::find(role_.cells, cell, &plan::Cell::name);
  SHARDC_CHECK(at != role_.cells.end(), "there is no cell '{}'", cell);
  return at->type.shape[1];
}

ValueId Forward::row(ValueId matrix, int64_t index, const Type &type, const char *what) {
  const plan::Value of = segment_.values[matrix];
  Op view = op(OpKind::View, {matrix});
  view.set(Key::offset, index * of.type.shape[1]);
  ValueId row = emit(std::move(view), name(what), type);
  setPurpose(row, of.purpose);
  return row;
}

void Forward::leaveTallies() {
  for (const Sums &sums : sums_)
    segment_.outs.push_back({sums.value, sums.cell});
}

ValueId Forward::summed(ValueId value, const char *what, int16_t group) {
  if (plan_.groupSize(group) == 1)
    return value;
  Op sum = op(OpKind::AllReduce, {value});
  sum.group = group;
  return emit(std::move(sum), name(what), typeOf(value));
}

} // namespace shardc::model
