#include "runtime/checkpoint/PlainValue.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/TensorRecord.h"

namespace shardc::checkpoint {
namespace {

constexpr int kValueDepthMax = 100;
constexpr size_t kValuesMax = 10'000'000;

/// The minimal little endian two's complement of a decimal number.
std::string bigIntegerBytes(std::string_view decimal) {
  bool negative = decimal.starts_with('-');
  if (negative)
    decimal.remove_prefix(1);
  std::string bytes;
  for (char digit : decimal) {
    uint32_t carry = static_cast<uint32_t>(digit - '0');
    for (char &byte : bytes) {
      carry += static_cast<uint8_t>(byte) * 10u;
      byte = static_cast<char>(carry & 0xff);
      carry >>= 8;
    }
    if (carry != 0)
      bytes.push_back(static_cast<char>(carry));
  }
  if (bytes.empty() || (bytes.back() & 0x80) != 0)
    bytes.push_back('\0');
  if (!negative)
    return bytes;
  uint32_t carry = 1;
  for (char &byte : bytes) {
    carry += static_cast<uint8_t>(~byte);
    byte = static_cast<char>(carry & 0xff);
    carry >>= 8;
  }
  while (bytes.size() > 1 && bytes.back() == '\xff' && (bytes[bytes.size() - 2] & 0x80) != 0)
    bytes.pop_back();
  return bytes;
}

PyId addEntries(PyGraph &graph, const PlainEntries &entries) {
  std::vector<PyId> items;
  for (const auto &[key, value] : entries) {
    items.push_back(graph.str(key));
    items.push_back(addToGraph(graph, value));
  }
  return graph.dict(items);
}

std::vector<PyId> addItems(PyGraph &graph, const PlainItems &values) {
  std::vector<PyId> items;
  for (const PlainValue &value : values)
    items.push_back(addToGraph(graph, value));
  return items;
}

/// Adds the nodes of a value; one overload per kind.
struct Adder {
  PyGraph &graph;
  PyId operator()(std::monostate) const { return graph.makeNone(); }
  PyId operator()(bool v) const { return graph.makeBool(v); }
  PyId operator()(int64_t v) const { return graph.makeInteger(v); }
  PyId operator()(double v) const { return graph.makeFloat(v); }
  PyId operator()(const std::string &v) const { return graph.str(v); }
  PyId operator()(Element v) const { return graph.global("torch", torchName(v)); }
  PyId operator()(const PlainBigInt &v) const {
    return graph.bigInteger(bigIntegerBytes(v.decimal));
  }
  PyId operator()(const PlainTuple &v) const { return graph.tuple(addItems(graph, v.items)); }
  PyId operator()(const PlainItems &v) const { return graph.list(addItems(graph, v)); }
  PyId operator()(const PlainEntries &v) const { return addEntries(graph, v); }
  PyId operator()(const PlainNamespace &v) const {
    PyId state = addEntries(graph, v.entries);
    return graph.object(PyMake::New, graph.global("argparse", "Namespace"), graph.tuple({}), state);
  }
};

/// Converts a graph to plain values, with limits on their number and depth.
class Converter {
public:
  Converter(const PyGraph &graph, const ArchiveReader *archive)
      : graph_(graph), archive_(archive) {}

  Result<PlainValue> convert(PyId id) {
    if (++count_ > kValuesMax || ++depth_ > kValueDepthMax)
      return makeStatus(report::CheckpointDamaged,
                        "an object with more than {} values or {} levels", kValuesMax,
                        kValueDepthMax);
    Result<PlainValue> value = convertKind(id);
    --depth_;
    return value;
  }

private:
  /// Converts a node of the graph to a plain value. Sets become lists, and byte strings become
  /// texts; classes other than torch's dtypes are errors.
  Result<PlainValue> convertKind(PyId id) {
    switch (graph_.kind(id)) {
    case PyKind::None:
      return PlainValue();
    case PyKind::Bool:
      return PlainValue(graph_.boolean(id));
    case PyKind::Int:
      return PlainValue(graph_.integer(id));
    case PyKind::BigInt:
      return PlainValue(PlainBigInt{integerText(graph_, id)});
    case PyKind::Float:
      return PlainValue(graph_.number(id));
    case PyKind::Str:
    case PyKind::Bytes:
    case PyKind::ByteArray:
      return PlainValue(std::string(graph_.text(id)));
    case PyKind::Tuple: {
      ASSIGN_OR_RETURN(PlainItems items, convertItems(graph_.items(id)));
      return PlainValue(PlainTuple{std::move(items)});
    }
    case PyKind::List:
    case PyKind::Set:
    case PyKind::FrozenSet: {
      ASSIGN_OR_RETURN(PlainItems items, convertItems(graph_.items(id)));
      return PlainValue(std::move(items));
    }
    case PyKind::Dict: {
      ASSIGN_OR_RETURN(PlainEntries entries, convertEntries(id));
      return PlainValue(std::move(entries));
    }
    case PyKind::Global: {
      const PyGlobal &global = graph_.global(id);
      std::optional<Element> type =
          global.module == "torch" ? elementOfTorchName(global.name) : std::nullopt;
      if (type)
        return PlainValue(*type);
      return makeStatus(report::CheckpointDamaged, "the class '{}.{}', which is not a plain value",
                        global.module, global.name);
    }
    case PyKind::Object:
      return convertObject(id);
    }
    return makeStatus(StatusCode::Internal, "a Python value of no known kind");
  }

  /// Converts the objects that stand for plain values: namespaces, `torch.Size`, bytes, and tensors
  /// with one number.
  Result<PlainValue> convertObject(PyId id) {
    const PyObject &object = graph_.object(id);
    if (graph_.isObjectOf(id, "argparse", "Namespace") ||
        graph_.isObjectOf(id, "types", "SimpleNamespace")) {
      if (!graph_.is(object.state, PyKind::Dict))
        return PlainValue(PlainNamespace{});
      ASSIGN_OR_RETURN(PlainEntries entries, convertEntries(object.state));
      return PlainValue(PlainNamespace{std::move(entries)});
    }
    if (graph_.isObjectOf(id, "torch", "Size") && graph_.items(object.args).size() == 1)
      return convert(graph_.items(object.args)[0]);
    if (std::optional<std::string> bytes = graph_.asBytes(id))
      return PlainValue(std::move(*bytes));
    if (archive_ != nullptr && isTensor(graph_, id))
      return convertTensor(id);
    std::string name = "a storage";
    if (object.callable != kNoPy)
      name = fmt::format("{}.{}", graph_.global(object.callable).module,
                         graph_.global(object.callable).name);
    return makeStatus(report::CheckpointDamaged, "an object of '{}', which is not a plain value",
                      name);
  }

  /// Converts a tensor with one number. Integers and booleans keep their type; all other numbers
  /// become floats, as in Python.
  Result<PlainValue> convertTensor(PyId id) const {
    ASSIGN_OR_RETURN(TensorView view, tensorOf(*archive_, graph_, id));
    RETURN_IF_ERROR(archive_->verify(*view.entry));
    if (elementCount(view.shape) == 1 && view.type == Element::Bool)
      return PlainValue(*view.origin() != 0);
    if (elementCount(view.shape) == 1 && view.type == Element::I64) {
      int64_t number = 0;
      std::memcpy(&number, view.origin(), sizeof number);
      return PlainValue(number);
    }
    if (elementCount(view.shape) != 1 || !isConvertible(view.type, Element::F64))
      return makeStatus(report::CheckpointDamaged,
                        "a tensor of type {} and shape {}, which is not a plain value",
                        torchName(view.type), shapeText(view.shape));
    double number = 0;
    convertElements(view.type, view.origin(), Element::F64, reinterpret_cast<uint8_t *>(&number),
                    1);
    return PlainValue(number);
  }

  Result<PlainItems> convertItems(std::span<const PyId> ids) {
    PlainItems items;
    for (PyId id : ids) {
      ASSIGN_OR_RETURN(PlainValue value, convert(id));
      items.push_back(std::move(value));
    }
    return items;
  }

  Result<PlainEntries> convertEntries(PyId dict) {
    PlainEntries entries;
    std::span<const PyId> pairs = graph_.items(dict);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      ASSIGN_OR_RETURN(PlainValue key, convert(pairs[i]));
      ASSIGN_OR_RETURN(PlainValue value, convert(pairs[i + 1]));
      const auto *name = key.as<std::string>();
      entries.emplace_back(name != nullptr ? *name : textOf(key), std::move(value));
    }
    return entries;
  }

  const PyGraph &graph_;
  const ArchiveReader *archive_;
  size_t count_ = 0;
  int depth_ = 0;
};

std::string joined(const PlainItems &items) {
  std::string text;
  for (const PlainValue &item : items)
    text += (text.empty() ? "" : ", ") + textOf(item);
  return text;
}

std::string joined(const PlainEntries &entries, std::string_view format) {
  std::string text;
  for (const auto &[key, value] : entries)
    text += (text.empty() ? "" : ", ") + fmt::format(fmt::runtime(format), key, textOf(value));
  return text;
}

/// Prints a value as Python does.
struct Printer {
  std::string operator()(std::monostate) const { return "None"; }
  std::string operator()(bool v) const { return v ? "True" : "False"; }
  std::string operator()(int64_t v) const { return std::to_string(v); }
  std::string operator()(double v) const { return fmt::format("{}", v); }
  std::string operator()(const std::string &v) const { return fmt::format("'{}'", v); }
  std::string operator()(Element v) const { return fmt::format("torch.{}", torchName(v)); }
  std::string operator()(const PlainBigInt &v) const { return v.decimal; }
  std::string operator()(const PlainTuple &v) const {
    return fmt::format("({}{})", joined(v.items), v.items.size() == 1 ? "," : "");
  }
  std::string operator()(const PlainItems &v) const { return fmt::format("[{}]", joined(v)); }
  std::string operator()(const PlainEntries &v) const { return "{" + joined(v, "'{}': {}") + "}"; }
  std::string operator()(const PlainNamespace &v) const {
    return "Namespace(" + joined(v.entries, "{}={}") + ")";
  }
};

} // namespace

std::optional<double> PlainValue::number() const {
  if (const auto *real = as<double>())
    return *real;
  const auto *integer = as<int64_t>();
  return integer != nullptr ? std::optional(static_cast<double>(*integer)) : std::nullopt;
}

std::optional<int64_t> PlainValue::wholeNumber() const {
  if (const auto *integer = as<int64_t>())
    return *integer;
  constexpr double kExact = 9007199254740992.0; // 2^53: larger floats have gaps
  const auto *real = as<double>();
  bool isWhole = real != nullptr && std::abs(*real) <= kExact && std::floor(*real) == *real;
  return isWhole ? std::optional(static_cast<int64_t>(*real)) : std::nullopt;
}

const PlainValue *findEntry(const PlainEntries &entries, std::string_view key) {
  auto found = std::ranges::find(entries, key, &PlainEntries::value_type::first);
  return found != entries.end() ? &found->second : nullptr;
}

PyId addToGraph(PyGraph &graph, const PlainValue &value) {
  return std::visit(Adder{graph}, value.value);
}

Result<PlainValue> plainValueOf(const PyGraph &graph, PyId id, const ArchiveReader *archive) {
  return Converter(graph, archive).convert(id);
}

PlainEntries plainArguments(const PyGraph &graph, PyId id) {
  PlainEntries entries;
  PyId state = graph.isObjectOf(id, "argparse", "Namespace") ? graph.object(id).state : kNoPy;
  if (!graph.is(state, PyKind::Dict))
    return entries;
  std::span<const PyId> pairs = graph.items(state);
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    std::optional<std::string_view> name = graph.asText(pairs[i]);
    Result<PlainValue> value = plainValueOf(graph, pairs[i + 1]);
    if (name && value.isOk())
      entries.emplace_back(std::string(*name), std::move(*value));
  }
  return entries;
}

std::string comparedText(const PlainValue &value, const std::string &unset) {
  if (const bool *flag = value.as<bool>())
    return *flag ? "true" : "false";
  if (std::optional<double> number = value.number())
    return fmt::format("{}", *number);
  if (const auto *word = value.as<std::string>())
    return word->empty() ? unset : *word;
  const auto *tuple = value.as<PlainTuple>();
  const PlainItems *items = tuple != nullptr ? &tuple->items : value.as<PlainItems>();
  if (items == nullptr || items->empty())
    return unset;
  std::string text;
  for (const PlainValue &item : *items)
    text += (text.empty() ? "" : ", ") + comparedText(item, unset);
  return items->size() == 1 ? text : fmt::format("[{}]", text);
}

std::string textOf(const PlainValue &value) { return std::visit(Printer{}, value.value); }

Result<BytesItem> objectItem(ItemPath path, const PyGraph &graph, PyId root,
                             const ArchiveReader *archive) {
  std::vector<PyId> storages;
  ASSIGN_OR_RETURN(std::string pickle, writePickle(graph, root, &storages));
  std::vector<ArchiveEntry> entries;
  std::set<std::string> names;
  for (PyId id : storages) { // ('storage', class, key, location, size)
    std::string name = fmt::format("data/{}", graph.text(graph.items(graph.object(id).args)[2]));
    const ArchiveEntry *entry = archive != nullptr ? archive->find(name) : nullptr;
    if (entry == nullptr)
      return makeStatus(report::CheckpointDamaged,
                        "'{}' refers to a storage '{}' that is not there", nameOfPath(path), name);
    if (names.insert(name).second)
      entries.push_back(*entry);
  }
  ASSIGN_OR_RETURN(std::string record, objectRecord(pickle, entries));
  std::string name = nameOfPath(path);
  return BytesItem{std::move(name), std::move(record), std::move(path)};
}

BytesItem objectItem(ItemPath path, const PlainValue &value) {
  PyGraph graph;
  PyId root = addToGraph(graph, value);
  Result<BytesItem> item = objectItem(std::move(path), graph, root);
  SHARDC_CHECK(item.isOk(), "a plain value always has a pickle: {}", item.status().message());
  return std::move(*item);
}

BytesItem tensorItem(ItemPath path, float number) {
  constexpr int64_t kOne[] = {1};
  PyGraph graph;
  Result<std::string> pickle =
      writePickle(graph, addTensorToGraph(graph, Element::F32, kOne, /*key=*/"0"));
  SHARDC_CHECK(pickle.isOk(), "a tensor has a pickle: {}", pickle.status().message());
  const ArchiveEntry storages[] = {
      {"data/0", {reinterpret_cast<const uint8_t *>(&number), sizeof number}}};
  Result<std::string> record = objectRecord(*pickle, storages);
  SHARDC_CHECK(record.isOk(), "memory takes every byte: {}", record.status().message());
  std::string name = nameOfPath(path);
  return {std::move(name), std::move(*record), std::move(path)};
}

} // namespace shardc::checkpoint
