// Declares the predicate of every row of Rules.def, and helpers that predicates share.
#pragma once

#include <llvm/ADT/STLExtras.h>

#include "compiler/config/RuleContext.h"

namespace shardc::config {

#define RULE(enumerator, ...) void rule##enumerator(RuleContext &ctx);
#include "compiler/config/Rules.def"

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

/// The value of `opt` as an argument of a message.
inline DiagArg arg(const RuleContext &ctx, Opt opt) { return DiagArg(ctx.text(opt)); }

/// The path of `opt` as an argument of a message.
inline DiagArg pathOf(Opt opt) { return DiagArg(info(opt).path); }

} // namespace shardc::config
