// Declares the predicate of every row of Rules.def, and helpers that predicates share.
#pragma once

#include <llvm/ADT/STLExtras.h>

#include "compiler/config/RuleContext.h"

namespace shardc::config {

/// The numbers of microbatches of a rank per step, ascending. There are several if the batch grows.
std::vector<int64_t> microbatchesOfSteps(const Derived &d);

#define RULE(enumerator, ...) void rule##enumerator(RuleContext &ctx);
#include "compiler/config/Rules.def"

// Predicates are members of RuleContext, so that its members and options have their short names in
// them; `ctx` is the context and `d` the derived sizes. Most are rows of Rules<Topic>.cpp:
//
//   RULE_IF(Enumerator, when, what)               does `what` if the condition `when` holds
//   RULE_EACH(Enumerator, (options), when, what)  the same for each option `opt` of a list
//   RULE_DO(Enumerator, what)                     `what` finds out whether the rule applies
//   RULE_CODE(Enumerator) { ... }                 code of its own
#define RULE_CODE(enumerator)                                                                      \
  template <> void RuleContext::apply<RuleId::enumerator>();                                       \
  void rule##enumerator(RuleContext &ctx) { ctx.apply<RuleId::enumerator>(); }                     \
  template <> void RuleContext::apply<RuleId::enumerator>()
#define RULE_DO(enumerator, ...)                                                                   \
  RULE_CODE(enumerator) { __VA_ARGS__; }                                                           \
  static_assert(true)
#define RULE_IF(enumerator, when, ...) RULE_DO(enumerator, if (when) __VA_ARGS__)
#define RULE_LIST(...)                                                                             \
  { __VA_ARGS__ }
#define RULE_EACH(enumerator, options, when, ...)                                                  \
  RULE_DO(enumerator, for (Opt opt                                                                 \
                           : std::initializer_list<Opt>                                            \
                               RULE_LIST options) if (when) __VA_ARGS__)

/// The option that selects the format of checkpoints.
constexpr Opt kFormat = Opt::CheckpointCkptFormat;

/// Whether the second implementation of Megatron FSDP is selected.
inline bool isVersion2(const RuleContext &ctx) {
  return ctx.wantsFsdp() && ctx.num(Opt::DdpMegatronFsdpVersion) == 2;
}

/// Whether routers balance experts by Sinkhorn's algorithm, alone or together with other kinds.
inline bool asksForSinkhorn(const RuleContext &ctx) {
  Opt kinds = Opt::ModelMoeRouterLoadBalancingType;
  return ctx.has(Opt::ModelNumMoeExperts) &&
         llvm::is_contained(ctx.cfg().getEnums<RouterBalancing>(kinds), RouterBalancing::Sinkhorn);
}

/// Whether the fp8 recipe has one scale for each tensor, and not for blocks.
inline bool hasScalesOfTensors(const RuleContext &ctx) {
  return ctx.cfg().is(Opt::ModelFp8Recipe, Fp8Recipe::Tensorwise) ||
         ctx.cfg().is(Opt::ModelFp8Recipe, Fp8Recipe::Delayed);
}

/// Whether CUDA graphs capture single layers.
inline bool capturesLayers(const RuleContext &ctx) {
  return ctx.cfg().is(Opt::ModelCudaGraphImpl, CudaGraphImpl::Local) ||
         ctx.cfg().is(Opt::ModelCudaGraphImpl, CudaGraphImpl::TransformerEngine);
}

/// The path of `opt` as an argument of a message.
inline DiagArg pathOf(Opt opt) { return DiagArg(info(opt).path); }

} // namespace shardc::config
