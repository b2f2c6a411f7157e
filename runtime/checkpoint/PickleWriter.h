// Writes pickles with protocol 2, the newest that torch's restricted loader accepts. PickleBytes
// appends single opcodes, for writers that know the structure in advance. writePickle converts a
// whole PyGraph to the same bytes as Python's own pickler, including the memo.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/PyGraph.h"

namespace shardc::checkpoint {

/// Bytes of one pickle under construction. Each function appends a value or an opcode, and returns
/// the object.
class PickleBytes {
public:
  /// Begins with the protocol header.
  PickleBytes();

  /// An opcode without an argument.
  PickleBytes &op(char opcode);
  PickleBytes &none() { return op('N'); }
  PickleBytes &boolean(bool value) { return op(value ? '\x88' : '\x89'); }
  PickleBytes &integer(int64_t value);
  /// Writes an integer of any size, given as little endian two's complement.
  PickleBytes &bigInteger(std::string_view twosComplement);
  PickleBytes &number(double value);
  PickleBytes &str(std::string_view utf8);
  /// The class or function `module.name`, which the reader looks up.
  PickleBytes &global(std::string_view module, std::string_view name);
  /// Writes a tuple of integers. Tuples of 0 to 3 items have opcodes of their own.
  PickleBytes &integerTuple(std::span<const int64_t> values);
  /// Ends a tuple of `count` values on the stack. For 4 or more values, a mark must precede them.
  PickleBytes &endTuple(size_t count);
  /// memoize() writes `q n` with the next memo number, recall() `r n`.
  PickleBytes &memoize() { return putMemo(memoNext_++); }
  PickleBytes &recall(uint32_t index);
  uint32_t memoNext() const { return memoNext_; }
  /// Appends STOP and returns the bytes.
  std::string finish() &&;

private:
  PickleBytes &putMemo(uint32_t index);
  template <typename T> PickleBytes &raw(T value);

  std::string bytes_;
  uint32_t memoNext_ = 0;
};

/// The pickle that Python's pickler writes for `root` with protocol 2. InvalidInput if values are
/// nested more than 1000 deep. `storages`, if not null, receives the references to storages of
/// tensors.
Result<std::string> writePickle(const PyGraph &graph, PyId root,
                                std::vector<PyId> *storages = nullptr);

} // namespace shardc::checkpoint
