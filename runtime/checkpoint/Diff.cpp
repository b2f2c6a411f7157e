#include "runtime/checkpoint/Diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "runtime/base/Thread.h"
#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/ConvertWork.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {
namespace {

/// A position in two objects at which their values differ.
struct ValueDifference {
  std::string path; ///< keys and indices, joined by dots; empty for the object itself
  std::string a, b; ///< both values as text
};

constexpr const char *kNothing = "nothing"; ///< if only the other object has a value

/// A value as text; if it is not plain, the name of its kind.
std::string textIn(const ObjectValue &object, PyId id) {
  if (id == kNoPy)
    return kNothing;
  Result<PlainValue> value = plainValueOf(object.graph(), id, &object.archive);
  return value.isOk() ? textOf(*value) : value.status().message();
}

class Comparison {
public:
  Comparison(const ObjectValue &a, const ObjectValue &b) : a_(a), b_(b) {}

  void compare(PyId a, PyId b) {
    if (!seen_.emplace(a, b).second)
      return;
    std::optional<std::string> x = left().asBytes(a), y = right().asBytes(b);
    if (x && x == y) // the protocols represent bytes differently
      return;
    if (left().kind(a) != right().kind(b))
      return note(a, b);
    switch (left().kind(a)) {
    case PyKind::Tuple:
    case PyKind::List:
    case PyKind::Set:
    case PyKind::FrozenSet:
      return compareItems(left().items(a), right().items(b));
    case PyKind::Dict:
      return comparePairs(left().items(a), right().items(b));
    case PyKind::Object:
      return compareObjects(a, b);
    default:
      if (!isSameScalar(a, b))
        note(a, b);
    }
  }
  std::vector<ValueDifference> take() { return std::move(found_); }

private:
  using Ids = std::span<const PyId>;

  const PyGraph &left() const { return a_.graph(); }
  const PyGraph &right() const { return b_.graph(); }
  void note(PyId a, PyId b) { found_.push_back({path_, textIn(a_, a), textIn(b_, b)}); }

  void compareAt(const std::string &segment, PyId a, PyId b) {
    size_t length = path_.size();
    path_ += (path_.empty() ? "" : ".") + segment;
    if (a == kNoPy || b == kNoPy)
      note(a, b);
    else
      compare(a, b);
    path_.resize(length);
  }

  void compareItems(Ids a, Ids b) {
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i)
      compareAt(std::to_string(i), i < a.size() ? a[i] : kNoPy, i < b.size() ? b[i] : kNoPy);
  }

  /// Compares dictionaries by the text of their keys. If a key occurs several times, the last one
  /// counts, as in Python.
  void comparePairs(Ids a, Ids b) {
    std::map<std::string, std::pair<PyId, PyId>> pairs;
    for (size_t i = 0; i + 1 < a.size(); i += 2)
      pairs.try_emplace(textIn(a_, a[i]), kNoPy, kNoPy).first->second.first = a[i + 1];
    for (size_t i = 0; i + 1 < b.size(); i += 2)
      pairs.try_emplace(textIn(b_, b[i]), kNoPy, kNoPy).first->second.second = b[i + 1];
    for (const auto &[key, values] : pairs) {
      bool isQuoted = key.size() >= 2 && key.front() == '\'' && key.back() == '\'';
      compareAt(isQuoted ? key.substr(1, key.size() - 2) : key, values.first, values.second);
    }
  }

  /// Compares two instances of Python classes by how they were made: class, arguments, state,
  /// items. Tensors are compared by their elements, since their storages may differ.
  void compareObjects(PyId a, PyId b) {
    if (isTensor(left(), a) && isTensor(right(), b)) {
      if (!isSameTensor(a, b))
        note(a, b);
      return;
    }
    const PyObject &x = left().object(a), &y = right().object(b);
    bool isSameKind = x.make == y.make && (x.callable == kNoPy) == (y.callable == kNoPy) &&
                      (x.args == kNoPy) == (y.args == kNoPy) &&
                      (x.state == kNoPy) == (y.state == kNoPy);
    if (isSameKind && x.make == PyMake::Persistent)
      isSameKind = isSameStorage(a, b);
    if (!isSameKind)
      return note(a, b);
    if (x.make == PyMake::Persistent)
      return;
    if (x.callable != kNoPy)
      compare(x.callable, y.callable);
    if (x.args != kNoPy)
      compare(x.args, y.args);
    if (x.state != kNoPy)
      compare(x.state, y.state);
    compareItems(x.appended, y.appended);
    comparePairs(x.itemsSet, y.itemsSet);
  }

  bool isSameTensor(PyId a, PyId b) const {
    Result<TensorView> x = tensorOf(a_.archive, left(), a), y = tensorOf(b_.archive, right(), b);
    if (!x.isOk() || !y.isOk() || x->type != y->type || x->shape != y->shape)
      return false;
    if (x->strides == y->strides && x->storageOffset == y->storageOffset &&
        std::ranges::equal(x->storage, y->storage))
      return true;
    // Strides may repeat elements, so the storage's size does not bound the dense size. It is
    // checked here.
    std::optional<int64_t> bytes = tensorBytes(x->type, x->shape);
    if (!bytes || static_cast<uint64_t>(*bytes) > std::min(x->storage.size(), y->storage.size()))
      return false;
    std::vector<uint8_t> dense[2];
    for (const TensorView *view : {&*x, &*y}) {
      std::vector<uint8_t> &copy = dense[view == &*y];
      copy.resize(static_cast<size_t>(*bytes));
      copyBox(view->shape, {view->type, view->strides}, view->origin(),
              {view->type, denseStrides(view->shape)}, copy.data());
    }
    return dense[0] == dense[1];
  }

  /// Whether two storages have equal bytes, each in the archive of its object.
  bool isSameStorage(PyId a, PyId b) const {
    auto bytesOf = [](const ObjectValue &object, PyId id) {
      std::span<const PyId> parts = object.graph().items(object.graph().object(id).args);
      const ArchiveEntry *entry =
          object.archive.find(fmt::format("data/{}", object.graph().text(parts[2])));
      return entry != nullptr ? entry->data : std::span<const uint8_t>();
    };
    return std::ranges::equal(bytesOf(a_, a), bytesOf(b_, b));
  }

  /// Floats are equal if their bits are, which includes NaN, or if their values are, which includes
  /// 0 and -0.
  bool isSameScalar(PyId a, PyId b) const {
    switch (left().kind(a)) {
    case PyKind::Bool:
      return left().boolean(a) == right().boolean(b);
    case PyKind::Int:
      return left().integer(a) == right().integer(b);
    case PyKind::Float:
      return std::bit_cast<uint64_t>(left().number(a)) ==
                 std::bit_cast<uint64_t>(right().number(b)) ||
             left().number(a) == right().number(b);
    case PyKind::BigInt:
    case PyKind::Str:
    case PyKind::Bytes:
    case PyKind::ByteArray:
      return left().text(a) == right().text(b);
    case PyKind::Global:
      return left().global(a).module == right().global(b).module &&
             left().global(a).name == right().global(b).name;
    default:
      return true;
    }
  }

  const ObjectValue &a_, &b_;
  std::string path_;
  std::set<std::pair<PyId, PyId>> seen_; ///< values may be shared, and may contain themselves
  std::vector<ValueDifference> found_;
};

/// All positions at which the objects differ, each once. Values are compared, as Python would: the
/// bytes of pickles depend on the order of saving and on the program that saved them. Dictionaries
/// are equal regardless of the order of keys. Numbers are equal only if they have the same type,
/// and then if their bits are equal, including NaN.
std::vector<ValueDifference> differencesOf(const ObjectValue &a, const ObjectValue &b) {
  Comparison comparison(a, b);
  comparison.compare(a.root(), b.root());
  return comparison.take();
}

/// The type in which both sides are compared; nothing if they cannot be compared.
std::optional<Element> commonType(Element a, Element b) {
  if (isConvertible(a, Element::F64) && isConvertible(b, Element::F64))
    return a == Element::F64 || b == Element::F64 ? Element::F64 : Element::F32;
  return a == b ? std::optional(a) : std::nullopt;
}

/// An element as a number. Types without numbers give 1, so that unequal elements differ.
double numberAt(Element type, const uint8_t *data, int64_t index) {
  switch (type) {
  case Element::F32:
    return loadAt<float>(data, index);
  case Element::F64:
    return loadAt<double>(data, index);
  case Element::I64:
    return static_cast<double>(loadAt<int64_t>(data, index));
  case Element::U64:
    return static_cast<double>(loadAt<uint64_t>(data, index));
  case Element::I32:
    return loadAt<int32_t>(data, index);
  case Element::U32:
    return loadAt<uint32_t>(data, index);
  case Element::I16:
    return loadAt<int16_t>(data, index);
  case Element::U16:
    return loadAt<uint16_t>(data, index);
  case Element::I8:
    return static_cast<int8_t>(data[index]);
  case Element::U8:
  case Element::Bool:
    return data[index];
  default:
    return 1;
  }
}

bool hasNumbers(Element type) {
  return numberAt(type, reinterpret_cast<const uint8_t *>("\0\0\0\0\0\0\0\0"), 0) == 0;
}

void noteValue(TensorDifference &difference, double a, double b) {
  double distance = std::fabs(a - b);
  if (std::isinf(a) && a == b)
    distance = 0;
  ++difference.elements;
  if (std::isnan(difference.maxAbs) || std::isnan(distance))
    difference.maxAbs = std::numeric_limits<double>::quiet_NaN();
  else
    difference.maxAbs = std::max(difference.maxAbs, distance);
}

/// Compares dense arrays. Elements with equal bits are equal, including NaN.
void compare(Element type, const uint8_t *a, const uint8_t *b, int64_t count,
             TensorDifference &difference) {
  int64_t bytes = elementBits(type) / 8;
  if (bytes == 0 || std::memcmp(a, b, static_cast<size_t>(count * bytes)) == 0)
    return;
  bool isNumber = hasNumbers(type);
  for (int64_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i * bytes, b + i * bytes, static_cast<size_t>(bytes)) == 0)
      continue;
    double x = isNumber ? numberAt(type, a, i) : 1, y = isNumber ? numberAt(type, b, i) : 0;
    if (x != y) // 0 and -0 are equal
      noteValue(difference, x, y);
  }
}

/// Compares two tensors with the same name. `difference.what` stays empty if they are equal.
Status compareTensors(const ViewTensor &a, const ViewTensor &b, int64_t pieceBytes,
                      TensorDifference &difference) {
  difference.name = a.name;
  std::optional<Element> type = commonType(a.type, b.type);
  if (a.shape != b.shape || !type) {
    difference.what = fmt::format("{} {} and {} {}", torchName(a.type), shapeText(a.shape),
                                  torchName(b.type), shapeText(b.shape));
    return Status::ok();
  }
  std::vector<uint8_t> left, right;
  auto compareBox = [&](const Box &box) {
    left.resize(static_cast<size_t>(*tensorBytes(*type, box.shape)));
    right.resize(left.size());
    RETURN_IF_ERROR(a.read(box, *type, left.data()));
    RETURN_IF_ERROR(b.read(box, *type, right.data()));
    compare(*type, left.data(), right.data(), *elementCount(box.shape), difference);
    return Status::ok();
  };
  RETURN_IF_ERROR(forEachPiece(Box::whole(a.shape), *type, pieceBytes, compareBox));
  if (difference.elements > 0) {
    difference.isOfValues = true;
    difference.what =
        fmt::format("{} of {} elements differ", difference.elements, *elementCount(a.shape));
  }
  if (a.type != b.type)
    difference.what += fmt::format("{}{} and {}", difference.what.empty() ? "" : ", ",
                                   torchName(a.type), torchName(b.type));
  return Status::ok();
}

void noteObjects(const std::string &name, std::vector<ValueDifference> differences,
                 CheckpointDiff &diff) {
  diff.sameObjects += differences.empty() ? 1 : 0;
  for (ValueDifference &one : differences)
    diff.objects.push_back({one.path.empty() ? name : fmt::format("{}.{}", name, one.path),
                            std::move(one.a), std::move(one.b)});
}

/// Compares two objects with the same name. An object that cannot be read is represented by the
/// reason.
void compareObjects(const std::string &name, const CheckpointReader &a, const CheckpointReader &b,
                    CheckpointDiff &diff) {
  Result<ObjectValue> left = a.readObject(name), right = b.readObject(name);
  if (left.isOk() && right.isOk())
    return noteObjects(name, differencesOf(*left, *right), diff);
  auto textOf = [](const Result<ObjectValue> &object) {
    return object.isOk() ? std::string("readable")
                         : fmt::format("unreadable: {}", object.status().message());
  };
  diff.objects.push_back({name, textOf(left), textOf(right)});
}

void compareObjects(const CheckpointReader &a, const CheckpointReader &b, CheckpointDiff &diff) {
  for (const ObjectMeta &object : a.metadata().objects) {
    if (b.findObject(object.name) == nullptr)
      diff.onlyInA.push_back(object.name);
    else
      compareObjects(object.name, a, b, diff);
  }
  for (const ObjectMeta &object : b.metadata().objects)
    if (a.findObject(object.name) == nullptr)
      diff.onlyInB.push_back(object.name);
}

/// Compares Megatron's common state if it is in a separate file, which is read instead of the
/// object.
void compareCommonFiles(const TorchDistCheckpoint &a, const TorchDistCheckpoint &b,
                        CheckpointDiff &diff) {
  bool isInA = a.reader().files().has(kCommonFile), isInB = b.reader().files().has(kCommonFile);
  if (isInA && isInB)
    noteObjects(kCommonFile, differencesOf(a.commonObject(), b.commonObject()), diff);
  else if (isInA || isInB)
    (isInA ? diff.onlyInA : diff.onlyInB).push_back(kCommonFile);
}

using Pair = std::pair<const ViewTensor *, const ViewTensor *>;

/// Pairs the tensors that both sides have. Tensors that only one side has are recorded in `diff`.
std::vector<Pair> pairsOf(const std::vector<ViewTensor> &a, const std::vector<ViewTensor> &b,
                          CheckpointDiff &diff) {
  std::map<std::string_view, const ViewTensor *> right;
  for (const ViewTensor &tensor : b)
    right[tensor.name] = &tensor;
  std::vector<Pair> pairs;
  for (const ViewTensor &tensor : a) {
    auto found = right.find(tensor.name);
    if (found == right.end()) {
      diff.onlyInA.push_back(tensor.name);
      continue;
    }
    pairs.emplace_back(&tensor, found->second);
    right.erase(found);
  }
  for (const auto &[name, tensor] : right)
    diff.onlyInB.push_back(std::string(name));
  return pairs;
}

} // namespace

Result<CheckpointDiff> diffCheckpoints(const CheckpointView &a, const CheckpointView &b,
                                       const DiffOptions &options) {
  CheckpointDiff diff;
  diff.byParams = a.format() != b.format();
  std::vector<ViewTensor> left = diff.byParams ? a.params() : a.tensors(),
                          right = diff.byParams ? b.params() : b.tensors();
  if (diff.byParams && (left.empty() || right.empty()))
    return makeStatus(StatusCode::InvalidInput,
                      "'{}' is {} and '{}' is {}; they can only be compared by parameters, and one "
                      "has none",
                      a.reader().folder(), formatName(a.format()), b.reader().folder(),
                      formatName(b.format()));
  std::vector<Pair> pairs = pairsOf(left, right, diff);
  int64_t total = 0;
  for (const auto &[first, second] : pairs)
    total += tensorBytes(first->type, first->shape).value_or(0);
  ProgressSum progress(options.progress, total);
  std::vector<TensorDifference> found(pairs.size());
  auto compareOne = [&](size_t i, size_t) -> Status {
    RETURN_IF_ERROR(
        compareTensors(*pairs[i].first, *pairs[i].second, options.pieceBytes, found[i]));
    progress.add(tensorBytes(pairs[i].first->type, pairs[i].first->shape).value_or(0));
    return Status::ok();
  };
  RETURN_IF_ERROR(runOnThreads(static_cast<size_t>(options.threads), pairs.size(), compareOne));
  for (TensorDifference &difference : found) {
    if (difference.what.empty()) {
      ++diff.sameTensors;
      continue;
    }
    if (std::isnan(difference.maxAbs) || difference.maxAbs > diff.maxAbs)
      diff.maxAbs = difference.maxAbs;
    diff.tensors.push_back(std::move(difference));
  }
  if (!diff.byParams && !options.tensorsOnly)
    compareObjects(a.reader(), b.reader(), diff);
  if (!diff.byParams && !options.tensorsOnly && a.torchDist() != nullptr)
    compareCommonFiles(*a.torchDist(), *b.torchDist(), diff);
  std::ranges::sort(diff.onlyInA);
  std::ranges::sort(diff.onlyInB);
  return diff;
}

} // namespace shardc::checkpoint
