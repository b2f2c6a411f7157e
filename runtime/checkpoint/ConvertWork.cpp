#include "runtime/checkpoint/ConvertWork.h"

#include <algorithm>
#include <numeric>

namespace shardc::checkpoint {
namespace {

int64_t bytesOf(const ConvertJob &job) { return tensorBytes(job.type, job.shape).value_or(0); }

/// Deals jobs to ranks, the largest first, each to the rank with the least so far; equal on all.
std::vector<size_t> shareOf(const std::vector<ConvertJob> &jobs, int rank, int worldSize) {
  std::vector<size_t> order(jobs.size()), mine;
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return bytesOf(jobs[a]) > bytesOf(jobs[b]); });
  std::vector<int64_t> load(static_cast<size_t>(worldSize), 0);
  for (size_t index : order) {
    auto least = static_cast<size_t>(std::ranges::min_element(load) - load.begin());
    load[least] += bytesOf(jobs[index]) + 1;
    if (least == static_cast<size_t>(rank))
      mine.push_back(index);
  }
  std::ranges::sort(mine);
  return mine;
}

/// Calls `visit` for boxes of about `bytesMax` that make up the job's tensor. The first dim is cut
/// by rows; a row that is too large by itself is one piece.
Status forPieces(const ConvertJob &job, int64_t bytesMax,
                 const std::function<Status(const Shape &, const Shape &)> &visit) {
  Shape offset(job.shape.size(), 0), shape = job.shape;
  if (job.shape.empty() || bytesOf(job) <= bytesMax)
    return visit(offset, shape);
  int64_t rows = job.shape[0], rowBytes = bytesOf(job) / rows;
  int64_t step = std::max<int64_t>(1, bytesMax / std::max<int64_t>(rowBytes, 1));
  for (int64_t row = 0; row < rows; row += step) {
    offset[0] = row;
    shape[0] = std::min(step, rows - row);
    RETURN_IF_ERROR(visit(offset, shape));
  }
  return Status::ok();
}

Status writeShare(const SaveTarget &out, const std::vector<ConvertJob> &jobs, int64_t pieceBytes,
                  const ConvertProgress &progress, const ConvertRank &rank,
                  const std::function<Status(RankWriter &)> &objects) {
  ASSIGN_OR_RETURN(RankWriter writer, RankWriter::begin(out, rank.rank));
  if (rank.rank == 0)
    RETURN_IF_ERROR(objects(writer));
  std::vector<size_t> mine = shareOf(jobs, rank.rank, rank.worldSize);
  int64_t total = 0, done = 0;
  for (size_t index : mine)
    total += bytesOf(jobs[index]);
  std::vector<uint8_t> buffer;
  for (size_t index : mine) {
    const ConvertJob &job = jobs[index];
    RETURN_IF_ERROR(forPieces(job, pieceBytes, [&](const Shape &offset, const Shape &shape) {
      int64_t bytes = *tensorBytes(job.type, shape);
      buffer.resize(static_cast<size_t>(bytes));
      RETURN_IF_ERROR(job.read(offset, shape, buffer.data()));
      RETURN_IF_ERROR(job.write(writer, offset, shape, buffer.data()));
      done += bytes;
      if (progress)
        progress(done, total);
      return Status::ok();
    }));
  }
  return writer.finish();
}

} // namespace

Status runJobs(const SaveTarget &out, std::vector<ConvertJob> jobs, int64_t pieceBytes,
               const ConvertProgress &progress, const ConvertRank &rank,
               const std::function<Status(RankWriter &)> &objects) {
  auto meet = [&](Status status) {
    return rank.worldSize == 1 ? std::move(status) : rank.barrier(std::move(status));
  };
  RETURN_IF_ERROR(meet(rank.rank == 0 ? beginSave(out) : Status::ok()));
  Status status = meet(writeShare(out, jobs, pieceBytes, progress, rank, objects));
  if (status.isOk())
    status = meet(rank.rank == 0 ? commitSave(out, rank.worldSize) : Status::ok());
  if (!status.isOk() && rank.rank == 0)
    static_cast<void>(abandonSave(out)); // the first failure is the one to report
  return status;
}

} // namespace shardc::checkpoint
