// Parameters that are divided among ranks: initial values, saves and loads, from and to any layout.
#include <cstring>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/base/Philox.h"
#include "runtime/exec/Ranges.h"
#include "runtime/plan/Text.h"
#include "runtime/save/Loader.h"
#include "runtime/save/RankSave.h"
#include "runtime/verify/Verify.h"
#include "test/unit/base/Told.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::test {
namespace {

using checkpoint::ParamPart;
using save::StatePiece;
using ::testing::Each;
using ::testing::HasSubstr;

/// Ranks, and their parts of the parameters of one layer.
struct Layout {
  const char *name;
  const char *mesh, *groups;
  const char *words, *fc1, *fc2, *experts, *norm; ///< types, with their splits and copies
  int64_t data;                                   ///< ranks of `dp`
  /// The `where` of a role with all blocks; the first role then has only the words.
  const char *where = nullptr;
};
void PrintTo(const Layout &layout, std::ostream *out) { *out << layout.name; }

constexpr const char *kWholeExperts = "f32[4,8,4] stacked row 4";

const Layout kLayouts[] = {
    {"one", "dp = 1", "dp = [dp]", "f32[8,4]", "f32[16,4]", "f32[4,8]", kWholeExperts, "f32[4]", 1},
    {"data", "dp = 3", "dp = [dp]", "f32[8,4]", "f32[16,4]", "f32[4,8]", kWholeExperts, "f32[4]",
     3},
    {"tensor", "dp = 2 tp = 2", "dp = [dp] tp = [tp]", "f32[4,4] of [8,4] split 0 over tp",
     "f32[8,4] of [16,4] split 0 over tp parts 2", "f32[4,4] of [4,8] split 1 over tp",
     "f32[4,4,4] stacked row 4 of [4,8,4] split 1 over tp parts 2", "f32[4] copies [tp]", 2},
    {"experts", "dp = 1 ep = 4", "dp = [dp] ep = [ep]", "f32[8,4] copies [ep]",
     "f32[16,4] copies [ep]", "f32[4,8] copies [ep]",
     "f32[1,8,4] stacked row 4 of [4,8,4] split 0 over ep", "f32[4] copies [ep]", 1},
    {"expertsAndTensor", "ep = 2 dp = 2 tp = 4", "dp = [dp] tp = [tp] ep = [ep]",
     "f32[2,4] of [8,4] split 0 over tp copies [ep]",
     "f32[4,4] of [16,4] split 0 over tp parts 2 copies [ep]",
     "f32[4,2] of [4,8] split 1 over tp copies [ep]",
     "f32[2,8,1] stacked row 1 of [4,8,4] split 0 over ep split 2 over tp",
     "f32[4] copies [tp, ep]", 2},
    {"stages", "pp = 2 dp = 2 tp = 2", "dp = [dp] tp = [tp]", "f32[4,4] of [8,4] split 0 over tp",
     "f32[8,4] of [16,4] split 0 over tp parts 2", "f32[4,4] of [4,8] split 1 over tp",
     "f32[4,4,4] stacked row 4 of [4,8,4] split 1 over tp parts 2", "f32[4] copies [tp]", 2,
     "pp = 1 to 1"},
};

int64_t multipleOf(int64_t step, int64_t count) { return (count + step - 1) / step * step; }

/// Elements of a rank's part.
int64_t numelOf(std::string_view type) {
  int64_t numel = 1, extent = 0;
  for (char c : type.substr(type.find('[') + 1)) {
    if (c >= '0' && c <= '9') {
      extent = 10 * extent + (c - '0');
      continue;
    }
    numel *= std::exchange(extent, 0);
    if (c == ']')
      break;
  }
  return numel;
}

/// A block, its parameters one after the other.
struct BlockText {
  std::string params;
  int64_t numel = 0;

  void add(const char *name, std::string_view type) {
    params +=
        fmt::format("param \"{}\" : {} block {{0}} at {} init normal 0.5\n", name, type, numel);
    numel += multipleOf(8, numelOf(type));
  }
};

/// Cells of the state of a block, as a role has them.
std::string cellsText(std::string_view block, int64_t numel, int64_t &offset) {
  std::string text;
  for (const char *kind : {"master", "first_moment", "second_moment"}) {
    text += fmt::format("  cell @{0}.{1} {0} of {1} : f32[{2}] in state for master_params at {3}\n",
                        kind, block, numel, offset);
    offset += multipleOf(16, 4 * numel);
  }
  return text;
}

/// The state of two blocks, of which the first may be whole on all ranks.
plan::Plan planOf(const Layout &layout, const char *format, bool isReplicated = false) {
  BlockText words, layer;
  words.add("embedding.word_embeddings.weight", layout.words);
  layer.add("decoder.layers.0.mlp.linear_fc1.weight", layout.fc1);
  layer.add("decoder.layers.0.mlp.linear_fc2.weight", layout.fc2);
  layer.add("decoder.layers.0.mlp.experts.linear_fc1.weight", layout.experts);
  layer.add("decoder.layers.0.mlp.linear_fc1.layer_norm_weight", layout.norm);
  std::string blocks, roles;
  std::map<std::string, int64_t> shards;
  for (auto [name, block] : {std::pair("words", &words), {"layer", &layer}}) {
    int64_t numel = multipleOf(8 * layout.data, block->numel);
    shards[name] = isReplicated ? numel : numel / layout.data;
    blocks += fmt::format("block {} numel {} shard {} over dp\n", name, numel, shards[name]);
  }
  auto addRole = [&](std::string_view head, const std::vector<std::string> &held) {
    int64_t bytes = 0;
    std::string cells;
    for (const std::string &name : held)
      cells += cellsText(name, shards[name], bytes);
    roles += fmt::format("role {} {{\n  arenas {{ state = {}  work = 0  sym = 0  host = 0 }}\n{}  "
                         "program {{ }}\n}}\n",
                         head, bytes, cells);
  };
  if (layout.where != nullptr) {
    addRole("first \"w\" where { pp = 0 to 0 }", {"words"});
    addRole(fmt::format("last \"w\" where {{ {} }}", layout.where), {"words", "layer"});
  } else {
    addRole("all \"w\"", {"words", "layer"});
  }
  std::string text = fmt::format(
      "shardc.plan 2 placed \"t\"\nneeds {{ backend = host  gpu = \"\"  device_bytes = 0 }}\njob "
      "{{\n  checkpoint.ckpt_format = \"{}\"\n  model.gated_linear_unit = true\n  "
      "train.global_batch_size = 4\n}}\nmesh {{ {} }}\ngroups {{ {} }}\ndata dp\n{}{}{}{}",
      format, layout.mesh, layout.groups, blocks, fmt::format(fmt::runtime(words.params), "words"),
      fmt::format(fmt::runtime(layer.params), "layer"), roles);
  Result<plan::Plan> plan = plan::parse(text, "t.plan");
  EXPECT_TRUE(plan.isOk()) << plan.status().message();
  std::vector<plan::Finding> findings = plan::verify(*plan);
  EXPECT_TRUE(findings.empty()) << plan::render(*plan, findings[0]);
  return std::move(*plan);
}

/// The initial contents of a cell on a rank, with a seed for the cell's kind.
std::vector<float> initialOf(const plan::Plan &plan, const plan::Cell &cell, int64_t rank) {
  exec::GroupIndices indices(plan, rank);
  int64_t numel = cell.type.numel();
  int64_t begin = exec::pieceBegin(plan.blocks[static_cast<size_t>(cell.of)], numel, indices);
  std::vector<kernels::ParamRange> ranges = exec::paramRanges(
      plan, cell.of, begin, numel, indices, {.seed = static_cast<uint64_t>(cell.kind)});
  std::vector<float> values(static_cast<size_t>(numel), -1);
  kernels::Call call;
  call.outCount = 1;
  call.out[0].data = values.data();
  call.out[0].rank = 1;
  call.out[0].shape[0] = numel;
  call.ranges = ranges.data();
  call.rangesCount = static_cast<int64_t>(ranges.size());
  const kernels::Kernel *init = kernels::findHostKernel("init_block");
  const char *refusal = init->accepts(call);
  EXPECT_EQ(refusal, nullptr) << refusal;
  init->run(call);
  return values;
}

const plan::Role &roleOf(const plan::Plan &plan, int64_t rank) {
  return plan.roles[exec::roleOf(plan, rank)];
}

save::StateLayout layoutOf(const plan::Plan &plan) {
  Result<save::StateLayout> layout = save::StateLayout::create(plan);
  EXPECT_TRUE(layout.isOk()) << layout.status().message();
  return std::move(*layout);
}

std::vector<StatePiece> taken(Result<std::vector<StatePiece>> pieces) {
  EXPECT_TRUE(pieces.isOk()) << pieces.status().message();
  return std::move(*pieces);
}
std::vector<StatePiece> heldBy(const save::StateLayout &layout, int64_t rank) {
  return taken(layout.pieces(rank));
}
std::vector<StatePiece> savedBy(const save::StateLayout &layout, int64_t rank) {
  return taken(layout.piecesToSave(rank));
}

/// Saves the initial state, as after step 3.
void saveInitial(const plan::Plan &plan, const std::string &root) {
  save::StateLayout layout = layoutOf(plan);
  Result<save::SaveJob> job = save::SaveJob::of(plan, layout);
  ASSERT_TRUE(job.isOk()) << job.status().message();
  auto target = checkpoint::SaveTarget::iteration(root, 3);
  ASSERT_EQ(said(checkpoint::beginSave(target)), "");
  save::Progress progress;
  progress.step = progress.applied = 3;
  progress.consumedTrainSamples = 12;
  for (int rank = 0; rank < plan.worldSize(); ++rank) {
    Result<save::RankSave> file = save::RankSave::begin(*job, target, rank, progress);
    ASSERT_TRUE(file.isOk()) << file.status().message();
    const plan::Role &role = roleOf(plan, rank);
    for (uint32_t c = 0; c < role.cells.size(); ++c) {
      std::vector<float> values = initialOf(plan, role.cells[c], rank);
      const auto *bytes = reinterpret_cast<const uint8_t *>(values.data());
      // The state is written in two parts that end inside of a row, as snapshots do.
      int64_t size = std::ssize(values) * 4, part = std::min<int64_t>(size, 44);
      ASSERT_EQ(said(file->addCell(c, 0, bytes, part)), "");
      ASSERT_EQ(said(file->addCell(c, part, bytes + part, size - part)), "");
    }
    ASSERT_EQ(said(file->finish()), "");
  }
  Status copied;
  ASSERT_EQ(said(save::commitRun(*job, target, progress, copied)), "");
}

/// Expects that a load gives all ranks the contents that a start gives them.
void expectLoaded(const plan::Plan &plan) {
  Reported reported;
  auto loader = save::Loader::open(plan, reported.sink());
  ASSERT_TRUE(loader.isOk()) << loader.status().message();
  EXPECT_TRUE((*loader)->isWhole());
  save::StateLayout layout = layoutOf(plan);
  for (int64_t rank = 0; rank < plan.worldSize(); ++rank) {
    const plan::Role &role = roleOf(plan, rank);
    std::vector<std::vector<float>> cells;
    for (const plan::Cell &cell : role.cells)
      cells.emplace_back(static_cast<size_t>(cell.type.numel()), 0.f);
    std::vector<uint8_t> bytes;
    for (const StatePiece &piece : heldBy(layout, rank)) {
      Result<bool> isThere = (*loader)->read(piece, bytes);
      ASSERT_TRUE(isThere.isOk()) << isThere.status().message();
      ASSERT_TRUE(*isThere);
      std::memcpy(reinterpret_cast<uint8_t *>(cells[piece.cell].data()) + piece.byteBegin,
                  bytes.data(), static_cast<size_t>(piece.bytes));
    }
    for (size_t c = 0; c < cells.size(); ++c)
      EXPECT_EQ(cells[c], initialOf(plan, role.cells[c], rank))
          << "rank " << rank << ", " << role.cells[c].name;
  }
}

class Splits : public testing::TestWithParam<Layout> {};

/// Element i of each tensor starts with random number i of the tensor's name, in any division.
TEST_P(Splits, StartWithTheValuesOfTheWholeTensors) {
  plan::Plan plan = planOf(GetParam(), "torch_dcp");
  save::StateLayout layout = layoutOf(plan);
  for (int64_t rank = 0; rank < plan.worldSize(); ++rank)
    for (const StatePiece &piece : heldBy(layout, rank)) {
      const plan::Cell &cell = layout.cellOf(piece);
      std::vector<float> values = initialOf(plan, cell, rank);
      uint64_t key = streamKey(static_cast<uint64_t>(cell.kind), layout.nameOf(piece));
      checkpoint::Shape whole = layout.shapeOf(piece.param), shape = piece.box.shape,
                        at = piece.box.offset;
      if (whole.size() == 1)
        whole.push_back(1), shape.push_back(1), at.push_back(0);
      for (int64_t r = 0; r < shape[0]; ++r)
        for (int64_t c = 0; c < shape[1]; ++c) {
          auto global = static_cast<uint64_t>((at[0] + r) * whole[1] + at[1] + c);
          ASSERT_EQ(values[static_cast<size_t>(piece.byteBegin / 4 + r * shape[1] + c)],
                    0.5f * normalAt(key, global))
              << layout.nameOf(piece) << " " << global << " on rank " << rank;
        }
    }
}

TEST_P(Splits, EachElementIsSavedOnce) {
  for (bool isReplicated : {false, true}) {
    plan::Plan plan = planOf(GetParam(), "torch_dcp", isReplicated);
    save::StateLayout layout = layoutOf(plan);
    std::map<std::pair<std::string, ParamPart>, std::vector<int>> saved;
    for (const checkpoint::ParamRequest &request : layout.requests()) {
      auto numel = static_cast<size_t>(*checkpoint::elementCount(request.shape));
      EXPECT_TRUE(
          saved.emplace(std::pair(request.name, request.part), std::vector<int>(numel)).second);
    }
    EXPECT_EQ(saved.size(), 3u * 8);
    for (int64_t rank = 0; rank < plan.worldSize(); ++rank)
      for (const StatePiece &piece : savedBy(layout, rank)) {
        std::vector<int> &counts = saved.at({layout.nameOf(piece), piece.part});
        int64_t columns = piece.box.shape.size() == 1 ? 1 : layout.shapeOf(piece.param)[1];
        int64_t first = piece.box.shape.size() == 1 ? 0 : piece.box.offset[1];
        int64_t count = piece.box.shape.size() == 1 ? 1 : piece.box.shape[1];
        for (int64_t r = piece.box.offset[0]; r < piece.box.offset[0] + piece.box.shape[0]; ++r)
          for (int64_t c = first; c < first + count; ++c)
            ++counts.at(static_cast<size_t>(r * columns + c));
      }
    for (const auto &[key, counts] : saved)
      EXPECT_THAT(counts, Each(1)) << key.first;
    EXPECT_EQ(layout.bytes(true), 3 * 4 * (32 + 64 + 32 + 128 + 4));
  }
}

TEST_P(Splits, OfEachFormatLoadIntoEveryLayout) {
  for (const char *format : {"fsdp_dtensor", "torch_dist", "torch_dcp"})
    for (bool isReplicated : {false, true}) {
      SCOPED_TRACE(format);
      TempFolder folder;
      saveInitial(planOf(GetParam(), format, isReplicated), folder.path());
      for (const Layout &other : kLayouts) {
        SCOPED_TRACE(other.name);
        plan::Plan plan = planOf(other, format);
        plan.job.put("checkpoint.load", folder.path());
        expectLoaded(plan);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Splits, testing::ValuesIn(kLayouts),
                         [](const auto &info) { return info.param.name; });

/// If ranks of several roles have the same elements, the first role saves them.
TEST(SplitSaves, CopiesOfSeveralRolesAreSavedByTheFirst) {
  const Layout &stages = kLayouts[std::size(kLayouts) - 1];
  plan::Plan plan = planOf(stages, "torch_dcp");
  save::StateLayout layout = layoutOf(plan);
  for (int64_t rank = 0; rank < plan.worldSize(); ++rank) {
    std::map<std::string, int64_t> bytes;
    for (const StatePiece &piece : savedBy(layout, rank))
      bytes[plan.blocks[static_cast<size_t>(plan.params[piece.param].block)].name] += piece.bytes;
    EXPECT_EQ(bytes.contains("words"), rank < 4) << rank;
    EXPECT_EQ(bytes.contains("layer"), rank >= 4) << rank;
  }
}

TEST(SplitSaves, ABlockThatNoRoleHasIsRefused) {
  plan::Plan plan = planOf(kLayouts[2], "torch_dcp");
  for (plan::Cell &cell : plan.roles[0].cells)
    if (cell.of == 1)
      cell.kind = plan::CellKind::Buffer, cell.of = -1;
  EXPECT_THAT(save::StateLayout::create(plan).status().message(),
              HasSubstr("block 'layer' has no cell with its weights"));
}

/// Only one of several copies adds its squares.
TEST(SplitNorms, CountCopiesOnce) {
  plan::Plan plan = planOf(kLayouts[4], "torch_dcp"); // experts and tensors
  std::map<std::string, int64_t> counted;
  for (int64_t rank = 0; rank < plan.worldSize(); ++rank) {
    exec::GroupIndices indices(plan, rank);
    for (int32_t block : {0, 1}) {
      int64_t numel = plan.blocks[static_cast<size_t>(block)].shard;
      int64_t begin = exec::pieceBegin(plan.blocks[static_cast<size_t>(block)], numel, indices);
      int64_t elements = 0;
      for (const kernels::ParamRange &range :
           exec::paramRanges(plan, block, begin, numel, indices, {.isNorm = true}))
        elements += range.end - range.begin;
      counted[plan.blocks[static_cast<size_t>(block)].name] += elements;
      for (ElementRange range : exec::countedElements(plan, block, begin, numel, indices))
        elements -= range.end - range.begin;
      EXPECT_EQ(elements, 0);
    }
  }
  EXPECT_EQ(counted["words"], 32);
  EXPECT_EQ(counted["layer"], 64 + 32 + 128 + 4);
}

} // namespace
} // namespace shardc::test
