// Composes the properties of ops with epilogues from the OpInfo rows of both ops.
//
// The fused op has the op's operands, then the epilogue's operands other than the value it works
// on. It has the epilogue's results, then the op's results other than that value, then an optional
// transposed copy. With Epilogue::Amax, the op's own results come first, followed by `m`, which has
// one amax for each value that the op computes.
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/plan/OpInfo.h"

namespace shardc::plan {
namespace {

class FusedOps {
public:
  FusedOps() {
    for (int kind = 0; kind < kOpCount; ++kind)
      forms_.push_back({static_cast<OpKind>(kind)});
    for (int kind = 0; kind < kOpCount; ++kind)
      for (int epilogue = 1; epilogue < kEpilogueCount; ++epilogue)
        if (opInfo(static_cast<OpKind>(kind)).takes(static_cast<Epilogue>(epilogue)))
          forms_.push_back({static_cast<OpKind>(kind), static_cast<Epilogue>(epilogue)});
    infos_.resize(forms_.size() - kOpCount);
    for (size_t form = 0; form < forms_.size(); ++form) {
      auto [kind, epilogue] = forms_[form];
      if (epilogue != Epilogue::None)
        fuse(forms_[form], form);
      byName_.emplace(infoAt(form).name, form);
      at_[static_cast<size_t>(kind)][static_cast<size_t>(epilogue)] = form;
    }
  }

  std::span<const OpForm> forms() const { return forms_; }
  const OpInfo &infoOf(OpForm form) const {
    size_t at = at_[static_cast<size_t>(form.kind)][static_cast<size_t>(form.epilogue)];
    return at == 0 ? opInfo(form.kind) : infoAt(at);
  }
  std::optional<OpForm> parse(std::string_view name) const {
    auto at = byName_.find(name);
    return at == byName_.end() ? std::nullopt : std::optional(forms_[at->second]);
  }

private:
  const OpInfo &infoAt(size_t form) const {
    return form < kOpCount ? opInfo(forms_[form].kind) : infos_[form - kOpCount];
  }

  /// Stores a text for the lifetime of the table.
  std::string_view keep(std::string text) { return texts_.emplace_back(std::move(text)); }

  static void add(std::string &list, std::string_view names) {
    if (!list.empty() && !names.empty())
      list += ' ';
    list += names;
  }
  /// Returns the names of `names` that `others` lacks, without optional ones.
  static std::string without(std::string_view names, std::string_view others) {
    std::string rest;
    while (!names.empty()) {
      std::string_view name = names.substr(0, names.find(' '));
      if (!name.ends_with('?') && positionOf(others, name) < 0)
        add(rest, name);
      names.remove_prefix(std::min(name.size() + 1, names.size()));
    }
    return rest;
  }

  /// Fills in the row of the fused op. Its work is the op's, plus the epilogue's for each form that
  /// is written. One kernel executes both, which is one graph node less.
  void fuse(OpForm form, size_t index) {
    const OpInfo &producer = opInfo(form.kind);
    const OpInfo &epilogue = opInfo(opOfEpilogue(form.epilogue));
    EpilogueForms written = producer.formsOf(form.epilogue);
    bool makesTwo = producer.makes.find(' ') != std::string_view::npos;
    OpInfo &info = infos_[index - kOpCount];
    info.inPlace.fill(-1);
    info.scaleOf.fill(-1);
    info.index = static_cast<uint16_t>(index);
    info.traits = epilogue.traits;
    info.name = keep(std::string(producer.name) + '.' + std::string(epilogue.name));
    std::string operands(producer.operands);
    add(operands, without(epilogue.operands, "x"));
    info.operands = keep(operands);
    info.results = keep(
        resultsOf(form.epilogue, written, makesTwo, without(producer.results, producer.makes)));
    std::string makes(producer.makes);
    if (makesTwo)
      makes.replace(makes.find(' '), 1, ", and of ");
    info.doc =
        keep(std::string(producer.name) + ", then " + std::string(epilogue.name) + " of " + makes);
    info.makes = producer.makes;
    info.attrs = producer.attrs, info.needed = producer.needed, info.unmeant = producer.unmeant;
    info.attrs.add(epilogue.attrs);
    if (written != EpilogueForms::Either)
      info.attrs.remove(AttrKey::transposed);
    if (makesTwo && info.attrs.has(AttrKey::slot))
      info.attrs.add(AttrKey::y_slot);
    info.nodes = producer.nodes + epilogue.nodes - 1; // one kernel executes both ops
    findPairs(info);
    countNames(info.operands, info.operandsMin, info.operandsMax);
    countNames(info.results, info.resultsMin, info.resultsMax);
    info.work = workOf(producer, epilogue, form.epilogue, written, makesTwo);
  }

  static std::string resultsOf(Epilogue epilogue, EpilogueForms written, bool makesTwo,
                               std::string own) {
    bool isBlocks = epilogue == Epilogue::QuantizeBlocks;
    if (epilogue == Epilogue::Amax) {
      add(own, "m");
      return own;
    }
    std::string results = written == EpilogueForms::Transposed ? "t scale" : "q scale";
    if (epilogue == Epilogue::QuantizeDelayed)
      add(results, "seen");
    add(results, own);
    if (written == EpilogueForms::Both)
      add(results, isBlocks ? "t tscale" : "t");
    if (written == EpilogueForms::Either)
      add(results, "t?");
    if (makesTwo)
      add(results, "yt yscale");
    return results;
  }

  /// Finds the results that reuse an operand's buffer, and the scale of each quantised result.
  static void findPairs(OpInfo &info) {
    if (int seen = positionOf(info.results, "seen"); seen >= 0)
      info.inPlace[static_cast<size_t>(seen)] =
          static_cast<int8_t>(positionOf(info.operands, "seen"));
    bool hasOwn = positionOf(info.results, "tscale") >= 0;
    for (auto [factor, scale] :
         {std::pair("q", "scale"), {"t", hasOwn ? "tscale" : "scale"}, {"yt", "yscale"}})
      if (int at = positionOf(info.results, factor); at >= 0)
        info.scaleOf[static_cast<size_t>(at)] =
            static_cast<int8_t>(positionOf(info.results, scale));
  }

  /// Blocks are quantised once for each form, since each form has scales of its own. A second
  /// result has half as many elements.
  static OpWork workOf(const OpInfo &producer, const OpInfo &epilogue, Epilogue kind,
                       EpilogueForms written, bool makesTwo) {
    if (kind == Epilogue::Amax)
      return works::perOperand(producer.amaxWork);
    bool isTwice = kind == Epilogue::QuantizeBlocks && written == EpilogueForms::Both;
    double times = (isTwice ? 2 : 1) + (makesTwo ? 0.5 : 0);
    return works::perResult(producer.work.perResult + times * epilogue.work.perResult);
  }

  std::vector<OpForm> forms_;
  std::vector<OpInfo> infos_; ///< ops with epilogues
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, size_t> byName_;
  std::array<std::array<size_t, kEpilogueCount>, kOpCount> at_{}; ///< indices in forms_; 0: none
};

const FusedOps &fusedOps() {
  static const FusedOps ops;
  return ops;
}

} // namespace

std::span<const OpForm> allOpForms() { return fusedOps().forms(); }

const OpInfo &fusedOpInfo(OpKind kind, Epilogue epilogue) {
  return fusedOps().infoOf({kind, epilogue});
}

std::optional<OpForm> parseOpForm(std::string_view name) { return fusedOps().parse(name); }

} // namespace shardc::plan
