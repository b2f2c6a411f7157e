// The null backend reports each wrong use of the interface of hal/. test/conformance shows that it
// reports nothing for correct uses.
#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/backend/null/Options.h"

namespace shardc::null {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void noKernel(const kernels::Call &) { FAIL() << "a kernel was run"; }

class Null : public ::testing::Test {
protected:
  void SetUp() override { start({.ranks = 2}); }

  void start(Options options) {
    options.onBreach = [this](const Status &breach) { breaches_.push_back(breach.message()); };
    backend_ = std::move(*makeBackend(options));
  }
  hal::Device &device(int index = 0) { return *backend_->devices()[static_cast<size_t>(index)]; }
  std::unique_ptr<hal::Stream> stream(int rank = 0, const char *name = "compute") {
    return std::move(*device(rank).createStream(name, hal::StreamUse::Compute));
  }
  std::unique_ptr<hal::Event> event(int rank = 0) { return std::move(*device(rank).createEvent()); }
  std::unique_ptr<hal::Buffer> buffer(int64_t bytes, hal::MemoryKind kind = hal::MemoryKind::Work,
                                      int rank = 0) {
    return std::move(*device(rank).allocate(kind, bytes, "x"));
  }
  std::unique_ptr<hal::Channel> channel(hal::ChannelDesc desc = {"dp", {0, 1}}) {
    auto made = backend_->createChannel(desc);
    EXPECT_TRUE(made.isOk()) << made.status().message();
    return std::move(*made);
  }
  static hal::Collective sumOf(hal::Buffer &buffer, int64_t count) {
    return {hal::CollectiveKind::AllReduce, buffer.data(), buffer.data(), count};
  }
  kernels::Call &callOf(void *in, void *out, int64_t count) {
    kernels::Call &call = calls_.emplace_back();
    call.inCount = call.outCount = 1;
    call.in[0] = {in, DType::F32, 1, false, {count}};
    call.out[0] = {out, DType::F32, 1, false, {count}};
    return call;
  }
  void expectRefused(const Status &status, const std::string &why) {
    EXPECT_THAT(status.message(), HasSubstr(why));
    EXPECT_THAT(breaches_, IsEmpty());
  }

  std::deque<kernels::Call> calls_;
  std::vector<std::string> breaches_;
  std::unique_ptr<hal::Backend> backend_;
};

TEST_F(Null, RanksAreSpreadOverLargeWorlds) {
  EXPECT_FALSE(makeBackend({.ranks = 0}).isOk());
  EXPECT_FALSE(makeBackend({.ranks = (1 << 20) + 1}).isOk());
  start({.ranks = 16384, .ranksHereMax = 4});
  std::vector<int> ranks;
  for (hal::Device *device : backend_->devices())
    ranks.push_back(device->rank());
  EXPECT_THAT(ranks, ElementsAre(0, 5461, 10922, 16383));
}

TEST_F(Null, RangesAreInsideOfBuffersOfTheRank) {
  auto x = buffer(1000), other = buffer(1000, hal::MemoryKind::Work, 1);
  auto s = stream();
  EXPECT_TRUE(s->fill(x->data() + 900, 0, 100, "fill").isOk());
  EXPECT_TRUE(s->fill(x->data() + 1000, 0, 0, "nothing").isOk());
  expectRefused(s->fill(x->data() + 900, 0, 101, "fill"),
                "rank 0: fill: the target takes bytes 900 to 1001 of buffer 'x', which has 1000");
  expectRefused(s->fill(x->data() - 1, 0, 1, "fill"), "is in no buffer that is alive");
  expectRefused(s->fill(x->data(), 0, -1, "fill"), "has -1 bytes");
  expectRefused(s->fill(other->data(), 0, 1, "fill"), "is in buffer 'x' of rank 1");
  expectRefused(s->copy(x->data(), x->data() + 1, 10, "copy"), "overlap");
  expectRefused(s->copy(x->data(), nullptr, 10, "copy"), "the source is in no buffer");
  expectRefused(s->fill(x->data(), 0, 1, nullptr), "work without a label");
  uint8_t *gone = buffer(10)->data();
  expectRefused(s->fill(gone, 0, 1, "fill"), "is in no buffer that is alive");
}

TEST_F(Null, CallsNameMemoryThatExists) {
  auto x = buffer(400), y = buffer(400);
  auto s = stream();
  EXPECT_TRUE(s->launch(noKernel, callOf(x->data(), y->data(), 100), "add").isOk());
  expectRefused(s->launch(nullptr, callOf(x->data(), y->data(), 100), "add"), "add: no kernel");
  expectRefused(s->launch(noKernel, callOf(x->data(), y->data(), 101), "add"), "add: operand 0");
  expectRefused(s->launch(noKernel, callOf(x->data(), nullptr, 1), "add"), "add: result 0");
  expectRefused(s->launch(noKernel, callOf(x->data(), y->data(), -1), "add"), "has no shape");
  kernels::Call &scratch = callOf(x->data(), y->data(), 1);
  scratch.workspaceBytes = 500;
  scratch.workspace = y->data();
  expectRefused(s->launch(noKernel, scratch, "add"), "add: the workspace");
  kernels::Call &list = callOf(x->data(), y->data(), 1);
  list.listCount = 1;
  expectRefused(s->launch(noKernel, list, "add"), "a list of 1 tensors without them");
}

TEST_F(Null, WordsAreOfTheHost) {
  auto words = buffer(16, hal::MemoryKind::Host), x = buffer(16);
  auto s = stream();
  EXPECT_TRUE(s->writeWord(reinterpret_cast<uint32_t *>(words->data()), 1).isOk());
  expectRefused(s->writeWord(reinterpret_cast<uint32_t *>(x->data()), 1),
                "must be aligned in host");
  expectRefused(s->writeWord(reinterpret_cast<uint32_t *>(words->data() + 1), 1), "at byte 1");
}

TEST_F(Null, EventsAreOfTheRankAndOfStreamsThatExist) {
  auto s = stream();
  auto foreign = event(1), mine = event();
  expectRefused(s->record(*foreign), "a record of an event of rank 1");
  expectRefused(s->wait(*foreign), "a wait for an event of rank 1");
  auto side = stream(0, "side");
  ASSERT_TRUE(side->record(*mine).isOk());
  EXPECT_TRUE(s->wait(*mine).isOk());
  side.reset();
  expectRefused(s->wait(*mine), "a wait for an event whose stream was destroyed");
}

TEST_F(Null, CapturesBeginEndAndJoinOnce) {
  auto x = buffer(16);
  auto s = stream(), side = stream(0, "side");
  auto fork = event(), outside = event();
  expectRefused(s->endCapture().status(), "no capture was started on this stream");
  ASSERT_TRUE(side->record(*outside).isOk());
  ASSERT_TRUE(s->beginCapture().isOk());
  expectRefused(side->beginCapture(), "a capture is already active");
  expectRefused(side->endCapture().status(), "no capture was started on this stream");
  expectRefused(s->wait(*outside), "a capture waits for an event recorded outside of it");
  ASSERT_TRUE(s->record(*fork).isOk());
  ASSERT_TRUE(side->wait(*fork).isOk());
  ASSERT_TRUE(side->fill(x->data(), 0, 16, "fill").isOk());
  expectRefused(s->endCapture().status(), "the capture ends without joining stream side");
  ASSERT_TRUE(s->beginCapture().isOk());
  ASSERT_TRUE(s->fill(x->data(), 0, 16, "fill").isOk());
  auto graph = std::move(*s->endCapture());
  EXPECT_EQ(graph->nodes(), 1);
  ASSERT_TRUE(s->beginCapture().isOk());
  expectRefused(s->launch(*graph, {}), "is launched inside a capture");
  s->abandonCapture();
  expectRefused(s->launch(*graph, {0, 2, 2}), "microbatch 2 of 2");
  expectRefused(stream(1)->launch(*graph, {}), "belongs to rank 0");
  EXPECT_TRUE(s->launch(*graph, {}).isOk());
  x.reset();
  EXPECT_THAT(breaches_, ElementsAre(HasSubstr("'x' is destroyed while queued work may still")));
  EXPECT_THAT(s->launch(*graph, {}).message(), HasSubstr("uses buffer 'x', which was destroyed"));
  ASSERT_FALSE(backend_->synchronize().isOk()) << "what a destructor found";
}

TEST_F(Null, MarksAreCapturedOnceAndPassed) {
  auto mark = std::move(*device().createMark());
  auto s = stream();
  expectRefused(s->mark(*mark), "outside of a capture");
  ASSERT_TRUE(s->beginCapture().isOk());
  ASSERT_TRUE(s->mark(*mark).isOk());
  expectRefused(s->mark(*mark), "captured before");
  auto graph = std::move(*s->endCapture());
  expectRefused(mark->await(1), "whose graph was launched 0 times, does not end");
  ASSERT_TRUE(s->launch(*graph, {}).isOk());
  EXPECT_TRUE(mark->await(1).isOk());
  EXPECT_FALSE(mark->isPassed(2));
  ASSERT_TRUE(backend_->synchronize().isOk());
}

TEST_F(Null, WorkEndsForThoseWhoAsked) {
  auto x = buffer(16), y = buffer(16), z = buffer(16);
  auto s = stream(), side = stream(0, "side");
  auto end = event(), sideEnd = event();
  ASSERT_TRUE(side->fill(x->data(), 0, 16, "fill").isOk());
  ASSERT_TRUE(side->record(*sideEnd).isOk());
  ASSERT_TRUE(side->fill(z->data(), 0, 16, "fill").isOk());
  ASSERT_TRUE(s->wait(*sideEnd).isOk());
  ASSERT_TRUE(s->fill(y->data(), 0, 16, "fill").isOk());
  ASSERT_TRUE(s->record(*end).isOk());
  ASSERT_TRUE(end->synchronize().isOk());
  x.reset(); // x is no longer in use, because `s` waited for the event after its fill
  y.reset();
  EXPECT_THAT(breaches_, IsEmpty());
  z.reset();
  EXPECT_THAT(breaches_, ElementsAre(HasSubstr("may still use it")));
}

TEST_F(Null, ChannelsHaveMembersAndMemory) {
  auto refusal = [&](hal::ChannelDesc desc) {
    return backend_->createChannel(desc).status().message();
  };
  EXPECT_THAT(refusal({"dp", {}}), HasSubstr("has no members"));
  EXPECT_THAT(refusal({"dp", {0, 2}}), HasSubstr("rank 2 is not one of 2 ranks"));
  EXPECT_THAT(refusal({"dp", {1, 1}}), HasSubstr("rank 1 is a member twice"));
  auto x = buffer(64, hal::MemoryKind::Sym), y = buffer(32, hal::MemoryKind::Sym, 1);
  auto work = buffer(64), host = buffer(64, hal::MemoryKind::Host);
  hal::ChannelDesc desc{"dp", {0, 1}};
  desc.shared = {{0, x->data(), 64}, {1, y->data(), 32}};
  EXPECT_THAT(refusal(desc), HasSubstr("ranks 0 and 1 share 64 and 32 bytes"));
  desc.shared = {{0, work->data(), 64}};
  EXPECT_THAT(refusal(desc), HasSubstr("of work memory"));
  desc.shared = {};
  desc.lent = {{0, host->data(), 64}};
  EXPECT_THAT(refusal(desc), HasSubstr("is lent, and not device memory"));
  desc.lent = {};
  desc.reached = {{0, host->data(), 64}};
  EXPECT_THAT(refusal(desc), HasSubstr("'x' is reached, and not device memory"));
  desc.reached = {{0, work->data(), 65}};
  EXPECT_THAT(refusal(desc), HasSubstr("memory that others reach takes bytes 0 to 65"));
  desc.reached = {{2, work->data(), 64}};
  EXPECT_THAT(refusal(desc), HasSubstr("rank 2 has memory that others reach and is no member"));
  start({.ranks = 8, .ranksHereMax = 2});
  EXPECT_THAT(refusal({"dp", {2, 3}}), HasSubstr("no member is in this process"));
}

TEST_F(Null, CollectivesAreAsTheirChannelWasMade) {
  hal::ChannelDesc desc{"dp", {0, 1}};
  desc.uses = {{hal::CollectiveKind::AllReduce, 64, false},
               {hal::CollectiveKind::ReduceScatter, 64, false}};
  auto dp = channel(desc), alone = channel({"alone", {1}});
  auto x = buffer(400);
  auto s = stream();
  using hal::CollectiveKind;
  auto issue = [&](const hal::Collective &part) { return s->collective(*dp, part, "sum"); };
  EXPECT_TRUE(issue(sumOf(*x, 16)).isOk());
  expectRefused(issue(sumOf(*x, 17)), "was made for all_reduce of 64 bytes, not 68");
  expectRefused(issue(sumOf(*x, -1)), "a collective of -1 elements");
  expectRefused(s->collective(*alone, sumOf(*x, 1), "sum"), "rank 0 is not a member");
  hal::Collective part = sumOf(*x, 4);
  part.out = x->data() + 8;
  expectRefused(issue(part), "operand and result of all_reduce overlap");
  part = sumOf(*x, 4);
  part.anyOrder = true;
  expectRefused(issue(part), "was not made for all_reduce in any order");
  part = sumOf(*x, 4);
  part.accumulate = true;
  expectRefused(issue(part), "all_reduce does not add to what is there");
  part = sumOf(*x, 4);
  part.outType = DType::I32;
  expectRefused(issue(part), "all_reduce of f32 into i32");
  part = {CollectiveKind::AllGather, x->data(), x->data(), 4};
  expectRefused(issue(part), "was not made for all_gather");
  part = {CollectiveKind::ReduceScatter, x->data(), x->data() + 100, 4};
  ElementRange ranges[] = {{0, 3}, {2, 4}};
  part.valid = ranges;
  expectRefused(issue(part), "valid elements 2 to 4 after 3 of 4");
}

TEST_F(Null, ExchangesMoveBytesBetweenPlacesApart) {
  auto dp = channel();
  auto x = buffer(400);
  auto s = stream();
  using hal::CollectiveKind;
  auto issue = [&](const hal::Collective &part) { return s->collective(*dp, part, "exchange"); };
  hal::Collective part = {CollectiveKind::AllToAll, x->data(), x->data() + 32, 4};
  EXPECT_TRUE(issue(part).isOk());
  part.out = x->data() + 28;
  expectRefused(issue(part), "operand and result of all_to_all overlap");
  part = {CollectiveKind::Shift, x->data(), x->data() + 16, 4};
  part.by = -1;
  EXPECT_TRUE(issue(part).isOk());
  part.out = x->data();
  expectRefused(issue(part), "operand and result of shift overlap");
  part.out = x->data() + 16;
  part.average = true;
  expectRefused(issue(part), "shift sums nothing");
  part = {CollectiveKind::AllReduceMax, x->data(), x->data(), 4};
  EXPECT_TRUE(issue(part).isOk());
  part.by = 1;
  expectRefused(issue(part), "all_reduce_max by 1 positions");
  part = {CollectiveKind::AllReduceMax, x->data(), x->data(), 4, DType::I32, DType::I32};
  expectRefused(issue(part), "all_reduce_max of i32");
  part = {CollectiveKind::AllToAll, x->data(), x->data() + 32, 4, DType::F32, DType::BF16};
  expectRefused(issue(part), "all_to_all of f32 into bf16");
}

/// Twelve rows of four elements: each of two members has two slots, in two groups.
TEST_F(Null, CountedRowsLieInSlotsOfTheMembers) {
  auto x = buffer(400), counts = buffer(32);
  auto channel = this->channel();
  auto s = stream();
  using hal::CollectiveKind;
  hal::Collective part = {CollectiveKind::AllToAll, x->data(), x->data() + 192, 24};
  part.counted = {reinterpret_cast<const int32_t *>(counts->data()), 4, 2, 12};
  auto issue = [&](const hal::Collective &each) {
    return s->collective(*channel, each, "exchange");
  };
  auto refuse = [&](int64_t slots, int64_t groups, int64_t rows, const std::string &why) {
    hal::Collective each = part;
    each.counted.slots = slots, each.counted.groups = groups, each.counted.rows = rows;
    expectRefused(issue(each), why);
  };
  EXPECT_TRUE(issue(part).isOk());
  refuse(3, 2, 12, "24 elements of 2 members as 12 rows in 3 slots");
  refuse(8, 1, 12, "as 12 rows in 8 slots");
  refuse(0, 2, 12, "as 12 rows in 0 slots");
  refuse(-2, -2, 12, "as 12 rows in -2 slots");
  refuse(4, -1, 12, "as 12 rows in 4 slots");
  refuse(4, int64_t{1} << 40, 12, "as 12 rows in 4 slots");
  refuse(4, 2, 0, "as 0 rows in 4 slots");
  refuse(4, 2, 20, "as 20 rows in 4 slots");
  refuse(4, 3, 12, "the counts takes bytes 0 to 48 of buffer 'x', which has 32");
  hal::Collective other = part;
  other.kind = CollectiveKind::Shift;
  expectRefused(issue(other), "shift of counted rows");
  int32_t ofTheHost[8] = {};
  other = part;
  other.counted.counts = ofTheHost;
  expectRefused(issue(other), "the counts is in no buffer");
}

TEST_F(Null, CountedRowsGoWhereMembersReachThem) {
  auto x = buffer(400), y = buffer(400), counts = buffer(8);
  hal::ChannelDesc desc{"ep", {0, 1}};
  desc.reached = {{0, y->data(), 64}};
  auto ep = channel(desc);
  auto s = stream();
  hal::Collective part = {hal::CollectiveKind::AllToAll, x->data(), y->data() + 32, 4};
  part.counted = {reinterpret_cast<const int32_t *>(counts->data()), 2, 1, 2};
  auto issue = [&] { return s->collective(*ep, part, "exchange"); };
  EXPECT_TRUE(issue().isOk());
  part.out = y->data() + 36;
  expectRefused(issue(), "a result of counted rows that other members do not reach");
  part.out = x->data() + 32;
  expectRefused(issue(), "that other members do not reach");
  part.counted = {};
  EXPECT_TRUE(issue().isOk()) << "all rows are there";
}

TEST_F(Null, MembersIssueTheSame) {
  auto dp = channel();
  auto x = buffer(64), y = buffer(64, hal::MemoryKind::Work, 1);
  auto s = stream(), t = stream(1);
  ASSERT_TRUE(s->collective(*dp, sumOf(*x, 4), "sum").isOk());
  EXPECT_THAT(backend_->synchronize().message(),
              HasSubstr("rank 0 has issued 1 collectives and rank 1 0"));
  ASSERT_TRUE(t->collective(*dp, sumOf(*y, 4), "sum").isOk());
  EXPECT_TRUE(backend_->synchronize().isOk());
  // Only the order of events matters, in captures and outside of them.
  for (int64_t count : {2, 3, 2})
    ASSERT_TRUE(s->collective(*dp, sumOf(*x, count), "sum").isOk());
  ASSERT_TRUE(t->beginCapture().isOk());
  for (int64_t count : {2, 3})
    ASSERT_TRUE(t->collective(*dp, sumOf(*y, count), "sum").isOk());
  auto graph = std::move(*t->endCapture());
  ASSERT_TRUE(t->launch(*graph, {}).isOk());
  ASSERT_TRUE(t->collective(*dp, sumOf(*y, 2), "sum").isOk());
  EXPECT_TRUE(backend_->synchronize().isOk());
  ASSERT_TRUE(s->collective(*dp, sumOf(*x, 1), "sum").isOk());
  ASSERT_TRUE(t->collective(*dp, sumOf(*y, 2), "sum").isOk());
  EXPECT_THAT(backend_->synchronize().message(), HasSubstr("of which some differ"));
}

TEST_F(Null, MembersCountRowsAlike) {
  auto dp = channel();
  auto x = buffer(64), y = buffer(64, hal::MemoryKind::Work, 1);
  auto s = stream(), t = stream(1);
  auto exchange = [](hal::Buffer &memory, int64_t slots) {
    hal::Collective part = {hal::CollectiveKind::AllToAll, memory.data(), memory.data() + 16, 2};
    part.counted = {reinterpret_cast<const int32_t *>(memory.data() + 48), slots, 1, 4};
    return part;
  };
  ASSERT_TRUE(s->collective(*dp, exchange(*x, 2), "exchange").isOk());
  ASSERT_TRUE(t->collective(*dp, exchange(*y, 2), "exchange").isOk());
  EXPECT_TRUE(backend_->synchronize().isOk());
  ASSERT_TRUE(s->collective(*dp, exchange(*x, 2), "exchange").isOk());
  ASSERT_TRUE(t->collective(*dp, exchange(*y, 4), "exchange").isOk());
  EXPECT_THAT(backend_->synchronize().message(), HasSubstr("of which some differ"));
}

TEST_F(Null, ObjectsGoInOrder) {
  auto x = buffer(64, hal::MemoryKind::Sym);
  hal::ChannelDesc desc{"dp", {0}};
  desc.shared = {{0, x->data(), 64}};
  auto dp = channel(desc);
  auto s = stream();
  ASSERT_TRUE(s->beginCapture().isOk());
  ASSERT_TRUE(s->collective(*dp, sumOf(*x, 4), "sum").isOk());
  auto graph = std::move(*s->endCapture());
  x.reset();
  dp.reset();
  EXPECT_THAT(breaches_, ElementsAre(HasSubstr("'x' is destroyed before 1 channels that share it"),
                                     HasSubstr("'dp' is destroyed before 1 graphs that use it")));
}

TEST_F(Null, WhatOutlivesTheBackendIsToldAndTakesNoCalls) {
  auto s = stream();
  auto x = buffer(16);
  backend_.reset();
  EXPECT_THAT(breaches_, ElementsAre(HasSubstr("buffer 'x' outlives the backend"),
                                     HasSubstr("1 streams, events, marks or graphs outlive")));
  EXPECT_THAT(s->fill(x->data(), 0, 1, "fill").message(),
              HasSubstr("a call after the backend was destroyed"));
}

TEST_F(Null, AbortedBackendsTakeNoCalls) {
  auto s = stream();
  auto x = buffer(16);
  backend_->abort();
  EXPECT_EQ(s->fill(x->data(), 0, 1, "fill").code(), StatusCode::Aborted);
  EXPECT_EQ(backend_->synchronize().code(), StatusCode::Aborted);
}

} // namespace
} // namespace shardc::null
