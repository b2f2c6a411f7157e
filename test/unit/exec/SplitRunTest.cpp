// A gated model whose products are divided between two ranks trains like the same model on one
// rank.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/plan/Text.h"
#include "runtime/run/RunLoop.h"
#include "runtime/verify/Verify.h"
#include "test/unit/exec/ToyPlan.h"
#include "test/unit/exec/Trained.h"

namespace shardc::test {
namespace {

constexpr int64_t kData = 2, kSteps = 4, kMicrobatches = 2;
constexpr int64_t kGatedVocab = 8, kGatedHidden = 4, kInner = 8;

/// A table that all ranks have, a product of columns with a gate, and one of rows, in one block.
std::string gatedPlanText(int64_t tp) {
  int64_t inner = kInner / tp, table = kGatedVocab * kGatedHidden, up = 2 * inner * kGatedHidden;
  int64_t numel = table + up + kGatedHidden * inner;
  constexpr std::string_view kText = R"(shardc.plan 2 placed "gated"
needs {{ backend = host  gpu = ""  device_bytes = 0 }}
job {{
  train.global_batch_size = 8
  train.micro_batch_size = 2
  train.train_iters = {steps}
}}
mesh {{ dp = 2 tp = {tp} }}
groups {{ dp = [dp] tp = [tp] all = [dp, tp] }}
data dp
stream gather gather
stream reduce reduce
channel gather group dp stream gather
channel reduce group dp stream reduce
channel rows group tp
channel misc group all
unit u
block b unit u numel {numel} shard {shard} over dp
param "table" : f32[8,4] copies [tp] block b at 0 init normal 0.5
param "up" : f32[{twice},4] of [16,4] split 0 over tp parts 2 block b at 32 init normal 0.5
param "down" : f32[4,{inner}] of [4,8] split 1 over tp block b at {downAt} init normal 0.5
role all "every rank does the same" {{
  arenas {{ state = 1024  work = 16384  sym = 1024  host = 1024 }}
  cell @step step : u8[128] in state for step at 0
  cell @w weight of b : f32[{shard}] in state for params at 128
  cell @stop stop : i32[1] in host for data at 1008
  cell @feed feed : i32[4,44] in host for data at 0
  cell @g : f32[{shard}] in work for grads at 15360
  segment init init {{
    %step = step.reset : u8[128] step at state 0
    %w = init_block {{block = 0  seed = 7}} unit u : f32[{shard}] params at state 128
    out @step = %step
    out @w = %w
  }}
  segment micro train body {{
    in %s = @step at state 0
    in %feed = @feed at host 0
    in %w = @w at state 128
    in %g = @g at work 15360
    %begun = step.begin %s {{lr = 0.5  min_lr = 0.5}} else(0 = %s) if first : u8[128] step at
      state 0
    %tokens, %labels, %mask, %positions, %docs, %samples = batch.load %feed {{slots = 4}} :
      i32[2,4] data at work 0, i32[2,4] data at work 64, f32[2,4] data at work 128, i32[2,4] data
      at work 192, i32[2,4] data at work 256, i64[2] data at work 320
    %W = all_gather %w {{block = 0}} channel gather unit u : f32[{numel}] comm at sym 0
    %table = view %W : f32[8,4] comm at sym 0
    %up = view %W {{offset = 32}} : f32[{twice},4] comm at sym 128
    %down = view %W {{offset = {downAt}}} : f32[4,{inner}] comm at sym {downBytes}
    %x = embedding %tokens, %table after %W : f32[2,4,4] activations at work 512
    %h = matmul %x, %up {{trans_b = true}} after %W : f32[2,4,{twice}] activations at work 1024
    %a = swiglu %h : f32[2,4,{inner}] activations at work 2048
    %y = matmul %a, %down {{trans_b = true}} after %W : f32[2,4,4] activations at work 2560
    %ys = all_reduce %y channel rows : f32[2,4,4] activations at work 2560
    %logits = matmul %ys, %table {{trans_b = true}} after %W : f32[2,4,8] activations at work 3072
    %losses, %lse = cross_entropy %logits, %labels, %mask {{valid_cols = 8}} : f32[8] activations
      at work 3584, f32[8] activations at work 3648
    %n = token_count %mask : f32[1] activations at work 3712
    %summed = loss.add %begun, %losses, %n : u8[128] step at state 0
    %dlogits = cross_entropy_bwd %logits, %lse, %labels, %mask, %n {{valid_cols = 8}} : f32[2,4,8]
      activations at work 4096
    %dhead = matmul %dlogits, %ys {{trans_a = true}} : f32[8,4] grads at work 10240
    %dy = matmul %dlogits, %table after %W : f32[2,4,4] activations at work 4608
    %ddown = matmul %dy, %a {{trans_a = true}} : f32[4,{inner}] grads at work {ddownAt}
    %da = matmul %dy, %down after %W : f32[2,4,{inner}] activations at work 5120
    %dh = swiglu_bwd %da, %h : f32[2,4,{twice}] activations at work 6144
    %dup = matmul %dh, %x {{trans_a = true}} : f32[{twice},4] grads at work 10368
    %dx = matmul %dh, %up after %W : f32[2,4,4] activations at work 7168
    %dxs = all_reduce %dx channel rows : f32[2,4,4] activations at work 7168
    %dtable = embedding_bwd %dxs, %tokens acc(0 = %dhead) : f32[8,4] grads at work 10240
    %G = pack %dtable, %dup, %ddown {{block = 0}} : f32[{numel}] grads at work 10240
    %r = reduce_scatter %G {{block = 0}} channel reduce unit u acc(0 = %g if not_first) after
      %dtable : f32[{shard}] grads at work 15360
    out @step = %summed
    out @g = %r
  }}
  segment update update {{
    in %step = @step at state 0
    in %w = @w at state 128
    in %g = @g at work 15360
    in %stop = @stop at host 1008
    %ss = sum_squares %g : f64[1] step at work 0
    %partial = step.pack %step, %ss, %stop : f64[4] step at work 16
    %sums = all_reduce %partial channel misc : f64[4] step at work 16
    %finished = step.finish %step, %sums, %ss : u8[128] step at state 0
    %w.new = sgd %g, %w, %finished {{block = 0}} unit u : f32[{shard}] params at state 128
    out @step = %finished
    out @w = %w.new
  }}
  program {{
    start init
    steps {steps} {{
      run micro {microbatches}
      run update
    }}
  }}
}}
)";
  return fmt::format(
      kText, fmt::arg("tp", tp), fmt::arg("numel", numel), fmt::arg("shard", numel / kData),
      fmt::arg("twice", 2 * inner), fmt::arg("inner", inner), fmt::arg("downAt", table + up),
      fmt::arg("downBytes", 4 * (table + up)), fmt::arg("ddownAt", 10240 + 4 * (table + up)),
      fmt::arg("steps", kSteps), fmt::arg("microbatches", kMicrobatches));
}

Trained train(int64_t tp) {
  Trained trained;
  Result<plan::Plan> plan = plan::parse(gatedPlanText(tp), "gated.plan");
  EXPECT_TRUE(plan.isOk()) << plan.status().message();
  Status verified = plan::verified(*plan);
  EXPECT_TRUE(verified.isOk()) << verified.message();
  auto backend = host::makeBackend({.ranks = static_cast<int>(plan->worldSize())});
  auto executable = exec::Executable::create(*plan, **backend, kernels::findHostKernel, {});
  EXPECT_TRUE(executable.isOk()) << executable.status().message();
  ToySource source(kToyBatch * kData * kMicrobatches, kData);
  auto result = run::runProgram(**executable, source, trained, {});
  EXPECT_TRUE(result.isOk()) << result.status().message();
  readTensors(**executable, trained);
  return trained;
}

TEST(SplitRun, TrainsLikeWholeParameters) {
  Trained one = train(1);
  ASSERT_EQ(one.steps.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(one.steps.back().loss, one.steps.front().loss);
  for (int64_t tp : {2, 4}) {
    SCOPED_TRACE(tp);
    Trained split = train(tp);
    ASSERT_EQ(split.steps.size(), one.steps.size());
    for (size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_NEAR(split.steps[i].loss, one.steps[i].loss, 1e-6 * one.steps[i].loss) << i;
      EXPECT_NEAR(split.steps[i].gradNorm, one.steps[i].gradNorm, 1e-5) << i;
    }
    ASSERT_EQ(split.tensors.size(), 3u);
    for (const auto &[name, want] : one.tensors) {
      const std::vector<float> &got = split.tensors[name];
      ASSERT_EQ(got.size(), want.size()) << name;
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-5) << name << " " << i;
    }
  }
}

} // namespace
} // namespace shardc::test
