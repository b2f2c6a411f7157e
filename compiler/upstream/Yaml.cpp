#include "compiler/upstream/Yaml.h"

#include <map>

#include "llvm/ADT/SmallString.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/YAMLParser.h"

namespace shardc::upstream {
namespace {

constexpr unsigned kYamlDepthMax = 60;
constexpr size_t kNodesMax = 200'000;
constexpr llvm::StringLiteral kPythonTag = "!!python/";

class Converter {
public:
  Converter(BufferId input, llvm::StringRef text, DiagEngine &diags,
            std::optional<SourceRange> place)
      : input_(input), diags_(diags), place_(place), text_(text) {}

  TreePtr run() {
    llvm::SourceMgr manager;
    manager.setDiagHandler(&Converter::note, this);
    llvm::yaml::Stream stream(text_, manager, /*ShowColors=*/false);
    auto document = stream.begin();
    TreePtr tree = makeScalar("", {});
    if (document != stream.end())
      tree = convert(document->getRoot());
    if (document != stream.end() && ++document != stream.end())
      fail({}, "it has more than one document");
    if (stream.failed() && !failed_)
      fail({}, "it is not YAML");
    return failed_ ? nullptr : tree;
  }

private:
  static void note(const llvm::SMDiagnostic &diagnostic, void *self) {
    auto *converter = static_cast<Converter *>(self);
    converter->fail({diagnostic.getLoc(), diagnostic.getLoc()}, diagnostic.getMessage());
  }

  SourceRange range(llvm::SMRange place) const {
    if (place_)
      return *place_;
    const char *begin = place.Start.getPointer(), *end = place.End.getPointer();
    bool isInside = begin != nullptr && begin >= text_.begin() && begin <= text_.end();
    if (!isInside)
      return SourceRange(diags_.sources().loc(input_, 0));
    end = end < begin || end > text_.end() ? begin : end;
    if (llvm::StringRef input = diags_.sources().text(input_); input.data() != text_.data()) {
      // The text was made from the input line by line: look for the value in the same line.
      llvm::StringRef line = input, value(begin, end - begin);
      for (auto left = llvm::StringRef(text_.begin(), begin - text_.begin()).count('\n'); left > 0;
           --left)
        line = line.split('\n').second;
      line = line.split('\n').first;
      size_t at = line.find(value.split('\n').first.trim());
      at = line.data() - input.data() + (at == llvm::StringRef::npos ? 0 : at);
      return diags_.sources().range(input_, at, std::min(at + 1, input.size()));
    }
    return diags_.sources().range(input_, begin - text_.begin(), end - text_.begin());
  }

  void fail(llvm::SMRange place, llvm::StringRef what) {
    if (!failed_)
      diags_.report(diag::ImportMalformed, range(place), what);
    failed_ = true;
  }

  /// Converts a node. After an error, the node is null or the result is of no use.
  TreePtr convert(llvm::yaml::Node *node) {
    if (node != nullptr && (++numNodes_ > kNodesMax || depth_ > kYamlDepthMax))
      fail(node->getSourceRange(), "it is nested too deep, or has too many values");
    if (node == nullptr || failed_)
      return makeScalar("", {});
    ++depth_;
    TreePtr tree = convertAny(*node);
    --depth_;
    if (node->getRawTag().startswith(kPythonTag))
      tree = asPython(node->getRawTag().drop_front(kPythonTag.size()), *tree);
    if (!node->getAnchor().empty())
      anchors_[node->getAnchor().str()] = tree;
    return tree;
  }

  /// Applies PyYAML's tags for Python objects: `object/apply:signal.Signals`,
  /// `name:torch.bfloat16`.
  static TreePtr asPython(llvm::StringRef tag, const Tree &plain) {
    auto [kind, name] = tag.split(':');
    auto tree = std::make_shared<Tree>(plain);
    if (kind == "name") {
      tree->kind = Tree::Kind::Name;
      tree->text = name.str();
    } else if (kind.startswith("object")) {
      bool isState = plain.kind == Tree::Kind::Map;
      tree->kind = Tree::Kind::Map;
      tree->call = name.str();
      if (!isState && plain.kind != Tree::Kind::List && !plain.isNone())
        tree->items.push_back(std::make_shared<Tree>(plain));
    }
    return tree;
  }

  TreePtr convertAny(llvm::yaml::Node &node) {
    using namespace llvm::yaml;
    if (auto *scalar = llvm::dyn_cast<ScalarNode>(&node)) {
      llvm::SmallString<64> storage;
      llvm::StringRef raw = scalar->getRawValue(), value = scalar->getValue(storage);
      bool isQuoted = !raw.empty() && (raw.front() == '"' || raw.front() == '\'');
      SourceRange place = range(scalar->getSourceRange());
      int64_t octal = 0; // of YAML 1.1, which PyYAML reads
      if (!isQuoted && value.size() > 1 && value.front() == '0' && !value.getAsInteger(8, octal))
        return makeScalar(std::to_string(octal), place);
      // The parser includes the line break before a closing bracket in the scalar.
      return isQuoted ? makeText(value, place) : makeScalar(value.trim(), place);
    }
    if (auto *block = llvm::dyn_cast<BlockScalarNode>(&node))
      return makeText(block->getValue(), range(block->getSourceRange()));
    if (auto *sequence = llvm::dyn_cast<SequenceNode>(&node))
      return convertSequence(*sequence);
    if (auto *mapping = llvm::dyn_cast<MappingNode>(&node))
      return convertMapping(*mapping);
    if (auto *alias = llvm::dyn_cast<AliasNode>(&node)) {
      auto found = anchors_.find(alias->getName().str());
      if (found != anchors_.end())
        return found->second;
      fail(alias->getSourceRange(), "an alias has no anchor before it");
    }
    return makeScalar("", range(node.getSourceRange()));
  }

  TreePtr convertSequence(llvm::yaml::SequenceNode &sequence) {
    auto list = std::make_shared<Tree>();
    list->kind = Tree::Kind::List;
    list->range = range(sequence.getSourceRange());
    for (llvm::yaml::Node &element : sequence) {
      list->items.push_back(convert(&element));
      if (failed_) // the parser would skip the rest recursively
        break;
    }
    return list;
  }

  TreePtr convertMapping(llvm::yaml::MappingNode &mapping) {
    auto map = std::make_shared<Tree>();
    map->kind = Tree::Kind::Map;
    map->range = range(mapping.getSourceRange());
    bool isName = false; // a class or function that is not called
    for (llvm::yaml::KeyValueNode &entry : mapping) {
      TreePtr key = convert(entry.getKey());
      TreePtr value = convert(failed_ ? nullptr : entry.getValue());
      if (failed_)
        break;
      isName |= key->text == "_call_" && value->kind == Tree::Kind::Bool && !value->boolean;
      addEntry(*map, describe(*key), std::move(value));
    }
    if (isName)
      return makeText(map->call, map->range, Tree::Kind::Name);
    // An enumerator is saved with its number in `_args_` and its name in `_name_`; keep the name.
    if (const Tree *name = map->find("_name_"); name != nullptr && !map->call.empty()) {
      map->items = {std::make_shared<Tree>(*name)};
      map->entries.clear();
    }
    return map;
  }

  static void addEntry(Tree &map, std::string key, TreePtr value) {
    if (key == "_target_")
      map.call = value->text;
    else if (key == "_args_")
      map.items = value->items;
    else if (key == "<<")
      for (const auto &[inner, held] : value->entries)
        map.entries.emplace_back(inner, held);
    else if (key != "_partial_" && key != "_call_" && key != "_recursive_" && key != "_convert_")
      map.entries.emplace_back(std::move(key), std::move(value));
  }

  BufferId input_;
  DiagEngine &diags_;
  std::optional<SourceRange> place_; ///< of all values, instead of their own
  llvm::StringRef text_;
  std::map<std::string, TreePtr> anchors_;
  unsigned depth_ = 0;
  size_t numNodes_ = 0;
  bool failed_ = false;
};

} // namespace

TreePtr readYaml(BufferId input, DiagEngine &diags) {
  return readYaml(input, diags.sources().text(input), diags);
}

TreePtr readYaml(BufferId input, llvm::StringRef text, DiagEngine &diags) {
  return Converter(input, text, diags, std::nullopt).run();
}

TreePtr readYaml(std::string text, SourceRange place) {
  SourceManager sources;
  DiagEngine quiet(sources);
  return Converter(sources.addBuffer("text", ""), text, quiet, place).run();
}

} // namespace shardc::upstream
