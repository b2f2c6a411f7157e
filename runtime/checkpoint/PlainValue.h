// Plain Python values (None, numbers, strings, tuples, lists, dictionaries, torch dtypes) as an
// ordinary C++ type, for objects of a checkpoint whose contents we understand: settings, counters,
// group metadata. All other objects stay a PyGraph.
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

/// A tuple, which must not become a list when it is written again.
struct PlainTuple {
  PlainItems items;
};
/// `argparse.Namespace`, in which Megatron stores its arguments.
struct PlainNamespace {
  PlainEntries entries;
};
/// An integer that exceeds 64 bits, in decimal form.
struct PlainBigInt {
  std::string decimal;
};

/// One value. None is std::monostate; a dictionary has text keys in its order.
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
  /// The value as a double if it is a float or an integer.
  std::optional<double> number() const;
  /// The value if it is an integer, or a float with an integer value. Nothing for others, such as
  /// NaN or numbers that exceed 64 bits.
  std::optional<int64_t> wholeNumber() const;
};

/// The value under a key; null if there is none.
const PlainValue *findEntry(const PlainEntries &entries, std::string_view key);

/// Adds the value to a graph and returns its node.
PyId addToGraph(PyGraph &graph, const PlainValue &value);
/// Converts a node to a plain value. InvalidInput if it contains anything but plain values, or too
/// many values. If `archive` is given, a tensor with one number is converted to that number.
Result<PlainValue> plainValueOf(const PyGraph &graph, PyId id,
                                const ArchiveReader *archive = nullptr);
/// The plain entries of an `argparse.Namespace`; empty for any other node. Other entries are
/// omitted, such as members of Megatron's enumerations.
PlainEntries plainArguments(const PyGraph &graph, PyId id);
/// The value as text, equal for equal values, regardless of the program that wrote them. A list
/// with one number is written as that number, as upstream writes a pattern of layers; no value as
/// `unset`.
std::string comparedText(const PlainValue &value, const std::string &unset);
/// The value as text, in the form of Python's repr.
std::string textOf(const PlainValue &value);

/// A checkpoint item that contains the value.
BytesItem objectItem(ItemPath path, const PlainValue &value);
/// A checkpoint item that contains the number in an fp32 tensor of shape [1].
BytesItem tensorItem(ItemPath path, float number);
/// A checkpoint item that contains any graph; InvalidInput if the graph has no pickle. Storages of
/// tensors are copied from `archive`, from which the graph was read.
Result<BytesItem> objectItem(ItemPath path, const PyGraph &graph, PyId root,
                             const ArchiveReader *archive = nullptr);

} // namespace shardc::checkpoint
