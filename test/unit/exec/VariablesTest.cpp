// Environment variables of a run. The environment is the test's own.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/RecipeVariables.h"
#include "runtime/run/JobVariables.h"
#include "test/unit/base/Told.h"

namespace shardc::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

using Environment = std::map<std::string, std::string>;

GetVariable reader(const Environment &environment) {
  return [&environment](const char *name) {
    auto at = environment.find(name);
    return at == environment.end() ? nullptr : at->second.c_str();
  };
}

TEST(Variables, SetsWhatIsNotThereAndNamesWhatDiffers) {
  plan::Plan plan;
  plan.job = {{"env.A", std::string("1")},
              {"env.B", std::string("2")},
              {"env.C", std::string("")},
              {"env.D", std::string("4")}};
  Environment environment = {{"B", "other"}, {"D", "4"}};
  JobVariables variables = jobVariables(plan, reader(environment));
  EXPECT_THAT(variables.toSet, ElementsAre(Pair("A", "1"), Pair("C", "")));
  EXPECT_THAT(variables.kept, ElementsAre("B"));
}

TEST(Variables, TheTableSaysWhatARecipeMaySet) {
  for (const char *name : {"NCCL_ALGO", "NCCL_DEBUG", "NCCL_P2P_DIRECT_DISABLE", "OMP_NUM_THREADS",
                           "CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1", "UCX_TLS",
                           "TOKENIZERS_PARALLELISM", "PYTORCH_CUDA_ALLOC_CONF"})
    EXPECT_EQ(useOfVariable(name), VariableUse::Settable) << name;
  for (const char *name :
       {"LD_PRELOAD", "PYTHONPATH", "PATH", "HOME", "NCCL_NET_PLUGIN", "CUDA_INJECTION64_PATH",
        "NCCL_DEBUG_FILE", "OMP_TOOL_LIBRARIES", "UCX_GDB_COMMAND", "NCCL", "NCCL_RAS_ADDR",
        "CUDA_MPS_PIPE_DIRECTORY", "nccl_algo", "http_proxy", "TMPDIR", ""})
    EXPECT_EQ(useOfVariable(name), VariableUse::Other) << name;
  for (const char *name :
       {"SHARDC_JOB_SECRET", "NCCL_COMM_ID", "MASTER_ADDR", "RANK", "WORLD_SIZE", "LOCAL_RANK",
        "SLURM_PROCID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PET_NNODES"})
    EXPECT_EQ(useOfVariable(name), VariableUse::Position) << name;
  for (const char *name : {"HF_TOKEN", "WANDB_API_KEY", "NCCL_SECRET", "DB_PASSWORD"})
    EXPECT_EQ(useOfVariable(name), VariableUse::Secret) << name;
}

TEST(Variables, OneQueueIsRefusedWherePlansShardByFsdp) {
  Environment one = {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}};
  Environment eight = {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}}, none;
  for (const char *flag : {"dist.use_megatron_fsdp", "ddp.use_megatron_fsdp"}) {
    plan::Plan plan;
    plan.job = {{flag, true}};
    EXPECT_THAT(test::said(checkConnections(plan, reader(one))),
                HasSubstr("[fsdp-max-connections]"))
        << flag;
    EXPECT_THAT(test::said(checkConnections(plan, reader(eight))), IsEmpty());
    EXPECT_THAT(test::said(checkConnections(plan, reader(none))), IsEmpty());
  }
  plan::Plan plan;
  plan.job.dist.useTorchFsdp2 = true;
  EXPECT_THAT(test::said(checkConnections(plan, reader(one))),
              HasSubstr("[torch-fsdp2-max-connections]"));
  plan.job.dist.useTorchFsdp2 = false;
  EXPECT_THAT(test::said(checkConnections(plan, reader(one))), IsEmpty());
}

} // namespace
} // namespace shardc::run
