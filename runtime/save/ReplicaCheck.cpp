// Each rank computes a CRC-32 of its part of each parameter. Only these are exchanged; ranks with
// the same part must have the same sum.
#include "runtime/save/ReplicaCheck.h"

#include <cstring>
#include <map>
#include <vector>

#include "runtime/base/Crc32.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/Ranges.h"

namespace shardc::save {
namespace {

/// The checksum of a rank's part of a parameter.
struct PartSum {
  uint32_t param = 0, crc = 0;
  int64_t part = 0; ///< number of the rank's part among the parameter's parts
};

/// Cells that contain whole blocks of weights.
std::vector<const plan::Cell *> weightCells(const plan::Plan &plan, const plan::Role &role) {
  std::vector<const plan::Cell *> cells;
  for (const plan::Cell &cell : role.cells)
    if (cell.kind == plan::CellKind::Weight && cell.of >= 0 &&
        cell.type.numel() == plan.blocks[static_cast<size_t>(cell.of)].numel)
      cells.push_back(&cell);
  return cells;
}

/// Adds the checksum of every piece of a parameter that this rank has. `part` numbers the pieces of
/// a divided parameter, so that only copies of the same piece are compared.
Status addSums(exec::Executable &executable, size_t rank, std::vector<PartSum> &sums) {
  const plan::Plan &plan = executable.plan();
  exec::GroupIndices indices(plan, executable.worldRank(rank));
  std::vector<uint8_t> bytes;
  for (const plan::Cell *cell : weightCells(plan, executable.roleOf(rank))) {
    ASSIGN_OR_RETURN(uint8_t * address,
                     executable.arenas(rank).resolve(cell->place, cell->type.bytes(), cell->name));
    bytes.resize(static_cast<size_t>(cell->type.bytes()));
    RETURN_IF_ERROR(executable.read(rank, address, cell->type.bytes(), bytes.data()));
    int64_t width = dtypeBytes(cell->type.dtype);
    for (const exec::ParamPiece &piece : exec::paramPieces(plan, cell->of, 0, cell->type.numel())) {
      PartSum sum{piece.param, 0, 0};
      for (const plan::Split &split : plan.params[piece.param].splits)
        sum.part = sum.part * plan.groupSize(split.group) + indices.of(split.group);
      sum.crc = crc32(0, bytes.data() + piece.begin * width,
                      static_cast<size_t>((piece.end - piece.begin) * width));
      sums.push_back(sum);
    }
  }
  return Status::ok();
}

/// A rank's checksums as bytes, for the exchange between ranks.
std::string packed(const std::vector<PartSum> &sums) {
  std::string bytes(sums.size() * sizeof(PartSum), '\0');
  if (!sums.empty())
    std::memcpy(bytes.data(), sums.data(), bytes.size());
  return bytes;
}

std::vector<PartSum> unpacked(const std::string &bytes) {
  std::vector<PartSum> sums(bytes.size() / sizeof(PartSum));
  if (!sums.empty())
    std::memcpy(sums.data(), bytes.data(), sums.size() * sizeof(PartSum));
  return sums;
}

} // namespace

Status compareReplicas(exec::Executable &executable, hal::Peers *peers, int64_t step) {
  std::vector<std::string> all;
  Status status;
  for (size_t rank = 0; rank < executable.rankCount() && status.isOk(); ++rank) {
    std::vector<PartSum> sums;
    status = addSums(executable, rank, sums);
    all.push_back(packed(sums));
  }
  if (peers != nullptr) {
    RETURN_IF_ERROR(peers->agree("reading weights", status));
    ASSIGN_OR_RETURN(all, peers->allGatherLong("checksums of weights", all.front()));
  }
  RETURN_IF_ERROR(status);
  std::map<std::pair<uint32_t, int64_t>, std::pair<uint32_t, size_t>> first;
  for (size_t rank = 0; rank < all.size(); ++rank)
    for (const PartSum &sum : unpacked(all[rank])) {
      auto [at, isNew] = first.try_emplace({sum.param, sum.part}, sum.crc, rank);
      if (!isNew && at->second.first != sum.crc)
        return makeStatus(report::ReplicasDiffer, step, executable.plan().params[sum.param].name,
                          at->second.second, rank);
    }
  return Status::ok();
}

Status corruptWeights(exec::Executable &executable, size_t rank) {
  std::vector<const plan::Cell *> cells = weightCells(executable.plan(), executable.roleOf(rank));
  if (cells.empty())
    return Status::ok();
  ASSIGN_OR_RETURN(uint8_t * address,
                   executable.arenas(rank).resolve(cells[0]->place, 1, cells[0]->name));
  uint8_t byte = 0;
  RETURN_IF_ERROR(executable.read(rank, address, 1, &byte));
  byte ^= 1;
  return executable.write(rank, address, 1, &byte);
}

} // namespace shardc::save
