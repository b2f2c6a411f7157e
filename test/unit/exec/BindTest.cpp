// Results of binding, and what it refuses.
#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/exec/CallShape.h"
#include "runtime/exec/Executable.h"
#include "runtime/exec/Mesh.h"
#include "runtime/exec/ProductTarget.h"
#include "runtime/exec/Ranges.h"
#include "test/unit/exec/ToyPlan.h"

namespace shardc::test {
namespace {

using plan::Variant;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// An executable of a plan, with what it needs.
struct Bound {
  explicit Bound(plan::Plan plan_, exec::FindKernel find = kernels::findHostKernel)
      : plan(std::move(plan_)),
        backend(std::move(*host::makeBackend({.ranks = static_cast<int>(plan.worldSize())}))),
        executable(exec::Executable::create(plan, *backend, find, {})) {}
  /// The first op with this name, as the rank runs it.
  const exec::BoundOp &op(size_t rank, const char *segment, Variant variant, plan::OpKind kind) {
    uint32_t s = segmentIndex(segment);
    const std::vector<plan::Op> &ops = plan.roles[0].segments[s].ops;
    auto found = static_cast<size_t>(std::ranges::find(ops, kind, &plan::Op::kind) - ops.begin());
    EXPECT_LT(found, ops.size()) << "no such op";
    auto &[seen, call] = seen_.emplace_back();
    seen = (*executable)->boundOp(rank, s, {variant}, found % ops.size(), call);
    return seen;
  }
  uint32_t segmentIndex(std::string_view name) const {
    for (uint32_t s = 0; s < plan.roles[0].segments.size(); ++s)
      if (plan.roles[0].segments[s].name == name)
        return s;
    return plan::kNone;
  }

  plan::Plan plan;
  std::unique_ptr<hal::Backend> backend;
  Result<std::unique_ptr<exec::Executable>> executable;

private:
  std::deque<std::pair<exec::BoundOp, kernels::Call>> seen_;
};

plan::Op &findOp(plan::Plan &plan, plan::OpKind kind) {
  for (plan::Segment &segment : plan.roles[0].segments)
    for (plan::Op &op : segment.ops)
      if (op.kind == kind)
        return op;
  throw std::runtime_error("no such op");
}

TEST(Bind, VariantsDecideWhatRunsAndWhatAccumulates) {
  Bound bound(toyPlan({.microbatches = 3}));
  ASSERT_TRUE(bound.executable.isOk()) << bound.executable.status().message();
  using exec::BoundOp;
  for (Variant variant : {Variant::First, Variant::Middle, Variant::Last}) {
    bool isFirst = variant == Variant::First;
    EXPECT_EQ(bound.op(0, "micro", variant, plan::OpKind::StepBegin).kind,
              isFirst ? BoundOp::Kernel : BoundOp::Nothing);
    EXPECT_EQ(bound.op(0, "micro", variant, plan::OpKind::ReduceScatter).collective.accumulate,
              !isFirst);
    EXPECT_TRUE(bound.op(0, "micro", variant, plan::OpKind::EmbeddingBwd).call->out[0].accumulate)
        << "always adds";
    EXPECT_EQ(bound.op(0, "micro", variant, plan::OpKind::View).kind, BoundOp::Nothing);
  }
  EXPECT_EQ((*bound.executable)->bound(bound.segmentIndex("micro"), {Variant::Only}), nullptr);
  EXPECT_NE((*bound.executable)->bound(bound.segmentIndex("update"), {Variant::Only}), nullptr);
}

TEST(Bind, ShapesWithoutAddressesAreThoseOfBoundCalls) {
  Bound bound(toyPlan({.microbatches = 3}));
  ASSERT_TRUE(bound.executable.isOk()) << bound.executable.status().message();
  const plan::Segment &micro = bound.plan.roles[0].segments[bound.segmentIndex("micro")];
  const exec::BoundSegment *first =
      (*bound.executable)->bound(bound.segmentIndex("micro"), {Variant::First});
  int compared = 0;
  for (size_t i = 0; i < micro.ops.size(); ++i) {
    const exec::BoundOp &op = first->ops[i];
    if (op.kind != exec::BoundOp::Kernel || op.call->list)
      continue;
    kernels::Call shape = exec::shapeOf(bound.plan, micro, micro.ops[i]);
    ASSERT_EQ(shape.inCount, op.call->inCount) << op.label;
    ASSERT_EQ(shape.outCount, op.call->outCount) << op.label;
    for (int k = 0; k < shape.inCount; ++k) {
      EXPECT_EQ(shape.in[k].data, nullptr);
      EXPECT_EQ(shape.in[k].dtype, op.call->in[k].dtype);
      EXPECT_EQ(shape.in[k].numel(), op.call->in[k].numel());
    }
    EXPECT_EQ(shape.attrs.trans_a, op.call->attrs.trans_a);
    if (op.kernel->workspaceBytes) {
      EXPECT_EQ(op.kernel->workspaceBytes(shape), op.kernel->workspaceBytes(*op.call)) << op.label;
    }
    ++compared;
  }
  EXPECT_GT(compared, 5);
}

TEST(Bind, ShardsGetTheirPartOfTheParameterTable) {
  Bound bound(toyPlan({.dp = 4, .microbatches = 1}));
  ASSERT_TRUE(bound.executable.isOk()) << bound.executable.status().message();
  for (int rank = 0; rank < 4; ++rank) {
    const kernels::Call &call =
        *bound.op(rank, "init", Variant::Only, plan::OpKind::InitBlock).call;
    ASSERT_EQ(call.rangesCount, 1);
    EXPECT_EQ(call.ranges[0].begin, 0);
    EXPECT_EQ(call.ranges[0].end, 8);
    EXPECT_EQ(call.ranges[0].globalBegin, 8 * rank);
    EXPECT_EQ(call.ranges[0].init, kernels::ParamRange::Normal);
    const kernels::Call &squares =
        *bound.op(rank, "update", Variant::Only, plan::OpKind::SumSquares).call;
    ASSERT_EQ(squares.listCount, 1);
    EXPECT_EQ(squares.rangesOf[1], 1);
  }
}

TEST(Bind, RanksShareCallsAndHaveAddressesOfTheirOwn) {
  Bound bound(toyPlan({.dp = 4, .microbatches = 1}));
  ASSERT_TRUE(bound.executable.isOk()) << bound.executable.status().message();
  exec::Executable &executable = **bound.executable;
  const plan::Role &role = bound.plan.roles[0];
  int compared = 0;
  for (uint32_t s = 0; s < role.segments.size(); ++s) {
    const plan::Segment &segment = role.segments[s];
    const exec::BoundSegment *shared = executable.bound(s, {Variant::Only});
    for (size_t i = 0; shared && i < segment.ops.size(); ++i)
      for (size_t rank = 0; rank < executable.rankCount(); ++rank) {
        kernels::Call call;
        exec::BoundOp op = executable.boundOp(rank, s, {Variant::Only}, i, call);
        auto place = [&](plan::ValueId id) -> const void * {
          const plan::Value &value = segment.values[id];
          return *executable.arenas(rank).resolve(value.place, value.type.bytes(), value.name);
        };
        ASSERT_EQ(op.kind, shared->ops[i].kind);
        ASSERT_EQ(op.kernel, shared->ops[i].kernel);
        const plan::Op &what = segment.ops[i];
        if (op.kind == exec::BoundOp::Collective) {
          EXPECT_EQ(op.collective.in, place(what.operands[0])) << op.label << " of rank " << rank;
          EXPECT_EQ(op.collective.out, place(what.results[0])) << op.label << " of rank " << rank;
        } else if (op.kind == exec::BoundOp::Kernel) {
          for (int k = 0; k < call.inCount; ++k)
            EXPECT_EQ(call.in[k].data, place(what.operands[k])) << op.label << " of rank " << rank;
          for (int64_t k = 0; k < call.listCount; ++k)
            EXPECT_EQ(call.list[k].data, place(what.operands[k])) << op.label;
          for (int k = 0; k < call.outCount; ++k)
            EXPECT_EQ(call.out[k].data, place(what.results[k])) << op.label << " of rank " << rank;
          EXPECT_EQ(call.workspaceBytes, shared->ops[i].call->workspaceBytes);
          EXPECT_EQ(call.workspace == nullptr, call.workspaceBytes == 0);
        }
        ++compared;
      }
  }
  EXPECT_GT(compared, 80);
}

TEST(Bind, OpsOfAGroupGetTheRanksIndexInIt) {
  plan::Plan plan = toyPlan({.dp = 4, .microbatches = 1});
  findOp(plan, plan::OpKind::Embedding).group = 0;
  Bound bound(plan);
  ASSERT_TRUE(bound.executable.isOk()) << bound.executable.status().message();
  for (int rank = 0; rank < 4; ++rank) {
    const kernels::Call &parts =
        *bound.op(rank, "micro", Variant::Only, plan::OpKind::Embedding).call;
    EXPECT_EQ(parts.index, rank);
    EXPECT_EQ(parts.groupSize, 4);
    const kernels::Call &whole =
        *bound.op(rank, "micro", Variant::Only, plan::OpKind::EmbeddingBwd).call;
    EXPECT_EQ(whole.index, 0);
    EXPECT_EQ(whole.groupSize, 1);
  }
}

TEST(Bind, ExchangesSayHowMuchTheyMoveAndWhere) {
  plan::Plan plan = toyPlan({.dp = 4, .microbatches = 1});
  std::vector<plan::Op> &update = plan.roles[0].segments.back().ops;
  plan::Op &sum = *std::ranges::find(update, plan::OpKind::AllReduce, &plan::Op::kind);
  sum.kind = plan::OpKind::Shift;
  sum.set(plan::AttrKey::by, int64_t{-1});
  Bound shifts(plan);
  ASSERT_TRUE(shifts.executable.isOk()) << shifts.executable.status().message();
  const hal::Collective &shift =
      shifts.op(1, "update", Variant::Only, plan::OpKind::Shift).collective;
  EXPECT_EQ(shift.kind, CollectiveKind::Shift);
  EXPECT_EQ(shift.count, 4); // the numbers of step.pack
  EXPECT_EQ(shift.by, -1);
  sum.kind = plan::OpKind::AllToAll;
  sum.attrs.clear();
  Bound parts(plan);
  ASSERT_TRUE(parts.executable.isOk()) << parts.executable.status().message();
  EXPECT_EQ(parts.op(1, "update", Variant::Only, plan::OpKind::AllToAll).collective.count, 1);
}

TEST(Bind, SquaresAreOfThePartOfTheParameterTable) {
  plan::Plan plan = toyPlan({.dp = 4, .microbatches = 2, .squares = true});
  Bound bound(plan);
  ASSERT_TRUE(bound.executable.isOk()) << bound.executable.status().message();
  for (Variant variant : {Variant::First, Variant::Last}) {
    const hal::Collective &sum =
        bound.op(3, "micro", variant, plan::OpKind::ReduceScatter).collective;
    EXPECT_NE(sum.squares, nullptr);
    ASSERT_EQ(sum.valid.size(), 1u);
    EXPECT_EQ(sum.valid[0].begin, 0);
    EXPECT_EQ(sum.valid[0].end, 8);
    EXPECT_EQ(sum.accumulate, variant == Variant::Last);
  }
  const kernels::Call &squares =
      *bound.op(3, "update", Variant::Only, plan::OpKind::SumSquares).call;
  ASSERT_EQ(squares.listCount, 1);
  EXPECT_EQ(squares.list[0].dtype, DType::F64);
  EXPECT_EQ(squares.rangesCount, 0);
}

TEST(Ranges, CountedElementsLeavePaddingOut) {
  plan::Plan plan;
  plan.blocks = {{"b", 0, 64, 32, 0, 32, 0}, {"empty", 0, 64, 32, 0, 32, 0}};
  auto param = [&](int64_t offset, int64_t numel) {
    plan::Param param;
    param.block = 0, param.offset = offset, param.type = plan::Type::of(DType::F32, {numel});
    plan.params.push_back(param);
  };
  param(16, 24), param(0, 12), param(40, 4);
  auto at = [&](int32_t block, int64_t begin) {
    std::vector<std::pair<int64_t, int64_t>> found;
    for (ElementRange range : exec::countedElements(plan, block, begin, 32, {}))
      found.emplace_back(range.begin, range.end);
    return found;
  };
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(at(0, 0), (Pairs{{0, 12}, {16, 32}}));
  EXPECT_EQ(at(0, 32), (Pairs{{0, 12}})) << "parameters side by side are one range";
  EXPECT_EQ(at(1, 0), Pairs{}) << "padding alone";
}

TEST(Bind, RefusesWhatNoKernelServes) {
  Bound bound(toyPlan({}), [](std::string_view name) {
    return name == "matmul" ? nullptr : kernels::findHostKernel(name);
  });
  EXPECT_EQ(bound.executable.status().code(), StatusCode::InvalidInput);
  EXPECT_THAT(
      bound.executable.status().message(),
      HasSubstr("micro: matmul %logits (toy.recipe:3): the backend has no kernel for 'matmul'"));
}

TEST(Bind, NamesAllOpsThatKernelsRefuse) {
  plan::Plan plan = toyPlan({});
  for (plan::Segment &segment : plan.roles[0].segments)
    for (plan::Value &value : segment.values)
      if (value.name == "n" || value.name == "ss")
        value.type.dtype = DType::I32;
  Bound bound(std::move(plan));
  std::string message = bound.executable.status().message();
  EXPECT_THAT(message, HasSubstr("micro: token_count %n: kernel token_count_host refuses: "));
  EXPECT_THAT(message, HasSubstr("micro: loss.add %summed: kernel loss_add_host refuses: "));
}

/// A view that moves names the group whose index determines its offset, and communicates nothing.
TEST(Bind, ViewsThatMoveNeedNoChannel) {
  plan::Plan plan = toyPlan({});
  size_t views = 0;
  for (plan::Segment &segment : plan.roles[0].segments)
    for (plan::Op &op : segment.ops)
      if (op.kind == plan::OpKind::View) {
        op.group = 0;
        ++views;
      }
  ASSERT_GT(views, 0u);
  Bound bound(std::move(plan));
  EXPECT_TRUE(bound.executable.isOk()) << bound.executable.status().message();
}

TEST(Bind, PlacesOutsideOfTheirArenaAreRefusedOnTheRankWhereTheyAre) {
  plan::Plan plan = toyPlan({});
  for (plan::Value &value : plan.roles[0].segments[0].values)
    if (value.name == "w") {
      value.place.offset = 1024 - 64;
      value.place.coef = 16;
      value.place.group = 0;
    }
  Bound bound(std::move(plan));
  EXPECT_THAT(bound.executable.status().message(),
              HasSubstr("%w: bytes 976 to 1040 do not lie in arena state of 1024 bytes"));
}

TEST(Bind, CollectivesMustFitTheirGroup) {
  plan::Plan plan = toyPlan({});
  plan::Op &gather = findOp(plan, plan::OpKind::AllGather);
  plan.roles[0].segments[1].values[gather.operands[0]].type.shape[0] = 8;
  Bound bound(std::move(plan));
  EXPECT_THAT(bound.executable.status().message(),
              HasSubstr("8 elements in and 32 out do not fit 2 members"));
}

TEST(Bind, PlansForOtherBackendsOrWorldsAreRefused) {
  plan::Plan plan = toyPlan({});
  auto backend = host::makeBackend({.ranks = 3});
  EXPECT_EQ(
      exec::Executable::create(plan, **backend, kernels::findHostKernel, {}).status().message(),
      "the plan is for 2 ranks, the backend has 3");
  plan.level = plan::Level::Scheduled;
  EXPECT_EQ(
      exec::Executable::create(plan, **backend, kernels::findHostKernel, {}).status().message(),
      "the plan is scheduled, not placed");
}

TEST(Bind, WaitsThatOthersImplyAreDropped) {
  plan::Segment segment;
  exec::BoundSegment bound;
  auto add = [&](plan::StreamId stream, std::vector<uint32_t> waits) {
    plan::Op op;
    op.kind = plan::OpKind::Fill;
    segment.ops.push_back(op);
    exec::BoundOp boundOp;
    boundOp.stream = stream;
    boundOp.waits = std::move(waits);
    bound.ops.push_back(std::move(boundOp));
  };
  add(0, {});        // 0
  add(0, {});        // 1
  add(1, {0, 1});    // 2: 1 implies 0
  add(1, {0});       // 3: the stream knows it already
  add(2, {3, 1});    // 4: 3 implies 1
  add(0, {2, 4, 1}); // 5: the wait for 4 implies the wait for 2; 1 is on the op's own stream
  exec::pruneWaits(segment, bound);
  EXPECT_THAT(bound.ops[2].waits, ElementsAre(1));
  EXPECT_THAT(bound.ops[3].waits, ElementsAre());
  EXPECT_THAT(bound.ops[4].waits, ElementsAre(3));
  EXPECT_THAT(bound.ops[5].waits, ElementsAre(4));
  std::vector<bool> isAwaited;
  for (const exec::BoundOp &op : bound.ops)
    isAwaited.push_back(op.isAwaited);
  EXPECT_THAT(isAwaited, ElementsAre(false, true, false, true, true, false));
}

plan::Plan meshPlan() {
  plan::Plan plan;
  plan.mesh = {{"dp_outer", 2}, {"dp", 3}, {"tp", 2}};
  plan.groups = {{"dp", {1}}, {"tp", {2}}, {"all", {0, 1, 2}}, {"outer", {0}}, {"data", {0, 1}}};
  plan.kindGroup(plan::GroupKind::Data) = 4;
  return plan;
}

TEST(Mesh, LastAxisIsTheFastest) {
  plan::Plan plan = meshPlan();
  EXPECT_THAT(exec::meshCoords(plan, 7), ElementsAre(1, 0, 1));
  EXPECT_EQ(exec::indexIn(plan, 0, 4), 2);
  EXPECT_EQ(exec::indexIn(plan, 0, 11), 2);
  EXPECT_EQ(exec::indexIn(plan, 4, 4), 2);
  EXPECT_EQ(exec::indexIn(plan, 4, 11), 5);
  EXPECT_EQ(exec::indexIn(plan, 1, 11), 1);
  EXPECT_EQ(exec::indexIn(plan::Plan{}, -1, 0), 0);
  exec::GroupIndices indices(plan, 11);
  EXPECT_EQ(indices.of(-1), 0);
  EXPECT_EQ(indices.of(0), 2);
  EXPECT_EQ(indices.of(1), 1);
  EXPECT_EQ(indices.of(4), 5);
}

TEST(Mesh, GroupsAreTheRanksThatDifferInTheirAxes) {
  plan::Plan plan = meshPlan();
  EXPECT_THAT(exec::groupMembers(plan, 0, 7), ElementsAre(7, 9, 11));
  EXPECT_THAT(exec::groupMembers(plan, 1, 7), ElementsAre(6, 7));
  EXPECT_THAT(exec::groupMembers(plan, 2, 7), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(exec::groupMembers(plan, 3, 7), ElementsAre(1, 7));
}

TEST(Ranges, PiecesOfBlocksKnowTheirParameters) {
  plan::Plan plan;
  plan.mesh = {{"dp", 2}, {"outer", 2}};
  plan.groups = {{"dp", {0}}, {"all", {0, 1}}};
  plan.units = {{"u"}};
  plan.blocks = {{"b", 0, 40, 20, 0, 10, 1}, {"c", 0, 8, 4, 0, 4, 0}};
  auto param = [](const char *name, int64_t offset, int64_t rows) {
    plan::Param param;
    param.name = name;
    param.type = plan::Type::of(DType::F32, {rows, 4});
    param.block = 0;
    param.offset = offset;
    return param;
  };
  plan.params = {param("late", 24, 2), param("early", 0, 5)}; // 20..24 and 32..40 are padding
  std::vector<exec::ParamPiece> parts = exec::paramPieces(plan, 0, 16, 12);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].param, 1u);
  EXPECT_EQ(parts[0].begin, 0);
  EXPECT_EQ(parts[0].end, 4);
  EXPECT_EQ(parts[0].globalBegin, 16);
  EXPECT_EQ(parts[1].begin, 8);
  EXPECT_EQ(parts[1].end, 12);
  EXPECT_EQ(parts[1].globalBegin, 0);
  exec::GroupIndices last(plan, 3);
  EXPECT_EQ(exec::pieceBegin(plan.blocks[0], 20, last), 20);
  EXPECT_EQ(exec::pieceBegin(plan.blocks[0], 10, last), 30);
  EXPECT_EQ(exec::pieceBegin(plan.blocks[0], 40, last), 0);
  EXPECT_EQ(exec::pieceBegin(plan.blocks[0], 30, last), -1);
}

TEST(Ranges, BlocksAreKnownByAttributeListOrUnit) {
  plan::Plan plan;
  plan.units = {{"u"}, {"v"}};
  plan.blocks = {{"b", 0, 40, 20, 0, 20, 0},
                 {"c", 0, 8, 4, 0, 4, 0},
                 {"d", 1, 8, 4, 0, 4, 0},
                 {"e", 1, 8, 4, 0, 4, 0}};
  plan::Op op;
  op.kind = plan::OpKind::AllGather;
  op.unit = 0;
  EXPECT_EQ(exec::blockOf(plan, op, 0, 4), 1);
  EXPECT_EQ(exec::blockOf(plan, op, 0, 5), -1);
  op.unit = 1;
  EXPECT_EQ(exec::blockOf(plan, op, 0, 8), -1) << "two blocks have this size";
  op.set(plan::AttrKey::block, int64_t{3});
  EXPECT_EQ(exec::blockOf(plan, op, 0, 8), 3);
  plan::Op squares;
  squares.kind = plan::OpKind::SumSquares;
  squares.blocks = {{0}, {1}, {2}};
  EXPECT_EQ(exec::blockOf(plan, squares, 2, 4), 2);
}

/// The numbers of multiprocessors for these ops, if NCCL's kernels occupy some and one reduction
/// waits for the first op.
std::vector<int32_t> productTargets(const exec::ProductTarget &target, plan::Transport transport,
                                    size_t members = 2, int64_t count = 1 << 20) {
  using plan::OpKind;
  hal::ChannelDesc desc;
  desc.members.resize(members);
  class Channel final : public hal::Channel {
  public:
    explicit Channel(hal::ChannelDesc desc) : hal::Channel(std::move(desc)) {}
  } channel(desc);
  plan::Plan plan;
  plan.channels.push_back({"reduce", 0, transport});
  plan::Segment segment;
  exec::BoundSegment bound;
  for (OpKind kind : {OpKind::MatMul, OpKind::Gelu, OpKind::MatMulGeluBwd, OpKind::MatMul,
                      OpKind::AttentionBwd, OpKind::MatMul, OpKind::ReduceScatter}) {
    plan::Op &op = segment.ops.emplace_back();
    op.kind = kind;
    op.channel = kind == OpKind::ReduceScatter ? 0 : plan::kNoChannel;
    exec::BoundOp &to = bound.ops.emplace_back();
    if (kind == OpKind::ReduceScatter) {
      to.kind = exec::BoundOp::Collective, to.stream = 1;
      to.channel = &channel, to.waits = {0};
      to.collective.count = count, to.collective.inType = DType::BF16;
    } else {
      bound.calls.push_back(std::make_unique<kernels::Call>());
      to.kind = exec::BoundOp::Kernel, to.call = bound.calls.back().get();
    }
  }
  exec::limitProducts(plan, segment, target, bound);
  std::vector<int32_t> found;
  for (const std::unique_ptr<kernels::Call> &call : bound.calls)
    found.push_back(call->multiprocessors);
  return found;
}

TEST(Bind, ProductsBesideNcclAreCutForWhatItLeaves) {
  using plan::Transport;
  EXPECT_THAT(productTargets({116, 1}, Transport::Nccl), ElementsAre(0, 0, 116, 0, 0, 0));
  EXPECT_THAT(productTargets({116, 9}, Transport::Nccl), ElementsAre(0, 0, 116, 116, 0, 0))
      << "up to the attention";
  EXPECT_THAT(productTargets({0, 9}, Transport::Nccl), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(productTargets({116, 9}, Transport::Ce), ElementsAre(0, 0, 0, 0, 0, 0))
      << "copy engines take none";
  EXPECT_THAT(productTargets({116, 1}, Transport::Exchange), ElementsAre(0, 0, 116, 0, 0, 0))
      << "sends and receives do";
  EXPECT_THAT(productTargets({116, 9}, Transport::Nccl, 1), ElementsAre(0, 0, 0, 0, 0, 0))
      << "nothing moves in a group of one";
  EXPECT_THAT(productTargets({116, 9}, Transport::Nccl, 2, 64), ElementsAre(0, 0, 0, 0, 0, 0))
      << "few bytes";
}

} // namespace
} // namespace shardc::test
