// Reads a DCP checkpoint folder: any box of any tensor, assembled from the chunks that contain it,
// and objects. No part of a record is used before its checksum is verified. Our own files have a
// checksum per block. Files of other programs have one per record, which is verified once per
// reader. All reads are const and may run in parallel.
#pragma once

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

/// The amount of data that is verified while reading. Records without checksums are read with a
/// warning.
enum class Verify : uint8_t {
  /// Verifies only the data that a read needs. In our own files, that is each block of which a part
  /// is read. In other files, it is each complete record of which a part is read, since one
  /// checksum covers all of its values.
  Touched,
  /// Verifies each complete record of which a part is read, with both kinds of checksums.
  Whole,
};

/// An object of a checkpoint as plain data. It must not outlive its reader.
struct ObjectValue {
  ArchiveReader archive; ///< holds the tensors inside the object
  Pickle pickle;

  const PyGraph &graph() const { return pickle.graph; }
  PyId root() const { return pickle.root; }
};

/// One checkpoint in a DCP format, opened for reading: its names, and boxes of its tensors.
class CheckpointReader {
public:
  /// Opens a folder with a `.metadata`, and checks that every file it names exists and is long
  /// enough. Otherwise NotFound or InvalidInput with what is missing. `emit`, if set, receives a
  /// warning about records without checksums, from any thread that reads.
  static Result<CheckpointReader> open(const std::string &folder, Verify verify = Verify::Touched,
                                       ReportSink emit = nullptr);
  CheckpointReader(CheckpointReader &&) noexcept;
  CheckpointReader &operator=(CheckpointReader &&) noexcept;
  ~CheckpointReader();

  const std::string &folder() const;
  /// The folder, for access to files other than records.
  const UntrustedFolder &files() const;
  /// Opens a file other than a record, in the folder or a subfolder. The whole file is verified
  /// with our checksums; a `.pt` file without such checksums is verified with those inside it.
  /// Fails like UntrustedFolder::map.
  Result<std::unique_ptr<CheckedFile>> openFile(const std::string &name) const;
  const Metadata &metadata() const;
  /// Whether the checkpoint has our block checksums.
  bool hasIntegrity() const;
  /// CheckpointDamaged if shardc wrote the checkpoint but its block checksums are missing;
  /// otherwise ok.
  Status checkIntegrity() const;
  const TensorMeta *findTensor(std::string_view name) const;
  const ObjectMeta *findObject(std::string_view name) const;

  /// Reads a box of a tensor into the dense array `dst` of `type`, converting elements if needed.
  /// Fails if the tensor is missing, the box exceeds it, or the saved chunks do not cover the box.
  Status read(std::string_view name, const Box &box, Element type, void *dst) const;

  /// Passes a box to `take` in the tensor's own type, in parts of about kGivenPart bytes that are
  /// valid until `take` returns. If the box is a dense array within one chunk, parts point into the
  /// mapped file. A row that spans several chunks is one part.
  static constexpr int64_t kGivenPart = int64_t{1} << 20;
  Status give(std::string_view name, const Box &box, const TakeBytes &take) const;

  /// The bytes of an object's record: a torch archive whose entries have all been verified.
  Result<std::span<const uint8_t>> readObjectRecord(std::string_view name) const;
  /// Parses the object. Its classes are represented by their names only.
  Result<ObjectValue> readObject(std::string_view name) const;

  /// Adds the object's location to the status: its name, the file, and the position in it.
  Status withPlace(Status status, const ObjectMeta &object) const;

  /// Checks one item completely: the structure, checksums, types and shapes of its records, and
  /// coverage.
  Status verifyTensor(const TensorMeta &tensor) const;
  Status verifyObject(const ObjectMeta &object) const;
  /// Verifies the checkpoint's other files with our checksums.
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
