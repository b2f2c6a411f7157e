// Reads a DCP checkpoint folder: any box of any tensor, gathered from whichever chunks hold it, and
// objects. No reader uses any part of a record before its checksum is compared: in our own files
// the checksum of each block that is read, in other programs' files that of the complete record,
// once per reader. All reads are const and may run in parallel.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/DcpMetadata.h"
#include "runtime/checkpoint/Integrity.h"
#include "runtime/checkpoint/PickleReader.h"
#include "runtime/checkpoint/TensorRecord.h"

namespace shardc::checkpoint {

/// How much is compared with checksums while reading.
/// Records without checksums are read nevertheless, with a warning.
enum class Verify : uint8_t {
  /// The data that a read depends on. In our own files: each block of which a part is read. In
  /// other files: each record of which a part is read, completely, since it has one checksum for
  /// all of its values.
  Touched,
  /// Each record of which a part is read, completely, by both kinds of checksums.
  Whole,
};

/// An object of a checkpoint as plain data. Valid as long as its reader.
struct ObjectValue {
  ArchiveReader archive; ///< for tensors inside the object
  Pickle pickle;

  const PyGraph &graph() const { return pickle.graph; }
  PyId root() const { return pickle.root; }
};

class CheckpointReader {
public:
  /// Opens a folder that holds a `.metadata`, and checks that every file that it names is there and
  /// long enough. NotFound or InvalidInput with what is missing otherwise. `emit`, if there is one,
  /// takes a warning of records without checksums, from any thread that reads.
  static Result<CheckpointReader> open(const std::string &folder, Verify verify = Verify::Touched,
                                       ReportSink emit = nullptr);
  CheckpointReader(CheckpointReader &&) noexcept;
  CheckpointReader &operator=(CheckpointReader &&) noexcept;
  ~CheckpointReader();

  const std::string &folder() const;
  /// The folder, for files other than the records.
  const UntrustedFolder &files() const;
  /// A file beside the records, which lies in the folder or in one in it: all of it compared with
  /// our checksums, or, of a `.pt` file that they do not name, with those inside. Failures as
  /// UntrustedFolder::map.
  Result<std::unique_ptr<CheckedFile>> openFile(const std::string &name) const;
  const Metadata &metadata() const;
  /// Whether the checkpoint carries our block checksums.
  bool hasIntegrity() const;
  /// Whether it lacks them although shardc wrote it; CheckpointDamaged then, else ok.
  Status checkIntegrity() const;
  const TensorMeta *findTensor(std::string_view name) const;
  const ObjectMeta *findObject(std::string_view name) const;

  /// Reads a box of a tensor into the dense array `dst` of `type`, converting if need be. Fails if
  /// the tensor is missing, the box leaves it, or the saved chunks do not cover the box.
  Status read(std::string_view name, const Box &box, Element type, void *dst) const;

  /// Gives the same box in the tensor's own type, in parts of about kGivenPart bytes that are valid
  /// until `take` returns: parts of the mapped file where the box lies in one chunk as a dense
  /// array. A row that several chunks share is one part.
  static constexpr int64_t kGivenPart = int64_t{1} << 20;
  Status give(std::string_view name, const Box &box, const TakeBytes &take) const;

  /// The bytes of an object's record: a torch archive, all entries of which were checked.
  Result<std::span<const uint8_t>> readObjectRecord(std::string_view name) const;
  /// The object itself; its classes are names only.
  Result<ObjectValue> readObject(std::string_view name) const;

  /// Adds the object's location to the status: its name, the file, and the position in it.
  Status withPlace(Status status, const ObjectMeta &object) const;

  /// Checks one item in full: its records' structure, checksums, types and shapes, and coverage.
  Status verifyTensor(const TensorMeta &tensor) const;
  Status verifyObject(const ObjectMeta &object) const;
  /// Checks the checkpoint's other files against our checksums.
  Status verifyFiles() const;

private:
  struct State;
  explicit CheckpointReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Opens a checkpoint folder; the same as CheckpointReader::open.
inline Result<CheckpointReader> open(const std::string &folder) {
  return CheckpointReader::open(folder);
}

} // namespace shardc::checkpoint
