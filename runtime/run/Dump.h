// Writes values of chosen steps to files, for comparison with another implementation: raw elements
// as in memory, and a JSON index that describes them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/exec/Executable.h"

namespace shardc::run {

/// What to write: `SEGMENT:NAME` is a value after its op has ended (a live-in value: when the
/// segment begins); `SEGMENT:@NAME` is a cell after the segment has ended. A `*` at the end matches
/// any suffix.
struct DumpSpec {
  std::string segment;
  std::string name;
  bool isCell = false;
  bool isPrefix = false;

  static Result<DumpSpec> parse(std::string_view text);
  bool matches(std::string_view candidate) const;
};

/// Writes a file `<segment>.<microbatch>.<name>.rank<r>.bin` into a folder for each value and rank,
/// and `index.json`: {"step", "params": [{"name", "dtype", "shape"}], "tensors": [{"file",
/// "segment", "microbatch", "name", "rank", "dtype", "shape", "parts": [{"param", "begin", "end",
/// "global_begin"}]}]}. If the value is a block or a shard of one, `parts` says which elements
/// belong to which parameter. If several processes run the job, each writes `index.rank<r>.json`,
/// where r is its first rank. In file names, characters that are not allowed in a word are written
/// as `%NN`.
class Dumper final : public exec::OpObserver {
public:
  /// Creates the folder. InvalidInput, with a list of what exists, if a spec matches nothing in the
  /// plan.
  static Result<std::unique_ptr<Dumper>> create(exec::Executable &executable, std::string folder,
                                                std::vector<DumpSpec> specs);
  void setStep(int64_t step) { step_ = step; }
  Status beforeSegment(const Position &position) override;
  Status afterOp(const Position &position) override;
  /// Writes the index. Writes nothing if no value was dumped.
  Status finish() const;

private:
  struct Written {
    std::string file, segment, name;
    int64_t step, microbatch;
    int rank;
    plan::Type type;
    int32_t block;
    int64_t begin; ///< offset in the block
  };

  Dumper(exec::Executable &executable, std::string folder, std::vector<DumpSpec> specs)
      : executable_(executable), folder_(std::move(folder)), specs_(std::move(specs)) {}

  Status checkSpecs() const;
  bool isThere(const DumpSpec &spec) const;
  std::string segmentNames() const;
  void findBlocks();
  std::vector<int32_t> blocksOf(const plan::Segment &segment, std::vector<int32_t> &ofCells) const;
  bool wants(const std::string &segment, const std::string &name, bool isCell) const;
  Status write(const Position &position, const std::string &name, const plan::Place &place,
               const plan::Type &type, int32_t block);
  Status writeCells(const Position &position);

  exec::Executable &executable_;
  std::string folder_;
  std::vector<DumpSpec> specs_;
  int64_t step_ = 0;
  std::vector<std::vector<int32_t>>
      blockOfValue_; ///< by segment number and value; -1 for values that are not blocks
  std::map<const plan::Role *, std::vector<int32_t>> blockOfCell_;
  std::vector<Written> written_;
};

} // namespace shardc::run
