#include "runtime/checkpoint/PyGraph.h"

#include <algorithm>
#include <limits>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {
namespace {

constexpr int64_t kSmallInts = 256;
constexpr PyId kFirstSmallInt = 3; // after None, False and True

/// Converts UTF-8 text to one byte per code point; nothing if a code point is not below 256.
std::optional<std::string> latin1FromUtf8(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0x80) {
      bytes.push_back(static_cast<char>(lead));
      continue;
    }
    if ((lead != 0xc2 && lead != 0xc3) || i + 1 == text.size())
      return std::nullopt;
    bytes.push_back(
        static_cast<char>(((lead & 3) << 6) | (static_cast<uint8_t>(text[++i]) & 0x3f)));
  }
  return bytes;
}

} // namespace

/// The first nodes are None, False, True and small integers, so that they are shared.
PyGraph::PyGraph() {
  nodes_.reserve(kFirstSmallInt + kSmallInts);
  nodes_.push_back(Node{});
  for (int64_t value = 0; value < 2; ++value) {
    nodes_.push_back(Node{PyKind::Bool, 0, 0, {}});
    nodes_.back().i = value;
  }
  for (int64_t value = 0; value < kSmallInts; ++value) {
    nodes_.push_back(Node{PyKind::Int, 0, 0, {}});
    nodes_.back().i = value;
  }
}

PyId PyGraph::add(Node node) {
  SHARDC_CHECK(nodes_.size() < kNoPy, "more than {} Python values in one graph", kNoPy);
  nodes_.push_back(node);
  return static_cast<PyId>(nodes_.size() - 1);
}

std::span<const PyId> PyGraph::items(PyId id) const {
  const Node &node = nodes_[id];
  if (node.kind == PyKind::Tuple)
    return std::span(pool_).subspan(node.first, node.extra);
  return lists_[node.extra];
}

bool PyGraph::isGlobal(PyId id, std::string_view module, std::string_view name) const {
  return is(id, PyKind::Global) && global(id).module == module && global(id).name == name;
}

bool PyGraph::isObjectOf(PyId id, std::string_view module, std::string_view name) const {
  return is(id, PyKind::Object) && isGlobal(object(id).callable, module, name);
}

PyId PyGraph::memberClass(PyId id) const {
  if (!isObjectOf(id, "builtins", "getattr") && !isObjectOf(id, "__builtin__", "getattr"))
    return kNoPy;
  std::span<const PyId> parts = items(object(id).args);
  return parts.size() == 2 && is(parts[1], PyKind::Str) ? parts[0] : kNoPy;
}

std::optional<std::string_view> PyGraph::memberName(PyId id, std::string_view module,
                                                    std::string_view name) const {
  PyId of = memberClass(id);
  return isGlobal(of, module, name) ? asText(items(object(id).args)[1]) : std::nullopt;
}

PyId PyGraph::lookup(PyId dict, std::string_view key) const {
  if (is(dict, PyKind::Object))
    dict = object(dict).state;
  if (!is(dict, PyKind::Dict))
    return kNoPy;
  std::span<const PyId> pairs = items(dict);
  PyId found = kNoPy;
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) // the last entry wins, as in Python
    if (is(pairs[i], PyKind::Str) && text(pairs[i]) == key)
      found = pairs[i + 1];
  return found;
}

std::optional<int64_t> PyGraph::asInteger(PyId id) const {
  return is(id, PyKind::Int) ? std::optional(integer(id)) : std::nullopt;
}

std::optional<std::string_view> PyGraph::asText(PyId id) const {
  return is(id, PyKind::Str) ? std::optional(text(id)) : std::nullopt;
}

std::optional<bool> PyGraph::asBool(PyId id) const {
  return is(id, PyKind::Bool) ? std::optional(boolean(id)) : std::nullopt;
}

PyId PyGraph::makeInteger(int64_t value) {
  if (value >= 0 && value < kSmallInts)
    return kFirstSmallInt + static_cast<PyId>(value);
  Node node{PyKind::Int, 0, 0, {}};
  node.i = value;
  return add(node);
}

PyId PyGraph::makeFloat(double value) {
  Node node{PyKind::Float, 0, 0, {}};
  node.f = value;
  return add(node);
}

PyId PyGraph::text(PyKind kind, std::string_view value) {
  return borrowedText(kind, value.empty() ? std::string_view() : strings_.emplace_back(value));
}

PyId PyGraph::borrowedText(PyKind kind, std::string_view value) {
  SHARDC_CHECK(value.size() <= std::numeric_limits<uint32_t>::max(), "a string of {} bytes",
               value.size());
  Node node{kind, 0, static_cast<uint32_t>(value.size()), {}};
  node.text = value.data();
  return add(node);
}

void PyGraph::noteChild(PyId parent, PyId child) {
  uint32_t depth = std::min<uint32_t>(nodes_[child].depth + 1u, 0xffff);
  nodes_[parent].depth = static_cast<uint16_t>(std::max<uint32_t>(nodes_[parent].depth, depth));
}

PyId PyGraph::tuple(std::span<const PyId> items) {
  Node node{PyKind::Tuple, 0, static_cast<uint32_t>(items.size()), {}};
  node.first = pool_.size();
  pool_.insert(pool_.end(), items.begin(), items.end());
  PyId id = add(node);
  for (PyId item : items)
    noteChild(id, item);
  return id;
}

PyId PyGraph::container(PyKind kind, std::span<const PyId> items) {
  Node node{kind, 0, static_cast<uint32_t>(lists_.size()), {}};
  lists_.emplace_back(items.begin(), items.end());
  PyId id = add(node);
  for (PyId item : items)
    noteChild(id, item);
  return id;
}

PyId PyGraph::global(std::string_view module, std::string_view name) {
  // Searches backwards: there are few different names, and recent ones are the likeliest.
  size_t index = globals_.size();
  while (index > 0 && !(globals_[index - 1].name == name && globals_[index - 1].module == module))
    --index;
  if (index == 0) {
    globals_.push_back({strings_.emplace_back(module), strings_.emplace_back(name)});
    index = globals_.size();
  }
  return add(Node{PyKind::Global, 0, static_cast<uint32_t>(index - 1), {}});
}

PyId PyGraph::object(PyMake make, PyId callable, PyId args, PyId state) {
  Node node{PyKind::Object, 0, static_cast<uint32_t>(objects_.size()), {}};
  objects_.push_back({make, callable, args, state, {}, {}});
  PyId id = add(node);
  for (PyId part : {callable, args, state})
    if (part != kNoPy)
      noteChild(id, part);
  return id;
}

PyId PyGraph::call(std::string_view module, std::string_view name,
                   std::initializer_list<PyId> args) {
  PyId callable = global(module, name);
  return object(PyMake::Call, callable, tuple(args));
}

PyId PyGraph::bytes(std::string_view value) {
  if (value.empty())
    return call("__builtin__", "bytes", {});
  PyId text = str(utf8FromLatin1(value));
  return call("_codecs", "encode", {text, str("latin1")});
}

std::optional<std::string> PyGraph::asBytes(PyId id) const {
  if (is(id, PyKind::Bytes) || is(id, PyKind::ByteArray))
    return std::string(text(id));
  bool isEmptyBytes = isObjectOf(id, "__builtin__", "bytes") || isObjectOf(id, "builtins", "bytes");
  bool isEncoded = isObjectOf(id, "_codecs", "encode");
  if ((!isEmptyBytes && !isEncoded) || !is(object(id).args, PyKind::Tuple))
    return std::nullopt;
  std::span<const PyId> args = items(object(id).args);
  if (isEmptyBytes)
    return args.empty() ? std::optional(std::string()) : std::nullopt;
  if (args.size() != 2 || !is(args[0], PyKind::Str) || asText(args[1]) != "latin1")
    return std::nullopt;
  return latin1FromUtf8(text(args[0]));
}

std::string utf8FromLatin1(std::string_view bytes) {
  std::string text;
  for (char c : bytes) {
    auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      text.push_back(c);
    } else {
      text.push_back(static_cast<char>(0xc0 | (byte >> 6)));
      text.push_back(static_cast<char>(0x80 | (byte & 0x3f)));
    }
  }
  return text;
}

/// The decimal text of an integer of any size. Large integers are little-endian two's complement,
/// as pickle stores them; the conversion multiplies decimal digits by 256 for each byte.
std::string integerText(const PyGraph &graph, PyId id) {
  if (graph.is(id, PyKind::Int))
    return std::to_string(graph.integer(id));
  std::string_view bytes = graph.text(id);
  bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
  std::vector<uint8_t> digits; // decimal digits, least significant first
  for (size_t i = bytes.size(); i-- > 0;) {
    uint32_t carry = static_cast<uint8_t>(negative ? ~bytes[i] : bytes[i]);
    for (uint8_t &digit : digits) {
      carry += digit * 256u;
      digit = static_cast<uint8_t>(carry % 10);
      carry /= 10;
    }
    for (; carry != 0; carry /= 10)
      digits.push_back(static_cast<uint8_t>(carry % 10));
  }
  if (negative) { // -x = ~x + 1
    size_t i = 0;
    while (i < digits.size() && digits[i] == 9)
      digits[i++] = 0;
    if (i == digits.size())
      digits.push_back(0);
    ++digits[i];
  }
  std::string text = negative ? "-" : "";
  for (size_t i = digits.size(); i-- > 0;)
    text.push_back(static_cast<char>('0' + digits[i]));
  return digits.empty() ? "0" : text;
}

} // namespace shardc::checkpoint
