// Writes the forward ops of one microbatch of a decoder-only transformer without optimising: one op
// for each step of the model's definition (Megatron-Core's GPTModel). Used once for training and
// once for evaluation.
#pragma once

#include <string>

#include "compiler/config/Config.h"
#include "compiler/lower/ParamTable.h"
#include "runtime/plan/Builder.h"

namespace shardc::lower {

/// Recipe locations of ops, as indices in Plan::locs.
struct Places {
  uint32_t model = plan::kNone, layers = plan::kNone, vocab = plan::kNone;
  uint32_t optimizer = plan::kNone, train = plan::kNone, strategy = plan::kNone;
  uint32_t checkpoint = plan::kNone; ///< set if saves run in the background
};

/// Values that batch.load defines in a body.
struct Batch {
  plan::ValueId tokens, labels, mask, positions, docs, samples;
};

class ForwardBuilder {
public:
  ForwardBuilder(const config::Config &config, const ParamTable &params, plan::Plan &plan,
                 plan::Role &role, plan::Segment &segment, const Places &places, bool training);

  /// Writes everything from batch.load to the masked losses; returns the losses (f32[T]) and, in
  /// `count`, the microbatch's token count (f32[1]).
  plan::ValueId build(uint32_t feedCell, int64_t slots, plan::ValueId &count);

private:
  plan::ValueId weight(int param);
  plan::ValueId emit(plan::Op op, const std::string &name, const plan::Type &type);
  std::vector<plan::ValueId>
  emitMany(plan::Op op, std::initializer_list<std::pair<const char *, plan::Type>> results);
  plan::Op op(plan::OpKind kind, std::initializer_list<plan::ValueId> operands) const;
  std::string name(const char *what) const { return prefix_ + what; }

  Batch loadBatch(uint32_t feedCell, int64_t slots);
  plan::ValueId embed();
  plan::ValueId norm(plan::ValueId x, const NormParams &params, const char *what);
  plan::ValueId linear(plan::ValueId x, int weight, int bias, const char *what);
  plan::ValueId dropout(plan::ValueId x, const char *what);
  plan::ValueId attention(plan::ValueId x, const LayerParams &layer);
  plan::ValueId feedForward(plan::ValueId x, const LayerParams &layer);
  plan::ValueId loss(plan::ValueId x, plan::ValueId &count);

  const config::Config &config_;
  const config::Derived &d_;
  const ParamTable &params_;
  plan::Role &role_;
  plan::Segment &segment_;
  const Places &places_;
  bool training_;
  Batch batch_{};
  std::vector<plan::ValueId> weights_; ///< live-in value of each parameter, kNone until used
  std::string prefix_;                 ///< of value names: `l3.`
  int32_t unit_ = 0;
  uint32_t loc_ = plan::kNone;
  int64_t salt_ = 0;
  DType dtype_;
};

} // namespace shardc::lower
