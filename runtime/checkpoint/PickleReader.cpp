#include "runtime/checkpoint/PickleReader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>
#include <unordered_map>

#include "runtime/base/Reports.h"
#include "runtime/base/Utf8.h"

namespace shardc::checkpoint {
namespace {

constexpr size_t kLongBytesMax = 64;

enum Op : uint8_t {
#define OP(enumerator, byte, group, inTensorRecords) k##enumerator = byte,
#include "runtime/checkpoint/PickleOps.def"
};

/// Groups of opcodes; one function executes each group.
enum class OpGroup : uint8_t { Refused, Stack, Scalar, Container, Fill, Object, Memo };

struct OpRow {
  OpGroup group = OpGroup::Refused;
  bool inTensorRecords = false;
};

constexpr std::array<OpRow, 256> makeOpRows() {
  std::array<OpRow, 256> rows = {};
#define OP(enumerator, byte, group, inTensorRecords) rows[byte] = {OpGroup::group, inTensorRecords};
#include "runtime/checkpoint/PickleOps.def"
  return rows;
}

constexpr std::array<OpRow, 256> kOpRows = makeOpRows();

bool isContainer(PyKind kind) {
  return kind == PyKind::Tuple || kind == PyKind::List || kind == PyKind::Dict ||
         kind == PyKind::Set || kind == PyKind::FrozenSet;
}

bool isGetattr(std::string_view module, std::string_view name) {
  return name == "getattr" && (module == "builtins" || module == "__builtin__");
}

class Machine {
public:
  Machine(std::span<const uint8_t> bytes, PickleContext context, const PickleLimits &limits)
      : bytes_(bytes), context_(context), limits_(limits) {}

  /// Executes opcodes until STOP, which must leave exactly one value. Bytes after it are only a
  /// warning.
  Result<Pickle> run() {
    if (bytes_.size() > limits_.bytesMax)
      return makeStatus(report::CheckpointDamaged, "a pickle of {} bytes; the limit is {}",
                        bytes_.size(), limits_.bytesMax);
    if (bytes_.size() < 3 || bytes_[0] != kProto)
      return makeStatus(report::CheckpointDamaged,
                        "no pickle of protocol 2 or newer: it does not begin with PROTO");
    while (at_ < bytes_.size()) {
      opAt_ = at_;
      uint8_t op = bytes_[at_++];
      if (op == kStop) {
        if (stack_.size() != 1 || !marks_.empty())
          return fail(fmt::format("ends with {} values on the stack instead of 1", stack_.size()));
        result_.root = stack_[0];
        RETURN_IF_ERROR(checkGetattrs());
        result_.bytesUsed = at_;
        result_.unknownNames.assign(unknown_.begin(), unknown_.end());
        if (at_ != bytes_.size())
          result_.warnings.push_back(
              makeReport(report::OddMetadata,
                         fmt::format("{} bytes follow the pickle's end", bytes_.size() - at_)));
        return std::move(result_);
      }
      RETURN_IF_ERROR(step(op));
    }
    return fail("ends without STOP");
  }

private:
  Status step(uint8_t op) {
    if (context_ == PickleContext::TensorRecord && !kOpRows[op].inTensorRecords)
      return fail(fmt::format("opcode 0x{:02x} is not allowed in a tensor record", op));
    switch (kOpRows[op].group) {
    case OpGroup::Stack:
      return stepStack(op);
    case OpGroup::Scalar:
      return stepScalar(op);
    case OpGroup::Container:
      return stepContainer(op);
    case OpGroup::Fill:
      return stepFill(op);
    case OpGroup::Object:
      return stepObject(op);
    case OpGroup::Memo:
      return stepMemo(op);
    case OpGroup::Refused:
      break;
    }
    return fail(fmt::format("opcode 0x{:02x} is not allowed", op));
  }

  /// Executes an opcode that changes the stack or pushes a constant.
  Status stepStack(uint8_t op) {
    switch (op) {
    case kMark:
      if (marks_.size() >= limits_.depthMax)
        return fail(fmt::format("marks nested more than {} deep", limits_.depthMax));
      marks_.push_back(stack_.size());
      return Status::ok();
    case kPop:
      if (stack_.size() == base() && !marks_.empty())
        return popMark().status();
      return pop().status();
    case kPopMark: {
      ASSIGN_OR_RETURN(size_t first, popMark());
      stack_.resize(first);
      return Status::ok();
    }
    case kDup:
      return stack_.size() > base() ? push(peek()) : fail("takes a value from an empty stack");
    case kNone:
      return push(graph_.makeNone());
    case kNewTrue:
    case kNewFalse:
      return push(graph_.makeBool(op == kNewTrue));
    case kFrame: { // only a hint for buffering
      ASSIGN_OR_RETURN(uint64_t length, takeUnsigned(8));
      return length <= bytes_.size() - at_ ? Status::ok()
                                           : fail("a frame that is longer than the file");
    }
    default: // PROTO
      break;
    }
    ASSIGN_OR_RETURN(uint64_t version, takeUnsigned(1));
    return version <= 5 ? Status::ok()
                        : fail(fmt::format("protocol {}; the newest supported one is 5", version));
  }

  /// Executes an opcode that pushes a text or a number. BINFLOAT is big endian, unlike all other
  /// numbers.
  Status stepScalar(uint8_t op) {
    switch (op) {
    case kBinUnicode:
      return pushText(PyKind::Str, 4);
    case kShortBinUnicode:
    case kShortBinString:
      return pushText(PyKind::Str, 1);
    case kBinString:
      return pushText(PyKind::Str, 4);
    case kBinUnicode8:
      return pushText(PyKind::Str, 8);
    case kShortBinBytes:
      return pushText(PyKind::Bytes, 1);
    case kBinBytes:
      return pushText(PyKind::Bytes, 4);
    case kBinBytes8:
      return pushText(PyKind::Bytes, 8);
    case kByteArray8:
      return pushText(PyKind::ByteArray, 8);
    case kLong1:
      return pushLong(1);
    case kLong4:
      return pushLong(4);
    case kBinInt1: {
      ASSIGN_OR_RETURN(uint64_t value, takeUnsigned(1));
      return push(graph_.makeInteger(static_cast<int64_t>(value)));
    }
    case kBinInt2: {
      ASSIGN_OR_RETURN(uint64_t value, takeUnsigned(2));
      return push(graph_.makeInteger(static_cast<int64_t>(value)));
    }
    case kBinInt: {
      ASSIGN_OR_RETURN(uint64_t value, takeUnsigned(4));
      return push(graph_.makeInteger(static_cast<int32_t>(value)));
    }
    default: // BINFLOAT
      break;
    }
    ASSIGN_OR_RETURN(uint64_t value, takeUnsigned(8));
    return push(graph_.makeFloat(std::bit_cast<double>(__builtin_bswap64(value)))); // big endian
  }

  /// Executes an opcode that makes a container, either empty or from the values above the last
  /// mark.
  Status stepContainer(uint8_t op) {
    switch (op) {
    case kEmptyList:
      return push(graph_.container(PyKind::List));
    case kEmptyDict:
      return push(graph_.container(PyKind::Dict));
    case kEmptySet:
      return push(graph_.container(PyKind::Set));
    case kEmptyTuple:
      return push(graph_.tuple(std::span<const PyId>()));
    case kTuple1:
    case kTuple2:
    case kTuple3: {
      size_t count = static_cast<size_t>(op - kTuple1) + 1;
      if (stack_.size() - base() < count)
        return fail("takes a value from an empty stack");
      return pushTuple(stack_.size() - count);
    }
    default: // TUPLE, LIST, DICT, FROZENSET
      break;
    }
    ASSIGN_OR_RETURN(size_t first, popMark());
    if (op == kTuple)
      return pushTuple(first);
    PyId id = graph_.container(op == kList   ? PyKind::List
                               : op == kDict ? PyKind::Dict
                                             : PyKind::FrozenSet);
    RETURN_IF_ERROR(fill(id, std::span(stack_).subspan(first)));
    stack_.resize(first);
    return push(id);
  }

  /// Executes opcodes that add to a container: APPEND and SETITEM take one item from the stack, the
  /// others take all items since the mark. The container is below them.
  Status stepFill(uint8_t op) {
    bool isSingle = op == kAppend || op == kSetItem;
    size_t first = 0;
    if (isSingle) {
      size_t count = op == kAppend ? 1 : 2;
      if (stack_.size() - base() < count)
        return fail("takes a value from an empty stack");
      first = stack_.size() - count;
    } else {
      ASSIGN_OR_RETURN(first, popMark());
    }
    if (first <= base())
      return fail("fills a container that is not there");
    PyId target = stack_[first - 1];
    bool setsItems = op == kSetItem || op == kSetItems;
    bool isSet = graph_.is(target, PyKind::Set);
    if (isSet != (op == kAddItems) || (setsItems && graph_.is(target, PyKind::List)) ||
        (!setsItems && graph_.is(target, PyKind::Dict)))
      return fail("fills a container of another kind");
    RETURN_IF_ERROR(fill(target, std::span(stack_).subspan(first), setsItems));
    stack_.resize(first);
    return Status::ok();
  }

  /// Executes an opcode that names a class, calls one, or sets an object's state. Calls are
  /// recorded in the graph and never executed.
  Status stepObject(uint8_t op) {
    switch (op) {
    case kGlobal: {
      std::string_view module, name;
      RETURN_IF_ERROR(takeLine(module));
      RETURN_IF_ERROR(takeLine(name));
      return pushGlobal(module, name);
    }
    case kStackGlobal: {
      ASSIGN_OR_RETURN(PyId name, pop());
      ASSIGN_OR_RETURN(PyId module, pop());
      if (!graph_.is(name, PyKind::Str) || !graph_.is(module, PyKind::Str))
        return fail("a class whose name is not a string");
      return pushGlobal(graph_.text(module), graph_.text(name));
    }
    case kReduce:
    case kNewObj: {
      ASSIGN_OR_RETURN(PyId args, pop());
      ASSIGN_OR_RETURN(PyId callable, pop());
      if (!graph_.is(args, PyKind::Tuple))
        return fail("a call whose arguments are not a tuple");
      if (!graph_.is(callable, PyKind::Global))
        return fail("a call of something that has no name");
      // Only enumerations are read by getattr; anything else may reach code.
      if (isGetattr(graph_.global(callable).module, graph_.global(callable).name))
        RETURN_IF_ERROR(op == kReduce ? checkMember(args) : failTampered("builtins", "getattr"));
      PyId id = graph_.object(op == kReduce ? PyMake::Call : PyMake::New, callable, args);
      RETURN_IF_ERROR(checkDepth(id));
      return push(id);
    }
    case kBinPersId:
      return pushPersistent();
    default:
      return build();
    }
  }

  Status stepMemo(uint8_t op) {
    if (op == kMemoize)
      return remember(memo_.size() + sparseMemo_.size());
    ASSIGN_OR_RETURN(uint64_t index, takeUnsigned(op == kBinPut || op == kBinGet ? 1 : 4));
    return op == kBinPut || op == kLongBinPut ? remember(index) : recall(index);
  }

  Status fail(std::string what) const {
    return makeStatus(report::CheckpointDamaged, "pickle byte {}: {}", opAt_, what);
  }

  Status take(uint64_t count, std::span<const uint8_t> &out) {
    if (count > bytes_.size() - at_)
      return fail(fmt::format("needs {} bytes but {} are left", count, bytes_.size() - at_));
    out = bytes_.subspan(at_, static_cast<size_t>(count));
    at_ += static_cast<size_t>(count);
    return Status::ok();
  }

  Result<uint64_t> takeUnsigned(size_t width) {
    std::span<const uint8_t> raw;
    RETURN_IF_ERROR(take(width, raw));
    uint64_t value = 0;
    for (size_t i = 0; i < width; ++i)
      value |= static_cast<uint64_t>(raw[i]) << (8 * i);
    return value;
  }

  Status takeLine(std::string_view &out) {
    const uint8_t *begin = bytes_.data() + at_;
    const void *end = std::memchr(begin, '\n', bytes_.size() - at_);
    if (end == nullptr)
      return fail("a line without end");
    size_t length = static_cast<size_t>(static_cast<const uint8_t *>(end) - begin);
    out = {reinterpret_cast<const char *>(begin), length};
    at_ += length + 1;
    return isUtf8(out) ? Status::ok() : fail("a name that is not UTF-8");
  }

  Result<PyId> pop() {
    if (stack_.size() <= base())
      return fail("takes a value from an empty stack");
    PyId id = stack_.back();
    stack_.pop_back();
    return id;
  }

  Result<size_t> popMark() {
    if (marks_.empty())
      return fail("goes back to a mark that was not set");
    size_t first = marks_.back();
    marks_.pop_back();
    return first;
  }

  Status push(PyId id) {
    if (graph_.size() > limits_.valuesMax)
      return fail(fmt::format("more than {} values", limits_.valuesMax));
    stack_.push_back(id);
    return Status::ok();
  }

  Status pushText(PyKind kind, size_t lengthWidth) {
    ASSIGN_OR_RETURN(uint64_t length, takeUnsigned(lengthWidth));
    std::span<const uint8_t> raw;
    RETURN_IF_ERROR(take(length, raw));
    if (raw.size() > 0xffffffffu)
      return fail("a string of more than 4 GiB");
    std::string_view text(reinterpret_cast<const char *>(raw.data()), raw.size());
    if (kind == PyKind::Str && !isUtf8(text))
      return fail("a string that is not UTF-8");
    return push(graph_.borrowedText(kind, text));
  }

  /// Integers are in two's complement, the lowest byte first. Those of more than 8 bytes stay text.
  Status pushLong(size_t lengthWidth) {
    ASSIGN_OR_RETURN(uint64_t length, takeUnsigned(lengthWidth));
    if (length > kLongBytesMax)
      return fail(fmt::format("an integer of {} bytes; the limit is {}", length, kLongBytesMax));
    std::span<const uint8_t> raw;
    RETURN_IF_ERROR(take(length, raw));
    if (length > 8)
      return push(graph_.borrowedText(PyKind::BigInt,
                                      {reinterpret_cast<const char *>(raw.data()), raw.size()}));
    uint64_t value = length != 0 && (raw[length - 1] & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = 0; i < length; ++i)
      value = (value & ~(uint64_t{0xff} << (8 * i))) | static_cast<uint64_t>(raw[i]) << (8 * i);
    return push(graph_.makeInteger(static_cast<int64_t>(value)));
  }

  /// Pushes the name of a class or function, if the context allows it. `getattr` is allowed only
  /// for members of enumerations, which its call checks.
  Status pushGlobal(std::string_view module, std::string_view name) {
    auto isControl = [](char c) { return static_cast<uint8_t>(c) < 0x20; };
    // In protocol 2, a name with a newline would be read back as another name.
    if (module.empty() || name.empty() || std::ranges::any_of(module, isControl) ||
        std::ranges::any_of(name, isControl))
      return fail("a class whose name is not valid");
    if (isGetattr(module, name) &&
        context_ != PickleContext::TensorRecord) { // checked at its call and at the end
      getattrs_.push_back(graph_.global(module, name));
      return push(getattrs_.back());
    }
    switch (judgeGlobal(context_, module, name)) {
    case GlobalVerdict::Allowed:
      break;
    case GlobalVerdict::Suspect:
      result_.warnings.push_back(makeReport(
          report::OddMetadata, fmt::format("uses '{}.{}', kept without meaning", module, name)));
      [[fallthrough]];
    case GlobalVerdict::Opaque:
      if (++opaqueGlobals_ > limits_.globalsMax)
        return fail(fmt::format("more than {} unknown names", limits_.globalsMax));
      unknown_.insert(fmt::format("{}.{}", module, name));
      break;
    case GlobalVerdict::Refused:
      return fail(fmt::format("names '{}.{}', which does not belong here", module, name));
    case GlobalVerdict::Tamper:
      return failTampered(module, name);
    }
    if (result_.warnings.size() > 100)
      return fail("more than 100 suspect names");
    return push(graph_.global(module, name));
  }

  Status failTampered(std::string_view module, std::string_view name) const {
    return fail(
        fmt::format("names '{}.{}', which would run code under Python; the file was tampered "
                    "with",
                    module, name));
  }

  /// Checks the arguments of a call of getattr. Only one form is accepted: a known enumeration and
  /// the plain name of a member.
  Status checkMember(PyId args) const {
    std::span<const PyId> parts = graph_.items(args);
    bool isMember =
        parts.size() == 2 && graph_.is(parts[0], PyKind::Global) &&
        isEnum(context_, graph_.global(parts[0]).module, graph_.global(parts[0]).name) &&
        graph_.is(parts[1], PyKind::Str);
    if (!isMember)
      return failTampered("builtins", "getattr");
    std::string_view name = graph_.text(parts[1]);
    bool isPlain =
        !name.empty() && !name.starts_with("__") && std::ranges::all_of(name, [](char c) {
          return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                 (c >= 'A' && c <= 'Z');
        });
    return isPlain ? Status::ok() : failTampered("builtins", "getattr");
  }

  /// Checks that getattr is only called: it must not be a value, an argument or a state.
  Status checkGetattrs() {
    if (getattrs_.empty())
      return Status::ok();
    std::vector<bool> isOne(graph_.size());
    for (PyId id : getattrs_)
      isOne[id] = true;
    bool isUsed = isOne[result_.root];
    auto use = [&](PyId id) { isUsed = isUsed || (id != kNoPy && isOne[id]); };
    for (PyId id = 0; id < graph_.size(); ++id) {
      if (graph_.is(id, PyKind::Object)) {
        const PyObject &object = graph_.object(id);
        use(object.args); // a tuple, or the id of a storage
        use(object.state);
        std::ranges::for_each(object.appended, use);
        std::ranges::for_each(object.itemsSet, use);
      } else if (isContainer(graph_.kind(id))) {
        std::ranges::for_each(graph_.items(id), use);
      }
    }
    return isUsed ? failTampered("builtins", "getattr") : Status::ok();
  }

  Status pushTuple(size_t first) {
    PyId id = graph_.tuple(std::span(stack_).subspan(first));
    stack_.resize(first);
    RETURN_IF_ERROR(checkDepth(id));
    return push(id);
  }

  /// torch refers to a storage by ('storage', class, key, location, size).
  Status pushPersistent() {
    if (context_ == PickleContext::Metadata)
      return fail("a reference to a storage, which does not belong in metadata");
    ASSIGN_OR_RETURN(PyId id, pop());
    if (!graph_.is(id, PyKind::Tuple) || graph_.items(id).size() != 5)
      return fail("a storage reference that is not a tuple of 5");
    std::span<const PyId> parts = graph_.items(id);
    if (graph_.asText(parts[0]) != "storage" || !graph_.is(parts[1], PyKind::Global) ||
        !graph_.is(parts[2], PyKind::Str) || !graph_.is(parts[3], PyKind::Str) ||
        !graph_.asInteger(parts[4]))
      return fail("a storage reference that is not ('storage', class, key, location, size)");
    return push(graph_.object(PyMake::Persistent, kNoPy, id));
  }

  /// Adds items to a list, set, dictionary or object. For dictionaries, keys and values alternate.
  Status fill(PyId target, std::span<const PyId> items, bool setsItems = false) {
    std::vector<PyId> *to = nullptr;
    switch (graph_.kind(target)) {
    case PyKind::Dict:
      setsItems = true;
      [[fallthrough]];
    case PyKind::List:
    case PyKind::Set:
    case PyKind::FrozenSet:
      to = &graph_.mutableItems(target);
      break;
    case PyKind::Object: // an instance of a class derived from list or dict
      to = setsItems ? &graph_.mutableObject(target).itemsSet
                     : &graph_.mutableObject(target).appended;
      break;
    default:
      return fail("fills a value that is not a container");
    }
    if (setsItems && items.size() % 2 != 0)
      return fail("a dictionary key without a value");
    for (size_t i = 0; i < items.size(); ++i) {
      if (setsItems && i % 2 == 0)
        RETURN_IF_ERROR(checkKey(items[i]));
      to->push_back(items[i]);
      graph_.noteChild(target, items[i]);
    }
    return checkDepth(target);
  }

  Status build() {
    ASSIGN_OR_RETURN(PyId state, pop());
    if (stack_.size() <= base() || !graph_.is(peek(), PyKind::Object) ||
        graph_.object(peek()).make == PyMake::Persistent)
      return fail("gives a state to a value that is not an object");
    PyObject &object = graph_.mutableObject(peek());
    if (object.state != kNoPy)
      return fail("gives an object a second state");
    object.state = state;
    graph_.noteChild(peek(), state);
    return checkDepth(peek());
  }

  /// Indices usually count up from 0. Others go to a map, so that a large index takes no memory.
  Status remember(uint64_t index) {
    if (stack_.size() <= base())
      return fail("remembers a value of an empty stack");
    if (index < memo_.size())
      memo_[static_cast<size_t>(index)] = peek();
    else if (index == memo_.size())
      memo_.push_back(peek());
    else
      sparseMemo_[index] = peek();
    return Status::ok();
  }

  Status recall(uint64_t index) {
    if (auto found = sparseMemo_.find(index); found != sparseMemo_.end() && index >= memo_.size())
      return push(found->second);
    if (index >= memo_.size())
      return fail(fmt::format("recalls value {}, which was not remembered", index));
    return push(memo_[static_cast<size_t>(index)]);
  }

  Status checkDepth(PyId id) const {
    if (graph_.depth(id) > limits_.depthMax)
      return fail(fmt::format("values nested more than {} deep", limits_.depthMax));
    return Status::ok();
  }

  Status checkKey(PyId key) const {
    switch (graph_.kind(key)) {
    case PyKind::List:
    case PyKind::Dict:
    case PyKind::Set:
    case PyKind::ByteArray:
      return fail("a dictionary key that cannot be hashed");
    default:
      return Status::ok();
    }
  }
  PyId peek() const { return stack_.back(); }
  size_t base() const { return marks_.empty() ? 0 : marks_.back(); }

  std::span<const uint8_t> bytes_;
  PickleContext context_;
  const PickleLimits &limits_;
  Pickle result_;
  PyGraph &graph_ = result_.graph;
  std::vector<PyId> stack_;
  std::vector<size_t> marks_;
  std::vector<PyId> memo_;                        // dense indices, as picklers assign them
  std::unordered_map<uint64_t, PyId> sparseMemo_; // other indices
  size_t at_ = 0;
  size_t opAt_ = 0;
  uint32_t opaqueGlobals_ = 0;
  std::set<std::string> unknown_;
  std::vector<PyId> getattrs_; ///< uses of `builtins.getattr`, which may only be called
};

} // namespace

Result<Pickle> readPickle(std::span<const uint8_t> bytes, PickleContext context,
                          const PickleLimits &limits) {
  return Machine(bytes, context, limits).run();
}

} // namespace shardc::checkpoint
