// Saves any DCP checkpoint for another number of ranks: items stay unchanged, but tensors are
// divided differently.
#include <set>

#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/checkpoint/ConvertWork.h"
#include "runtime/checkpoint/FileOps.h"

namespace shardc::checkpoint {
namespace {

/// Copies some rows of a tensor in pieces. A scalar is one row.
Status copyRows(const CheckpointReader &reader, const TensorMeta &tensor, RowRange rows,
                int64_t pieceBytes, RankWriter &writer) {
  auto found = reader.metadata().paths.find(tensor.name);
  ItemPath path = found != reader.metadata().paths.end() ? found->second : ItemPath();
  if (elementCount(tensor.shape) == 0) // only declares its name and shape
    return writer.add(
        {tensor.name, tensor.type, tensor.shape, Box::whole(tensor.shape), nullptr, path});
  if (rows.begin == rows.end)
    return Status::ok();
  Box mine =
      tensor.shape.empty() ? Box() : Box::rows(tensor.shape, rows.begin, rows.end - rows.begin);
  return forEachPiece(mine, tensor.type, pieceBytes, [&](const Box &box) {
    auto give = [&](const TakeBytes &take) { return reader.give(tensor.name, box, take); };
    return writer.add({tensor.name, tensor.type, tensor.shape, box, nullptr, path, give});
  });
}

Status copyObject(const CheckpointReader &reader, const std::string &name, const KeptNames &kept,
                  RankWriter &writer) {
  ASSIGN_OR_RETURN(ObjectValue object, reader.readObject(name));
  std::string what = fmt::format("'{}' in '{}'", name, reader.folder());
  ASSIGN_OR_RETURN(std::string record, copyOfObject(object.archive, object.pickle, what, kept));
  auto found = reader.metadata().paths.find(name);
  ItemPath path = found != reader.metadata().paths.end() ? found->second : ItemPath();
  return writer.add({name, std::move(record), std::move(path)});
}

/// Names of the files that contain records.
std::set<std::string> recordFiles(const Metadata &metadata) {
  std::set<std::string> names;
  for (const TensorMeta &tensor : metadata.tensors)
    for (const Chunk &chunk : tensor.chunks)
      names.insert(chunk.record.file);
  for (const ObjectMeta &object : metadata.objects)
    names.insert(object.record.file);
  return names;
}

/// Copies files other than records: `metadata.json`, `train_state.pt`, tokenizer folders and
/// others. Hidden files describe the records and are not copied.
Status copyOtherFiles(const CheckpointReader &reader, const SaveTarget &out,
                      const KeptNames &kept) {
  constexpr std::string_view kDigests = "integrity.json"; // Megatron's, of files that are replaced
  std::set<std::string> records = recordFiles(reader.metadata());
  ASSIGN_OR_RETURN(std::vector<UntrustedFolder::Entry> entries, reader.files().list());
  for (const auto &[name, isFolder] : entries) {
    bool isStale = name.ends_with(".distcp"); // from an older save with more ranks
    if (name.starts_with(".") || isStale || records.contains(name) || name == kDigests)
      continue;
    RETURN_IF_ERROR(isFolder ? copyFolder(reader, name, out, kept)
                             : copyFile(reader, name, out, kept));
  }
  return Status::ok();
}

int64_t allBytes(const Metadata &metadata) {
  int64_t bytes = 0;
  for (const TensorMeta &tensor : metadata.tensors)
    bytes += tensorBytes(tensor.type, tensor.shape).value_or(0);
  return bytes;
}

Status writeOneRank(const CheckpointReader &reader, const SaveTarget &out,
                    const ReshardOptions &options, int rank, ProgressSum &progress) {
  const Metadata &metadata = reader.metadata();
  ASSIGN_OR_RETURN(RankWriter writer, RankWriter::begin(out, rank));
  for (size_t i = static_cast<size_t>(rank); i < metadata.objects.size();
       i += static_cast<size_t>(options.ranks))
    RETURN_IF_ERROR(copyObject(reader, metadata.objects[i].name, options.keptNames, writer));
  for (const TensorMeta &tensor : metadata.tensors) {
    int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    RowRange range = shareOfRows(rows, rank, options.ranks);
    RETURN_IF_ERROR(copyRows(reader, tensor, range, options.pieceBytes, writer));
    if (rows > 0)
      progress.add(tensorBytes(tensor.type, tensor.shape).value_or(0) / rows *
                   (range.end - range.begin));
  }
  return writer.finish();
}

} // namespace

/// Divides the rows of each tensor evenly among `ranks` files. Threads take the ranks one after the
/// other. If anything fails, the unfinished save is removed.
Status reshard(const std::string &in, const SaveTarget &out, const ReshardOptions &options) {
  ASSIGN_OR_RETURN(CheckpointReader reader,
                   CheckpointReader::open(in, Verify::Touched, options.emit));
  if (!reader.metadata().originalShapes.empty())
    return makeStatus(report::CheckpointNotSupported,
                      "'{}' keeps optimizer tensors flattened, with their shapes in a field of old "
                      "Megatron's; convert it to fsdp_dtensor instead",
                      in);
  RETURN_IF_ERROR(makeFolders(out.root));
  RETURN_IF_ERROR(beginSave(out));
  ProgressSum progress(options.progress, allBytes(reader.metadata()));
  Status status =
      runOnThreads(static_cast<size_t>(options.threads), static_cast<size_t>(options.ranks),
                   [&](size_t rank, size_t) {
                     return writeOneRank(reader, out, options, static_cast<int>(rank), progress);
                   });
  if (status.isOk())
    status = copyOtherFiles(reader, out, options.keptNames);
  if (status.isOk())
    status = commitSave(out, options.ranks);
  if (!status.isOk())
    static_cast<void>(abandonSave(out)); // report the first failure instead
  return status;
}

} // namespace shardc::checkpoint
