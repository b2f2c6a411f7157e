#include "test/unit/exec/PipelinePlan.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace shardc::test {
namespace {

constexpr int64_t kVocab = 8, kHidden = 4, kWeight = kHidden * kHidden, kTable = kVocab * kHidden;
constexpr const char *kRow = "f32[2,4,4]";
constexpr int64_t kRowBytes = 128, kTokenBytes = 32;
constexpr int kFeedSlots = 4;
constexpr int64_t kSnapshotAt = 1024; ///< in the arena of the host

/// The bytes that a role has for a cell, a value, or a slot of a ring.
struct Bytes {
  int64_t at = 0, stride = 0;
  int64_t slots = 1;

  std::string place(int64_t shift = 0) const {
    if (slots == 1)
      return fmt::format("at work {}", at);
    return fmt::format("at work {} slots {} stride {}{}", at, slots, stride, distance(shift));
  }
  static std::string distance(int64_t shift) {
    return shift == 0 ? "" : fmt::format(" mb {} {}", shift < 0 ? '-' : '+', std::abs(shift));
  }
};

class Stage {
public:
  Stage(const PipelineOptions &options, int stage)
      : o_(options), stage_(stage), isFirst_(stage == 0), isLast_(stage + 1 == options.stages),
        ahead_(std::min(options.microbatches, options.stages - 1 - stage)),
        begin_(kPipelineLayers * stage / options.stages),
        end_(kPipelineLayers * (stage + 1) / options.stages) {
    numel_ = (isFirst_ ? kTable : 0) + (isLast_ ? kTable : 0) + (end_ - begin_) * kWeight;
    shard_ = numel_ / o_.dp;
  }

  std::string tables() const {
    std::string text = fmt::format("unit u{0}\nblock b{0} unit u{0} numel {1} shard {2} over dp\n",
                                   stage_, numel_, shard_);
    int64_t at = 0;
    auto add = [&](const std::string &name, std::string_view type, int64_t numel) {
      text += fmt::format("param \"{}\" : {} block b{} at {} init normal 0.5\n", name, type, stage_,
                          at);
      at += numel;
    };
    if (isFirst_)
      add("table", "f32[8,4]", kTable);
    for (int layer = begin_; layer < end_; ++layer)
      add(fmt::format("layer.{}", layer), "f32[4,4]", kWeight);
    if (isLast_)
      add("head", "f32[8,4]", kTable);
    return text;
  }

  std::string role() {
    place();
    std::string text =
        fmt::format("role stage{0} \"stage {0}\" where {{ pp = {0} to {0} }} {{\n", stage_);
    std::string segments = init() + begin() + forward() + backward() + update() + snapshots();
    text += fmt::format("  arenas {{ state = 2048  work = {}  sym = 1024  host = 2048 }}\n", used_);
    text += cells();
    return text + segments + program() + "}\n";
  }

private:
  int64_t take(int64_t bytes) { return std::exchange(used_, used_ + (bytes + 63) / 64 * 64); }
  Bytes ring(int64_t bytes, int64_t slots) {
    slots = std::min<int64_t>(slots, o_.microbatches);
    return {take((bytes + 63) / 64 * 64 * slots), (bytes + 63) / 64 * 64, slots};
  }

  void place() {
    g_ = take(4 * shard_);
    grads_ = take(4 * numel_);
    // The input is received ahead of the pass that reads it. In the last microbatches nothing is
    // received, so the next slot is empty, and no microbatch may use it.
    x0_ = ring(kRowBytes, ahead_ + 2);
    if (o_.microbatches > 1 && x0_.slots < ahead_ + 2)
      x0_ = {take((ahead_ + 2) * x0_.stride), x0_.stride, ahead_ + 2};
    dy_ = ring(kRowBytes, 2);
    tokens_ = ring(kTokenBytes, ahead_ + 1);
    for (int layer = begin_; layer < end_; ++layer) {
      inner_.push_back(ring(kRowBytes, ahead_ + 1));
      outputs_.push_back(isKept(layer) ? ring(kRowBytes, ahead_ + 1) : Bytes{take(kRowBytes)});
    }
    dlogits_ = ring(2 * kRowBytes, 1);
  }

  /// Whether the backward pass reads the layer's result. It does not read a result that is only
  /// sent.
  bool isKept(int layer) const { return layer + 1 < end_ || isLast_; }

  /// Names of what lives from the forward pass of a microbatch to its backward pass.
  struct Kept {
    std::string name;
    const char *type;
    Bytes bytes;
  };
  std::vector<Kept> kept() const {
    std::vector<Kept> all = {{"x0", kRow, x0_}};
    if (isFirst_)
      all.push_back({"tokens", "i32[2,4]", tokens_});
    for (int layer = begin_; layer < end_; ++layer) {
      all.push_back({fmt::format("u{}", layer), kRow, inner_[size_t(layer - begin_)]});
      if (isKept(layer))
        all.push_back({fmt::format("x{}", layer + 1), kRow, outputs_[size_t(layer - begin_)]});
    }
    if (isLast_)
      all.push_back({"dlogits", "f32[2,4,8]", dlogits_});
    return all;
  }

  std::string cells() const {
    std::string text = fmt::format(R"(  cell @step step : u8[128] in state for step at 0
  cell @w weight of b{0} : f32[{1}] in state for params at 128
  cell @stop stop : i32[1] in host for data at 1008
  cell @g : f32[{1}] in work for grads at {2}
)",
                                   stage_, shard_, g_);
    if (isFirst_ || isLast_)
      text += fmt::format("  cell @feed feed : i32[{},44] in host for data at 0\n", kFeedSlots);
    auto add = [&](const std::string &name, const char *type, const Bytes &bytes) {
      text += fmt::format("  cell @{}{} : {} in work for activations at {}{}\n", name,
                          bytes.slots > 1 ? fmt::format(" slots {}", bytes.slots) : "", type,
                          bytes.at, bytes.slots > 1 ? fmt::format(" stride {}", bytes.stride) : "");
    };
    for (const Kept &each : kept())
      add(each.name, each.type, each.bytes);
    if (!isLast_)
      add("dy", kRow, dy_);
    for (size_t p = 0; p < pieces().size(); ++p)
      text += fmt::format("  cell @snap.{} : f32[{}] in host for data at {}\n", p,
                          pieceEnd(p) - pieces()[p], kSnapshotAt + 4 * pieces()[p]);
    return text;
  }

  std::string init() const {
    return fmt::format(R"(  segment init init {{
    %step = step.reset : u8[128] step at state 0
    %w = init_block {{block = {0}  seed = 7}} unit u{0} : f32[{1}] params at state 128
    out @step = %step
    out @w = %w
  }}
)",
                       stage_, shard_);
  }

  std::string begin() const {
    std::string text = R"(  segment begin begin {
    in %s = @step at state 0
    %begun = step.begin %s {lr = 0.5  min_lr = 0.5} : u8[128] step at state 0
)";
    if (!isFirst_)
      text += fmt::format("    %x = recv channel up.{} on from_before : {} activations {}\n",
                          stage_ - 1, kRow, x0_.place());
    text += "    out @step = %begun\n";
    return text + (isFirst_ ? "" : "    out @x0 = %x\n") + "  }\n";
  }

  std::string gathered() const {
    std::string text = fmt::format("    %W = all_gather %w {{block = {0}}} channel gather unit "
                                   "u{0} : f32[{1}] comm at sym 0\n",
                                   stage_, numel_);
    int64_t at = 0;
    auto add = [&](const std::string &name, std::string_view type, int64_t numel) {
      text += fmt::format("    %{} = view %W {{offset = {}}} : {} comm at sym {}\n", name, at, type,
                          4 * at);
      at += numel;
    };
    if (isFirst_)
      add("table", "f32[8,4]", kTable);
    for (int layer = begin_; layer < end_; ++layer)
      add(fmt::format("w{}", layer), "f32[4,4]", kWeight);
    if (isLast_)
      add("head", "f32[8,4]", kTable);
    return text;
  }

  /// Writes a receive for a later pass: of the microbatch `shift` ahead, in microbatches `first` to
  /// `last`. Adds its output line to `outs`.
  std::string receive(bool isGradient, int64_t shift, int64_t first, int64_t last,
                      std::string &outs) {
    if (first > last || (isGradient ? isLast_ : isFirst_))
      return "";
    const char *name = isGradient ? "dy" : "x0";
    outs += fmt::format("    out @{0} = %{0}.next{1}\n", name, Bytes::distance(shift));
    return fmt::format("    %{0}.next = recv channel {1}.{2} on {3} if mb {4} to {5} : {6} "
                       "activations {7}\n",
                       name, isGradient ? "down" : "up", isGradient ? stage_ : stage_ - 1,
                       isGradient ? "from_behind" : "from_before", first, last, kRow,
                       (isGradient ? dy_ : x0_).place(shift));
  }

  std::string forward() {
    const int64_t m = o_.microbatches, w = ahead_;
    std::string ins = "    in %w = @w at state 128\n", ops = gathered(), outs;
    if (isFirst_ || isLast_)
      ins += "    in %feed = @feed at host 0\n";
    if (!isFirst_)
      ins += fmt::format("    in %x0 = @x0 {}\n", x0_.place());
    if (isFirst_ || isLast_)
      ops += fmt::format(
          "    %tokens, %labels, %mask, %positions, %docs, %samples = batch.load %feed {{slots = "
          "{}}} : i32[2,4] data {}, i32[2,4] data at work {}, f32[2,4] data at work {}, i32[2,4] "
          "data at work {}, i32[2,4] data at work {}, i64[2] data at work {}\n",
          kFeedSlots, isFirst_ ? tokens_.place() : fmt::format("at work {}", take(kTokenBytes)),
          take(32), take(32), take(32), take(32), take(16));
    if (isFirst_)
      ops += fmt::format("    %x0 = embedding %tokens, %table after %W : {} activations {}\n", kRow,
                         x0_.place());
    for (int layer = begin_; layer < end_; ++layer) {
      size_t i = size_t(layer - begin_);
      std::string input = layer == begin_ ? "x0" : fmt::format("x{}", layer);
      ops += fmt::format("    %u{0} = matmul %{1}, %w{0} {{trans_b = true}} after %W : {2} "
                         "activations {3}\n    %x{4} = gelu %u{0} : {2} activations {5}\n",
                         layer, input, kRow, inner_[i].place(), layer + 1, outputs_[i].place());
    }
    if (isLast_) {
      ins += "    in %s = @step at state 0\n";
      ops += fmt::format(
          R"(    %logits = matmul %x{0}, %head {{trans_b = true}} after %W :
      f32[2,4,8] activations at work {1}
    %losses, %lse = cross_entropy %logits, %labels, %mask {{valid_cols = 8}} :
      f32[8] activations at work {2}, f32[8] activations at work {3}
    %n = token_count %mask : f32[1] activations at work {4}
    %summed = loss.add %s, %losses, %n : u8[128] step at state 0
    %dlogits = cross_entropy_bwd %logits, %lse, %labels, %mask, %n
      {{valid_cols = 8  loss_scale = {5}}} : f32[2,4,8] activations {6}
)",
          end_, take(256), take(32), take(32), take(4), 1.0 / (o_.dp * o_.microbatches),
          dlogits_.place());
      outs += "    out @step = %summed\n";
    } else {
      ops +=
          fmt::format("    send %x{} channel up.{} on to_behind after %x{}\n", end_, stage_, end_);
    }
    bool isAllAhead = m == w; // the last one is followed by the first backward pass
    ops += receive(false, 1, 0, isAllAhead ? m - 2 : w - 1, outs);
    ops +=
        isAllAhead ? receive(true, 1 - m, m - 1, m - 1, outs) : receive(true, -w, w, m - 1, outs);
    for (const Kept &each : kept())
      if (isFirst_ || each.name != "x0")
        outs += fmt::format("    out @{0} = %{0}\n", each.name);
    return "  segment forward forward body {\n" + ins + ops + outs + "  }\n";
  }

  std::string backward() {
    const int64_t m = o_.microbatches, w = ahead_;
    std::string ins = "    in %w = @w at state 128\n", ops = gathered(), outs;
    ins += fmt::format("    in %g = @g at work {}\n", g_);
    for (const Kept &each : kept())
      ins += fmt::format("    in %{0} = @{0} {1}\n", each.name, each.bytes.place());
    std::string dy = "dy", parts;
    int64_t at = 4 * (numel_ - (isLast_ ? kTable : 0));
    if (isLast_) {
      dy = fmt::format("dx{}", end_);
      ops += fmt::format("    %dhead = matmul %dlogits, %x{0} {{trans_a = true}} : f32[8,4] grads "
                         "at work {1}\n    %{2} = matmul %dlogits, %head after %W : {3} "
                         "activations at work {4}\n",
                         end_, grads_ + at, dy, kRow, take(kRowBytes));
      parts = ", %dhead";
    } else {
      ins += fmt::format("    in %dy = @dy {}\n", dy_.place());
    }
    for (int layer = end_; layer-- > begin_;) {
      at -= 4 * kWeight;
      std::string input = layer == begin_ ? "x0" : fmt::format("x{}", layer);
      ops += fmt::format(
          R"(    %du{0} = gelu_bwd %{1}, %u{0} : {2} activations at work {3}
    %dw{0} = matmul %du{0}, %{4} {{trans_a = true}} : f32[4,4] grads at work {5}
    %dx{0} = matmul %du{0}, %w{0} after %W : {2} activations at work {6}
)",
          layer, dy, kRow, take(kRowBytes), input, grads_ + at, take(kRowBytes));
      dy = fmt::format("dx{}", layer);
      parts = fmt::format(", %dw{}", layer) + parts;
    }
    std::string last = fmt::format("dw{}", begin_);
    if (isFirst_) {
      ops += fmt::format("    %dtable = embedding_bwd %{}, %tokens : f32[8,4] grads at work {}\n",
                         dy, grads_);
      parts = ", %dtable" + parts;
      last = "dtable";
    } else {
      ops +=
          fmt::format("    send %{0} channel down.{1} on to_before after %{0}\n", dy, stage_ - 1);
    }
    ops += fmt::format(R"(    %G = pack {0} {{block = {1}}} : f32[{2}] grads at work {3}
    %r = reduce_scatter %G {{block = {1}}} channel reduce unit u{1}
      acc(0 = %g if not_first) after %{4} : f32[{5}] grads at work {6}
    out @g = %r
)",
                       parts.substr(2), stage_, numel_, grads_, last, shard_, g_);
    std::string receives = receive(false, w + 1, 0, m - w - 2, outs);
    receives += receive(true, 1, std::max<int64_t>(m - w - 1, 0), m - 2, outs);
    ops.insert(ops.find("    out @g"), receives);
    return "  segment backward backward body {\n" + ins + ops + outs + "  }\n";
  }

  std::string update() {
    int64_t squares = take(8), partial = take(32);
    return fmt::format(R"(  segment update update {{
    in %step = @step at state 0
    in %w = @w at state 128
    in %g = @g at work {0}
    in %stop = @stop at host 1008
    %ss = sum_squares %g of [b{1}] : f64[1] step at work {2}
    %partial = step.pack %step, %ss, %stop : f64[4] step at work {3}
    %sums = all_reduce %partial channel misc : f64[4] step at work {3}
    %finished = step.finish %step, %sums, %ss {{clip = 1.0}} : u8[128] step at state 0
    %w.new = sgd %g, %w, %finished {{block = {1}}} unit u{1} : f32[{4}] params at state 128
    out @step = %finished
    out @w = %w.new
  }}
)",
                       g_, stage_, squares, partial, shard_);
  }

  /// The first element of the shard in each piece.
  std::vector<int64_t> pieces() const {
    if (!o_.snapshots)
      return {};
    return isFirst_ ? std::vector<int64_t>{0, shard_ / 8 * 4} : std::vector<int64_t>{0};
  }
  int64_t pieceEnd(size_t piece) const {
    return piece + 1 < pieces().size() ? pieces()[piece + 1] : shard_;
  }

  std::string snapshots() const {
    std::string text;
    for (size_t p = 0; p < pieces().size(); ++p) {
      int64_t from = pieces()[p], count = pieceEnd(p) - from;
      text += fmt::format(R"(  segment snapshot.{0} snapshot before update {{
    in %w = @w at state 128
    %part = view %w{1} : f32[{2}] params at state {3}
    %copy = snapshot %part on copy : f32[{2}] data at host {4}
    out @snap.{0} = %copy
  }}
)",
                          p, from > 0 ? fmt::format(" {{offset = {}}}", from) : "", count,
                          128 + 4 * from, kSnapshotAt + 4 * from);
    }
    return text;
  }

  std::string program() const {
    const int m = o_.microbatches, w = ahead_;
    std::string text =
        fmt::format("  program {{\n    start init\n    steps {} {{\n      run begin\n", o_.steps);
    if (w > 0)
      text += fmt::format("      loop {} {{ run forward mb i }}\n", w);
    if (m > w)
      text +=
          fmt::format("      loop {} {{ run forward mb i + {}  run backward mb i }}\n", m - w, w);
    if (w > 0)
      text += fmt::format("      loop {} {{ run backward mb i + {} }}\n", w, m - w);
    return text + "      run update\n    }\n  }\n";
  }

  const PipelineOptions &o_;
  int stage_;
  bool isFirst_, isLast_;
  int ahead_;       ///< forward passes before the first backward pass
  int begin_, end_; ///< layers
  int64_t numel_ = 0, shard_ = 0, used_ = 0, g_ = 0, grads_ = 0;
  Bytes x0_, dy_, tokens_, dlogits_;
  std::vector<Bytes> inner_, outputs_; ///< of each layer
};

} // namespace

std::string pipelinePlanText(const PipelineOptions &o) {
  std::string text = fmt::format(R"(shardc.plan 2 placed "pipeline"
needs {{ backend = host  gpu = ""  device_bytes = 0 }}
job {{
  train.global_batch_size = {}
  train.micro_batch_size = 2
  train.train_iters = {}
}}
mesh {{ pp = {} dp = {} }}
groups {{ pp = [pp] dp = [dp] all = [pp, dp] }}
data dp
stream gather
stream reduce
stream from_before
stream to_behind
stream from_behind
stream to_before
{}channel gather group dp stream gather
channel reduce group dp stream reduce
channel misc group all
)",
                                 2 * o.dp * o.microbatches, o.steps, o.stages, o.dp,
                                 o.snapshots ? "stream copy\n" : "");
  for (int s = 0; s + 1 < o.stages; ++s)
    text += fmt::format("channel up.{0} group pp pair {0} {1} stream to_behind\n"
                        "channel down.{0} group pp pair {1} {0} stream to_before\n",
                        s, s + 1);
  std::string roles;
  for (int s = 0; s < o.stages; ++s) {
    Stage stage(o, s);
    text += stage.tables();
    roles += stage.role();
  }
  return text + roles;
}

} // namespace shardc::test
