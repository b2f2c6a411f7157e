#include "compiler/model/Parts.h"

#include <cmath>

#include "compiler/model/Forward.h"

namespace shardc::model {

using plan::InitKind;

int64_t plus(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

void Linear::declare(Params &params) const {
  std::optional<TensorSplit> columns, summed; // of what has a number for each column, and of others
  if (cut == Columns)
    columns = {0, parts};
  else if (cut == Sum)
    summed = {1};
  params.push_back(
      {kind, weight(), {out, in}, InitKind::Normal, initStd, columns ? columns : summed});
  if (hasBias)
    params.push_back({ParamKind::Bias, stem + ".bias", {out}, InitKind::Zeros, 0, columns});
  if (!adapter)
    return;
  params.push_back({ParamKind::AdapterIn,
                    stem + kAdapterIn,
                    {adapter->columns(), in},
                    InitKind::Normal,
                    adapter->initStd,
                    summed});
  params.push_back({ParamKind::AdapterOut,
                    stem + kAdapterOut,
                    {out, adapter->rank},
                    InitKind::Zeros,
                    0,
                    columns});
  if (adapter->hasBias)
    params.push_back(
        {ParamKind::AdapterBias, stem + kAdapterBias, {out}, InitKind::Zeros, 0, columns});
  // The expected norm of a row of randomly initialised weights. Loads set the norms of the base's
  // rows instead.
  double norm = initStd * std::sqrt(static_cast<double>(in));
  if (adapter->hasMagnitude)
    params.push_back(
        {ParamKind::Magnitude, stem + kAdapterMagnitude, {out}, InitKind::Constant, norm, columns});
}

ValueId Linear::apply(Forward &to, ValueId x, const char *what) const {
  const std::string name = what;
  if (!adapter)
    return biased(to, product(to, x, hasBias ? name + ".product" : name), name);
  if (adapter->hasMagnitude)
    return biased(to, withMagnitude(to, x, hasBias ? name + ".product" : name), name);
  const std::string own = name + ".base";
  ValueId base = biased(to, product(to, x, hasBias ? own + ".product" : own), own);
  ValueId more = adapted(to, x, name).result;
  return to.emit(to.op(OpKind::Add, {base, more}), to.name(what), to.typeOf(base));
}

ValueId Linear::withMagnitude(Forward &to, ValueId x, const std::string &what) const {
  ValueId base = product(to, x, what + ".base");
  const Adapted more = adapted(to, x, what);
  ValueId sum = to.emit(to.op(OpKind::Add, {base, more.result}), to.name((what + ".sum").c_str()),
                        to.typeOf(base));
  Op square = to.op(OpKind::AdapterSquares,
                    {to.weight(weight()), more.factor, to.weight(stem + kAdapterIn)});
  square.set(Key::scale, adapter->scale);
  ValueId squares =
      to.emit(std::move(square), to.name((what + ".squares").c_str()), Type::of(DType::F32, {out}));
  Op scale = to.op(OpKind::ScaleColumns, {sum, to.weight(stem + kAdapterMagnitude), squares});
  // Without parts, each column is a group, so that ranks that divide columns divide groups.
  scale.set(Key::num_groups, adapter->units == 1 ? out : adapter->groups);
  scale.set(Key::units, adapter->units);
  scale.set(Key::first_units, adapter->units - adapter->parts + 1);
  scale.set(Key::kept, static_cast<int64_t>(adapter->kept));
  return to.emit(std::move(scale), to.name(what.c_str()), to.typeOf(sum));
}

ValueId Linear::expanded(Forward &to, const std::string &what) const {
  ValueId b = to.weight(stem + kAdapterOut);
  if (!adapter->isExpanded())
    return b;
  Op expand = to.op(OpKind::ExpandParts, {b});
  expand.set(Key::num_groups, adapter->groups).set(Key::units, adapter->units);
  expand.set(Key::first_units, adapter->units - adapter->parts + 1);
  expand.set(Key::parts, adapter->columns() / adapter->rank);
  expand.set(Key::kept, static_cast<int64_t>(adapter->kept));
  ValueId left = to.emit(std::move(expand), to.name((what + ".adapter.parts").c_str()),
                         Type::of(to.typeOf(b).dtype, {out, adapter->columns()}));
  return adapter->scales.empty() ? left : scaledParts(to, left, what + ".adapter");
}

ValueId Linear::scaledParts(Forward &to, ValueId b, const std::string &what) const {
  ValueId made = plan::kNone;
  for (size_t i = 0; i < adapter->scales.size(); ++i) {
    const std::string name = fmt::format("{}.part{}", what, i);
    Type left = to.typeOf(b), type = left;
    type.shape[1] = adapter->rank, left.shape[1] -= adapter->rank;
    ValueId own = b;
    if (left.shape[1] > 0) {
      auto both = to.emitMany(to.op(OpKind::SplitColumns, {b}),
                              {{name.c_str(), type}, {(name + ".left").c_str(), left}});
      own = both[0], b = both[1];
    }
    own = to.scaled(own, adapter->scales[i], (name + ".scaled").c_str());
    if (made == plan::kNone) {
      made = own;
      continue;
    }
    type.shape[1] += to.typeOf(made).shape[1];
    made =
        to.emit(to.op(OpKind::JoinColumns, {made, own}), to.name((name + ".joined").c_str()), type);
  }
  return made;
}

Linear::Adapted Linear::adapted(Forward &to, ValueId x, const std::string &what) const {
  const std::string name = what + ".adapter";
  auto times = [&](ValueId by, ValueId factor, int64_t columns, const std::string &result) {
    Type type = to.typeOf(by);
    type.shape[type.rank - 1u] = columns;
    Op op = to.op(OpKind::MatMul, {by, factor});
    op.set(Key::trans_b, int64_t{1});
    return to.emit(std::move(op), to.name(result.c_str()), type);
  };
  x = to.adapterDropout(x, adapter->dropout, (name + ".drop").c_str());
  ValueId inner = times(x, to.weight(stem + kAdapterIn), adapter->columns(), name + ".in");
  ValueId b = expanded(to, what);
  if (!adapter->hasBias) {
    inner = to.scaled(inner, adapter->scale, (name + ".scaled").c_str());
    return {times(inner, b, out, name + ".out"), b};
  }
  ValueId made = times(inner, b, out, name + ".product");
  made = to.emit(to.op(OpKind::BiasAdd, {made, to.weight(stem + kAdapterBias)}),
                 to.name((name + ".biased").c_str()), to.typeOf(made));
  return {to.scaled(made, adapter->scale, (name + ".out").c_str()), b};
}

ValueId Linear::product(Forward &to, ValueId x, const std::string &what) const {
  ValueId w = to.weight(weight());
  Type type = to.typeOf(x);
  type.shape[type.rank - 1u] = out;
  Op product = to.op(OpKind::MatMul, {x, w});
  product.set(Key::trans_b, int64_t{1});
  return to.emit(std::move(product), to.name(what.c_str()), type);
}

ValueId Linear::biased(Forward &to, ValueId y, const std::string &what) const {
  if (!hasBias)
    return y;
  Type type = to.typeOf(y);
  if (cut == Sum) // it ends a branch, which is added to the residual stream
    type.dtype = to.settings().residual;
  return to.emit(to.op(OpKind::BiasAdd, {y, to.weight(stem + ".bias")}), to.name(what.c_str()),
                 type);
}

void Norm::declare(Params &params) const {
  params.push_back({kind_,
                    stem_ + "weight",
                    {size_},
                    settings_.zeroCentered ? InitKind::Zeros : InitKind::Ones,
                    0,
                    split_});
  if (settings_.centered)
    params.push_back({kind_, stem_ + "bias", {size_}, InitKind::Zeros, 0, split_});
}

ValueId Norm::forward(Forward &to, ValueId x) const {
  Type type = to.typeOf(x);
  type.dtype = to.settings().compute; // the result has the type of activations even if x is fp32
  const Type rows = Type::of(DType::F32, {type.numel() / size_});
  ValueId w = to.weight(stem_ + "weight");
  Op norm = settings_.centered ? to.op(OpKind::LayerNorm, {x, w, to.weight(stem_ + "bias")})
                               : to.op(OpKind::RmsNorm, {x, w});
  norm.set(Key::eps, settings_.eps);
  norm.set(Key::zero_centered, int64_t{settings_.zeroCentered});
  std::string mean = what_ + ".mean", rstd = what_ + ".rstd";
  if (settings_.centered)
    return to.emitMany(std::move(norm),
                       {{what_.c_str(), type}, {mean.c_str(), rows}, {rstd.c_str(), rows}})[0];
  return to.emitMany(std::move(norm), {{what_.c_str(), type}, {rstd.c_str(), rows}})[0];
}

ValueId Dropout::forward(Forward &to, ValueId x) const { return to.dropout(x, p_, what_.c_str()); }

void Residual::declare(Params &params) const {
  for (const auto &module : branch_)
    module->declare(params);
}

ValueId Residual::forward(Forward &to, ValueId x) const {
  ValueId y = x;
  for (const auto &module : branch_)
    y = module->forward(to, y);
  y = to.scaled(y, scale_, (what_ + ".scaled").c_str());
  return to.emit(to.op(OpKind::Add, {x, y}), to.name(what_.c_str()), to.typeOf(x));
}

} // namespace shardc::model
