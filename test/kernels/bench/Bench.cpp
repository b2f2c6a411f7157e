// Times every host kernel of Kernels.def on one thread. Benchmarks are named kernel/type/model.
// Rates count each operand and result once, and the arithmetic of matrix products.
#include <string>

#include <benchmark/benchmark.h>

#include "kernels/host/Registry.h"
#include "test/kernels/bench/Cases.h"

namespace shardc::kernels::bench {
namespace {

struct Row {
  std::string_view op, dtypes;
};

constexpr Row kRows[] = {
#define HOST_KERNEL(enumerator, op, family, dtypes) {op, dtypes},
#include "kernels/Kernels.def"
};

struct NamedModel {
  std::string_view name;
  Model model;
};
constexpr NamedModel kModels[] = {{"small", kSmallModel}, {"gpt2", kGpt2Model}};

/// Times the host kernel of one op. Bytes and operations per second come from the counts of the
/// case.
void timeKernel(benchmark::State &state, std::string_view op, DType data, const Model &model) {
  const Kernel *kernel = findHostKernel(op);
  std::unique_ptr<Case> work = makeCase(op, data, model);
  if (!work) {
    state.SkipWithError("no case for this op");
    return;
  }
  if (const char *reason = kernel->accepts(work->call)) {
    state.SkipWithError(reason);
    return;
  }
  std::vector<std::byte> workspace(kernel->workspaceBytes ? kernel->workspaceBytes(work->call) : 0);
  work->call.workspace = workspace.data();
  work->call.workspaceBytes = workspace.size();
  for (auto _ : state) {
    kernel->run(work->call);
    benchmark::ClobberMemory();
  }
  auto perSecond = [](double n) {
    return benchmark::Counter(n, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["bytes"] = perSecond(work->bytes);
  if (work->flops > 0)
    state.counters["flops"] = perSecond(work->flops);
}

void addBenchmarks() {
  for (const Row &row : kRows)
    for (DType data : {DType::F32, DType::BF16})
      for (const NamedModel &named : kModels) {
        if (row.dtypes == "fixed" && data != DType::F32)
          continue;
        std::string name = std::string(findHostKernel(row.op)->name) + '/' +
                           std::string(dtypeName(data)) + '/' + std::string(named.name);
        benchmark::RegisterBenchmark(name.c_str(), [row, data, &named](benchmark::State &state) {
          timeKernel(state, row.op, data, named.model);
        });
      }
}

} // namespace
} // namespace shardc::kernels::bench

int main(int argc, char **argv) {
  shardc::kernels::bench::addBenchmarks();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv))
    return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
