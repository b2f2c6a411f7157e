// Makes calls from the shapes and types in the op table. What these do not say is a row here.
#include "test/kernels/bench/RowCases.h"

#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "kernels/host/Convert.h"
#include "runtime/base/Float8.h"
#include "runtime/plan/AttrFields.h"
#include "runtime/plan/OpTypes.h"

namespace shardc::kernels::bench {
namespace {

using plan::FactorAtom;
using plan::FactorId;
using plan::FactorValue;
using plan::OpKind;
using plan::ValueType;

/// What the op table does not say about a call, in words separated by blanks. `rows=B,S` is the
/// extent of a factor, here of one that has two dimensions; `x[B,S,H]` the shape of a value;
/// `x~floats` its content: random f32 (floats), 1 (ones), documents (docs); `dw~floats` makes a
/// result f32; `ids<V-1` bounds integers; `#3` is the number of operands, all of the op's without
/// it, and results that only further operands have are left out. Extents are products, quotients of
/// at least 1 and sums of numbers and letters: B S R=B*S, N heads of D channels (values: E), G
/// groups, H=N*D, F ffn, V vocabulary; `F^128` rounds up. A form without a row has that of its op.
struct Row {
  std::string_view op, extents, attrs;
  void (*finish)(Builder &) = nullptr;
};

/// Documents have 7 and 9 positions alternately, fewer in short sequences.
std::vector<int32_t> pairsOf(const Model &m) {
  std::vector<int32_t> docs;
  const auto most = static_cast<size_t>(std::max<int64_t>(m.positions / 2, 1));
  for (size_t size = 7; std::ssize(docs) < m.positions; size = 16 - size)
    docs.insert(docs.end(), std::min(size, most), static_cast<int32_t>(docs.size()));
  docs.resize(static_cast<size_t>(m.positions));
  return docs;
}

/// Returns, for each position of a sample, the first position of its document.
std::vector<int32_t> documentsOf(const Model &m) {
  std::vector<int32_t> begins(static_cast<size_t>(m.positions));
  uint32_t state = 3; // of a random number generator
  for (int64_t begin = 0, end = 0; begin < m.positions; begin = end) {
    state = state * 1664525 + 1013904223;
    int64_t length = m.document > 0    ? m.document
                     : m.document == 0 ? m.positions
                                       : 16 + (state >> 8) % 1485;
    end = std::min(begin + length, m.positions);
    std::fill(begins.begin() + begin, begins.begin() + end, static_cast<int32_t>(begin));
  }
  return begins;
}

/// Mean number of keys that a query sees.
double seenInDocuments(const Model &m) {
  double seen = 0;
  std::vector<int32_t> begins = documentsOf(m);
  for (size_t i = 0; i < begins.size(); ++i)
    seen += static_cast<double>(i) - begins[i] + 1;
  return seen / static_cast<double>(m.positions);
}

/// Sets the attributes of attention. Counts the arithmetic of `kOfKeys` products along the channels
/// of keys and `kOfValues` products along those of values, for visible pairs only.
template <int kOfKeys, int kOfValues> void setAttention(Builder &b) {
  const Model &m = b.model;
  b.attrs().causal = true;
  b.attrs().window = m.window;
  b.attrs().scale = 1 / std::sqrt(static_cast<double>(m.channels));
  b.attrs().reset_mask = m.document != 0;
  double seen = static_cast<double>(m.window < 0 ? m.positions : 2 * (m.window + 1)) / 2;
  if (m.document != 0)
    seen = seenInDocuments(m);
  b.flops(m.rows() * m.heads, 1, m.channels, kOfKeys * seen);
  b.flops(m.rows() * m.heads, 1, m.values(), kOfValues * seen);
}
template <int kProducts> void setAttentionQkv(Builder &b) {
  const Model &m = b.model;
  b.attrs().causal = true;
  b.attrs().scale = 1 / std::sqrt(static_cast<double>(m.channels));
  b.flops(m.rows() * m.heads, m.positions, m.channels, kProducts / 2.0);
}

/// Sets rstd to that of x, with which steps make y.
void setRstd(Builder &b) {
  const Tensor &x = b.operand(1);
  std::vector<float> row(static_cast<size_t>(x.cols()));
  for (int64_t r = 0; r < x.rows(); ++r) {
    const float *values = host::readF32(x, r * x.cols(), x.cols(), row.data());
    double sum = std::inner_product(values, values + x.cols(), values, 0.0);
    static_cast<float *>(b.operand(3).data)[r] =
        static_cast<float>(1 / std::sqrt(sum / static_cast<double>(x.cols()) + b.attrs().eps));
  }
}

void setRange(Builder &b) { b.addRange(b.model.ffn * b.model.hidden()); }

constexpr std::string_view kHeads = "num_heads=N num_groups=G head_dim=D";
constexpr std::string_view kParts = "num_groups=2 units=4 first_units=2 parts=2 kept=5";
constexpr std::string_view kRouter = "topk=2 score=1 expert_groups=G group_topk=2 scale=1.5";
constexpr std::string_view kLatent = "rotary_dim=D/2 rotary_interleaved=1";
constexpr std::string_view kGrouped =
    "rows=2*G*S slots=2 experts=G depth=H columns=F channels=F tensors=2*G #3";
constexpr std::string_view kGroupedAll =
    "rows=2*G*S slots=2 experts=G depth=H columns=F channels=F tensors=2*G";

constexpr Row kRows[] = {
    {"embedding", "rows=B,S", ""},
    {"embedding_bwd", "rows=B,S dtable~floats", ""},
    {"matmul", "rows=B,S depth=H channels=F", "trans_b=1"},
    {"matmul_add", "rows=B,S depth=H channels=F", "trans_b=1"},
    {"dequantize", "rows=F depth=H/64", ""},
    {"dequantize_nested", "rows=F depth=H/512", ""},
    {"matmul_gelu", "rows=B,S depth=H channels=F", "trans_b=1 tanh_approx=1"},
    {"matmul_gelu_bwd", "depth=H channels=F", "tanh_approx=1"},
    {"matmul_scaled", "rows=B,S depth=H channels=F", ""},
    {"amax", "elements=B,S,F", ""},
    {"quantize", "rows=B,S channels=F", ""},
    {"quantize_blocks", "rows=B,S channels=F", ""},
    {"quantize_blocks, transposed", "channels=F", "transposed=1"},
    {"quantize_delayed", "rows=B,S channels=F", ""},
    {"swiglu_bwd.quantize_delayed", "", "y_slot=1"},
    {"swiglu_bwd.quantize", "", "y_slot=1"},
    {"swiglu_bwd.quantize_blocks", "ffn=F^128", ""},
    {"geglu_bwd.quantize_delayed", "", "y_slot=1"},
    {"geglu_bwd.quantize", "", "y_slot=1"},
    {"geglu_bwd.quantize_blocks", "ffn=F^128", ""},
    {"amax.update", "steps=1024 tensors=384", "interval=1"},
    {"amax_shard", "elements=F*H x~floats", "", setRange},
    {"quantize_shard", "elements=F*H x~floats", "", setRange},
    {"weight_scales", "tensors=128", ""},
    {"bias_add", "channels=F", ""},
    {"gelu", "channels=F", ""},
    {"gelu_bwd", "channels=F", ""},
    {"squared_relu", "channels=F", ""},
    {"squared_relu_bwd", "channels=F", ""},
    {"quick_geglu", "", "clamp=0.5 linear_offset=1"},
    {"quick_geglu_bwd", "", "clamp=0.5 linear_offset=1"},
    {"rmsnorm", "", "eps=1e-5"},
    {"add_rmsnorm", "", "eps=1e-5"},
    {"layernorm", "", "eps=1e-5"},
    {"add_layernorm", "", "eps=1e-5"},
    {"rmsnorm_part", "", "eps=1e-5"},
    {"rmsnorm_part_bwd", "dots~floats dw~floats", "eps=1e-5"},
    {"rmsnorm_bwd", "rstd~floats dw~floats", "eps=1e-5"},
    {"rmsnorm_dx", "rstd~floats", "eps=1e-5", setRstd},
    {"layernorm_bwd", "mean~floats rstd~floats dw~floats dbias~floats", "eps=1e-5"},
    {"l2norm", "rows=R*N channels=D", "eps=1e-5"},
    {"l2norm_bwd", "rows=R*N channels=D rstd~floats", "eps=1e-5"},
    {"dropout", "channels=H x[B,S,H] y[B,S,H]", "p=0.1"},
    {"rope", "heads=N", "rotary_dim=D"},
    {"scale_positions", "heads=N", "position_step=1 position_slope=0.1"},
    {"split_qkv_rope", "", "rotary_dim=D"},
    {"merge_qkv_rope", "", "rotary_dim=D"},
    {"split_qkv_norm_rope", "", "rotary_dim=D eps=1e-5"},
    {"merge_qkv_norm_rope", "qrstd~floats krstd~floats dwq~floats dwk~floats", "rotary_dim=D"},
    {"split_columns", "rows=B,S first=F second=H", ""},
    {"join_columns", "rows=B,S first=F second=H", ""},
    {"expand_parts", "groups=2 units=4 width=D rank=G parts=2", kParts},
    {"contract_parts", "groups=2 units=4 width=D rank=G parts=2", kParts},
    {"adapter_squares", "outputs=F inputs=H rank=N", "scale=2"},
    {"scale_columns", "rows=B,S groups=2 units=4 width=D", kParts},
    {"scale_columns_bwd", "rows=B,S groups=2 units=4 width=D dm~floats", kParts},
    // Half of a key's channels are rotated. Values have as many channels as the other half.
    {"latent_heads", "heads=N channels=D/2 rotated=D/2 values=D/2", kLatent},
    {"latent_heads_bwd",
     "heads=N channels=D/2 rotated=D/2 values=D/2 dqrows[B,S,N*D] dkvrows[B,S,N*D]", kLatent},
    {"attention", "docs~docs", "", setAttention<1, 1>},
    {"attention_bwd", "docs~docs", "", setAttention<3, 2>},
    {"attention_qkv", "docs<1", kHeads, setAttentionQkv<2>},
    {"attention_qkv_bwd", "docs<1", kHeads, setAttentionQkv<5>},
    // Between slices of half a sequence; keys are the second half.
    {"attention_part", "keys=S qpos<2*S kpos<2*S qdocs<1 kdocs<1", "positions=2*S",
     setAttention<1, 1>},
    {"attention_part_bwd", "keys=S qpos<2*S kpos<2*S qdocs<1 kdocs<1", "positions=2*S",
     setAttention<3, 2>},
    {"attention_join", "heads=N values=D lse~floats morelse~floats", ""},
    {"attention_sink", "heads=N values=D lse~floats", ""},
    {"attention_sink_bwd", "heads=N values=D dsink~floats", ""},
    {"short_conv", "taps=4 docs~docs", "reset_mask=1"},
    {"short_conv_bwd", "taps=4 docs~docs dw~floats", "reset_mask=1"},
    {"gate", "channels=F", ""},
    {"gate_bwd", "channels=F", ""},
    {"causal_conv", "taps=4 channels=H docs~docs", "reset_mask=1"},
    {"causal_conv_bwd", "taps=4 channels=H docs~docs dw~floats", "reset_mask=1"},
    {"delta_rule", "each=2 key=D values=E docs~docs", "eps=1e-6 reset_mask=1"},
    {"delta_rule_bwd", "each=2 key=D values=E docs~docs", "eps=1e-6 reset_mask=1"},
    {"state_scan", "each=N/G state=D channels=E docs~docs", "reset_mask=1"},
    {"state_scan_bwd", "each=N/G state=D channels=E docs~docs", "reset_mask=1"},
    {"gated_norm", "parts=4 columns=D", "eps=1e-5 parts=4"},
    {"gated_norm_bwd", "parts=4 columns=D rstd~floats dw~floats", "parts=4"},
    {"transpose", "x[B,S,H] y[G,R,H/G]", "outer=R inner=G"},
    {"merge_slices", "x[2,B,S,H] y[B,2*S,H] x~data", "outer=B inner=2"},
    {"roll", "", "by=1"},
    {"token_count", "elements=B,S", ""},
    {"router_topk", "experts=N logits~floats bias~floats", kRouter},
    // Chooses all experts, so that the result shows how a change in one row affects other rows.
    {"router_sinkhorn", "experts=N choices=N logits~floats", "topk=N pre_softmax=1"},
    {"router_topk_bwd", "experts=N dweights~floats logits~floats", kRouter},
    // The capacity is smaller than the number of rows.
    {"router_drop", "experts=N choices=3 weights~floats", "experts=N capacity_factor=0.75"},
    {"expert_load", "parts=B experts=N choices=3", ""},
    {"router_loss", "parts=B experts=N logits~floats load~floats", "score=1 scale=0.5"},
    {"router_loss_bwd", "parts=B experts=N logits~floats load~floats", "score=1 scale=0.5"},
    {"router_z_loss", "experts=N logits~floats", ""},
    {"router_z_loss_bwd", "experts=N logits~floats", ""},
    {"tally", "channels=N slots=4 x~floats", "slots=4 slot=1 scale=0.5"},
    {"running_mean", "elements=1,N total~floats", ""},
    {"expert_bias.update", "experts=N bias~floats load~floats", "rate=0.125 experts=N"},
    // Each row chooses two groups, which are in two slots.
    {"make_runs", "experts=2*G counts[2,G]", "bound=2*R"},
    {"dispatch", "rows=3*R places<2*R", ""}, // the capacity exceeds the number of rows
    {"combine", "rows=2*R", ""},
    {"combine_bwd", "rows=2*R", ""},
    {"weighted_swiglu", "slots=B experts=G", ""},
    {"weighted_swiglu_bwd", "slots=B experts=G", ""},
    {"weighted_quick_geglu", "slots=B experts=G", "clamp=0.5 linear_offset=1"},
    {"weighted_quick_geglu_bwd", "slots=B experts=G", "clamp=0.5 linear_offset=1"},
    {"scale_rows", "channels=F", ""},
    {"dot_rows", "channels=F", ""},
    // Two slots, whose groups have as many rows as a sequence has positions.
    {"grouped_bias", kGroupedAll, ""},
    {"grouped_bias_bwd", kGroupedAll, ""},
    {"grouped_bias_dot", kGroupedAll, ""},
    {"grouped_matmul", kGrouped, "trans_b=1"},
    {"grouped_matmul, delayed", kGroupedAll, "trans_b=1 fp8_recipe=4 b_slot=G"},
    {"grouped_matmul_scaled", "rows=2*G*S slots=2 experts=G depth=H columns=F tensors=G",
     "trans_b=1 fp8_recipe=4"},
    {"grouped_matmul_bias", kGroupedAll, "trans_b=1"},
    {"grouped_matmul_bwd", "rows=2*G*S slots=2 experts=G depth=F columns=H #3", ""},
    {"grouped_matmul_bwd, delayed", "rows=2*G*S slots=2 experts=G depth=F columns=H tensors=2*G",
     "fp8_recipe=4 b_slot=G"},
    {"grouped_matmul_bwd_squares", "rows=2*G*S slots=2 experts=G depth=F columns=H", ""},
    {"cross_entropy", "labels<V-1", "valid_cols=V-1"},
    {"cross_entropy_bwd", "labels<V-1", "valid_cols=V-1"},
    {"vocab_stats", "labels<2*V-1", "valid_cols=2*V-1", [](Builder &b) { b.member(1, 2); }},
    {"vocab_loss", "members=2", ""},
    {"lm_loss", "depth=H channels=V labels<V-1", "valid_cols=V-1 chunk_rows=128"},
    {"lm_loss_grad", "labels<V-1 dw~floats", "valid_cols=V-1 chunk_rows=128"},
    {"preference_loss", "docs~pairs reference~floats", "beta=0.1"},
    {"loss.add", "elements=B,S", ""},
    {"eval.add", "elements=B,S", ""},
    {"reduce_rows", "channels=F y~floats", ""},
    {"cast", "channels=F x~floats", ""},
    {"fill", "elements=R,F x~data", ""},
};

class RowCase {
public:
  RowCase(Builder &builder, plan::OpKind kind, const Row *row)
      : builder_(builder), info_(plan::opInfo(kind)), factors_(plan::factorsOf(kind)),
        types_(plan::typesOf(kind)) {
    read("rows=R channels=H ffn=F samples=B positions=S groups=G heads=N/G head=D values=E each=S "
         "vocabulary=V tensors=8 tokens=R choices=2 layers=R");
    read(row ? row->extents : "");
    for (std::string_view attrs = row ? row->attrs : ""; !attrs.empty();) {
      std::string_view value = plan::takeUntil(attrs, ' '), name = plan::takeUntil(value, '=');
      setAttr(name, value);
    }
  }

  void make() {
    for (size_t i = 0; i < std::min<size_t>(info_.operandsMax, operands_); ++i)
      addOperand(i);
    for (size_t r = 0; r < info_.resultsMax; ++r)
      if (int operand = info_.inPlace[r]; operand < 0)
        addResult(r);
      else if (static_cast<size_t>(operand) < operands_)
        builder_.update(operand);
    if (info_.work.cost == plan::CostClass::Product || info_.work.cost == plan::CostClass::Head)
      countFlops();
  }

private:
  void read(std::string_view words) {
    while (!words.empty()) {
      std::string_view word = plan::takeUntil(words, ' ');
      size_t at = word.find_first_of("=~<[#");
      std::string_view name = word.substr(0, at), value = word.substr(at + 1);
      switch (word[at]) {
      case '=':
        extents_[name] = shapeOf(value);
        break;
      case '~':
        contents_[name] = value;
        break;
      case '<':
        bounds_[name] = numberOf(value);
        break;
      case '[':
        shapes_[name] = shapeOf(value.substr(0, value.size() - 1));
        break;
      default:
        operands_ = static_cast<size_t>(numberOf(value));
      }
    }
  }

  Shape shapeOf(std::string_view text) const {
    Shape shape;
    while (!text.empty())
      shape.push_back(numberOf(plan::takeUntil(text, ',')));
    return shape;
  }

  /// The value of an expression; operators apply from left to right.
  int64_t numberOf(std::string_view text) const {
    int64_t value = 0;
    for (char op = '+'; !text.empty();) {
      size_t end = std::min(text.find_first_of("+-*/^"), text.size());
      int64_t next = termOf(text.substr(0, end));
      value = op == '+'   ? value + next
              : op == '-' ? value - next
              : op == '*' ? value * next
              : op == '/' ? std::max<int64_t>(value / next, 1)
                          : (value + next - 1) / next * next;
      op = end < text.size() ? text[end] : ' ';
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return value;
  }
  int64_t termOf(std::string_view text) const {
    const Model &m = builder_.model;
    switch (text[0]) {
    case 'B':
      return m.batch;
    case 'S':
      return m.positions;
    case 'R':
      return m.rows();
    case 'N':
      return m.heads;
    case 'G':
      return m.groups;
    case 'D':
      return m.channels;
    case 'E':
      return m.values();
    case 'H':
      return m.hidden();
    case 'F':
      return m.ffn;
    case 'V':
      return m.vocabulary;
    }
    int64_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number;
  }

  void setAttr(std::string_view name, std::string_view value) {
    Attrs &attrs = builder_.attrs();
#define ATTR_BOOL(field, default_, doc)                                                            \
  if (name == #field)                                                                              \
    attrs.field = numberOf(value) != 0;
#define ATTR_INT(field, default_, least, most, doc)                                                \
  if (name == #field)                                                                              \
    attrs.field = numberOf(value);
#define ATTR_FLOAT(field, default_, doc)                                                           \
  if (name == #field)                                                                              \
    attrs.field = std::stod(std::string(value));
#include "runtime/base/Attrs.def"
  }

  Shape extentsOf(FactorId factor) const {
    auto base = static_cast<size_t>(factors_.extentOf[static_cast<size_t>(factor)]);
    return extents_.at(factors_.names[base]);
  }
  int64_t extentOf(FactorId factor) const {
    int64_t extent = 1;
    for (int64_t each : extentsOf(factor))
      extent *= each;
    return extent;
  }

  Shape shapeOf(const FactorValue &value, std::string_view name) const {
    if (auto at = shapes_.find(name); at != shapes_.end())
      return at->second;
    if (value.form == FactorValue::Scales)
      return {1};
    Shape shape(value.dimCount, 1);
    for (const FactorAtom &atom : value.words())
      shape[atom.dim] *= atom.extent(atom.factor == plan::kNoFactor ? 1 : extentOf(atom.factor),
                                     atom.form == FactorAtom::Joined ? extentOf(atom.other) : 0);
    if (value.countsRowsOf != plan::kNoFactor || value.atomCount == 0)
      return shape;
    // A first dimension of one factor has the factor's dimensions.
    bool isTransposed =
        value.transposedBy && plan::attrOf(builder_.attrs(), *value.transposedBy) != 0;
    if (isTransposed && shape.size() > 1) {
      std::swap(shape[shape.size() - 2], shape.back());
    } else if (value.beginsWithFactor()) {
      Shape leading = extentsOf(value.atoms[0].factor);
      leading.insert(leading.end(), shape.begin() + 1, shape.end());
      return leading;
    }
    return shape;
  }
  static std::string_view nameAt(std::string_view names, size_t at) {
    std::string_view name;
    for (size_t i = 0; i <= at; ++i)
      name = plan::takeUntil(names, ' ');
    return name.substr(0, name.find_first_of("?*"));
  }

  void addOperand(size_t i) {
    const std::string_view name = nameAt(info_.operands, i);
    const FactorValue &value = factors_.operand(i);
    const ValueType &own = types_.operand(i);
    const ValueType &type =
        own.like < 0 ? own : types_.operand(static_cast<size_t>(own.like)); // `=amax`
    const Shape shape = shapeOf(value, name);
    auto given = contents_.find(name);
    std::string_view content = given == contents_.end() ? "" : given->second;
    if (content == "docs" || content == "pairs")
      builder_.words(shape,
                     content == "docs" ? documentsOf(builder_.model) : pairsOf(builder_.model));
    else if (content == "floats")
      builder_.floats(shape);
    else if (type.numbers == ValueType::State)
      builder_.state();
    else if (type.numbers == ValueType::Float8 || type.dtype == DType::F8E4M3)
      builder_.bytes8(shape);
    else if (type.numbers == ValueType::Exact && type.dtype == DType::NF4x64)
      builder_.records(type.dtype, toNf4, shape);
    else if (type.numbers == ValueType::Exact && type.dtype == DType::NF4x512)
      builder_.records(type.dtype, toNf4Record, shape);
    else if (isDataType(type) || content == "data")
      builder_.data(shape);
    else if (value.countsRowsOf != plan::kNoFactor)
      builder_.counts(shape,
                      static_cast<int32_t>(extentOf(value.countsRowsOf) / (shape[0] * shape[1])));
    else if (type.numbers == ValueType::Integer || type.dtype == DType::I32)
      builder_.ids(shape.empty() ? Shape{1} : shape, boundOf(value, name));
    else if (type.dtype == DType::I64 || type.dtype == DType::F64)
      builder_.zeros(type.dtype, shape);
    else if (type.numbers == ValueType::Any && value.form == FactorValue::Dims)
      builder_.floats(shape);
    else
      builder_.ones(shape);
  }

  int64_t boundOf(const FactorValue &value, std::string_view name) const {
    if (auto bound = bounds_.find(name); bound != bounds_.end())
      return bound->second;
    if (value.form == FactorValue::Opaque)
      return 1;
    return value.pointsInto == plan::kNoFactor ? builder_.model.positions
                                               : extentOf(value.pointsInto);
  }

  static bool isDataType(const ValueType &type) {
    return type.like < 0 && (type.numbers == ValueType::Data || type.numbers == ValueType::Float);
  }

  void addResult(size_t r) {
    const std::string_view name = nameAt(info_.results, r);
    const FactorValue &value = factors_.result(r);
    const ValueType &type = types_.result(r);
    const bool isFloats = contents_.contains(name) && contents_.at(name) == "floats";
    Shape shape = shapeOf(value, name);
    DType dtype = type.numbers == ValueType::Float8              ? DType::F8E4M3
                  : type.numbers == ValueType::Exact             ? type.dtype
                  : isDataType(type) || contents_.contains(name) ? builder_.dataType()
                                                                 : DType::F32;
    if (type.like >= 0)
      dtype = type.isLikeOperand ? builder_.operand(static_cast<size_t>(type.like)).dtype
                                 : builder_.result(static_cast<size_t>(type.like)).dtype;
    if (type.numbers == ValueType::State)
      dtype = DType::U8, shape = {sizeof(StepState)};
    if (value.form == FactorValue::Scales) { // of blocks of the last result
      const Tensor &q = builder_.result(r - 1);
      Extents scales = scalesOf(ScaleBlocks::Rows128, {q.rows(), q.cols()});
      shape = {scales.rows, scales.cols};
    }
    builder_.to(isFloats ? DType::F32 : dtype, shape);
  }

  /// The arithmetic of products: along all factors of the first two operands, but not for each
  /// group of rows.
  void countFlops() {
    double count = 2 * info_.work.times;
    for (FactorId f = 0; f < factors_.factorCount; ++f) {
      bool isGroup = false;
      for (const FactorValue &value : factors_.operands())
        isGroup |= value.countsRowsOf != plan::kNoFactor && value.has(f);
      if (!isGroup && (factors_.operand(0).has(f) || factors_.operand(1).has(f)))
        count *= static_cast<double>(extentOf(f));
    }
    builder_.addFlops(count);
  }

  Builder &builder_;
  const plan::OpInfo &info_;
  const plan::OpFactors &factors_;
  const plan::OpTypes &types_;
  std::map<std::string_view, Shape> extents_;
  std::map<std::string_view, std::string_view> contents_;
  std::map<std::string_view, int64_t> bounds_;
  std::map<std::string_view, Shape> shapes_;
  size_t operands_ = kOperandsMax;
};

const Row *find(std::string_view name) {
  const Row *row = std::ranges::find(kRows, name, &Row::op);
  return row == std::end(kRows) ? nullptr : row;
}

} // namespace

bool makeRowCase(Builder &builder, std::string_view name) {
  std::string_view op = name.substr(0, name.find(','));
  std::optional<plan::OpKind> kind = plan::parseOpKind(op);
  const Row *row = find(name);
  if (!kind || (!row && name != op))
    return false;
  const plan::OpInfo &info = plan::opInfo(*kind);
  const plan::OpTraits traits = info.traits;
  if (traits != plan::OpTraits::None && traits != plan::OpTraits::Pure) // it has no kernel
    return false;
  if (!row && info.form)
    row = find(plan::opInfo(info.form->producer).name);
  RowCase(builder, *kind, row).make();
  if (row && row->finish)
    row->finish(builder);
  return true;
}

} // namespace shardc::kernels::bench
