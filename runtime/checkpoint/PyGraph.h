// A graph of Python values as plain data: what a pickle describes, before it is interpreted.
// Classes and functions are only names; calls are recorded but not executed. Nodes are stored in
// one arena and referenced by index, so shared and cyclic values are cheap and destruction is not
// recursive. PickleReader creates a graph from bytes, PickleWriter converts a graph to bytes, and
// code that writes objects builds a graph itself.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::checkpoint {

using PyId = uint32_t;
inline constexpr PyId kNoPy = 0xffffffffu;

/// The kinds of nodes.
enum class PyKind : uint8_t {
  None,
  Bool,
  Int,    ///< an integer that fits 64 bits
  BigInt, ///< minimal little endian two's complement
  Float,
  Str, ///< UTF-8
  Bytes,
  ByteArray,
  Tuple,
  List,
  Dict, ///< items are key, value, key, value, ...
  Set,
  FrozenSet,
  Global, ///< module and name of a class or function
  Object, ///< a recorded call: see PyObject
};

/// How an Object is created.
enum class PyMake : uint8_t {
  Call,       ///< callable(*args): REDUCE
  New,        ///< cls.__new__(cls, *args): NEWOBJ
  Persistent, ///< a reference to something outside of the pickle; `args` is its id: BINPERSID
};

/// The name of a class or function; nothing was imported.
struct PyGlobal {
  std::string_view module, name;
};

/// The parts of an Object node.
struct PyObject {
  PyMake make = PyMake::Call;
  PyId callable = kNoPy;
  PyId args = kNoPy;
  PyId state = kNoPy;         ///< from BUILD, or kNoPy
  std::vector<PyId> appended; ///< from APPEND(S)
  std::vector<PyId> itemsSet; ///< from SETITEM(S): key, value, ...
};

/// Nodes that refer to each other by PyId, so that shared and cyclic values stay as they are.
class PyGraph {
public:
  PyGraph();
  PyGraph(PyGraph &&) = default;
  PyGraph &operator=(PyGraph &&) = default;

  PyKind kind(PyId id) const { return nodes_[id].kind; }
  bool is(PyId id, PyKind kind) const { return id != kNoPy && nodes_[id].kind == kind; }
  size_t size() const { return nodes_.size(); }

  /// Access to values; each function only for nodes of the kind that it names.
  bool boolean(PyId id) const { return nodes_[id].i != 0; }
  int64_t integer(PyId id) const { return nodes_[id].i; }
  double number(PyId id) const { return nodes_[id].f; }
  /// For Str, Bytes, ByteArray and BigInt. May point into the bytes from which the graph was read.
  std::string_view text(PyId id) const { return {nodes_[id].text, nodes_[id].extra}; }
  /// For Tuple, List, Dict, Set and FrozenSet.
  std::span<const PyId> items(PyId id) const;
  const PyGlobal &global(PyId id) const { return globals_[nodes_[id].extra]; }
  const PyObject &object(PyId id) const { return objects_[nodes_[id].extra]; }

  /// Whether the node is the Global `module`.`name`.
  bool isGlobal(PyId id, std::string_view module, std::string_view name) const;
  /// Whether the node is an Object whose callable is the Global `module`.`name`.
  bool isObjectOf(PyId id, std::string_view module, std::string_view name) const;
  /// The member's name if the node is a member of the enumeration `module`.`name` that was pickled
  /// by name, as CPython 3.11.0 to 3.11.3 do. Nothing for a member that was pickled by value, and
  /// for other nodes.
  std::optional<std::string_view> memberName(PyId id, std::string_view module,
                                             std::string_view name) const;
  /// The enumeration of such a node, as a Global; kNoPy for other nodes.
  PyId memberClass(PyId id) const;
  /// The value for a Str key in a Dict or in an Object's state dict; kNoPy if it is missing.
  PyId lookup(PyId dict, std::string_view key) const;
  /// The value of an Int; nothing for other nodes, including Bool.
  std::optional<int64_t> asInteger(PyId id) const;
  std::optional<std::string_view> asText(PyId id) const;
  std::optional<bool> asBool(PyId id) const;

  // Creation of nodes. Text is copied unless the function's name says "borrowed"; borrowed text
  // must outlive the graph.
  PyId makeNone() const { return 0; }
  PyId makeBool(bool value) const { return value ? 2 : 1; }
  PyId makeInteger(int64_t value);
  PyId bigInteger(std::string_view twosComplement) { return text(PyKind::BigInt, twosComplement); }
  PyId makeFloat(double value);
  PyId str(std::string_view value) { return text(PyKind::Str, value); }
  PyId text(PyKind kind, std::string_view value);
  PyId borrowedText(PyKind kind, std::string_view value);
  PyId tuple(std::span<const PyId> items);
  PyId tuple(std::initializer_list<PyId> items) {
    return tuple(std::span(items.begin(), items.size()));
  }
  PyId container(PyKind kind, std::span<const PyId> items = {});
  PyId list(std::span<const PyId> items) { return container(PyKind::List, items); }
  PyId dict(std::initializer_list<PyId> items) {
    return dict(std::span(items.begin(), items.size()));
  }
  PyId dict(std::span<const PyId> items) { return container(PyKind::Dict, items); }
  PyId global(std::string_view module, std::string_view name);
  PyId object(PyMake make, PyId callable, PyId args, PyId state = kNoPy);
  /// Adds the call `module.name(*args)`.
  PyId call(std::string_view module, std::string_view name, std::initializer_list<PyId> args);
  /// Adds bytes in the form in which protocol 2 represents them.
  PyId bytes(std::string_view value);
  /// The bytes of a Bytes node, or of a call that represents bytes in protocol 2.
  std::optional<std::string> asBytes(PyId id) const;

  /// Mutable access for the reader.
  std::vector<PyId> &mutableItems(PyId id) { return lists_[nodes_[id].extra]; }
  PyObject &mutableObject(PyId id) { return objects_[nodes_[id].extra]; }
  /// The nesting depth below a node, as known when the node was filled.
  uint32_t depth(PyId id) const { return nodes_[id].depth; }
  void noteChild(PyId parent, PyId child);

private:
  struct Node {
    PyKind kind = PyKind::None;
    uint16_t depth = 0;
    uint32_t extra = 0; ///< length of the text, or index in lists_, globals_, objects_, tuples
    union {
      int64_t i = 0;
      double f;
      const char *text;
      uint64_t first; ///< Tuple: index of its first item in pool_; `extra` is the number of items
    };
  };

  PyId add(Node node);

  std::vector<Node> nodes_;
  std::vector<PyId> pool_;
  std::deque<std::vector<PyId>> lists_;
  std::deque<PyObject> objects_;
  std::vector<PyGlobal> globals_;
  std::deque<std::string> strings_;
};

/// UTF-8 text with one code point per byte.
std::string utf8FromLatin1(std::string_view bytes);

/// The value of a BigInt or Int in decimal.
std::string integerText(const PyGraph &graph, PyId id);

} // namespace shardc::checkpoint
