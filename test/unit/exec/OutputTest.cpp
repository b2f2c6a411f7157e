// The output of a run: metrics, lines for people, dumps.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/exec/Explain.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Text.h"
#include "runtime/run/Dump.h"
#include "runtime/run/JobCheck.h"
#include "runtime/run/JobData.h"
#include "runtime/run/Metrics.h"
#include "runtime/run/Preflight.h"
#include "runtime/run/ProgressOutput.h"
#include "test/unit/base/Told.h"
#include "test/unit/exec/ToldPeers.h"
#include "test/unit/exec/ToyPlan.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::test {
namespace {

using test::ToldPeers;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

StepState makeState(int64_t step, double loss) {
  StepState state{};
  state.step = step;
  state.loss = loss;
  state.lr = 3e-4f;
  state.gradNorm = 1.25f;
  state.totalTokens = 512;
  return state;
}

TEST(Metrics, LinesHaveAllDigits) {
  TempFolder folder;
  {
    run::MetricsWriter metrics;
    ASSERT_TRUE(metrics.open(folder.path() + "/m.jsonl").isOk());
    EXPECT_TRUE(metrics.step(makeState(1, 2.0 / 3.0), 1000).isOk());
    EXPECT_TRUE(metrics.evaluated(makeState(1, 0)).isOk());
    EXPECT_TRUE(metrics.step(makeState(2, std::numeric_limits<double>::quiet_NaN()), 1000).isOk());
  }
  EXPECT_EQ(*readFile(folder.path() + "/m.jsonl"),
            "{\"step\":1,\"loss\":0.6666666666666666,\"lr\":0.0003,\"grad_norm\":1.25,\"tokens\":"
            "512,\"tokens_per_s\":1000}\n"
            "{\"step\":1,\"eval_loss\":0}\n"
            "{\"step\":2,\"loss\":null,\"lr\":0.0003,\"grad_norm\":1.25,\"tokens\":512,\"tokens_"
            "per_s\":1000}\n");
}

TEST(Metrics, HaveTexts) {
  TempFolder folder;
  {
    run::MetricsWriter metrics;
    ASSERT_TRUE(metrics.open(folder.path() + "/m.jsonl").isOk());
    EXPECT_TRUE(metrics.said(4, 2, {"a \"b\"\n", "c", ""}).isOk());
  }
  EXPECT_EQ(
      *readFile(folder.path() + "/m.jsonl"),
      "{\"step\":4,\"sample\":2,\"prompt\":\"a \\\"b\\\"\\n\",\"said\":\"c\",\"data\":\"\"}\n");
}

/// Losses with a weight, the experts with the most and the fewest rows, and choices without room.
TEST(Metrics, TellWhatRoutersLoseAndHowExpertsAreLoaded) {
  plan::Plan plan = toyPlan({});
  plan.job.put("model.moe_router_load_balancing_type", std::vector<std::string>{"seq_aux_loss"});
  plan.job.put("model.moe_aux_loss_coeff", std::vector<std::string>{"0.01"});
  plan.job.put("model.moe_expert_capacity_factor", 1.0);
  plan.job.put("model.moe_router_topk", int64_t{2});
  plan.job.put("model.num_moe_experts", int64_t{3});
  plan.job.put("model.seq_length", int64_t{4});
  plan.job.put("train.global_batch_size", int64_t{2});
  plan::addCell(plan.roles[0], "load", plan::CellKind::ExpertLoad,
                plan::Type::of(DType::F32, {2, 4}), plan::Arena::State, plan::Purpose::Step);
  run::StepValues values(plan);
  const float losses[] = {0, 1.25, 0, 0}, load[] = {5, 6, 3, 0, 4, 7, 5, 0};
  std::span<const run::NamedValue> reported = values.of({losses, load});
  TempFolder folder;
  {
    run::MetricsWriter metrics;
    ASSERT_TRUE(metrics.open(folder.path() + "/m.jsonl").isOk());
    EXPECT_TRUE(metrics.step(makeState(1, 2), 1000, {}, reported).isOk());
  }
  EXPECT_THAT(*readFile(folder.path() + "/m.jsonl"),
              HasSubstr("\"tokens\":512,\"seq_load_balancing_loss\":1.25,\"expert_rows_most\":7,"
                        "\"expert_rows_least\":3,\"expert_imbalance\":1.2991071428571428,"
                        "\"dropped_rows\":2,\"tokens_per_s\":1000}"));
  EXPECT_TRUE(run::StepValues(toyPlan({})).of({}).empty());
}

/// Every line is complete, however many losses there are.
TEST(Metrics, ManyLossesAreReported) {
  std::vector<std::string> names;
  for (int i = 1; i <= 200; ++i)
    names.push_back("mtp_" + std::to_string(i) + " loss");
  std::vector<run::NamedValue> reported;
  for (const std::string &name : names)
    reported.push_back({name, 1.5});
  TempFolder folder;
  {
    run::MetricsWriter metrics;
    ASSERT_TRUE(metrics.open(folder.path() + "/m.jsonl").isOk());
    EXPECT_TRUE(metrics.step(makeState(1, 2), 1000, {}, reported).isOk());
  }
  EXPECT_THAT(*readFile(folder.path() + "/m.jsonl"),
              AllOf(HasSubstr("\"mtp_199 loss\":1.5,\"mtp_200 loss\":1.5,"),
                    testing::EndsWith("\"tokens_per_s\":1000}\n")));
}

TEST(Metrics, TheHostsWorkIsInMilliseconds) {
  TempFolder folder;
  {
    run::MetricsWriter metrics;
    ASSERT_TRUE(metrics.open(folder.path() + "/m.jsonl").isOk());
    run::Speed speed(1000);
    speed.host = {0.00025, 0.0095};
    EXPECT_TRUE(metrics.step(makeState(1, 2), speed).isOk());
  }
  EXPECT_THAT(*readFile(folder.path() + "/m.jsonl"),
              HasSubstr("\"host_ms\":0.25,\"host_wait_ms\":9.5}\n"));
}

TEST(Metrics, ALossScaleIsToldWithWhatWasSkipped) {
  TempFolder folder;
  {
    run::MetricsWriter metrics;
    ASSERT_TRUE(metrics.open(folder.path() + "/m.jsonl").isOk());
    StepState state = makeState(1, 2);
    state.lossScale = 32768, state.nonfinite = state.skip = 1;
    EXPECT_TRUE(metrics.step(state, run::Speed(1000), {.lossScale = true, .skipped = true}).isOk());
  }
  EXPECT_THAT(*readFile(folder.path() + "/m.jsonl"),
              HasSubstr("\"loss_scale\":32768,\"skipped\":1,"));
}

TEST(Metrics, WhatAScheduleChangesIsReported) {
  TempFolder folder;
  {
    run::MetricsWriter metrics;
    ASSERT_TRUE(metrics.open(folder.path() + "/m.jsonl").isOk());
    StepState state = makeState(1, 2);
    state.decoupledLr = 0.5f, state.weightDecay = 0.25f;
    EXPECT_TRUE(
        metrics.step(state, run::Speed(1000), {.decoupledLr = true, .weightDecay = true}).isOk());
    EXPECT_TRUE(metrics.skipped(makeState(2, 0)).isOk());
  }
  EXPECT_THAT(*readFile(folder.path() + "/m.jsonl"),
              HasSubstr("\"tokens\":512,\"decoupled_lr\":0.5,\"weight_decay\":0.25,"));
  EXPECT_THAT(*readFile(folder.path() + "/m.jsonl"), HasSubstr("}\n{\"step\":2,\"skipped\":1}\n"));
}

TEST(Metrics, AFullDiskIsToldOnce) {
  run::MetricsWriter metrics;
  ASSERT_TRUE(metrics.open("/dev/full").isOk());
  Status status = metrics.step(makeState(1, 1), 1);
  EXPECT_EQ(status.code(), StatusCode::Exhausted);
  EXPECT_THAT(status.message(), HasSubstr("/dev/full"));
  EXPECT_TRUE(metrics.step(makeState(2, 1), 1).isOk());
  EXPECT_FALSE(metrics.isOpen());
}

TEST(Metrics, LinesAreAddedBehindWholeLines) {
  TempFolder folder;
  std::string path = folder.path() + "/m.jsonl";
  for (auto [before, after] : {std::pair("{\"step\":1}\n{\"st", "{\"step\":1}\n"),
                               {"{\"step\":1}\n", "{\"step\":1}\n"},
                               {"no metrics\nat all", "no metrics\nat all"}}) {
    std::ofstream(path) << before;
    run::MetricsWriter metrics;
    ASSERT_TRUE(metrics.open(path).isOk());
    EXPECT_EQ(*readFile(path), after);
    metrics.clear();
    EXPECT_EQ(*readFile(path), "");
  }
}

TEST(Metrics, FoldersThatDoNotExistAreRefused) {
  run::MetricsWriter metrics;
  EXPECT_EQ(metrics.open("/nonexistent/m.jsonl").code(), StatusCode::NotFound);
}

std::string outputOf(run::ProgressOptions options, int64_t steps, int64_t first = 0,
                     const run::RunResult &result = {}) {
  std::FILE *file = std::tmpfile();
  options.out = file;
  run::ProgressOutput output(options);
  output.begin(first, steps);
  for (int64_t step = first + 1; step <= steps; ++step)
    output.step(makeState(step, 4.0 / static_cast<double>(step)));
  output.evaluated(makeState(steps, 0));
  output.end(result, /*isAllWritten=*/true);
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(ProgressOutput, PrintsTextsInALineEach) {
  std::FILE *file = std::tmpfile();
  run::ProgressOutput output({.out = file});
  output.said(2, std::vector<run::SaidText>{{"a\nb", "c", "d"}});
  std::array<char, 256> text{};
  std::rewind(file);
  EXPECT_GT(std::fread(text.data(), 1, text.size() - 1, file), 0u);
  std::fclose(file);
  EXPECT_STREQ(text.data(), "sample 1 after step 2\n  prompt  a\\x0ab\n  model   c\n  data    d\n");
}

TEST(ProgressOutput, SaysThatMoreStepsAreDoneThanAskedFor) {
  EXPECT_THAT(outputOf({}, 2, 4), HasSubstr("done after 4 steps, more than the 2 asked for, in "));
}

/// Observers compare the steps of several starts of a job.
TEST(ProgressOutput, TellsTheJobsLastStep) {
  std::atomic<uint64_t> last{0};
  outputOf({.lastStep = &last}, 12, 10);
  EXPECT_EQ(last.load(), 12u);
}

TEST(ProgressOutput, CountsSkippedStepsAndWarnsOfManyInARow) {
  std::FILE *file = std::tmpfile();
  ReportList reports;
  run::ProgressOutput output({.out = file,
                              .logInterval = 1,
                              .emit = reports.sink(),
                              .fields = {.lossScale = true, .skipped = true}});
  output.begin(0, 200);
  for (int64_t step = 1; step <= 200; ++step) {
    StepState state = makeState(step, 1.0);
    state.lossScale = 1024;
    state.nonfinite = state.skip = step <= 40 || step > 100 ? 1 : 0;
    output.step(state);
  }
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  EXPECT_THAT(text, HasSubstr("loss scale 1024  skipped 140  "));
  EXPECT_THAT(text, HasSubstr("grad norm overflow  loss scale 1024  skipped 1  "));
  std::vector<Report> warnings = reports.take();
  ASSERT_EQ(warnings.size(), 2u); // after 50 and 100 in a row, not for the first 40
  EXPECT_EQ(warnings[0].id, "steps-skipped");
}

TEST(ProgressOutput, TellsLargeNormsAndStepsThatArePassedOver) {
  std::FILE *file = std::tmpfile();
  ReportList reports;
  run::ProgressOutput output(
      {.out = file, .logInterval = 1, .emit = reports.sink(), .fields = {.skipped = true}});
  output.begin(0, 60);
  output.skipped(makeState(1, 0));
  for (int64_t step = 2; step <= 60; ++step) {
    StepState state = makeState(step, 1.0);
    state.skip = 1;
    output.step(state);
  }
  output.end({}, /*isAllWritten=*/true);
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  EXPECT_THAT(text, HasSubstr("step 1/60  skipped, as train.iterations_to_skip asks\n"));
  EXPECT_THAT(text, HasSubstr("grad norm 1.250  skipped 1  "));
  EXPECT_THAT(text, HasSubstr("done after 60 of 60 steps in "));
  std::vector<Report> warnings = reports.take();
  ASSERT_EQ(warnings.size(), 1u); // after 50 in a row
  EXPECT_EQ(warnings[0].id, "large-norms-skipped");
}

/// Rates use the device's time, not the time at which the host saw a step.
TEST(ProgressOutput, RatesAreOfTheDevicesTime) {
  TempFolder folder;
  std::string path = folder.path() + "/rates.jsonl";
  run::MetricsWriter metrics;
  ASSERT_TRUE(metrics.open(path).isOk());
  run::ProgressOutput output({.tokensPerStep = 1000, .metrics = &metrics, .isQuiet = true});
  output.begin(0, 3);
  for (double seconds : {0.5, 0.25, 0.25}) {
    output.took(seconds);
    output.step(makeState(1, 1.0));
  }
  std::ifstream file(path);
  std::vector<double> rates;
  for (std::string line; std::getline(file, line);)
    rates.push_back(nlohmann::json::parse(line)["tokens_per_s"]);
  EXPECT_THAT(rates, ElementsAre(2000.0, 2000.0 / 0.75, 3000.0));
}

TEST(ProgressOutput, PlainLinesComeAtTheirInterval) {
  std::string text = outputOf({.logInterval = 4, .tokensPerStep = 100}, 10);
  std::vector<std::string> heads;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    heads.push_back(text.substr(at, text.find("  ", at) - at));
  EXPECT_THAT(heads, ElementsAre("step 1/10", "step 4/10", "step 8/10", "step 10/10",
                                 "evaluation after step 10", "done after 10 of 10 steps in 0:00"));
  EXPECT_THAT(text, HasSubstr("step 4/10  loss 1.0000  lr 3.000e-04  grad norm 1.250  "));
  EXPECT_THAT(text, HasSubstr("loss 4.0000 -> 0.4000"));
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST(ProgressOutput, MemoryIsTheMostOfAnyRank) {
  run::MemoryChange mine{1, 3 << 20, 0, 0, 2048, 2048, 100};
  const int64_t other[] = {-1024, 1024, 7, 1 << 20, 512, 2};
  ToldPeers peers;
  peers.others.emplace_back(reinterpret_cast<const char *>(&other), sizeof other);
  run::RunResult result;
  result.memory = *run::gatherMemoryChange(peers, mine);
  std::string text = outputOf({}, 1, 0, result);
  EXPECT_THAT(text, HasSubstr("device memory 3.0 MiB in use; since the first step +512 bytes, "
                              "2 allocations\n"));
  EXPECT_THAT(text, HasSubstr("arenas of 2 ranks: 1024 to 2048 bytes, in use within 100\n"));
  EXPECT_THAT(outputOf({}, 1), Not(HasSubstr("memory"))) << "the host has none of a device";
  peers.others = {"short"};
  EXPECT_EQ(run::gatherMemoryChange(peers, mine).status().code(), StatusCode::Internal);
}

TEST(ProgressOutput, TerminalLineIsRewritten) {
  std::string text = outputOf({.isTerminal = true, .logInterval = 100, .tokensPerStep = 100}, 3);
  EXPECT_EQ(text.find("\rstep 1/3"), 0u);
  EXPECT_THAT(text, HasSubstr("\x1b[K\n"));
}

TEST(DumpSpec, FormsAreParsed) {
  auto spec = run::DumpSpec::parse("update:%g.*");
  ASSERT_TRUE(spec.isOk());
  EXPECT_EQ(spec->segment, "update");
  EXPECT_FALSE(spec->isCell);
  EXPECT_TRUE(spec->matches("g.layers.0"));
  EXPECT_FALSE(spec->matches("gs.layers.0"));
  EXPECT_TRUE(run::DumpSpec::parse("micro:@w")->isCell);
  EXPECT_FALSE(run::DumpSpec::parse("micro").isOk());
  EXPECT_FALSE(run::DumpSpec::parse("micro:").isOk());
}

class Quiet final : public run::RunObserver {
  void begin(int64_t, int64_t) override {}
  void step(const StepState &) override {}
  void evaluated(const StepState &) override {}
};

TEST(Dump, ShardsSayWhichParametersTheyHold) {
  TempFolder folder;
  plan::Plan plan = toyPlan({.steps = 3});
  auto backend = host::makeBackend({.ranks = 2});
  auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
  ASSERT_TRUE(executable.isOk());
  std::vector<run::DumpSpec> specs = {*run::DumpSpec::parse("update:g"),
                                      *run::DumpSpec::parse("update:@w.b"),
                                      *run::DumpSpec::parse("micro:losses")};
  auto dumper = run::Dumper::create(**executable, folder.path(), specs);
  ASSERT_TRUE(dumper.isOk()) << dumper.status().message();
  (*dumper)->setStep(2);
  ToySource source(8, 2);
  Quiet quiet;
  run::RunOptions options;
  options.opObserver = dumper->get();
  options.wantsOps = [](int64_t step) { return step == 2; };
  ASSERT_TRUE(run::runProgram(**executable, source, quiet, options).isOk());
  ASSERT_TRUE((*dumper)->finish().isOk());

  nlohmann::json index = nlohmann::json::parse(*readFile(folder.path() + "/index.json"));
  EXPECT_EQ(index["step"], 2);
  EXPECT_EQ(index["params"][0]["name"], "embedding.word_embeddings.weight");
  ASSERT_EQ(index["tensors"].size(), 8u); // losses of 2 microbatches, g, @w.b; 2 ranks each
  int shards = 0;
  for (const nlohmann::json &tensor : index["tensors"]) {
    size_t elements = tensor["shape"][0];
    EXPECT_EQ(readFile(folder.path() + "/" + tensor["file"].get<std::string>())->size(),
              4 * elements);
    if (tensor["segment"] == "micro")
      continue;
    ++shards;
    EXPECT_EQ(tensor["block"], "b");
    EXPECT_EQ(tensor["parts"][0]["param"], "embedding.word_embeddings.weight");
    EXPECT_EQ(tensor["parts"][0]["global_begin"], 16 * tensor["rank"].get<int>());
    EXPECT_EQ(tensor["parts"][0]["end"], 16);
  }
  EXPECT_EQ(shards, 4);
}

TEST(Dump, NoNameLeavesTheFolder) {
  TempFolder folder;
  plan::Plan plan = toyPlan({.steps = 1});
  plan.roles[0].segments[plan::findSegment(plan.roles[0], plan::SegmentKind::Train)].name =
      "../mic\xff";
  auto backend = host::makeBackend({.ranks = 2});
  auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
  ASSERT_TRUE(executable.isOk());
  auto dumper = run::Dumper::create(**executable, folder.path() + "/dump",
                                    {*run::DumpSpec::parse("../mic\xff:losses")});
  ASSERT_TRUE(dumper.isOk()) << dumper.status().message();
  ToySource source(8, 2);
  Quiet quiet;
  run::RunOptions options;
  options.opObserver = dumper->get();
  options.wantsOps = [](int64_t) { return true; };
  ASSERT_TRUE(run::runProgram(**executable, source, quiet, options).isOk());
  ASSERT_TRUE((*dumper)->finish().isOk());
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/dump/..%2fmic%ff.0.losses.rank0.bin"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/dump/index.json"));
}

TEST(Dump, NamesThatMatchNothingAreRefused) {
  TempFolder folder;
  plan::Plan plan = toyPlan({});
  auto backend = host::makeBackend({.ranks = 2});
  auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
  ASSERT_TRUE(executable.isOk());
  auto dumper =
      run::Dumper::create(**executable, folder.path(), {*run::DumpSpec::parse("micro:nothing*")});
  EXPECT_EQ(
      dumper.status().message(),
      "nothing to dump is called %nothing* in segment 'micro'; segments are init, micro, update");
}

TEST(Preflight, TellsEverythingInOneGo) {
  plan::Plan plan = toyPlan({});
  EXPECT_THAT(said(run::preflight(plan, "host", kernels::findHostKernel, {})), ElementsAre());
  plan.needsBackend = "cuda";
  auto find = [](std::string_view name) {
    return name == "sgd" ? nullptr : kernels::findHostKernel(name);
  };
  EXPECT_THAT(said(run::preflight(plan, "host", find, {})),
              ElementsAre("error: the plan needs backend cuda, not host [plan-for-another-backend]",
                          "error: backend host has no kernel for 'sgd' [no-kernel]"));
  EXPECT_THAT(said(run::preflight(plan, "host", find, {.isSimulation = true})),
              ElementsAre("error: backend host has no kernel for 'sgd' [no-kernel]"));
}

/// A backend without kernels for grouped rows reports which one it lacks.
TEST(Preflight, RowsInRunsNeedTheirKernels) {
  Result<std::string> text = readFile(std::string(SHARDC_TEST_PLANS) + "/runs.plan");
  ASSERT_TRUE(text.isOk());
  Result<plan::Plan> plan = plan::parse(*text, "runs.plan");
  ASSERT_TRUE(plan.isOk()) << plan.status().message();
  EXPECT_THAT(said(run::preflight(*plan, "host", kernels::findHostKernel, {})), ElementsAre());
  auto find = [](std::string_view name) {
    return name.starts_with("grouped_matmul") ? nullptr : kernels::findHostKernel(name);
  };
  plan->needsBackend = "cuda";
  EXPECT_THAT(
      said(run::preflight(*plan, "cuda", find, {})),
      ElementsAre("error: backend cuda has no kernel for 'grouped_matmul' [no-kernel]",
                  "error: backend cuda has no kernel for 'grouped_matmul_bwd' [no-kernel]"));
}

TEST(Preflight, MemoryIsComparedWithWhatIsThere) {
  plan::Plan plan = toyPlan({});
  auto backend = host::makeBackend({.ranks = 2});
  EXPECT_EQ(said(run::checkMemory(plan, **backend)), "");
  plan.roles[0].arenaBytes[0] = int64_t{1} << 50;
  EXPECT_THAT(said(run::checkMemory(plan, **backend)),
              HasSubstr("2 ranks need 2048.0 TiB of memory"));
}

/// A wrong shape in a large model is found before its arenas are allocated.
TEST(Preflight, KernelsAreAskedBeforeAnythingIsAllocated) {
  plan::Plan plan = toyPlan({});
  for (plan::Segment &segment : plan.roles[0].segments)
    for (plan::Value &value : segment.values)
      if (value.name == "n" || value.name == "ss")
        value.type.dtype = DType::I32;
  std::vector<std::string> findings =
      said(run::preflight(plan, "host", kernels::findHostKernel, {}));
  EXPECT_THAT(findings, Contains(HasSubstr("token_count %n: kernel token_count_host refuses: ")));
  EXPECT_THAT(findings, Contains(HasSubstr("loss.add %summed: kernel loss_add_host refuses: ")));
}

/// Kernels accept types and shapes without addresses too, including accumulated results.
TEST(Preflight, WhatBindsIsNotRefused) {
  for (const ToyOptions &options :
       {ToyOptions{.dp = 1}, {.dp = 4, .microbatches = 3}, {.evalEvery = 2}, {.squares = true}})
    EXPECT_THAT(said(run::preflight(toyPlan(options), "host", kernels::findHostKernel, {})),
                ElementsAre());
}

TEST(Preflight, AReasonIsToldOnce) {
  auto find = [](std::string_view name) -> const kernels::Kernel * {
    static const kernels::Kernel picky = {
        "picky", nullptr, [](const kernels::Call &) { return "today is Monday"; }, nullptr};
    return name == "cast" || name == "fill" ? kernels::findHostKernel(name) : &picky;
  };
  plan::Plan plan = toyPlan({});
  std::vector<std::string> findings = said(run::preflight(plan, "host", find, {}));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0], AllOf(HasSubstr(": kernel picky refuses: today is Monday (and "),
                                 HasSubstr("[kernel-refuses]")));
}

TEST(Explain, NamesTheKernelOfEachOp) {
  std::string text = exec::explain(toyPlan({}), kernels::findHostKernel);
  EXPECT_THAT(text,
              HasSubstr("matmul %logits (toy.recipe:3) -> matmul_host, reads 256 B, writes 256 B"));
  EXPECT_THAT(text, HasSubstr("all_gather %W -> collective over dp"));
  EXPECT_EQ(text.find("NO KERNEL"), std::string::npos);
}

TEST(Explain, ControlCharactersAreShownAsText) {
  plan::Plan plan = toyPlan({});
  plan.locs[0].file = "a\x1b[2J";
  plan.roles[0].segments[1].name = "b\r";
  EXPECT_EQ(plan::opLabels(plan, plan.roles[0].segments[1])[0].find("b\\x0d: "), 0u);
  std::string text = exec::explain(plan, kernels::findHostKernel);
  EXPECT_THAT(text, HasSubstr("segment b\\x0d\n"));
  EXPECT_THAT(text, HasSubstr("(a\\x1b[2J:3) ->"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(JobData, SyntheticBatchesFillTheWholeEntry) {
  plan::Plan plan = toyPlan({.evalEvery = 2});
  auto source = run::openJobData(plan);
  ASSERT_TRUE(source.isOk()) << source.status().message();
  std::vector<int32_t> words(run::FeedEntry::words(2, 4), -1);
  run::FeedEntry entry = run::FeedEntry::at(words.data(), 2, 4);
  ASSERT_TRUE((*source)->fill(run::FeedKind::Train, 3, 1, 2, 1, entry).isOk());
  for (int i = 0; i < 8; ++i) {
    EXPECT_GE(entry.tokens[i], 0);
    EXPECT_LT(entry.labels[i], 8);
    EXPECT_EQ(entry.mask[i], 1.0f);
    EXPECT_EQ(entry.positions[i], i % 4);
    EXPECT_EQ(entry.docs[i], 0);
  }
  int64_t samples[2];
  std::memcpy(samples, entry.samples, sizeof samples);
  EXPECT_THAT(samples, ElementsAre(3 * 8 + (1 * 2 + 1) * 2, 3 * 8 + (1 * 2 + 1) * 2 + 1));
  EXPECT_TRUE((*source)->fill(run::FeedKind::Eval, 0, 5, 6, 0, entry).isOk());
  EXPECT_FALSE((*source)->fill(run::FeedKind::Eval, 0, 0, 3, 0, entry).isOk())
      << "not whole batches";
}

/// Rank i of n has chunks i and 2n-1-i of each sequence, and their positions.
TEST(JobData, SlicesAreMirroredChunksOfTheWhole) {
  auto source = run::openJobData(toyPlan({}));
  ASSERT_TRUE(source.isOk()) << source.status().message();
  std::vector<int32_t> all(run::FeedEntry::words(2, 4)),
      part(run::FeedEntry::words(2, 2, run::FeedMore::Places));
  run::FeedEntry whole = run::FeedEntry::at(all.data(), 2, 4);
  ASSERT_TRUE((*source)->fill(run::FeedKind::Train, 1, 1, 2, 1, whole).isOk());
  for (int64_t rank : {0, 1}) {
    run::FeedEntry slice = run::FeedEntry::at(part.data(), 2, 2, run::FeedMore::Places);
    slice.slice = {rank, 2};
    ASSERT_TRUE((*source)->fill(run::FeedKind::Train, 1, 1, 2, 1, slice).isOk());
    for (int64_t row : {0, 1})
      for (int64_t half : {0, 1}) {
        int64_t place = half == 0 ? rank : 3 - rank, to = row * 2 + half, from = row * 4 + place;
        EXPECT_EQ(slice.places[to], place);
        EXPECT_EQ(slice.tokens[to], whole.tokens[from]);
        EXPECT_EQ(slice.labels[to], whole.labels[from]);
        EXPECT_EQ(slice.positions[to], whole.positions[from]);
      }
    EXPECT_EQ(std::memcmp(slice.samples, whole.samples, 2 * sizeof(int64_t)), 0);
  }
}

TEST(JobCheck, WhatTheProgramTakesIsWhatTheJobGives) {
  EXPECT_THAT(said(run::checkJob(toyPlan({.evalEvery = 2}))), ElementsAre());
  auto differing = [](std::string_view path, int64_t value) {
    plan::Plan plan = toyPlan({.evalEvery = 2});
    plan.job.put(path, value);
    return said(run::checkJob(plan));
  };
  EXPECT_THAT(
      differing("model.seq_length", 8),
      ElementsAre("error: segment 'micro' takes batches of 2 x 4 tokens; train.micro_batch_size "
                  "is 2 and model.seq_length 8 [plan-disagrees-with-job]",
                  HasSubstr("segment 'eval' takes batches of 2 x 4 tokens")));
  EXPECT_THAT(differing("train.micro_batch_size", int64_t{1} << 62),
              ElementsAre(HasSubstr("train.micro_batch_size is 4611686018427387904"),
                          HasSubstr("train.micro_batch_size is 4611686018427387904")));
  EXPECT_THAT(
      differing("train.global_batch_size", 4),
      ElementsAre(HasSubstr("segment 'micro' runs 2 microbatches; the job's batch sizes give 1"),
                  HasSubstr("segment 'eval' runs 6 microbatches; the job's batch sizes give 3")));
  EXPECT_THAT(differing("train.train_iters", 4),
              ElementsAre(HasSubstr("the program has 5 steps; train.train_iters is 4")));
  EXPECT_THAT(differing("validation.eval_interval", 3),
              ElementsAre(HasSubstr(
                  "segment 'eval' evaluates every 2 steps; validation.eval_interval is 3")));
}

TEST(JobData, BatchesOfAnotherLengthAreRefused) {
  auto source = run::openJobData(toyPlan({}));
  ASSERT_TRUE(source.isOk()) << source.status().message();
  std::vector<int32_t> words(run::FeedEntry::words(2, 8));
  run::FeedEntry entry = run::FeedEntry::at(words.data(), 2, 8);
  EXPECT_THAT((*source)->fill(run::FeedKind::Train, 0, 0, 2, 0, entry).message(),
              HasSubstr("2 microbatches of 2 x 8 tokens, but the job's sizes give 2 of 2 x 4"));
}

TEST(JobData, DocumentsBecomeFirstPositions) {
  TempFolder folder;
  ASSERT_TRUE(writeFileAtomic(folder.path() + "/a.txt", std::string(300, 'a')).isOk());
  plan::Plan plan = toyPlan({});
  plan.job = {{"dataset.data_path", std::vector<std::string>{folder.path() + "/a.txt"}},
              {"dataset.kind", std::string("text")},
              {"dataset.reset_attention_mask", true},
              {"dataset.split", std::string("100,0,0")},
              {"model.seq_length", int64_t{200}},
              {"model.vocab_size", int64_t{257}},
              {"train.global_batch_size", int64_t{4}},
              {"train.micro_batch_size", int64_t{2}},
              {"train.train_iters", int64_t{4}}};
  auto source = run::openJobData(plan);
  ASSERT_TRUE(source.isOk()) << source.status().message();
  std::vector<int32_t> words(run::FeedEntry::words(2, 200));
  run::FeedEntry entry = run::FeedEntry::at(words.data(), 2, 200);
  ASSERT_TRUE((*source)->fill(run::FeedKind::Train, 0, 0, 1, 0, entry).isOk());
  constexpr int kEndToken = 256;
  for (int row = 0; row < 2; ++row)
    for (int s = 1; s < 200; ++s) {
      bool isNewDocument = entry.tokens[row * 200 + s - 1] == kEndToken;
      EXPECT_EQ(entry.docs[row * 200 + s], isNewDocument ? s : entry.docs[row * 200 + s - 1]);
    }
}

TEST(JobData, WhatIsMissingIsNamed) {
  plan::Plan plan = toyPlan({.evalEvery = 2});
  plan.job.dataset.dataPath = {"/nonexistent/corpus"};
  EXPECT_THAT(run::openJobData(plan).status().message(), HasSubstr("/nonexistent/corpus"));
}

} // namespace
} // namespace shardc::test
