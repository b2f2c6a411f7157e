// The contents of a DCP checkpoint's `.metadata`: tensors with their chunks, objects, and the
// location of each record. Reads the variants of all torch versions, and writes the one of torch
// 2.11.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/Box.h"

namespace shardc::checkpoint {

// Python modules of the classes in a pickled `.metadata`.
constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFileModule = "torch.distributed.checkpoint.filesystem";

/// A byte range of one file of the checkpoint.
struct RecordRef {
  std::string file; ///< name of a file in the checkpoint's folder
  uint64_t offset = 0, length = 0;
};

/// A box of a tensor, and the record that contains it.
struct Chunk {
  Box box;
  RecordRef record;
};

/// A tensor, and the chunks that together have all of its elements.
struct TensorMeta {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  std::vector<Chunk> chunks;
};

/// An item that is not a tensor: a pickled object in a record.
struct ObjectMeta {
  std::string name;
  RecordRef record;
};

/// One step from the root of the nested state dict: a dictionary key or a list index.
using PathSegment = std::variant<std::string, int64_t>;
using ItemPath = std::vector<PathSegment>;

/// The content of `.metadata`: every item of the checkpoint and the place of its bytes.
struct Metadata {
  std::vector<TensorMeta> tensors;
  std::vector<ObjectMeta> objects;
  std::map<std::string, ItemPath> paths; ///< torch's planner_data: path of each item, by name
  /// For old torch_dist: original shapes of optimizer tensors that are stored flattened.
  std::map<std::string, Shape> originalShapes;
  std::optional<std::string> version;
  std::string saveId;
  std::vector<Report> warnings; ///< harmless irregularities
};

/// Reads a `.metadata` file and checks its consistency: chunks have the right rank and bounds, do
/// not repeat or overlap, each chunk and object has a record, records do not overlap, names equal
/// their paths, and file names are plain. Coverage is only checked when a tensor is read.
/// InvalidInput, with the name of the item, on failure.
Result<Metadata> readMetadata(std::span<const uint8_t> bytes);

/// The bytes of a `.metadata` file. Items that `paths` lacks get a path of one segment. Names must
/// be unique.
std::string writeMetadata(const Metadata &metadata);

/// The name of an item at a path: the segments joined by dots.
std::string nameOfPath(const ItemPath &path);

/// Executes the checks of readMetadata on metadata that was built in memory.
Status checkMetadata(const Metadata &metadata);

/// Whether the name may be that of a file in the checkpoint's folder.
bool isPlainFileName(std::string_view name);
/// Whether the path, with slashes, may be that of a file in that folder or a subfolder.
bool isPlainPath(std::string_view path);

} // namespace shardc::checkpoint
