// Positions of ranks, read from the environments that launchers set.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/launch/JobPosition.h"

namespace shardc::launch {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<JobPosition> positionIn(const Variables &variables) {
  return findJobPosition([&](const char *name) {
    auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const Variables kTorchrun = {{"RANK", "3"},          {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},    {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "400"}, {"TORCHELASTIC_RUN_ID", "j"}};

TEST(JobPosition, IsPlainWithoutALauncher) {
  auto position = positionIn({{"PATH", "/bin"}});
  ASSERT_TRUE(position.isOk());
  EXPECT_EQ(position->launcher, Launcher::Plain);
  EXPECT_EQ(position->worldSize, 1);
}

TEST(JobPosition, ReadsTorchrun) {
  auto position = positionIn(kTorchrun);
  ASSERT_TRUE(position.isOk()) << position.status().message();
  EXPECT_EQ(position->launcher, Launcher::Torchrun);
  EXPECT_EQ(position->rank, 3);
  EXPECT_EQ(position->worldSize, 4);
  EXPECT_EQ(position->localRank, 1);
  EXPECT_EQ(position->masterAddress, "10.0.0.1");
  EXPECT_EQ(position->job, "j");
  EXPECT_EQ(*rendezvousPort(*position, 0), 401);
  EXPECT_EQ(*rendezvousPort(*position, 77), 77);
}

TEST(JobPosition, ReadsTheNumberOfTheNode) {
  EXPECT_EQ(positionIn(kTorchrun)->node, -1);
  Variables node = kTorchrun;
  node["GROUP_RANK"] = "5";
  EXPECT_EQ(positionIn(node)->node, 5);
  node["GROUP_RANK"] = "x";
  EXPECT_THAT(positionIn(node).status().message(), HasSubstr("GROUP_RANK is 'x'"));
}

TEST(JobPosition, CountsTheRanksThatShareVisibleGpus) {
  JobPosition plain;
  EXPECT_EQ(ranksSharingGpus(plain, 1, 4), 4) << "all were started here";
  Variables node = kTorchrun;
  node["LOCAL_WORLD_SIZE"] = "2";
  JobPosition position = *positionIn(node);
  EXPECT_EQ(ranksSharingGpus(position, 2, 4), 2) << "two nodes on one machine, each with its GPUs";
  EXPECT_EQ(ranksSharingGpus(position, 1, 4), 1) << "each rank may see its own";
  EXPECT_EQ(ranksSharingGpus(position, 2, 1), 1);
  position = *positionIn(kTorchrun); // names no size of its node
  EXPECT_EQ(ranksSharingGpus(position, 2, 4), 4);
  node["LOCAL_WORLD_SIZE"] = "none";
  EXPECT_THAT(positionIn(node).status().message(), HasSubstr("LOCAL_WORLD_SIZE is 'none'"));
  position = *positionIn({{"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "4"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                          {"MASTER_ADDR", "10.0.0.1"}});
  EXPECT_EQ(ranksSharingGpus(position, 2, 4), 2);
}

TEST(JobPosition, ReadsOpenMpiOnOneMachine) {
  auto position = positionIn({{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(position.isOk()) << position.status().message();
  EXPECT_EQ(position->launcher, Launcher::OpenMpi);
  EXPECT_EQ(position->masterAddress, "127.0.0.1");
}

TEST(JobPosition, AsksForTheAddressWhereMpirunHasSeveralMachines) {
  auto position = positionIn({{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_THAT(position.status().message(), HasSubstr("mpirun -x MASTER_ADDR="));
}

TEST(JobPosition, ReadsTasksOfSlurm) {
  Variables task = {{"SLURM_PROCID", "5"},     {"SLURM_STEP_NUM_TASKS", "16"},
                    {"SLURM_LOCALID", "1"},    {"SLURM_STEP_NODELIST", "gpu[03-04,9],m1"},
                    {"SLURM_JOB_ID", "12345"}, {"SLURM_STEP_ID", "2"}};
  auto position = positionIn(task);
  ASSERT_TRUE(position.isOk()) << position.status().message();
  EXPECT_EQ(position->launcher, Launcher::Slurm);
  EXPECT_EQ(position->rank, 5);
  EXPECT_EQ(position->masterAddress, "gpu03");
  EXPECT_EQ(position->job, "12345.2");
  EXPECT_EQ(*rendezvousPort(*position, 0), 15000 + 12345 % 8000 * 2 + 1);
  task["SLURM_STEP_NUM_TASKS"] = "1"; // a shell inside an allocation
  EXPECT_EQ(positionIn(task)->launcher, Launcher::Plain);
  task.erase("SLURM_STEP_NUM_TASKS"); // a batch script
  EXPECT_EQ(positionIn(task)->launcher, Launcher::Plain);
}

TEST(JobPosition, ReadsTasksOfFlux) {
  Variables task = {{"FLUX_TASK_RANK", "3"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_TASK_LOCAL_ID", "1"},
                    {"FLUX_JOB_ID", "f1"},   {"PMI_RANK", "3"},      {"PMI_SIZE", "4"}};
  EXPECT_THAT(positionIn(task).status().message(), HasSubstr("no MASTER_ADDR"));
  task["FLUX_JOB_NNODES"] = "1";
  auto position = positionIn(task);
  ASSERT_TRUE(position.isOk()) << position.status().message();
  EXPECT_EQ(position->launcher, Launcher::Flux);
  EXPECT_EQ(position->rank, 3);
  EXPECT_EQ(position->localRank, 1);
  EXPECT_EQ(position->masterAddress, "127.0.0.1");
  EXPECT_EQ(position->job, "f1");
  task["FLUX_JOB_SIZE"] = task["PMI_SIZE"] = "1";
  EXPECT_EQ(positionIn(task)->launcher, Launcher::Plain);
}

TEST(JobPosition, ReadsMpichAndIntelMpi) {
  Variables task = {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "4"}};
  EXPECT_THAT(positionIn(task).status().message(), HasSubstr("no MPI_LOCALRANKID"));
  task["MPI_LOCALRANKID"] = "2";
  auto position = positionIn(task);
  ASSERT_TRUE(position.isOk()) << position.status().message();
  EXPECT_EQ(position->launcher, Launcher::Pmi);
  EXPECT_EQ(position->masterAddress, "127.0.0.1");
}

Result<std::optional<NodePlace>> nodeIn(const Variables &variables,
                                        const NodeOptions &options = {}) {
  return findNode(Environment([&](const char *name) {
                    auto found = variables.find(name);
                    return found == variables.end() ? nullptr : found->second.c_str();
                  }),
                  options);
}

const Variables kTrainJob = {{"PET_NNODES", "4"},
                             {"PET_NODE_RANK", "2"},
                             {"PET_NPROC_PER_NODE", "8"},
                             {"PET_MASTER_ADDR", "j-node-0-0.j"},
                             {"PET_MASTER_PORT", "29500"}};

TEST(NodePlace, IsOfNoNodeWithoutAnOperator) {
  EXPECT_FALSE(nodeIn({})->has_value());
  EXPECT_FALSE(nodeIn(kTorchrun)->has_value()) << "torchrun has read PET_... itself";
  Variables both = kTrainJob;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_FALSE(nodeIn(both)->has_value());
  EXPECT_THAT(nodeIn(kTorchrun, {.nodes = 2}).status().message(), HasSubstr("as a rank already"));
}

TEST(NodePlace, ReadsTrainJob) {
  auto place = nodeIn(kTrainJob);
  ASSERT_TRUE(place.isOk() && *place) << place.status().message();
  EXPECT_EQ((*place)->nodes, 4);
  EXPECT_EQ((*place)->node, 2);
  EXPECT_EQ((*place)->ranks, 8);
  EXPECT_EQ((*place)->address, "j-node-0-0.j");
  EXPECT_EQ((*place)->masterPort, 29500);
}

TEST(NodePlace, CountsPodsWhereWorldSizeCountsProcesses) {
  Variables newer = kTrainJob;
  newer["PET_NPROC_PER_NODE"] = "auto";
  newer["RANK"] = "2";
  newer["WORLD_SIZE"] = "32";
  EXPECT_EQ((*nodeIn(newer))->nodes, 4);
  EXPECT_EQ((*nodeIn(newer))->ranks, 0);
  auto older = nodeIn({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}});
  ASSERT_TRUE(older.isOk() && *older) << older.status().message();
  EXPECT_EQ((*older)->nodes, 2);
  EXPECT_EQ((*older)->node, 1);
  EXPECT_EQ((*older)->ranks, 0);
}

TEST(NodePlace, TakesOptionsFirst) {
  auto place = nodeIn(kTrainJob, {.nodes = 2, .node = 1, .ranks = 4, .master = "[::1]:400"});
  ASSERT_TRUE(place.isOk() && *place) << place.status().message();
  EXPECT_EQ((*place)->nodes, 2);
  EXPECT_EQ((*place)->node, 1);
  EXPECT_EQ((*place)->ranks, 4);
  EXPECT_EQ((*place)->address, "::1");
  EXPECT_EQ((*place)->masterPort, 399) << "ranks meet at the port after it";
  for (const char *host : {"fe80::1", "m", "[fe80::1]"})
    EXPECT_EQ((*nodeIn(kTrainJob, {.master = host}))->masterPort, 0) << host;
  EXPECT_THAT(nodeIn(kTrainJob, {.master = ":1"}).status().message(), HasSubstr("HOST[:PORT]"));
  EXPECT_THAT(nodeIn(kTrainJob, {.master = "m:70000"}).status().message(), HasSubstr("70000"));
  EXPECT_EQ((*nodeIn({{"JOB_COMPLETION_INDEX", "1"}}, {.nodes = 2, .master = "m"}))->node, 1);
  EXPECT_EQ((*nodeIn({{"VC_TASK_INDEX", "7"}}, {.nodes = 1}))->node, 0) << "each trains alone";
  EXPECT_THAT(nodeIn({{"VC_TASK_INDEX", "1"}}).status().message(), HasSubstr("give --nodes"));
}

TEST(JobPosition, TakesTheInnermostLauncher) {
  Variables both = kTorchrun;
  both["SLURM_PROCID"] = "0";
  both["SLURM_STEP_NUM_TASKS"] = "2";
  both["SLURM_LOCALID"] = "0";
  EXPECT_EQ(positionIn(both)->launcher, Launcher::Torchrun);
}

TEST(JobPosition, RefusesWhatIsNoPlace) {
  for (auto [name, value, words] :
       {std::tuple("RANK", "x", "RANK is 'x'"), std::tuple("RANK", "-1", "RANK is '-1'"),
        std::tuple("RANK", "4", "RANK is '4'; it must be a number from 0 to 3"),
        std::tuple("WORLD_SIZE", "0", "WORLD_SIZE is '0'"),
        std::tuple("MASTER_PORT", "70000", "MASTER_PORT is '70000'"),
        std::tuple("MASTER_ADDR", "", "no MASTER_ADDR"),
        std::tuple("LOCAL_RANK", "", "no LOCAL_RANK")}) {
    Variables wrong = kTorchrun;
    wrong[name] = value;
    EXPECT_THAT(positionIn(wrong).status().message(), HasSubstr(words));
  }
  EXPECT_THAT(positionIn({{"RANK", "0"}}).status().message(), HasSubstr("no WORLD_SIZE"));
  Variables last = kTorchrun;
  last["MASTER_PORT"] = "65535";
  EXPECT_THAT(rendezvousPort(*positionIn(last), 0).status().message(),
              HasSubstr("dist.rendezvous_port"));
}

TEST(JobPosition, FindsTheFirstHostOfAList) {
  EXPECT_EQ(firstHost("n1"), "n1");
  EXPECT_EQ(firstHost("n1,n2"), "n1");
  EXPECT_EQ(firstHost("n[007-9]"), "n007");
  EXPECT_EQ(firstHost("n[1,3]-ib,m"), "n1-ib");
  EXPECT_EQ(firstHost("r[1-2]n[3-4]"), "r1n3");
  EXPECT_EQ(firstHost("n[1"), "");
}

} // namespace
} // namespace shardc::launch
