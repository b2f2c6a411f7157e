#include "runtime/checkpoint/PickleWriter.h"

#include <bit>
#include <cstring>
#include <unordered_map>

namespace shardc::checkpoint {
namespace {

constexpr size_t kBatch = 1000; // items per SETITEMS or APPENDS, as in Python's pickler
constexpr int kPickleDepthMax = 1000;

} // namespace

PickleBytes::PickleBytes() { bytes_ = "\x80\x02"; }

PickleBytes &PickleBytes::op(char opcode) {
  bytes_.push_back(opcode);
  return *this;
}

template <typename T> PickleBytes &PickleBytes::raw(T value) {
  char buffer[sizeof(T)];
  std::memcpy(buffer, &value, sizeof(T));
  bytes_.append(buffer, sizeof(T));
  return *this;
}

PickleBytes &PickleBytes::integer(int64_t value) {
  if (value >= 0 && value < 256)
    return op('K').raw(static_cast<uint8_t>(value));
  if (value >= 0 && value < 65536)
    return op('M').raw(static_cast<uint16_t>(value));
  if (value >= INT32_MIN && value <= INT32_MAX)
    return op('J').raw(static_cast<int32_t>(value));
  char bytes[8];
  std::memcpy(bytes, &value, 8);
  size_t length = 8; // drops bytes that only repeat the sign
  while (length > 1 && bytes[length - 1] == ((bytes[length - 2] & 0x80) != 0 ? '\xff' : '\0'))
    --length;
  return bigInteger({bytes, length});
}

PickleBytes &PickleBytes::bigInteger(std::string_view twosComplement) {
  if (twosComplement.size() < 256) {
    op('\x8a').raw(static_cast<uint8_t>(twosComplement.size()));
  } else {
    op('\x8b').raw(static_cast<uint32_t>(twosComplement.size()));
  }
  bytes_.append(twosComplement);
  return *this;
}

PickleBytes &PickleBytes::number(double value) {
  return op('G').raw(__builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

PickleBytes &PickleBytes::str(std::string_view utf8) {
  op('X').raw(static_cast<uint32_t>(utf8.size()));
  bytes_.append(utf8);
  return *this;
}

PickleBytes &PickleBytes::global(std::string_view module, std::string_view name) {
  op('c');
  bytes_.append(module).push_back('\n');
  bytes_.append(name).push_back('\n');
  return *this;
}

PickleBytes &PickleBytes::integerTuple(std::span<const int64_t> values) {
  if (values.size() > 3)
    op('(');
  for (int64_t value : values)
    integer(value);
  return endTuple(values.size());
}

PickleBytes &PickleBytes::endTuple(size_t count) {
  constexpr char kEnd[] = {')', '\x85', '\x86', '\x87'};
  return op(count > 3 ? 't' : kEnd[count]);
}

PickleBytes &PickleBytes::putMemo(uint32_t index) {
  return index < 256 ? op('q').raw(static_cast<uint8_t>(index)) : op('r').raw(index);
}

PickleBytes &PickleBytes::recall(uint32_t index) {
  return index < 256 ? op('h').raw(static_cast<uint8_t>(index)) : op('j').raw(index);
}

std::string PickleBytes::finish() && {
  op('.');
  return std::move(bytes_);
}

namespace {

/// Writes a graph with the order and memo of Python's pickler.
class GraphPickler {
public:
  GraphPickler(const PyGraph &graph, std::vector<PyId> *storages)
      : graph_(graph), storages_(storages) {}

  Result<std::string> run(PyId root) {
    RETURN_IF_ERROR(save(root));
    return std::move(out_).finish();
  }

private:
  Status save(PyId id) {
    if (auto found = memo_.find(id); found != memo_.end()) {
      out_.recall(found->second);
      return Status::ok();
    }
    if (++depth_ > kPickleDepthMax)
      return makeStatus(StatusCode::InvalidInput,
                        "values nested more than {} deep cannot be pickled", kPickleDepthMax);
    Status status = saveKind(id);
    --depth_;
    return status;
  }

  /// Writes a value by its kind. Texts, names and containers are memoized, so that a later
  /// occurrence is a reference to the first one.
  Status saveKind(PyId id) {
    switch (graph_.kind(id)) {
    case PyKind::None:
      out_.none();
      return Status::ok();
    case PyKind::Bool:
      out_.boolean(graph_.boolean(id));
      return Status::ok();
    case PyKind::Int:
      out_.integer(graph_.integer(id));
      return Status::ok();
    case PyKind::BigInt:
      out_.bigInteger(graph_.text(id));
      return Status::ok();
    case PyKind::Float:
      out_.number(graph_.number(id));
      return Status::ok();
    case PyKind::Str:
      out_.str(graph_.text(id));
      memoize(id);
      return Status::ok();
    case PyKind::Global:
      out_.global(graph_.global(id).module, graph_.global(id).name);
      memoize(id);
      return Status::ok();
    case PyKind::Tuple:
      return saveTuple(id);
    case PyKind::List:
    case PyKind::Dict: {
      bool isList = graph_.kind(id) == PyKind::List;
      out_.op(isList ? ']' : '}');
      memoize(id);
      return saveItems(graph_.items(id), isList ? 1 : 2, /*isExact=*/true);
    }
    case PyKind::Object:
      return saveObject(id);
    case PyKind::Bytes:
    case PyKind::ByteArray:
      return saveBytes(id);
    case PyKind::Set:
    case PyKind::FrozenSet:
      return saveSet(id);
    }
    return makeStatus(StatusCode::Internal, "a Python value of no known kind");
  }

  /// Tuples of up to three items have opcodes of their own, which need no mark.
  Status saveTuple(PyId id) {
    std::span<const PyId> items = graph_.items(id);
    if (items.size() > 3)
      out_.op('(');
    for (PyId item : items)
      RETURN_IF_ERROR(save(item));
    out_.endTuple(items.size());
    if (!items.empty())
      memoize(id);
    return Status::ok();
  }

  /// Writes bytes. Protocol 2 represents them as text with code points below 256.
  Status saveBytes(PyId id) {
    bool isArray = graph_.kind(id) == PyKind::ByteArray;
    if (isArray)
      out_.global("__builtin__", "bytearray").memoize();
    out_.global("_codecs", "encode").memoize();
    out_.str(utf8FromLatin1(graph_.text(id))).memoize();
    out_.str("latin1").memoize().endTuple(2).memoize().op('R');
    if (isArray)
      out_.memoize().endTuple(1).memoize().op('R');
    memoize(id);
    return Status::ok();
  }

  /// Writes a set, as a call with a list of its items.
  Status saveSet(PyId id) {
    out_.global("__builtin__", graph_.kind(id) == PyKind::Set ? "set" : "frozenset").memoize();
    out_.op(']').memoize();
    RETURN_IF_ERROR(saveItems(graph_.items(id), 1, /*isExact=*/true));
    out_.endTuple(1).memoize().op('R');
    memoize(id);
    return Status::ok();
  }

  Status saveObject(PyId id) {
    const PyObject &object = graph_.object(id);
    if (object.make == PyMake::Persistent) {
      // torch's persistent_id creates a new tuple each time, so only its parts are shared.
      RETURN_IF_ERROR(save(object.args));
      out_.op('Q');
      if (storages_ != nullptr)
        storages_->push_back(id);
      return Status::ok();
    }
    RETURN_IF_ERROR(save(object.callable));
    RETURN_IF_ERROR(save(object.args));
    out_.op(object.make == PyMake::New ? '\x81' : 'R');
    memoize(id);
    RETURN_IF_ERROR(saveItems(object.appended, 1, /*isExact=*/false));
    RETURN_IF_ERROR(saveItems(object.itemsSet, 2, /*isExact=*/false));
    if (object.state == kNoPy)
      return Status::ok();
    RETURN_IF_ERROR(save(object.state));
    out_.op('b');
    return Status::ok();
  }

  Status saveItems(std::span<const PyId> items, size_t width, bool isExact) {
    size_t total = items.size() / width;
    for (size_t done = 0; done < total;) {
      size_t batch = std::min(kBatch, total - done);
      // For a single item, Python's pickler omits the mark. In its loop for the built-in list and
      // dict, it does so only if that is the only item.
      bool isSingle = isExact ? total == 1 : batch == 1;
      if (!isSingle)
        out_.op('(');
      for (PyId item : items.subspan(done * width, batch * width))
        RETURN_IF_ERROR(save(item));
      out_.op(width == 1 ? (isSingle ? 'a' : 'e') : (isSingle ? 's' : 'u'));
      done += batch;
    }
    return Status::ok();
  }

  void memoize(PyId id) {
    memo_[id] = out_.memoNext();
    out_.memoize();
  }

  const PyGraph &graph_;
  std::vector<PyId> *storages_;
  PickleBytes out_;
  std::unordered_map<PyId, uint32_t> memo_;
  int depth_ = 0;
};

} // namespace

Result<std::string> writePickle(const PyGraph &graph, PyId root, std::vector<PyId> *storages) {
  return GraphPickler(graph, storages).run(root);
}

} // namespace shardc::checkpoint
