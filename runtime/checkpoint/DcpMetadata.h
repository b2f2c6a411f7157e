// The contents of a DCP checkpoint's `.metadata`: tensors with their chunks, objects, and the
// location of each record. Reads the variants of all torch versions, and writes that of torch
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

// The Python modules that the classes of a `.metadata` are pickled under.
constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFileModule = "torch.distributed.checkpoint.filesystem";

/// Bytes of one file of the checkpoint.
struct RecordRef {
  std::string file; ///< a name in the checkpoint's folder
  uint64_t offset = 0, length = 0;
};

/// A box of a tensor, and the record that holds it.
struct Chunk {
  Box box;
  RecordRef record;
};

struct TensorMeta {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  std::vector<Chunk> chunks;
};

struct ObjectMeta {
  std::string name;
  RecordRef record;
};

/// One step from the root of the nested state dict: a dictionary's key or a list's index.
using PathSegment = std::variant<std::string, int64_t>;
using ItemPath = std::vector<PathSegment>;

struct Metadata {
  std::vector<TensorMeta> tensors;
  std::vector<ObjectMeta> objects;
  std::map<std::string, ItemPath> paths; ///< planner_data: item name -> path
  /// Old torch_dist: true shapes of optimizer tensors that are stored flattened.
  std::map<std::string, Shape> originalShapes;
  std::optional<std::string> version;
  std::string saveId;
  std::vector<Report> warnings; ///< oddities that do no harm
};

/// Reads a `.metadata` file and checks that it hangs together: ranks and bounds of chunks, no chunk
/// twice, no overlap, a record for each chunk and object and none over another, names that are
/// their paths, plain file names. Coverage is checked where a tensor is read. Fails with
/// InvalidInput that names the item.
Result<Metadata> readMetadata(std::span<const uint8_t> bytes);

/// The bytes of `.metadata` for these items; `paths` may leave items out, which then get a path of
/// one segment. Names must be unique.
std::string writeMetadata(const Metadata &metadata);

/// The name of an item at a path: the segments joined by dots.
std::string nameOfPath(const ItemPath &path);

/// The checks of readMetadata, for metadata that was built in memory.
Status checkMetadata(const Metadata &metadata);

/// Whether a name may be that of a file in the checkpoint's folder.
bool isPlainFileName(std::string_view name);
/// The same for a file in that folder or in a subfolder; the path has slashes.
bool isPlainPath(std::string_view path);

} // namespace shardc::checkpoint
