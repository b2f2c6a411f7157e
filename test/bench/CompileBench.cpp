// Compile time and size of plans, by step, for recipes with 8 to 16,384 GPUs. Results are recorded
// in docs/benchmarks/compile-time.md.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>

#include "compiler/config/Steps.h"
#include "compiler/lower/Lower.h"
#include "compiler/passes/Pipeline.h"
#include "compiler/tools/Session.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"
#include "runtime/verify/spec/Specification.h"

namespace shardc {
namespace {

struct Case {
  const char *name;
  const char *recipe;
  std::vector<std::string> sets = {};
};

const Case kCases[] = {
    {"llama3_8b/8", SHARDC_RECIPES "/llama3/llama3_8b_fsdp.recipe"},
    {"llama3_70b/1024", SHARDC_RECIPES "/llama3/llama3_70b_fsdp_1024.recipe"},
    {"llama31_405b/16384", SHARDC_RECIPES "/llama3/llama31_405b_fsdp.recipe"},
    // Stages of 1,024 GPUs with 16 microbatches, and of 8 with 384.
    {"llama31_405b/16x1024",
     SHARDC_RECIPES "/llama3/llama31_405b_fsdp.recipe",
     {"model.pipeline_model_parallel_size=16", "model.account_for_embedding_in_pipeline_split=true",
      "model.account_for_loss_in_pipeline_split=true"}},
    {"llama31_405b/16x8", SHARDC_RECIPES "/llama3/llama31_405b.recipe"},
    {"llama31_405b_pp16/16384", SHARDC_RECIPES "/llama3/llama31_405b_fsdp_16384.recipe"},
    {"llama31_405b_tp8/16384", SHARDC_RECIPES "/llama3/llama31_405b_tp8_16384.recipe"},
    {"deepseek_v3_distopt", SHARDC_RECIPES "/deepseek/deepseek_v3_distopt.recipe"},
};

void require(bool condition, const char *what, const Case &of) {
  if (condition)
    return;
  std::fprintf(stderr, "bench_compile: %s: %s\n", of.recipe, what);
  std::exit(1);
}

/// One compilation with its intermediate structures.
struct Compilation {
  explicit Compilation(const Case &of) : of(of) {
    load.path = of.recipe;
    load.sets = of.sets;
  }

  void configure() {
    diags.emplace(sources);
    config::registerGroups(*diags);
    config = config::loadConfig(sources, *diags, load);
    require(config.has_value(), "the recipe has errors", of);
  }
  void lower() { plan = lower::lower(*config, sources); }
  void runPasses() {
    passes::Notes notes;
    passes::runPipeline(plan, {}, notes);
  }
  void verify() const { require(plan::verify(plan).empty(), "the plan is refused", of); }
  std::string print() const { return plan::print(plan, plan::summary(plan)); }

  const Case &of;
  config::LoadOptions load;
  SourceManager sources;
  std::optional<DiagEngine> diags;
  std::optional<config::Config> config;
  plan::Plan plan;
};

void whole(benchmark::State &state, const Case &of) {
  size_t bytes = 0, ops = 0;
  for (auto _ : state) {
    Compilation compilation(of);
    compilation.configure();
    compilation.lower();
    compilation.runPasses();
    compilation.verify();
    bytes = compilation.print().size();
    ops = 0;
    for (const plan::Segment &segment : compilation.plan.roles.front().segments)
      ops += segment.ops.size();
  }
  state.counters["plan_bytes"] = static_cast<double>(bytes);
  state.counters["ops"] = static_cast<double>(ops);
}

void configure(benchmark::State &state, const Case &of) {
  for (auto _ : state) {
    Compilation compilation(of);
    compilation.configure();
  }
}

void lowering(benchmark::State &state, const Case &of) {
  Compilation compilation(of);
  compilation.configure();
  for (auto _ : state)
    compilation.lower();
}

void runPasses(benchmark::State &state, const Case &of) {
  Compilation compilation(of);
  compilation.configure();
  compilation.lower();
  const plan::Plan lowered = compilation.plan;
  for (auto _ : state) {
    state.PauseTiming();
    compilation.plan = lowered;
    state.ResumeTiming();
    compilation.runPasses();
  }
}

void verifying(benchmark::State &state, const Case &of) {
  Compilation compilation(of);
  compilation.configure();
  compilation.lower();
  compilation.runPasses();
  for (auto _ : state)
    compilation.verify();
}

/// The comparison with the specification, which is lowered once.
void proving(benchmark::State &state, const Case &of) {
  Compilation compilation(of);
  compilation.configure();
  compilation.lower();
  compilation.runPasses();
  plan::Plan specification = tools::specificationOf(*compilation.config, compilation.sources);
  uint64_t visits = 0;
  for (auto _ : state) {
    plan::spec::Comparison compared = plan::spec::compare(specification, compilation.plan);
    require(!compared.difference, "the plan differs from its specification", of);
    visits = compared.visits;
  }
  state.counters["visits"] = static_cast<double>(visits);
}

void printing(benchmark::State &state, const Case &of) {
  Compilation compilation(of);
  compilation.configure();
  compilation.lower();
  compilation.runPasses();
  for (auto _ : state)
    benchmark::DoNotOptimize(compilation.print());
}

struct Stage {
  const char *name;
  void (*run)(benchmark::State &, const Case &);
};

constexpr Stage kStages[] = {
    {"whole", whole},      {"parse and config", configure}, {"lower", lowering},
    {"passes", runPasses}, {"verify", verifying},           {"prove", proving},
    {"print", printing},
};

void registerAll() {
  for (const Case &of : kCases)
    for (const Stage &stage : kStages)
      benchmark::RegisterBenchmark((std::string(of.name) + " " + stage.name).c_str(),
                                   [&stage, &of](benchmark::State &state) { stage.run(state, of); })
          ->Unit(benchmark::kMillisecond);
}

} // namespace
} // namespace shardc

int main(int argc, char **argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv))
    return 2;
  shardc::registerAll();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
