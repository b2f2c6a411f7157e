// Times saving and loading a checkpoint of a given size, as a run does it, from and to memory.
// checkpoint_speed.py compares the times with plain writes and reads.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/Philox.h"
#include "runtime/checkpoint/ParamSource.h"
#include "runtime/exec/Mesh.h"
#include "runtime/save/RankSave.h"

namespace shardc {
namespace {

constexpr int64_t kRow = 4096, kRowsOfLayer = 1024; ///< a layer has 16 MiB of fp32
constexpr int64_t kParts = 3;                       ///< weight and both moments

/// A model of `layers` layers with Adam's moments, sharded over the ranks.
plan::Plan makePlan(int64_t layers, int64_t ranks) {
  plan::Plan plan;
  plan.name = "bench";
  plan.mesh = {{"dp", ranks}};
  plan.groups = {{"dp", {0}}};
  plan::Role role;
  int64_t numel = kRow * kRowsOfLayer, shard = numel / ranks;
  for (int64_t i = 0; i < layers; ++i) {
    std::string name = fmt::format("layers.{}", i);
    plan.blocks.push_back({name, -1, numel, shard, 0, shard, 0});
    plan::Param param;
    param.name = fmt::format("decoder.{}.mlp.linear_fc2.weight", name);
    param.type = plan::Type::of(DType::F32, {kRowsOfLayer, kRow});
    param.block = static_cast<int32_t>(i);
    plan.params.push_back(std::move(param));
    for (plan::CellKind kind :
         {plan::CellKind::Weight, plan::CellKind::FirstMoment, plan::CellKind::SecondMoment}) {
      plan::Cell cell;
      cell.name = fmt::format("{}.{}", plan::cellKindInfo(kind).word, name);
      cell.kind = kind;
      cell.of = static_cast<int32_t>(i);
      cell.type = plan::Type::of(DType::F32, {shard});
      role.cells.push_back(std::move(cell));
    }
  }
  role.name = "all";
  plan.roles = {std::move(role)};
  plan.job = {{"checkpoint.ckpt_format", std::string("fsdp_dtensor")},
              {"ddp.use_megatron_fsdp", true}};
  return plan;
}

/// Runs the work of all ranks concurrently; in runs with several GPUs, each rank is a process.
template <typename Work> Status forEachRank(int64_t ranks, Work work) {
  std::vector<std::future<Status>> done;
  for (int64_t rank = 0; rank < ranks; ++rank)
    done.push_back(std::async(std::launch::async, [&work, rank] { return work(rank); }));
  Status first = Status::ok();
  for (std::future<Status> &status : done)
    if (Status one = status.get(); first.isOk())
      first = std::move(one);
  return first;
}

Status saveRank(const save::SaveJob &job, const checkpoint::SaveTarget &target, int64_t rank,
                const save::Progress &progress) {
  const std::vector<plan::Cell> &cells = job.plan->roles[0].cells;
  // The content of all cells: nothing compresses it or depends on it.
  std::vector<uint64_t> data(static_cast<size_t>(cells[0].type.bytes()) / sizeof(uint64_t));
  for (size_t i = 0; i < data.size(); ++i)
    data[i] = i * 0x9E3779B97F4A7C15ull;
  ASSIGN_OR_RETURN(save::RankSave file,
                   save::RankSave::begin(job, target, static_cast<int>(rank), progress));
  for (uint32_t cell = 0; cell < cells.size(); ++cell)
    RETURN_IF_ERROR(file.addCell(cell, 0, reinterpret_cast<const uint8_t *>(data.data()),
                                 cells[cell].type.bytes()));
  return file.finish();
}

Status save(const save::SaveJob &job, const checkpoint::SaveTarget &target, int64_t ranks) {
  save::Progress progress;
  progress.step = 1;
  RETURN_IF_ERROR(checkpoint::beginSave(target));
  RETURN_IF_ERROR(
      forEachRank(ranks, [&](int64_t rank) { return saveRank(job, target, rank, progress); }));
  Status copied;
  return save::commitRun(job, target, progress, copied);
}

Status loadRank(const save::SaveJob &job, const std::string &folder, int64_t rank) {
  ASSIGN_OR_RETURN(auto source, checkpoint::ParamSource::open(folder, {"fsdp_dtensor"}, nullptr));
  std::vector<uint8_t> buffer;
  ASSIGN_OR_RETURN(std::vector<save::StatePiece> pieces, job.layout->pieces(rank));
  for (const save::StatePiece &piece : pieces) {
    buffer.resize(static_cast<size_t>(piece.bytes));
    RETURN_IF_ERROR(source->read(job.layout->nameOf(piece), piece.part, piece.box,
                                 checkpoint::Element::F32, buffer.data(),
                                 /*padsRows=*/false));
  }
  return Status::ok();
}

Status load(const save::SaveJob &job, const std::string &folder, int64_t ranks) {
  return forEachRank(ranks, [&](int64_t rank) { return loadRank(job, folder, rank); });
}

int run(const std::string &verb, const std::string &root, int64_t mebibytes, int64_t ranks) {
  int64_t layers = std::max<int64_t>(mebibytes / (16 * kParts), 1);
  plan::Plan plan = makePlan(layers, ranks);
  auto layout = save::StateLayout::create(plan);
  auto job =
      layout.isOk() ? save::SaveJob::of(plan, *layout) : Result<save::SaveJob>(layout.status());
  auto start = std::chrono::steady_clock::now();
  Status status = job.status();
  auto target = checkpoint::SaveTarget::iteration(root, 1);
  if (job.isOk())
    status = verb == "save" ? save(*job, target, ranks) : load(*job, target.path(), ranks);
  std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (!status.isOk()) {
    fmt::print(stderr, "checkpoint-bench: error: {}\n", status.message());
    return EXIT_FAILURE;
  }
  fmt::print("{{\"bytes\": {}, \"seconds\": {:.4f}}}\n", layers * kParts * kRow * kRowsOfLayer * 4,
             elapsed.count());
  return EXIT_SUCCESS;
}

} // namespace
} // namespace shardc

int main(int argc, char **argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: checkpoint-bench save|load FOLDER MEBIBYTES RANKS\n");
    return 2;
  }
  return shardc::run(argv[1], argv[2], std::atoll(argv[3]), std::max(std::atoll(argv[4]), 1LL));
}
