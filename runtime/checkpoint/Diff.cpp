#include "runtime/checkpoint/Diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "runtime/checkpoint/CompareValues.h"
#include "runtime/checkpoint/ConvertWork.h"

namespace shardc::checkpoint {
namespace {

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
  std::atomic<size_t> next{0};
  Status status = onThreads(options.threads, [&](int, const std::atomic<bool> &isFailed) {
    for (size_t i = next++; i < pairs.size() && !isFailed; i = next++) {
      RETURN_IF_ERROR(
          compareTensors(*pairs[i].first, *pairs[i].second, options.pieceBytes, found[i]));
      progress.add(tensorBytes(pairs[i].first->type, pairs[i].first->shape).value_or(0));
    }
    return Status::ok();
  });
  RETURN_IF_ERROR(status);
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
