// How the CUDA backend creates channels, by its own code and without a GPU: which ranks make which
// communicators, in which order, and what they register, even if NCCL refuses.
#include <map>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/backend/cuda/CommunicatorWatch.h"
#include "runtime/backend/cuda/CudaChannel.h"
#include "runtime/backend/cuda/CudaMemory.h"
#include "test/unit/cudaconnect/FakeNccl.h"

namespace shardc::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Kind = hal::CollectiveKind;

constexpr int64_t kSharedBytes = 1 << 20;

/// Lets the members of a group wait for each other, whatever thread each of them is.
class ThreadRendezvous final : public hal::Rendezvous {
public:
  explicit ThreadRendezvous(int rank) : rank_(rank) {}
  static void reset() { parts().clear(); }

  Result<std::vector<std::string>> gather(std::string_view key, const std::vector<int> &members,
                                          std::string_view mine) override {
    std::unique_lock lock(mutex());
    auto &all = parts()[std::string(key)];
    all[rank_] = mine;
    changed().notify_all();
    if (!changed().wait_for(lock, std::chrono::seconds(20),
                            [&] { return all.size() == members.size(); }))
      return makeStatus(StatusCode::Internal, "{} of {} members came to '{}'", all.size(),
                        members.size(), key);
    std::vector<std::string> inOrder;
    for (int member : members)
      inOrder.push_back(all.at(member));
    return inOrder;
  }
  Result<std::string> first(std::string_view key, const std::vector<int> &members,
                            std::string_view mine) override {
    ASSIGN_OR_RETURN(std::vector<std::string> all, gather(key, members, mine));
    for (std::string &part : all)
      if (!part.empty())
        return part;
    return std::string();
  }

private:
  static std::mutex &mutex() {
    static std::mutex own;
    return own;
  }
  static std::condition_variable &changed() {
    static std::condition_variable own;
    return own;
  }
  static std::map<std::string, std::map<int, std::string>> &parts() {
    static std::map<std::string, std::map<int, std::string>> own;
    return own;
  }
  int rank_;
};

class Refused final : public Refusals {
public:
  explicit Refused(std::set<Service> what) : what_(std::move(what)) {}
  bool refuses(Service what) const override { return what_.contains(what); }

private:
  std::set<Service> what_;
};

class CudaConnect : public ::testing::Test {
protected:
  void SetUp() override {
    FakeNccl::only().reset();
    ThreadRendezvous::reset();
  }

  hal::ChannelDesc desc(std::string name, std::vector<int> members) const {
    hal::ChannelDesc channel;
    channel.name = std::move(name);
    channel.members = std::move(members);
    channel.registration = registration;
    channel.uses = uses;
    return channel;
  }

  /// Each rank is a thread, which stands for a process. It creates the channels of which it is a
  /// member, in this order.
  std::map<int, Status> createAll(const std::vector<hal::ChannelDesc> &channels, int ranks) {
    std::vector<Status> statuses(static_cast<size_t>(ranks));
    std::vector<std::vector<std::string>> reported(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        auto at = static_cast<size_t>(rank);
        statuses[at] = createAs(rank, channels, reported[at]);
      });
    for (std::thread &thread : threads)
      thread.join();
    std::map<int, Status> byRank;
    for (int rank = 0; rank < ranks; ++rank) {
      byRank[rank] = statuses[static_cast<size_t>(rank)];
      for (const std::string &each : reported[static_cast<size_t>(rank)])
        said.push_back(each);
    }
    return byRank;
  }

  Status createAs(int rank, const std::vector<hal::ChannelDesc> &channels,
                  std::vector<std::string> &reported) const {
    ThreadRendezvous rendezvous(rank);
    Options options;
    options.rendezvous = &rendezvous;
    options.refusals = refusals;
    options.emit = [&reported](const Report &report) { reported.emplace_back(report.id); };
    CommunicatorWatch watch(0, nullptr);
    DeviceState device;
    device.rank = device.device = rank;
    device.allocations = Allocations::create(false);
    std::vector<std::byte> memory(kSharedBytes);
    std::vector<std::unique_ptr<CudaChannel>> created;
    for (hal::ChannelDesc channel : channels) {
      if (std::ranges::find(channel.members, rank) == channel.members.end())
        continue;
      channel.shared = {{rank, memory.data(), kSharedBytes}};
      if (hasReached)
        channel.reached = channel.shared;
      ASSIGN_OR_RETURN(auto made, CudaChannel::create(channel, {&device}, options, watch));
      created.push_back(std::move(made));
    }
    return Status::ok();
  }

  void expectOk(const std::map<int, Status> &statuses) const {
    for (const auto &[rank, status] : statuses)
      EXPECT_TRUE(status.isOk()) << "rank " << rank << ": " << status.message();
  }
  /// Expects that every communicator had all of its ranks, that they made the same calls, and that
  /// it ended.
  void expectAllAlike() const {
    EXPECT_THAT(FakeNccl::only().wrong, IsEmpty());
    EXPECT_EQ(FakeNccl::only().open, 0);
    for (const auto &[name, members] : FakeNccl::only().groups)
      for (const auto &[rank, each] : members) {
        EXPECT_EQ(members.size(), static_cast<size_t>(each->size)) << name;
        EXPECT_EQ(each->calls, members.begin()->second->calls) << name << " rank " << rank;
      }
  }
  int64_t windows() const {
    int64_t all = 0;
    for (const auto &[name, members] : FakeNccl::only().groups)
      for (const auto &[rank, each] : members)
        all += each->windows;
    return all;
  }
  size_t registered() const {
    size_t all = 0;
    for (const auto &[name, members] : FakeNccl::only().groups)
      for (const auto &[rank, each] : members)
        all += each->registered;
    return all;
  }

  hal::Registration registration = hal::Registration::Windows;
  std::vector<hal::ChannelUse> uses = {{Kind::AllGather, 1 << 20, true},
                                       {Kind::ReduceScatter, 1 << 20, true}};
  bool hasReached = false;
  const Refusals *refusals = nullptr;
  std::vector<std::string> said;
};

TEST_F(CudaConnect, MembersMakeTheirCommunicatorsInOrder) {
  expectOk(createAll({desc("all", {0, 1, 2, 3}), desc("pairs", {0, 1}), desc("pairs", {3, 2}),
                      desc("odd", {1, 3})},
                     4));
  expectAllAlike();
  EXPECT_EQ(FakeNccl::only().groups.size(), 4u);
  EXPECT_EQ(windows(), 4 + 2 + 2 + 2);
  EXPECT_THAT(said, IsEmpty());
  for (const auto &[name, members] : FakeNccl::only().groups) {
    const FakeCommunicator &first = *members.begin()->second;
    EXPECT_THAT(first.calls,
                AllOf(Contains(HasSubstr("all_gather")), Contains(HasSubstr("reduce_scatter")),
                      Not(Contains(HasSubstr("all_reduce")))));
    EXPECT_EQ(first.calls.front(), "init");
    EXPECT_EQ(first.calls[1], "window of 1048576 bytes") << "before anything uses it";
    EXPECT_EQ(first.config.CTAPolicy, NCCL_CTA_POLICY_ZERO);
  }
}

/// Large transfers use a separate communicator for each pair, in which both ends wait for each
/// other.
TEST_F(CudaConnect, SplitsForTransfers) {
  uses = {{Kind::Send, 1 << 20, false}, {Kind::Recv, 1 << 20, false}};
  expectOk(createAll({desc("pp", {0, 1})}, 2));
  ASSERT_EQ(FakeNccl::only().groups.size(), 2u);
  EXPECT_THAT(FakeNccl::only().groups.rbegin()->first, HasSubstr("split 1"));
  EXPECT_EQ(FakeNccl::only().groups.rbegin()->second[0]->config.maxCTAs, 1);
  EXPECT_THAT(FakeNccl::only().wrong, IsEmpty());
  EXPECT_EQ(FakeNccl::only().open, 0);
}

TEST_F(CudaConnect, RegistersLocallyWhereATestRefusesWindows) {
  Refused refused({Service::Windows});
  refusals = &refused;
  expectOk(createAll({desc("all", {0, 1, 2})}, 3));
  expectAllAlike();
  EXPECT_EQ(windows(), 0);
  EXPECT_EQ(registered(), 3u);
  EXPECT_THAT(said, Each("no-windows"));
}

/// If one member registered and another did not, the first would wait for it forever.
TEST_F(CudaConnect, TakesBackWhatOneOfThemIsRefused) {
  registration = hal::Registration::Local;
  FakeNccl::only().refuses = [](const std::string &call, int rank) {
    return call == "register" && rank == 2;
  };
  expectOk(createAll({desc("all", {0, 1, 2, 3})}, 4));
  EXPECT_EQ(registered(), 0u);
  EXPECT_THAT(FakeNccl::only().wrong, IsEmpty());
  EXPECT_THAT(FakeNccl::only().groups.begin()->second[0]->calls, Contains("deregister"));
  EXPECT_THAT(said, AllOf(Each("no-registration"), Not(IsEmpty())));
}

TEST_F(CudaConnect, RegistersLocallyWhereNobodyGetsAWindow) {
  FakeNccl::only().refuses = [](const std::string &call, int) { return call == "window"; };
  expectOk(createAll({desc("all", {0, 1})}, 2));
  expectAllAlike();
  EXPECT_EQ(registered(), 2u);
  EXPECT_THAT(said, Each("no-windows"));
}

/// Members with windows keep them until the communicator ends, so the members would differ as long
/// as it exists.
TEST_F(CudaConnect, EndsWhereOneAloneGetsNoWindow) {
  FakeNccl::only().refuses = [](const std::string &call, int rank) {
    return call == "window" && rank == 1;
  };
  for (const auto &[rank, status] : createAll({desc("all", {0, 1, 2})}, 3))
    EXPECT_EQ(status.isOk(), rank == 1) << rank << ": " << status.message();
}

TEST_F(CudaConnect, RefusesACommunicatorWithItsReason) {
  FakeNccl::only().refuses = [](const std::string &call, int) { return call == "init"; };
  for (const auto &[rank, status] : createAll({desc("all", {0, 1})}, 2)) {
    EXPECT_EQ(status.code(), StatusCode::Internal);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("NCCL: refused"), HasSubstr("ncclCommInitRankConfig")));
  }
}

TEST_F(CudaConnect, ReachesTheMemoryOfOthersOrDoesWithout) {
  hasReached = true;
  uses = {{Kind::AllToAll, 1 << 20, false}};
  expectOk(createAll({desc("ep", {0, 1, 2, 3})}, 4));
  EXPECT_THAT(said, IsEmpty());
  Refused refused({Service::Peers});
  refusals = &refused;
  SetUp();
  expectOk(createAll({desc("ep", {0, 1, 2, 3})}, 4));
  EXPECT_THAT(said, AllOf(Each("no-peers"), Not(IsEmpty())));
}

} // namespace
} // namespace shardc::cuda
