#include "test/unit/factors/Calls.h"

#include <cmath>
#include <cstring>
#include <deque>

#include "kernels/host/Registry.h"
#include "runtime/base/Float8.h"
#include "runtime/base/Nf4Scales.h"
#include "runtime/base/Philox.h"
#include "test/kernels/bench/Cases.h"

namespace shardc::plan::factors {

using kernels::Call;
using kernels::Tensor;

Type Array::type() const {
  Type type;
  type.dtype = dtype;
  for (int64_t extent : shape)
    type.shape[type.rank++] = extent;
  return type;
}

bool Array::isFloat() const {
  return dtype == DType::F64 || dtype == DType::F32 || dtype == DType::F8E4M3 ||
         dtype == DType::F8E5M2;
}

double Array::get(int64_t i) const {
  auto as = [&]<typename T>(T value) {
    std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return value;
  };
  switch (dtype) {
  case DType::F64:
    return as(double{});
  case DType::F32:
    return as(float{});
  case DType::F8E4M3:
    return toFloat(as(F8E4M3{}));
  case DType::F8E5M2:
    return toFloat(as(F8E5M2{}));
  case DType::I64:
    return static_cast<double>(as(int64_t{}));
  case DType::I32:
    return as(int32_t{});
  case DType::NF4x64: // by its scale
    return as(Nf4Block{}).scale;
  case DType::NF4x512: // by its offset
    return as(Nf4Record{}).offset;
  default:
    return as(uint8_t{});
  }
}

void Array::put(int64_t i, double number) {
  auto as = [&](auto value) {
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
  };
  switch (dtype) {
  case DType::F64:
    return as(number);
  case DType::F32:
    return as(static_cast<float>(number));
  case DType::F8E4M3:
    return as(toF8E4M3(static_cast<float>(number)));
  case DType::F8E5M2:
    return as(toF8E5M2(static_cast<float>(number)));
  case DType::I64:
    return as(static_cast<int64_t>(number));
  case DType::I32:
    return as(static_cast<int32_t>(number));
  case DType::NF4x64:
    return as([&] {
      Nf4Block block{static_cast<float>(number), {}};
      std::memcpy(block.codes, &bytes[static_cast<size_t>(i) * sizeof block + sizeof block.scale],
                  sizeof block.codes);
      return block;
    }());
  case DType::NF4x512:
    return as([&] {
      Nf4Record record;
      std::memcpy(&record, &bytes[static_cast<size_t>(i) * sizeof record], sizeof record);
      record.group = 0, record.offset = static_cast<float>(number);
      return record;
    }());
  default:
    return as(static_cast<uint8_t>(number));
  }
}

namespace {

Array arrayOf(const Tensor &tensor) {
  Array array;
  array.dtype = tensor.dtype;
  array.shape.assign(tensor.shape, tensor.shape + tensor.rank);
  auto begin = static_cast<const std::byte *>(tensor.data);
  array.bytes.assign(begin, begin + tensor.numel() * dtypeBytes(tensor.dtype));
  return array;
}

Tensor tensorOf(Array &array) {
  Tensor tensor;
  tensor.dtype = array.dtype;
  for (int64_t extent : array.shape)
    tensor.shape[tensor.rank++] = extent;
  tensor.data = array.bytes.data();
  return tensor;
}

/// Extents of a model that can all be halved.
kernels::bench::Model randomModel(uint64_t seed) {
  uint64_t drawn = 0;
  auto pick = [&](int64_t least, int64_t count) { // even numbers from `least` on
    return least + 2 * static_cast<int64_t>(uniformAt(seed, drawn++) * static_cast<double>(count));
  };
  kernels::bench::Model model{};
  model.batch = pick(2, 2);
  model.positions = pick(4, 3);
  model.groups = 2;
  model.heads = model.groups * pick(2, 2);
  model.channels = pick(4, 2);
  model.ffn = pick(4, 4);
  model.vocabulary = pick(6, 3);
  return model;
}

/// Rows, hidden size and ffn of two blocks of 128 each.
constexpr kernels::bench::Model kModelOfBlocks = {4, 64, 4, 2, 64, 256, 6};

/// Replaces the elements of an array by different positive numbers if all of them are equal.
void makeDifferent(Array &array, uint64_t key) {
  if (!array.isFloat() || array.numel() < 2)
    return;
  for (int64_t i = 0; i < array.numel(); ++i)
    if (array.get(i) != array.get(0))
      return;
  for (int64_t i = 0; i < array.numel(); ++i)
    array.put(i, 0.5 + uniformAt(key, static_cast<uint64_t>(i)));
}

/// Shortens the histories to few amaxes of few steps.
void shorten(Sample &sample) {
  auto resize = [](Array &array, std::vector<int64_t> shape) {
    array.shape = std::move(shape);
    array.bytes.resize(static_cast<size_t>(array.type().bytes()));
  };
  resize(sample.operands[0], {6, 8}), resize(sample.results[0], {6, 8});
  resize(sample.operands[1], {8}), resize(sample.results[1], {8}), resize(sample.results[2], {8});
}

/// A call over memory that outlives it.
struct Prepared {
  Call call;
  std::vector<Array> operands, results;
  std::vector<Tensor> list;
  std::vector<std::byte> workspace;
};

std::unique_ptr<Prepared> prepare(const Sample &sample) {
  auto out = std::make_unique<Prepared>();
  out->operands = sample.operands, out->results = sample.results;
  Call &call = out->call;
  call.attrs = sample.attrs;
  call.index = sample.index, call.groupSize = sample.members;
  for (Array &array : out->operands)
    if (sample.isList)
      out->list.push_back(tensorOf(array));
    else
      call.in[call.inCount++] = tensorOf(array);
  for (size_t r = 0; r < out->results.size(); ++r) {
    std::memset(out->results[r].bytes.data(), 0x3c, out->results[r].bytes.size());
    int operand = sample.inPlace[r];
    call.out[call.outCount++] =
        operand < 0 ? tensorOf(out->results[r]) : call.in[static_cast<size_t>(operand)];
  }
  if (sample.isList)
    call.list = out->list.data(), call.listCount = static_cast<int64_t>(out->list.size());
  call.ranges = sample.ranges.empty() ? nullptr : sample.ranges.data();
  call.rangesCount = static_cast<int64_t>(sample.ranges.size());
  call.rangesOf = sample.rangesOf.size() > 1 ? sample.rangesOf.data() : nullptr;
  return out;
}

const kernels::Kernel &kernelOf(const Sample &sample) {
  return *kernels::findHostKernel(opInfo(sample.kind).name);
}

} // namespace

Op Sample::op() const {
  Op op;
  op.kind = kind;
#define ATTR_BOOL(field, default_, doc)                                                            \
  if (attrs.field != default_ && opInfo(op).attrs.has(AttrKey::field))                             \
    op.set(AttrKey::field, static_cast<int64_t>(attrs.field));
#define ATTR_INT(field, default_, least, most, doc)                                                \
  if (attrs.field != default_ && opInfo(op).attrs.has(AttrKey::field))                             \
    op.set(AttrKey::field, attrs.field);
#define ATTR_FLOAT(field, default_, doc)
#include "runtime/base/Attrs.def"
  return op;
}

FactorExtents Sample::extents() const {
  std::deque<Type> types;
  std::vector<const Type *> ins, outs;
  for (const Array &array : operands)
    ins.push_back(&types.emplace_back(array.type()));
  for (const Array &array : results)
    outs.push_back(&types.emplace_back(array.type()));
  return {factors(), op(), ins, outs, members};
}

const char *Sample::refusal() const { return kernelOf(*this).accepts(prepare(*this)->call); }

std::vector<Array> Sample::run() const {
  std::unique_ptr<Prepared> run = prepare(*this);
  const kernels::Kernel &kernel = kernelOf(*this);
  run->workspace.resize(kernel.workspaceBytes ? kernel.workspaceBytes(run->call) : 0);
  run->call.workspace = run->workspace.data();
  run->call.workspaceBytes = run->workspace.size();
  kernel.run(run->call);
  for (size_t r = 0; r < results.size(); ++r)
    if (inPlace[r] >= 0)
      run->results[r] = run->operands[static_cast<size_t>(inPlace[r])];
  return std::move(run->results);
}

std::optional<Sample> makeSample(OpKind kind, std::string_view caseName, uint64_t seed,
                                 bool hasBlocks, DType dtype) {
  std::unique_ptr<kernels::bench::Case> from =
      kernels::bench::makeCase(caseName, dtype, hasBlocks ? kModelOfBlocks : randomModel(seed));
  if (!from)
    return std::nullopt;
  Sample sample;
  sample.kind = kind;
  sample.attrs = from->call.attrs;
  sample.index = from->call.index, sample.members = from->call.groupSize;
  sample.isList = !from->list.empty();
  sample.ranges = from->ranges, sample.rangesOf = from->rangesOf;
  for (int i = 0; i < from->call.inCount; ++i)
    sample.operands.push_back(arrayOf(from->call.in[i]));
  for (const Tensor &tensor : from->list)
    sample.operands.push_back(arrayOf(tensor));
  for (int r = 0; r < from->call.outCount; ++r) {
    sample.results.push_back(arrayOf(from->call.out[r]));
    int operand = -1;
    for (int i = 0; i < from->call.inCount; ++i)
      if (from->call.in[i].data == from->call.out[r].data)
        operand = i;
    sample.inPlace.push_back(operand);
  }
  // The length of an amax history is not an extent of the model, so it is shortened.
  if (kind == OpKind::AmaxUpdate)
    shorten(sample);
  for (size_t i = 0; i < sample.operands.size(); ++i)
    makeDifferent(sample.operands[i], seed + i);
  return sample;
}

namespace {

/// The factors of a value in the order of its type's dimensions, with their extents.
struct Digits {
  std::vector<const FactorAtom *> atoms;
  std::vector<int64_t> radices;
};

Digits digitsOf(const Sample &sample, const FactorValue &row, const FactorExtents &extents) {
  Digits digits;
  bool isTransposed = row.transposedBy && sample.op().getBool(*row.transposedBy);
  for (uint8_t place = 0; place < row.dimCount; ++place)
    for (const FactorAtom &atom : row.words())
      if (placeOfDim(row, isTransposed, atom.dim) == place) {
        digits.atoms.push_back(&atom);
        int64_t factor = atom.form == FactorAtom::Number ? 1 : extents.of(atom.factor);
        int64_t other = atom.form == FactorAtom::Joined ? extents.of(atom.other) : 0;
        digits.radices.push_back(atom.extent(factor, other));
      }
  return digits;
}

Along placeOf(const FactorAtom &atom, int64_t digit, int64_t extent) {
  switch (atom.form) {
  case FactorAtom::Blocks:
    return {digit * atom.number, std::min((digit + 1) * atom.number, extent) - 1};
  case FactorAtom::Beside:
    return digit < extent ? Along{digit, digit} : Along{};
  case FactorAtom::Mirrored:
    digit = digit < extent ? digit : 2 * extent - 1 - digit;
    return {digit, digit};
  case FactorAtom::Joined: // this factor begins where the other one ends
    return digit >= 0 && digit < extent ? Along{digit, digit} : Along{};
  case FactorAtom::Plain:
  case FactorAtom::Number:
    break;
  }
  return {digit, digit};
}

} // namespace

Places::Places(const Sample &sample, const FactorValue &row, const FactorExtents &extents,
               FactorId factor) {
  Digits digits = digitsOf(sample, row, extents);
  for (size_t a = digits.atoms.size(); a-- > 0; stride_ *= digits.radices[a])
    if (digits.atoms[a]->factor == factor || digits.atoms[a]->other == factor) {
      atom_ = digits.atoms[a], radix_ = digits.radices[a], extent_ = extents.of(factor);
      first_ = atom_->other == factor ? extents.of(atom_->factor) : 0;
      return;
    }
}

Along Places::of(int64_t i) const {
  return atom_ == nullptr ? Along{} : placeOf(*atom_, i / stride_ % radix_ - first_, extent_);
}

Array sliced(const Sample &sample, const Array &array, const FactorValue &row,
             const FactorExtents &extents, FactorId factor, int64_t begin, int64_t end) {
  if (row.form != FactorValue::Dims || !row.has(factor))
    return array;
  Array out;
  out.dtype = array.dtype;
  Digits digits = digitsOf(sample, row, extents);
  for (size_t a = 0; a < digits.atoms.size(); ++a) {
    const FactorAtom &atom = *digits.atoms[a];
    int64_t extent = atom.factor == factor ? atom.extent(end - begin) : digits.radices[a];
    if (a > 0 && digits.atoms[a - 1]->dim == atom.dim)
      out.shape.back() *= extent;
    else
      out.shape.push_back(extent);
  }
  auto size = static_cast<size_t>(dtypeBytes(array.dtype));
  Places places(sample, row, extents, factor);
  for (int64_t i = 0, count = array.numel(); i < count; ++i) {
    Along along = places.of(i);
    if (!along.isNowhere() && (along.last < begin || along.first >= end))
      continue;
    const std::byte *element = array.bytes.data() + static_cast<size_t>(i) * size;
    out.bytes.insert(out.bytes.end(), element, element + size);
  }
  return out;
}

} // namespace shardc::plan::factors
