// Compares the kernel table with the op table: every op that executes has a kernel, which accepts
// calls that the op table allows, and refuses calls that its run() cannot handle.
#include "kernels/host/Registry.h"
#include "runtime/plan/OpInfo.h"
#include "test/kernels/Harness.h"
#include "test/kernels/bench/Cases.h"

#include <algorithm>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

using OpRow = plan::OpInfo;

const auto &kOps = plan::kOpInfos;

bool executes(const OpRow &op) {
  return !op.isStep && (op.traits == plan::OpTraits::None || op.traits == plan::OpTraits::Pure);
}

/// Numbers of words and of optional words in an operand or result list.
struct Count {
  int words = 0, optional = 0;
  bool list = false;
};

Count countWords(std::string_view text) {
  Count count;
  for (size_t i = 0; i < text.size(); ++i) {
    count.words += text[i] != ' ' && (i + 1 == text.size() || text[i + 1] == ' ');
    count.optional += text[i] == '?';
    count.list |= text[i] == '*';
  }
  return count;
}

std::unique_ptr<bench::Case> tinyCase(std::string_view op, DType data = DType::F32) {
  return bench::makeCase(op, data, bench::kTinyModel);
}

const char *refusal(const OpRow &op, const Call &call) {
  return findHostKernel(op.name)->accepts(call);
}

TEST(Registry, OpsThatExecuteHaveAKernelAndOthersHaveNone) {
  for (const OpRow &op : kOps) {
    const Kernel *kernel = findHostKernel(op.name);
    EXPECT_EQ(kernel != nullptr, executes(op) || op.isStep) << op.name;
    EXPECT_TRUE(!kernel || (kernel->run && kernel->accepts && *kernel->name)) << op.name;
  }
  EXPECT_EQ(findHostKernel("no such op"), nullptr);
}

TEST(Registry, KernelNamesAreDistinct) {
  std::vector<std::string> names;
  for (const OpRow &op : kOps)
    if (executes(op))
      names.emplace_back(findHostKernel(op.name)->name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(Registry, EveryKernelTakesItsCaseInEachTypeAndRunsIt) {
  for (const OpRow &op : kOps)
    for (DType data : kDataTypes) {
      if (!executes(op))
        continue;
      std::unique_ptr<bench::Case> work = tinyCase(op.name, data);
      ASSERT_NE(work, nullptr) << op.name;
      const char *reason = refusal(op, work->call);
      ASSERT_EQ(reason, nullptr) << op.name << ": " << reason;
      const Kernel *kernel = findHostKernel(op.name);
      std::vector<std::byte> workspace(kernel->workspaceBytes ? kernel->workspaceBytes(work->call)
                                                              : 0);
      work->call.workspace = workspace.data();
      work->call.workspaceBytes = workspace.size();
      kernel->run(work->call);
    }
}

/// The bytes of a call's results after a run with its own workspace.
std::vector<std::byte> bytesAfterRun(std::string_view op) {
  std::unique_ptr<bench::Case> work = bench::makeCase(op, DType::F32, bench::kSmallModel);
  const Kernel *kernel = findHostKernel(op);
  std::vector<std::byte> workspace(kernel->workspaceBytes(work->call)), bytes;
  work->call.workspace = workspace.data();
  work->call.workspaceBytes = workspace.size();
  kernel->run(work->call);
  for (int r = 0; r < work->call.outCount; ++r) {
    const Tensor &result = work->call.out[r];
    auto begin = static_cast<const std::byte *>(result.data);
    bytes.insert(bytes.end(), begin, begin + result.numel() * dtypeBytes(result.dtype));
  }
  return bytes;
}

TEST(Registry, ThreadsDoNotChangeEachOthersBits) {
  for (std::string_view op : {"matmul", "attention", "lm_loss_grad"}) {
    std::vector<std::byte> alone = bytesAfterRun(op);
    std::vector<std::byte> together[4];
    std::vector<std::thread> threads;
    for (std::vector<std::byte> &bytes : together)
      threads.emplace_back([&bytes, op] { bytes = bytesAfterRun(op); });
    for (std::thread &thread : threads)
      thread.join();
    for (const std::vector<std::byte> &bytes : together)
      EXPECT_TRUE(bytes == alone) << op;
  }
}

/// A call with all operands and results that the op may have.
std::unique_ptr<bench::Case> wholeCase(std::string_view op) {
  for (const char *form : {", delayed", ", parts", ", halves"})
    if (auto found = bench::makeCase(std::string(op) + form, DType::F32, bench::kTinyModel))
      return found;
  return tinyCase(op);
}

/// Ops whose types change with the number of operands. Amaxes need their recipe, and `seen` is both
/// operand and result: GroupedFloat8Test.cpp tests calls without them. Remainders need weights, and
/// parts of matrices need updates.
bool hasOtherTypesWithout(const OpRow &op) {
  return op.name.starts_with("grouped_matmul") || op.name == "adamw" || op.name == "muon";
}

/// Ops whose last two results are gradients of two weights: both are present, or none.
bool hasPairedResults(const OpRow &op) { return op.name == "layernorm_bwd"; }

TEST(Registry, CountsAreThoseOfTheOpTable) {
  for (const OpRow &op : kOps) {
    if (!executes(op))
      continue;
    std::unique_ptr<bench::Case> work = wholeCase(op.name);
    Count operands = countWords(op.operands), results = countWords(op.results);
    Call &call = work->call;
    EXPECT_EQ(call.inCount, operands.list ? 0 : operands.words) << op.name;
    EXPECT_EQ(call.outCount, results.words) << op.name;
    for (int missing = 0; missing <= operands.words && !operands.list; ++missing) {
      Call fewer = call;
      fewer.inCount = static_cast<uint8_t>(operands.words - missing);
      if (hasOtherTypesWithout(op) && missing > 0 && missing <= operands.optional)
        continue;
      EXPECT_EQ(refusal(op, fewer) == nullptr, missing <= operands.optional) << op.name;
    }
    for (int missing = 0; missing <= results.words; ++missing) {
      Call fewer = call;
      fewer.outCount = static_cast<uint8_t>(results.words - missing);
      if (hasOtherTypesWithout(op) && missing > 0 && missing <= results.optional)
        continue;
      bool isAccepted = missing <= results.optional && !(hasPairedResults(op) && missing == 1);
      EXPECT_EQ(refusal(op, fewer) == nullptr, isAccepted) << op.name;
    }
    Call more = call;
    more.in[more.inCount++] = call.out[0];
    EXPECT_NE(refusal(op, more), nullptr) << op.name;
    more = call;
    more.out[more.outCount++] = call.out[0];
    EXPECT_NE(refusal(op, more), nullptr) << op.name;
  }
}

/// Calls change(tensor, place) on a copy of each operand and result in turn; if it returns true,
/// the call must be refused. `place` is i or r and the index, or l and the index in the list.
template <typename Change> void expectRefused(const OpRow &op, const char *what, Change change) {
  std::unique_ptr<bench::Case> work = tinyCase(op.name);
  auto expectOne = [&](Call &call, Tensor &tensor, char kind, int index) {
    std::string place = kind + std::to_string(index);
    if (change(tensor, place)) {
      EXPECT_NE(refusal(op, call), nullptr) << op.name << ' ' << place << ' ' << what;
    }
  };
  for (int i = 0; i < work->call.inCount; ++i) {
    Call call = work->call;
    expectOne(call, call.in[i], 'i', i);
  }
  for (int r = 0; r < work->call.outCount; ++r) {
    Call call = work->call;
    expectOne(call, call.out[r], 'r', r);
  }
  for (size_t i = 0; i < work->list.size(); ++i) {
    std::vector<Tensor> list = work->list;
    Call call = work->call;
    call.list = list.data();
    expectOne(call, list[i], 'l', static_cast<int>(i));
  }
}

/// Tensors that may have either 8-bit format, because no copy of them must have the same format.
constexpr std::pair<std::string_view, std::string_view> kEitherFormat[] = {
    {"matmul_scaled", "i0"},
    {"matmul_scaled", "i1"},
    {"quantize_blocks", "r0"},
    {"rmsnorm.quantize_delayed", "r0"},
    {"add_rmsnorm.quantize_delayed", "r0"},
    {"layernorm.quantize_delayed", "r0"},
    {"add_layernorm.quantize_delayed", "r0"},
    {"swiglu_bwd.quantize_delayed", "r4"},
    {"swiglu_bwd.quantize", "r3"},
    {"rmsnorm.quantize_blocks", "r0"},
    {"add_rmsnorm.quantize_blocks", "r0"},
    {"layernorm.quantize_blocks", "r0"},
    {"add_layernorm.quantize_blocks", "r0"},
    {"rmsnorm_again.quantize_blocks", "r0"},
    {"swiglu.quantize_blocks", "r0"},
    {"swiglu_bwd.quantize_blocks", "r4"},
    {"geglu_bwd.quantize_delayed", "r4"},
    {"geglu_bwd.quantize", "r3"},
    {"geglu.quantize_blocks", "r0"},
    {"geglu_bwd.quantize_blocks", "r4"},
    {"squared_relu.quantize_blocks", "r0"}};

TEST(Registry, TypesThatARunCannotReadAreRefused) {
  for (const OpRow &op : kOps)
    if (executes(op))
      for (DType dtype : {DType::I16, DType::F8E4M3, DType::F8E5M2})
        expectRefused(op, "of a type that it does not know",
                      [&](Tensor &tensor, const std::string &place) {
                        bool isKnown = tensor.dtype == dtype;
                        for (auto [name, either] : kEitherFormat)
                          isKnown |= name == op.name && either == place && dtype == DType::F8E5M2;
                        tensor.dtype = dtype;
                        if (isKnown)
                          return false;
                        // The state is bytes: any type is accepted whose elements have 128 bytes in
                        // total.
                        return tensor.numel() * dtypeBytes(dtype) != 128;
                      });
}

TEST(Registry, ShapesThatARunCannotWalkAreRefused) {
  for (const OpRow &op : kOps) {
    if (!executes(op))
      continue;
    auto expectAll = [&](const char *what, void (*change)(Tensor &)) {
      expectRefused(op, what, [&](Tensor &tensor, const std::string &) {
        change(tensor);
        return true;
      });
    };
    expectAll("of rank 0", [](Tensor &t) { t.rank = 0; });
    expectAll("of rank 5", [](Tensor &t) { t.rank = 5; });
    expectAll("with an empty extent", [](Tensor &t) { t.shape[0] = 0; });
    expectAll("with a negative extent", [](Tensor &t) { t.shape[t.rank - 1] *= -1; });
    expectAll("with a huge extent", [](Tensor &t) { t.shape[0] = INT64_MAX / 2; });
    expectAll("with too many elements", [](Tensor &t) {
      t.rank = 4;
      std::fill(t.shape, t.shape + 4, INT32_MAX);
    });
  }
}

/// An extent that no other extent determines: dimension `dim` (-1: all) of the tensor in `place`.
struct FreeExtent {
  std::string_view op, place;
  int dim;
};

constexpr FreeExtent kFreeExtents[] = {{"batch.load", "i0", 0},
                                       {"embedding", "i1", 0},
                                       {"embedding_bwd", "r0", 0},
                                       {"make_runs", "r0", 1},
                                       {"expert_load", "i0", 1},
                                       {"expert_load", "r0", 1},
                                       {"router_sinkhorn", "i0", 1},
                                       {"router_z_loss", "i0", 1},
                                       {"tally", "i0", 0},
                                       {"dispatch", "r0", 0},
                                       {"combine", "i0", 0},
                                       {"combine_bwd", "i0", 0},
                                       {"weighted_swiglu", "i2", -1},
                                       {"weighted_swiglu_bwd", "i3", -1},
                                       {"weighted_quick_geglu", "i2", -1},
                                       {"weighted_quick_geglu_bwd", "i3", -1},
                                       {"grouped_bias", "i2", 0},
                                       {"grouped_bias_bwd", "i1", 0},
                                       {"grouped_bias_dot", "i2", 0},
                                       {"grouped_matmul", "i2", 0},
                                       {"grouped_matmul_scaled", "i2", 0},
                                       {"grouped_matmul_bias", "i2", 0},
                                       {"grouped_matmul_bwd", "i2", 0},
                                       {"grouped_matmul_bwd_squares", "i2", 0},
                                       {"cross_entropy", "i0", 1},
                                       {"lm_loss", "i1", 0},
                                       {"reduce_rows", "i0", 0},
                                       {"token_count", "i0", -1},
                                       {"loss.add", "i1", -1},
                                       {"eval.add", "i1", -1},
                                       {"fill", "r0", -1},
                                       {"init_block", "r0", -1},
                                       {"sum_squares", "l0", -1},
                                       {"sum_squares", "l1", -1},
                                       {"embedding_shard", "i1", -1},
                                       {"embedding_shard_bwd", "r0", -1},
                                       {"vocab_stats", "i0", 1},
                                       {"amax", "i0", -1},
                                       {"short_conv", "i1", 1},
                                       {"causal_conv", "i1", 1},
                                       {"quantize", "i1", 0},
                                       {"rmsnorm_again.quantize", "i3", 0},
                                       {"layernorm_again.quantize", "i5", 0},
                                       {"swiglu.amax", "i0", 0},
                                       {"swiglu.quantize", "i1", 0},
                                       {"swiglu_bwd.quantize", "i2", 0},
                                       {"geglu.amax", "i0", 0},
                                       {"geglu.quantize", "i1", 0},
                                       {"geglu_bwd.quantize", "i2", 0},
                                       {"squared_relu.amax", "i0", -1},
                                       {"squared_relu.quantize", "i1", 0},
                                       {"squared_relu_bwd.quantize", "i2", 0},
                                       {"amax_shard", "i0", -1},
                                       {"quantize_shard", "i1", 0},
                                       {"muon_sums", "i0", -1},
                                       {"muon_sums", "i1", -1},
                                       {"muon_sums", "r0", -1},
                                       {"muon_step", "i1", -1},
                                       {"muon_step", "i2", -1}};

TEST(Registry, ExtentsThatDoNotFitTheOthersAreRefused) {
  for (const OpRow &op : kOps)
    if (executes(op))
      for (int dim = 0; dim < 4; ++dim)
        expectRefused(op, "longer than the others", [&](Tensor &tensor, const std::string &place) {
          for (const FreeExtent &extent : kFreeExtents)
            if (extent.op == op.name && extent.place == place &&
                (extent.dim == dim || extent.dim == -1))
              return false;
          if (dim < tensor.rank)
            tensor.shape[dim] += 1;
          return dim < tensor.rank;
        });
}

TEST(Registry, OnlyGradientsOfWeightsAndSumsAccumulate) {
  for (const OpRow &op : kOps) {
    if (!executes(op))
      continue;
    std::unique_ptr<bench::Case> work = tinyCase(op.name);
    std::string accepted;
    for (int r = 0; r < work->call.outCount; ++r) {
      Call call = work->call;
      call.out[r].accumulate = true;
      if (!refusal(op, call))
        accepted += std::to_string(r);
    }
    std::string wanted;
    for (std::string_view name :
         {"matmul", "matmul_scaled", "add", "cast", "reduce_rows", "embedding_bwd",
          "embedding_shard_bwd", "attention_sink_bwd", "grouped_matmul_bwd",
          "grouped_matmul_bwd_squares", "grouped_bias_bwd", "combine_bwd", "expert_load", "tally",
          "contract_parts"})
      if (op.name == name)
        wanted = "0";
    if (op.name == "rmsnorm_bwd" || op.name == "rmsnorm_part_bwd" ||
        op.name == "scale_columns_bwd" || op.name == "short_conv_bwd")
      wanted = "1";
    if (op.name == "state_scan_bwd")
      wanted = "456";
    if (op.name == "delta_rule_bwd")
      wanted = "56";
    if (op.name == "layernorm_bwd" || op.name == "merge_qkv_norm_rope" ||
        op.name == "causal_conv_bwd")
      wanted = "12";
    if (op.name == "lm_loss_grad" || op.name == "gated_norm_bwd")
      wanted = "2";
    EXPECT_EQ(accepted, wanted) << op.name;
  }
}

TEST(Registry, InPlaceResultsElsewhereAreRefused) {
  for (const OpRow &op : kOps)
    for (size_t r = 0; r < op.inPlace.size() && executes(op); ++r) {
      if (op.inPlace[r] < 0)
        continue;
      std::unique_ptr<bench::Case> work = wholeCase(op.name);
      Call call = work->call;
      EXPECT_EQ(call.out[r].data, call.in[op.inPlace[r]].data) << op.name;
      std::byte elsewhere[16];
      call.out[r].data = elsewhere;
      EXPECT_NE(refusal(op, call), nullptr) << op.name << " result " << r;
    }
}

} // namespace
} // namespace shardc::kernels::test
