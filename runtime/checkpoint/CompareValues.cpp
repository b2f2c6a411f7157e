#include "runtime/checkpoint/CompareValues.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {
namespace {

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

  void compare(PyId a, PyId b);
  std::vector<ValueDifference> take() { return std::move(found_); }

private:
  using Ids = std::span<const PyId>;

  const PyGraph &left() const { return a_.graph(); }
  const PyGraph &right() const { return b_.graph(); }
  void note(PyId a, PyId b) { found_.push_back({path_, textIn(a_, a), textIn(b_, b)}); }
  void compareAt(const std::string &segment, PyId a, PyId b);
  void compareItems(Ids a, Ids b);
  void comparePairs(Ids a, Ids b);
  void compareObjects(PyId a, PyId b);
  bool isSameTensor(PyId a, PyId b) const;
  bool isSameStorage(PyId a, PyId b) const;
  bool isSameScalar(PyId a, PyId b) const;

  const ObjectValue &a_, &b_;
  std::string path_;
  std::set<std::pair<PyId, PyId>> seen_; ///< values may be shared, and may contain themselves
  std::vector<ValueDifference> found_;
};

void Comparison::compareAt(const std::string &segment, PyId a, PyId b) {
  size_t length = path_.size();
  path_ += (path_.empty() ? "" : ".") + segment;
  if (a == kNoPy || b == kNoPy)
    note(a, b);
  else
    compare(a, b);
  path_.resize(length);
}

void Comparison::compareItems(Ids a, Ids b) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i)
    compareAt(std::to_string(i), i < a.size() ? a[i] : kNoPy, i < b.size() ? b[i] : kNoPy);
}

/// Compares dictionaries by the text of their keys. If a key occurs several times, the last one
/// counts, as in Python.
void Comparison::comparePairs(Ids a, Ids b) {
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

/// Whether two storages have equal bytes, each in the archive of its object.
bool Comparison::isSameStorage(PyId a, PyId b) const {
  auto bytesOf = [](const ObjectValue &object, PyId id) {
    std::span<const PyId> parts = object.graph().items(object.graph().object(id).args);
    const ArchiveEntry *entry =
        object.archive.find(fmt::format("data/{}", object.graph().text(parts[2])));
    return entry != nullptr ? entry->data : std::span<const uint8_t>();
  };
  return std::ranges::equal(bytesOf(a_, a), bytesOf(b_, b));
}

bool Comparison::isSameTensor(PyId a, PyId b) const {
  Result<TensorView> x = tensorOf(a_.archive, left(), a), y = tensorOf(b_.archive, right(), b);
  if (!x.isOk() || !y.isOk() || x->type != y->type || x->shape != y->shape)
    return false;
  if (x->strides == y->strides && x->storageOffset == y->storageOffset &&
      std::ranges::equal(x->storage, y->storage))
    return true;
  // Strides may repeat elements, so the storage's size does not bound the dense size. It is checked
  // here.
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

/// Compares two instances of Python classes by how they were made: class, arguments, state, items.
/// Tensors are compared by their elements, since their storages may differ.
void Comparison::compareObjects(PyId a, PyId b) {
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

/// Floats are equal if their bits are, which includes NaN, or if their values are, which includes 0
/// and -0.
bool Comparison::isSameScalar(PyId a, PyId b) const {
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

void Comparison::compare(PyId a, PyId b) {
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

} // namespace

std::vector<ValueDifference> differencesOf(const ObjectValue &a, const ObjectValue &b) {
  Comparison comparison(a, b);
  comparison.compare(a.root(), b.root());
  return comparison.take();
}

} // namespace shardc::checkpoint
