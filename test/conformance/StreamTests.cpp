// Order within a stream, between streams, and of graphs.
#include <cmath>

#include "test/conformance/Conformance.h"

namespace shardc::conformance {
namespace {

constexpr int64_t kCount = 1000;

TEST_P(Conformance, StreamRunsInOrder) {
  START(1);
  float *x = put<float>(0, std::vector<float>(kCount, 1.0f));
  hal::Stream &compute = stream(0, "compute");
  for (int i = 0; i < 10; ++i)
    ASSERT_STATUS(compute.launch(GetParam().addValue, addCall(x, x, kCount, 1.0), "add"));
  ASSERT_STATUS(compute.fill(x, 0, 4, "clear the first"));
  ASSERT_STATUS(backend->synchronize());
  if (!computes())
    return;
  std::vector<float> got = get(0, x, kCount);
  EXPECT_EQ(got[0], 0.0f);
  EXPECT_EQ(got[kCount - 1], 11.0f);
}

TEST_P(Conformance, EventOrdersStreams) {
  START(1);
  float *x = put<float>(0, std::vector<float>(kCount, 0.0f));
  hal::Stream &a = stream(0, "a"), &b = stream(0, "b");
  std::unique_ptr<hal::Event> there = event(0), back = event(0);
  for (int i = 0; i < 50; ++i) { // x goes back and forth between the streams
    ASSERT_STATUS(a.launch(GetParam().addValue, addCall(x, x, kCount, 1.0), "add a"));
    ASSERT_STATUS(a.record(*there));
    ASSERT_STATUS(b.wait(*there));
    ASSERT_STATUS(b.launch(GetParam().addValue, addCall(x, x, kCount, 2.0), "add b"));
    ASSERT_STATUS(b.record(*back));
    ASSERT_STATUS(a.wait(*back));
  }
  ASSERT_STATUS(back->synchronize());
  EXPECT_TRUE(back->isDone());
  if (computes()) {
    EXPECT_EQ(get(0, x, kCount), std::vector<float>(kCount, 150.0f));
  }
}

TEST_P(Conformance, TimedEventsTellTheTimeBetweenThem) {
  START(1);
  float *x = put<float>(0, std::vector<float>(kCount, 0.0f));
  std::unique_ptr<hal::Event> begin = std::move(*device(0).createTimedEvent());
  std::unique_ptr<hal::Event> end = std::move(*device(0).createTimedEvent());
  std::unique_ptr<hal::Event> untimed = event(0);
  hal::Stream &a = stream(0, "a");
  EXPECT_TRUE(std::isnan(end->secondsSince(*begin))); // never recorded
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_STATUS(a.record(*begin));
    ASSERT_STATUS(a.record(*untimed));
    ASSERT_STATUS(a.launch(GetParam().addValue, addCall(x, x, kCount, 1.0), "add"));
    ASSERT_STATUS(a.record(*end));
    ASSERT_STATUS(end->synchronize());
    EXPECT_GE(end->secondsSince(*begin), 0.0);
    EXPECT_EQ(begin->secondsSince(*end), -end->secondsSince(*begin));
    EXPECT_TRUE(std::isnan(end->secondsSince(*untimed)));
  }
}

TEST_P(Conformance, UnrecordedEventIsDone) {
  START(1);
  std::unique_ptr<hal::Event> never = event(0);
  EXPECT_TRUE(never->isDone());
  ASSERT_STATUS(never->synchronize());
  ASSERT_STATUS(stream(0, "a").wait(*never));
  ASSERT_STATUS(backend->synchronize());
}

TEST_P(Conformance, GraphForksAndJoins) {
  START(1);
  float *x = put<float>(0, std::vector<float>(kCount, 0.0f));
  float *y = put<float>(0, std::vector<float>(kCount, 0.0f));
  float *z = put<float>(0, std::vector<float>(kCount, 0.0f));
  float *w = put<float>(0, std::vector<float>(kCount, 0.0f));
  hal::Stream &main = stream(0, "main"), &side = stream(0, "side");
  std::unique_ptr<hal::Event> fork = event(0), middle = event(0), join = event(0);
  ASSERT_STATUS(main.beginCapture());
  ASSERT_STATUS(main.launch(GetParam().addValue, addCall(x, x, kCount, 1.0), "x += 1"));
  ASSERT_STATUS(main.record(*fork));
  ASSERT_STATUS(side.wait(*fork));
  ASSERT_STATUS(side.launch(GetParam().addValue, addCall(x, y, kCount, 10.0), "y = x + 10"));
  ASSERT_STATUS(side.record(*middle));
  ASSERT_STATUS(main.wait(*middle));
  ASSERT_STATUS(main.launch(GetParam().addValue, addCall(y, z, kCount, 100.0), "z = y + 100"));
  ASSERT_STATUS(side.launch(GetParam().addValue, addCall(y, w, kCount, 0.5), "w = y + 0.5"));
  ASSERT_STATUS(side.record(*join));
  ASSERT_STATUS(main.wait(*join));
  Result<std::unique_ptr<hal::Graph>> graph = main.endCapture();
  ASSERT_TRUE(graph.isOk()) << graph.status().message();
  ASSERT_STATUS(backend->synchronize());
  if (computes()) {
    EXPECT_EQ(get(0, x, 1)[0], 0.0f) << "capturing runs nothing";
  }
  for (int i = 0; i < 3; ++i)
    ASSERT_STATUS(main.launch(**graph, {}));
  ASSERT_STATUS(
      main.launch(GetParam().addValue, addCall(z, z, kCount, 1000.0), "after the graphs"));
  ASSERT_STATUS(backend->synchronize());
  if (!computes())
    return;
  EXPECT_EQ(get(0, x, kCount), std::vector<float>(kCount, 3.0f));
  EXPECT_EQ(get(0, w, kCount), std::vector<float>(kCount, 13.5f));
  EXPECT_EQ(get(0, z, kCount), std::vector<float>(kCount, 1113.0f));
}

/// Each rank works on its own memory, even if its graph is launched after all ranks have captured.
TEST_P(Conformance, RanksShareACall) {
  constexpr int kRanks = 2;
  START(kRanks);
  const kernels::Call &shared = addCall(nullptr, nullptr, kCount, 1.0);
  float *x[kRanks];
  void *addresses[kRanks][2];
  hal::OwnPart own[kRanks];
  std::unique_ptr<hal::Graph> graphs[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    x[rank] = put<float>(rank, std::vector<float>(kCount, 10.0f * static_cast<float>(rank)));
    addresses[rank][0] = addresses[rank][1] = x[rank];
    own[rank].addresses = addresses[rank];
    hal::Stream &main = stream(rank, "main");
    ASSERT_STATUS(main.launchShared(GetParam().addValue, shared, own[rank], "add"));
    ASSERT_STATUS(main.beginCapture());
    ASSERT_STATUS(main.launchShared(GetParam().addValue, shared, own[rank], "add in a graph"));
    auto graph = main.endCapture();
    ASSERT_TRUE(graph.isOk()) << graph.status().message();
    graphs[rank] = std::move(*graph);
  }
  for (int launch = 0; launch < 3; ++launch)
    for (int rank = 0; rank < kRanks; ++rank)
      ASSERT_STATUS(stream(rank, "main").launch(*graphs[rank], {}));
  ASSERT_STATUS(backend->synchronize());
  for (int rank = 0; computes() && rank < kRanks; ++rank)
    EXPECT_EQ(get(rank, x[rank], kCount),
              std::vector<float>(kCount, 10.0f * static_cast<float>(rank) + 4.0f));
}

TEST_P(Conformance, GraphGetsItsParams) {
  START(1);
  int64_t *x = put<int64_t>(0, {0, 0, 0});
  kernels::Call call;
  call.outCount = 1;
  call.out[0] = {x, DType::I64, 1, false, {3}};
  hal::Stream &main = stream(0, "main");
  ASSERT_STATUS(main.beginCapture());
  ASSERT_STATUS(main.launch(GetParam().writeStep, call, "write"));
  Result<std::unique_ptr<hal::Graph>> graph = main.endCapture();
  ASSERT_TRUE(graph.isOk());
  for (int64_t step = 0; step < 3; ++step)
    ASSERT_STATUS(main.launch(**graph, {step, 1, 4}));
  ASSERT_STATUS(backend->synchronize());
  if (computes()) {
    EXPECT_EQ(get(0, x, 3), (std::vector<int64_t>{2, 1, 4}));
  }
}

TEST_P(Conformance, GraphTellsTheHostHowFarItIs) {
  START(1);
  float *x = put<float>(0, std::vector<float>(kCount, 0.0f));
  auto seen = device(0).allocate(hal::MemoryKind::Host, sizeof(float), "seen");
  ASSERT_TRUE(seen.isOk());
  auto *value = reinterpret_cast<float *>((*seen)->data());
  *value = 0;
  hal::Stream &main = stream(0, "main");
  auto middle = device(0).createMark();
  ASSERT_TRUE(middle.isOk()) << middle.status().message();
  if (!*middle)
    GTEST_SKIP() << "this backend has no marks";
  ASSERT_STATUS(main.beginCapture());
  for (int i = 0; i < 10; ++i)
    ASSERT_STATUS(main.launch(GetParam().addValue, addCall(x, x, kCount, 1.0), "first half"));
  ASSERT_STATUS(main.copy(value, x, sizeof(float), "show"));
  ASSERT_STATUS(main.mark(**middle));
  for (int i = 0; i < 10; ++i)
    ASSERT_STATUS(main.launch(GetParam().addValue, addCall(x, x, kCount, 1.0), "second half"));
  Result<std::unique_ptr<hal::Graph>> graph = main.endCapture();
  ASSERT_TRUE(graph.isOk()) << graph.status().message();
  EXPECT_GE((*graph)->nodes(), 21);
  EXPECT_FALSE((*middle)->isPassed(1)) << "nothing was launched";
  for (int launch = 0; launch < 5; ++launch)
    ASSERT_STATUS(main.launch(**graph, {}));
  for (int launch = 0; launch < 5; ++launch) {
    ASSERT_STATUS((*middle)->await(launch + 1));
    if (computes()) {
      EXPECT_GE(*value, 20.0f * static_cast<float>(launch) + 10.0f);
    }
  }
  ASSERT_STATUS(backend->synchronize());
  EXPECT_TRUE((*middle)->isPassed(5));
  EXPECT_FALSE((*middle)->isPassed(6));
  if (computes()) {
    EXPECT_EQ(*value, 90.0f);
  }
}

TEST_P(Conformance, CaptureRefusesForeignEvents) {
  START(1);
  float *x = put<float>(0, std::vector<float>(kCount, 0.0f));
  hal::Stream &main = stream(0, "main"), &side = stream(0, "side");
  std::unique_ptr<hal::Event> outside = event(0);
  ASSERT_STATUS(side.launch(GetParam().addValue, addCall(x, x, kCount, 1.0), "add"));
  ASSERT_STATUS(side.record(*outside));
  ASSERT_STATUS(main.beginCapture());
  EXPECT_FALSE(main.wait(*outside).isOk());
  EXPECT_TRUE(main.endCapture().isOk());
  ASSERT_STATUS(backend->synchronize());
}

TEST_P(Conformance, CaptureRefusesWorkThatIsNotJoined) {
  START(1);
  float *x = put<float>(0, std::vector<float>(kCount, 0.0f));
  hal::Stream &main = stream(0, "main"), &side = stream(0, "side");
  std::unique_ptr<hal::Event> fork = event(0);
  ASSERT_STATUS(main.beginCapture());
  ASSERT_STATUS(main.record(*fork));
  ASSERT_STATUS(side.wait(*fork));
  ASSERT_STATUS(side.launch(GetParam().addValue, addCall(x, x, kCount, 1.0), "add"));
  EXPECT_FALSE(main.endCapture().isOk());
  ASSERT_STATUS(side.launch(GetParam().addValue, addCall(x, x, kCount, 2.0), "add eagerly again"));
  ASSERT_STATUS(backend->synchronize());
  if (computes()) {
    EXPECT_EQ(get(0, x, 1)[0], 2.0f);
  }
}

TEST_P(Conformance, CaptureThatIsAbandonedLeavesStreamsAsTheyWere) {
  START(1);
  float *x = put<float>(0, std::vector<float>(kCount, 0.0f));
  hal::Stream &main = stream(0, "main"), &side = stream(0, "side"), &idle = stream(0, "idle");
  std::unique_ptr<hal::Event> fork = event(0), outside = event(0);
  ASSERT_STATUS(side.record(*outside));
  main.abandonCapture(); // without a capture
  ASSERT_STATUS(main.beginCapture());
  ASSERT_STATUS(main.record(*fork));
  ASSERT_STATUS(side.wait(*fork));
  ASSERT_STATUS(side.launch(GetParam().addValue, addCall(x, x, kCount, 1.0), "add"));
  idle.abandonCapture(); // on a stream that did not begin the capture
  EXPECT_FALSE(main.wait(*outside).isOk()) << "one of the things that end a capture early";
  main.abandonCapture(); // while the other stream has not been joined
  ASSERT_STATUS(backend->synchronize());
  if (computes()) {
    EXPECT_EQ(get(0, x, 1)[0], 0.0f) << "nothing of it has run";
  }
  for (hal::Stream *next : {&main, &side}) {
    ASSERT_STATUS(next->launch(GetParam().addValue, addCall(x, x, kCount, 2.0), "add eagerly"));
    ASSERT_STATUS(backend->synchronize());
  }
  ASSERT_STATUS(main.beginCapture());
  ASSERT_STATUS(main.record(*fork));
  ASSERT_STATUS(side.wait(*fork));
  ASSERT_STATUS(side.launch(GetParam().addValue, addCall(x, x, kCount, 3.0), "add in a graph"));
  ASSERT_STATUS(side.record(*outside));
  ASSERT_STATUS(main.wait(*outside));
  Result<std::unique_ptr<hal::Graph>> graph = main.endCapture();
  ASSERT_TRUE(graph.isOk()) << graph.status().message();
  ASSERT_STATUS(main.launch(**graph, {}));
  ASSERT_STATUS(backend->synchronize());
  if (computes()) {
    EXPECT_EQ(get(0, x, kCount), std::vector<float>(kCount, 7.0f));
  }
}

/// Three writes outside a buffer of 1,001 bytes, and one inside.
TEST_P(Conformance, WritesOutsideOfBuffersAreFound) {
  if (!GetParam().makeGuarded)
    GTEST_SKIP() << "this backend has no zones around buffers";
  startWith(GetParam().makeGuarded, 1);
  if (IsSkipped() || HasFatalFailure())
    return;
  constexpr int64_t kBytes = 1001;
  hal::Stream &compute = stream(0, "compute");
  for (hal::MemoryKind kind : {hal::MemoryKind::State, hal::MemoryKind::Work, hal::MemoryKind::Sym})
    for (auto [place, what] : {std::pair<int64_t, const char *>(0, ""),
                               {kBytes, "arena: a write 0 bytes past its 1001 bytes"},
                               {kBytes + 4000, "arena: a write 4000 bytes past its 1001 bytes"},
                               {-3, "arena: a write 3 bytes before its first byte"}}) {
      auto arena = device(0).allocate(kind, kBytes, "arena");
      ASSERT_TRUE(arena.isOk()) << arena.status().message();
      ASSERT_STATUS(compute.fill((*arena)->data(), 0, kBytes, "fill"));
      ASSERT_STATUS(compute.fill((*arena)->data() + place, 1, 1, "write"));
      ASSERT_STATUS(backend->synchronize());
      Status found = backend->checkGuards();
      EXPECT_EQ(found.isOk(), place == 0) << found.message();
      EXPECT_NE(found.message().find(what), std::string::npos) << found.message();
    }
  auto pinned = device(0).allocate(hal::MemoryKind::Host, kBytes, "staging");
  ASSERT_TRUE(pinned.isOk()) << pinned.status().message();
  (*pinned)->data()[kBytes - 1] = 1;
  ASSERT_STATUS(backend->checkGuards());
  (*pinned)->data()[kBytes] = 1;
  EXPECT_FALSE(backend->checkGuards().isOk());
}

} // namespace
} // namespace shardc::conformance
