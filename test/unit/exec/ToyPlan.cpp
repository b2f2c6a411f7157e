#include "test/unit/exec/ToyPlan.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::test {
namespace {

/// Loads a batch and computes its losses; the same for training and evaluation.
constexpr const char *kForward = R"(
    %tokens, %labels, %mask, %positions, %docs, %samples = batch.load %feed
      {{slots = {slots}}} : i32[2,4] data at work 0, i32[2,4] data at work 64, f32[2,4] data
        at work 128, i32[2,4] data at work 192, i32[2,4] data at work 256, i64[2] data at work 320
    %W = all_gather %w channel gather unit u : f32[32] comm at sym 0
    %table = view %W : f32[8,4] comm at sym 0
    %x = embedding %tokens, %table after %W : f32[2,4,4] activations at work 512 loc 0
    %logits = matmul %x, %table {{trans_b = true}} : f32[2,4,8] activations at work 1024 loc 0
    %losses, %lse = cross_entropy %logits, %labels, %mask {{valid_cols = 8}}
      : f32[8] activations at work 1536, f32[8] activations at work 1600 loc 1
    %n = token_count %mask : f32[1] activations at work 1664)";

constexpr const char *kMicro = R"(
  segment micro train body {{
    in %s = @step at state 0
    in %feed = @feed at host 0
    in %w = @w.b at state 256
    in %g = @g at work 4096
    %begun = step.begin %s {{lr = {lr}  min_lr = {lr}}} else(0 = %s) if first : u8[128] step
      at state 0{forward}
    %summed = loss.add %begun, %losses, %n : u8[128] step at state 0
    %dlogits = cross_entropy_bwd %logits, %lse, %labels, %mask, %n
      {{valid_cols = 8  loss_scale = {lossScale}}} : f32[2,4,8] activations at work 2048 loc 1
    %dhead = matmul %dlogits, %x {{trans_a = true}} : f32[8,4] comm at sym 512 loc 0
    %dx = matmul %dlogits, %table : f32[2,4,4] activations at work 2560 loc 0
    %dtable = embedding_bwd %dx, %tokens acc(0 = %dhead) : f32[8,4] comm at sym 512 loc 0
    %G = pack %dtable {{block = 0}} : f32[32] comm at sym 512
    %r{sum} = reduce_scatter %G {block}channel reduce unit u
      acc(0 = %g if not_first) after %dtable : f32[{shard}] grads at work 4096{sumType}
    out @step = %summed
    out @g = %r{sumOut}
  }}
)";

constexpr const char *kEval = R"(
  segment eval eval body {{
    in %s = @step at state 0
    in %feed = @eval_feed at host {evalFeedAt}
    in %w = @w.b at state 256
    %begun = eval.begin %s else(0 = %s) if first : u8[128] step at state 0{forward}
    %summed = eval.add %begun, %losses, %n : u8[128] step at state 0
    %partial = eval.pack %summed if last : f64[2] step at work 3072
    %reduced = all_reduce %partial channel misc if last : f64[2] step at work 3072
    %finished = eval.finish %summed, %reduced else(0 = %summed) if last : u8[128] step at state 0
    out @step = %finished
  }}
)";

constexpr const char *kPlan = R"(shardc.plan 2 placed "toy"
needs {{ backend = host  gpu = ""  device_bytes = 1048576 }}
job {{
  logger.log_interval = 1
  model.seq_length = 4
  model.vocab_size = 8
  train.global_batch_size = {globalBatch}
  train.micro_batch_size = 2
  train.train_iters = {steps}
{evalJob}}}
mesh {{ dp = {dp} }}
groups {{ dp = [dp] }} data dp stream gather stream reduce stream copy
channel gather group dp stream gather channel reduce group dp {via}stream reduce
channel misc group dp unit u block b unit u numel 32 shard {shard} over dp
param "embedding.word_embeddings.weight" : f32[8,4] block b at 0 init normal {initStd}
loc 0 "toy.recipe" 3 7
loc 1 "toy.recipe" 4 7
role all "every rank" {{
  arenas {{ state = 1024  work = 8192  sym = 1024  host = {hostBytes} }}
  cell @step step : u8[128] in state for step at 0
  cell @w.b weight of b : f32[{shard}] in state for params at 256
  cell @g : f32[{shard}] in work for grads at 4096
{sumCell}  cell @stop stop : i32[1] in host for data at {stopAt}
  cell @feed feed : i32[{slots},44] in host for data at 0
{snapCells}{evalCell}  segment init init {{
    %s = step.reset : u8[128] step at state 0
    %w = init_block {{block = 0  seed = 7}} unit u : f32[{shard}] params at state 256
    out @step = %s
    out @w.b = %w
  }}
{micro}  segment update update {{
    in %s = @step at state 0
    in %stop = @stop at host {stopAt}
    in %g = @g at work 4096
    in %w = @w.b at state 256
{sumIn}    %ss = sum_squares {squared} : f64[1] step at work 0
    %partial = step.pack %s, %ss, %stop : f64[4] step at work 64
    %reduced = all_reduce %partial channel misc : f64[4] step at work 64
    %finished = step.finish %s, %reduced, %ss {{clip = 1.0}} : u8[128] step at state 0
    %updated = sgd %g, %w, %finished {{block = 0}} unit u : f32[{shard}] params at state 256
    out @step = %finished
    out @w.b = %updated
  }}
{eval}{snapshots}  program {{
    start init
    steps {steps} {{
      run micro {microbatches}
      run update
{every}    }}
  }}
}}
)";

std::string evalParts(const ToyOptions &o, const std::string &forward, int64_t at) {
  return o.evalEvery == 0
             ? ""
             : fmt::format(kEval, fmt::arg("forward", forward), fmt::arg("evalFeedAt", at));
}

/// Background segments that each copy an equal part of the weights to the same bytes.
struct Snapshots {
  std::string cells, segments;
};

Snapshots snapshotParts(int pieces, int shard, int64_t at) {
  Snapshots parts;
  for (int i = 0; i < pieces; ++i) {
    int count = shard / pieces;
    parts.cells += fmt::format("  cell @snap.{} : f32[{}] in host for data at {}\n", i, count, at);
    parts.segments += fmt::format(R"(  segment snapshot.{0} before update {{
    in %w = @w.b at state 256
    %part = view %w {{offset = {1}}} : f32[{2}] params at state {3}
    %copy = snapshot %part on copy : f32[{2}] data at host {4}
    out @snap.{0} = %copy
  }}
)",
                                  i, i * count, count, 256 + 4 * i * count, at);
  }
  return parts;
}

} // namespace

std::string toyPlanText(const ToyOptions &o) {
  constexpr int kEvalSlots = 2; // fewer than an evaluation has microbatches
  int64_t slots = o.feedSteps * o.microbatches,
          words = run::FeedEntry::words(kToyBatch, kToySequence);
  int64_t evalFeedAt = (slots * words * 4 + 63) / 64 * 64;
  int64_t stopAt = evalFeedAt + (kEvalSlots * words * 4 + 63) / 64 * 64;
  std::string forward = fmt::format(kForward, fmt::arg("slots", slots));
  std::string evalForward = fmt::format(kForward, fmt::arg("slots", kEvalSlots));
  auto given = [&](const char *text) { return o.squares ? text : ""; };
  std::string micro = fmt::format(kMicro, fmt::arg("lr", o.lr), fmt::arg("forward", forward),
                                  fmt::arg("lossScale", 1.0 / (o.dp * o.microbatches)),
                                  fmt::arg("shard", 32 / o.dp), fmt::arg("sum", given(", %s0")),
                                  fmt::arg("block", given("{block = 0} ")),
                                  fmt::arg("sumType", given(", f64[1] step at work 4352")),
                                  fmt::arg("sumOut", given("\n    out @ss = %s0 droppable")));
  std::string eval = evalParts(o, evalForward, evalFeedAt);
  Snapshots snapshots = snapshotParts(o.snapshots, 32 / o.dp, stopAt + 64);
  return fmt::format(
      kPlan, fmt::arg("via", given("via exchange ")),
      fmt::arg("globalBatch", kToyBatch * o.dp * o.microbatches), fmt::arg("steps", o.steps),
      fmt::arg("dp", o.dp), fmt::arg("shard", 32 / o.dp), fmt::arg("initStd", o.initStd),
      fmt::arg("hostBytes", stopAt + 64 + 128), fmt::arg("snapCells", snapshots.cells),
      fmt::arg("snapshots", snapshots.segments), fmt::arg("stopAt", stopAt),
      fmt::arg("slots", slots),
      fmt::arg("sumCell", given("  cell @ss : f64[1] in work for step at 4352\n")),
      fmt::arg("sumIn", given("    in %s0 = @ss at work 4352\n")),
      fmt::arg("squared", o.squares ? "%s0" : "%g"),
      fmt::arg(
          "evalCell",
          o.evalEvery
              ? fmt::format("  cell @eval_feed eval_feed : i32[{},{}] in host for data at {}\n",
                            kEvalSlots, words, evalFeedAt)
              : ""),
      fmt::arg("evalJob",
               o.evalEvery
                   ? fmt::format("  validation.eval_interval = {}\n  validation.eval_iters = 3\n",
                                 o.evalEvery)
                   : ""),
      fmt::arg("micro", micro), fmt::arg("eval", eval), fmt::arg("microbatches", o.microbatches),
      fmt::arg("every", o.evalEvery ? fmt::format("      every {} {{ run eval {} }}\n", o.evalEvery,
                                                  3 * o.microbatches)
                                    : ""));
}

plan::Plan toyPlan(const ToyOptions &options) {
  Result<plan::Plan> plan = plan::parse(toyPlanText(options), "toy.plan");
  Status status = plan.isOk() ? plan::verified(*plan) : plan.status();
  if (!status.isOk()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::abort();
  }
  return std::move(*plan);
}

Status ToySource::fill(run::FeedKind kind, int64_t visit, int64_t microbatch, int64_t, int64_t dp,
                       const run::FeedEntry &entry) {
  int64_t &visitMax = kind == run::FeedKind::Train ? trainVisitMax : evalVisitMax;
  visitMax = std::max(visitMax, visit);
  ++fillCount;
  for (int64_t row = 0; row < entry.batch; ++row) {
    int64_t sample = visit * globalBatch_ + (microbatch * dp_ + dp) * entry.batch + row;
    for (int64_t s = 0; s < entry.sequence; ++s) {
      int64_t at = row * entry.sequence + s;
      auto token = static_cast<int32_t>((sample * 3 + s) % kToyVocab);
      entry.tokens[at] = token;
      entry.labels[at] = (token * 5 + 3) % kToyVocab;
      entry.mask[at] = kind == run::FeedKind::Train && visit == nanStep && dp + 1 == dp_
                           ? std::numeric_limits<float>::infinity()
                           : 1.0f;
      entry.positions[at] = static_cast<int32_t>(s);
      entry.docs[at] = 0;
    }
    std::memcpy(entry.samples + row * sizeof sample, &sample, sizeof sample);
  }
  return Status::ok();
}

} // namespace shardc::test
