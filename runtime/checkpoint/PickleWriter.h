// Writes pickles of protocol 2, the newest that torch's restricted loader takes. PickleBytes
// appends single opcodes, for writers that know their shape beforehand; writePickle turns a whole
// PyGraph into the bytes that Python's own pickler would give, memo included.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/PyGraph.h"

namespace shardc::checkpoint {

class PickleBytes {
public:
  /// Begins with the protocol header.
  PickleBytes();

  PickleBytes &op(char opcode);
  PickleBytes &none() { return op('N'); }
  PickleBytes &boolean(bool value) { return op(value ? '\x88' : '\x89'); }
  PickleBytes &integer(int64_t value);
  /// An integer of any size: two's complement, little endian.
  PickleBytes &bigInteger(std::string_view twosComplement);
  PickleBytes &number(double value);
  PickleBytes &str(std::string_view utf8);
  PickleBytes &global(std::string_view module, std::string_view name);
  /// `((n, m), )` of integers; 0 to 3 items have opcodes of their own.
  PickleBytes &integerTuple(std::span<const int64_t> values);
  /// Ends a tuple of `count` values, which lie on the stack; from 4 on, after a mark.
  PickleBytes &endTuple(size_t count);
  /// `q n` or `r n`: the next number of the memo.
  PickleBytes &memoize() { return putMemo(memoNext_++); }
  PickleBytes &recall(uint32_t index);
  uint32_t memoNext() const { return memoNext_; }
  /// Ends with STOP and hands the bytes over.
  std::string finish() &&;

private:
  PickleBytes &putMemo(uint32_t index);
  template <typename T> PickleBytes &raw(T value);

  std::string bytes_;
  uint32_t memoNext_ = 0;
};

/// The pickle that Python's pickler writes for `root` at protocol 2. Fails with InvalidInput where
/// values nest more than 1000 deep. `storages` receives the references to tensors' storages, if not
/// null.
Result<std::string> writePickle(const PyGraph &graph, PyId root,
                                std::vector<PyId> *storages = nullptr);

} // namespace shardc::checkpoint
