// Plain Python values (None, numbers, strings, tuples, lists, dictionaries, torch dtypes) as an
// ordinary C++ type, for the objects of a checkpoint whose contents we understand: settings,
// counters, group metadata. Everything else stays a PyGraph.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/checkpoint/Element.h"
#include "runtime/checkpoint/PyGraph.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {

struct PlainValue;
using PlainItems = std::vector<PlainValue>;
using PlainEntries = std::vector<std::pair<std::string, PlainValue>>;

struct PlainTuple {
  PlainItems items;
};
/// `argparse.Namespace`, which Megatron keeps its arguments in.
struct PlainNamespace {
  PlainEntries entries;
};
/// An integer beyond 64 bits, decimal.
struct PlainBigInt {
  std::string decimal;
};

struct PlainValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, Element, PlainBigInt, PlainTuple,
               PlainItems, PlainEntries, PlainNamespace>
      value;

  PlainValue() = default;
  PlainValue(bool v) : value(v) {}
  PlainValue(int v) : value(static_cast<int64_t>(v)) {}
  PlainValue(int64_t v) : value(v) {}
  PlainValue(double v) : value(v) {}
  PlainValue(const char *v) : value(std::string(v)) {}
  PlainValue(std::string v) : value(std::move(v)) {}
  PlainValue(Element dtype) : value(dtype) {}
  PlainValue(PlainTuple v) : value(std::move(v)) {}
  PlainValue(PlainItems v) : value(std::move(v)) {}
  PlainValue(PlainEntries v) : value(std::move(v)) {}
  PlainValue(PlainNamespace v) : value(std::move(v)) {}
  PlainValue(PlainBigInt v) : value(std::move(v)) {}

  template <typename T> const T *as() const { return std::get_if<T>(&value); }
  /// A float or an integer as a number.
  std::optional<double> number() const;
  /// The value if it is an integer, or a float with an integer value; nothing for others, such as
  /// NaN and numbers beyond 64 bits.
  std::optional<int64_t> wholeNumber() const;
};

/// The value under a key; null if there is none.
const PlainValue *findEntry(const PlainEntries &entries, std::string_view key);

/// The value's nodes in a graph.
PyId addToGraph(PyGraph &graph, const PlainValue &value);
/// Converts a node to a plain value. InvalidInput if it holds anything but plain values, or too
/// many. If `archive` is given, a tensor of one number becomes that number.
Result<PlainValue> plainValueOf(const PyGraph &graph, PyId id,
                                const ArchiveReader *archive = nullptr);
/// The entries of an `argparse.Namespace` whose values are plain. Megatron's arguments hold members
/// of its enumerations too, which are left out; none at all for any other node.
PlainEntries plainArguments(const PyGraph &graph, PyId id);
/// Python's repr of a value, for people.
std::string textOf(const PlainValue &value);

/// An item of a checkpoint that holds the value.
BytesItem objectItem(ItemPath path, const PlainValue &value);
/// The same for a number in a tensor of fp32 and shape [1].
BytesItem tensorItem(ItemPath path, float number);
/// An item of a checkpoint that holds any graph; InvalidInput where it has no pickle. Tensors in it
/// take their storages from `archive`, which the graph was read from.
Result<BytesItem> objectItem(ItemPath path, const PyGraph &graph, PyId root,
                             const ArchiveReader *archive = nullptr);

} // namespace shardc::checkpoint
