// Compares fused CUDA kernels that quantize a value with the CUDA kernels of the ops that they
// combine, bitwise.
#include <algorithm>
#include <cstring>
#include <initializer_list>

#include <gtest/gtest.h>

#include "runtime/base/Float8.h"
#include "test/kernels/Harness.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

constexpr bench::Model kOddModel = {3, 67, 6, 2, 40, 353, 1003};
constexpr bench::Model kMiddleModel = {1, 35, 30, 10, 104, 520, 1024}; // rows of 3120 elements
constexpr bench::Model kWideModel = {1, 33, 80, 8, 128, 1024, 2048};
constexpr int64_t kSlot = 3, kYSlot = 5;

/// A value computed by a kernel.
struct Made {
  Tensor type;
  std::vector<std::byte> bytes;
};

void copy(const Tensor &to, const void *from) {
  std::memcpy(to.data, from, static_cast<size_t>(to.numel() * dtypeBytes(to.dtype)));
}

/// Gives a tensor the shape and type of another one, and new memory.
void reshape(DeviceRun &run, Tensor &tensor, const Tensor &like) {
  tensor.rank = like.rank;
  std::copy(like.shape, like.shape + like.rank, tensor.shape);
  run.retype(tensor, like.dtype, false);
}

/// The results of op `op` on the first `count` operands of the fused op.
std::vector<Made> make(std::string_view op, DType data, const bench::Model &model,
                       const Call &fused, int count, int firstOperand = 0) {
  DeviceRun run(op, data, model);
  run.call().attrs.zero_centered = fused.attrs.zero_centered;
  run.call().attrs.tanh_approx = fused.attrs.tanh_approx;
  for (int i = 0; i < count; ++i)
    copy(run.call().in[firstOperand + i], fused.in[i].data);
  Results results = run.onDevice();
  std::vector<Made> made;
  for (size_t r = 0; r < results.size(); ++r)
    made.push_back({run.call().out[r], results[r]});
  return made;
}

/// A result of a quantizing op, and the fused op's result that must equal it.
struct Pair {
  int result, fused;
};

/// Runs `op` on the value, with the fused op's amaxes from operand `amax` on if it needs any, and
/// compares the results.
void expectSame(std::string_view op, const Made &value, const Call &fused, const Results &got,
                int amax, int64_t slot, std::initializer_list<Pair> pairs,
                bool transposed = false) {
  SCOPED_TRACE(testing::Message() << op << " slot " << slot);
  DeviceRun run(op, value.type.dtype, bench::kTinyModel);
  Call &call = run.call();
  reshape(run, call.in[0], value.type);
  copy(call.in[0], value.bytes.data());
  for (int i = 1; i < call.inCount; ++i) {
    const Tensor &amaxes = fused.in[amax + i - 1];
    if (call.in[i].numel() != amaxes.numel())
      reshape(run, call.in[i], amaxes);
    copy(call.in[i], amaxes.data);
  }
  call.attrs.slot = slot;
  call.attrs.transposed = transposed;
  int last = 0;
  for (auto [result, from] : pairs) {
    bool isInPlace = op == "quantize_delayed" && result == 2;
    if (!isInPlace)
      reshape(run, call.out[result], fused.out[from]);
    last = std::max(last, result);
  }
  call.outCount = static_cast<uint8_t>(last + 1);
  Results want = run.onDevice();
  ASSERT_EQ(want.size(), static_cast<size_t>(last + 1));
  for (auto [result, from] : pairs) {
    const std::vector<std::byte> &a = got[static_cast<size_t>(from)];
    const std::vector<std::byte> &b = want[static_cast<size_t>(result)];
    if (op == "quantize_delayed" && result == 2) { // other slots may differ
      EXPECT_EQ(std::memcmp(a.data() + slot * 4, b.data() + slot * 4, 4), 0) << "seen";
    } else {
      EXPECT_TRUE(a == b) << "result " << result;
    }
  }
}

void expectSameBytes(const Results &got, int result, const Made &want) {
  EXPECT_TRUE(got[static_cast<size_t>(result)] == want.bytes) << "result " << result;
}

/// Calls test(run, data, model) for models and types, with some numbers large enough to saturate.
/// For Delayed and Known, amaxes begin at operand `amax`.
enum class By { Delayed, Known, Itself };
template <typename Test> void forEach(std::string_view op, By by, int amax, Test test) {
  for (const bench::Model &model :
       {bench::kTinyModel, bench::kSmallModel, kOddModel, kMiddleModel, kWideModel})
    for (DType data : kDataTypes)
      for (float magnitude : {1.0f, 0.37f, 0.0f}) {
        if (by == By::Itself && magnitude != 1)
          continue;
        SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data) << " ffn " << model.ffn
                                        << " amax " << magnitude);
        DeviceRun run(op, data, model);
        Call &call = run.call();
        for (int i = 0; i < amax; ++i)
          run.fill(call.in[i], static_cast<uint64_t>(i) + 5, 3.0);
        if (by != By::Itself) {
          call.attrs.slot = kSlot, call.attrs.y_slot = kYSlot;
          auto *expected = static_cast<float *>(call.in[amax].data);
          expected[kSlot] = magnitude, expected[kYSlot] = 0.5f;
        }
        if (by == By::Delayed) {
          auto *seen = static_cast<float *>(call.in[amax + 1].data);
          seen[kSlot] = 0.25f, seen[kYSlot] = 0;
        }
        test(run, data, model);
      }
}

/// Calls test(activation, tanh_approx) for activations with one result.
template <typename Test> void forEachActivation(Test test) {
  test("swiglu", false);
  test("geglu", false);
  test("geglu", true);
  test("squared_relu", false);
}
template <typename Test> void forEachGated(Test test) {
  test("swiglu_bwd", false);
  test("geglu_bwd", false);
  test("geglu_bwd", true);
}

template <typename Test> void withForms(Test test) {
  for (int forms = 0; forms < 3; ++forms) { // 0: plain, 1: and transposed, 2: transposed
    SCOPED_TRACE(testing::Message() << "forms " << forms);
    test(forms);
  }
}

/// Gives a call one of the forms; results `copy` and later are transposed ones.
void setForms(Call &call, int forms, int copy) {
  if (forms == 2)
    call.out[0] = call.out[copy];
  call.attrs.transposed = forms == 2;
  call.outCount = static_cast<uint8_t>(forms == 1 ? copy + 1 : copy);
}

/// Tests `op` with `operands` operands with each epilogue that quantizes one value, in each form.
void expectEitherForm(const std::string &op, int operands, bool tanhApprox) {
  withForms([&](int forms) {
    forEach(op + ".quantize_delayed", By::Delayed, operands,
            [&](DeviceRun &run, DType data, const bench::Model &model) {
              Call &call = run.call();
              call.attrs.tanh_approx = tanhApprox;
              setForms(call, forms, 3);
              Made y = make(op, data, model, call, operands)[0];
              Results got = run.onDevice();
              if (forms == 1)
                expectSame("quantize_delayed", y, call, got, operands, kSlot,
                           {{0, 0}, {1, 1}, {2, 2}, {3, 3}});
              else
                expectSame("quantize_delayed", y, call, got, operands, kSlot,
                           {{0, 0}, {1, 1}, {2, 2}}, forms == 2);
            });
    forEach(op + ".quantize", By::Known, operands,
            [&](DeviceRun &run, DType data, const bench::Model &model) {
              Call &call = run.call();
              call.attrs.tanh_approx = tanhApprox;
              setForms(call, forms, 2);
              Made y = make(op, data, model, call, operands)[0];
              Results got = run.onDevice();
              if (forms == 1)
                expectSame("quantize", y, call, got, operands, kSlot, {{0, 0}, {1, 1}, {2, 2}});
              else
                expectSame("quantize", y, call, got, operands, kSlot, {{0, 0}, {1, 1}}, forms == 2);
            });
  });
}

TEST(CudaQuantizeFused, Activations) {
  SKIP_WITHOUT_GPU();
  forEachActivation([](const char *op, bool tanhApprox) { expectEitherForm(op, 1, tanhApprox); });
  expectEitherForm("squared_relu_bwd", 2, false);
}

TEST(CudaQuantizeFused, GatedBwd) {
  SKIP_WITHOUT_GPU();
  forEachGated([](const std::string &op, bool tanhApprox) {
    for (DType type : {DType::F8E4M3, DType::F8E5M2}) {
      forEach(op + ".quantize_delayed", By::Delayed, 2,
              [&](DeviceRun &run, DType data, const bench::Model &model) {
                Call &call = run.call();
                call.attrs.tanh_approx = tanhApprox;
                run.retype(call.out[0], type, false);
                run.retype(call.out[3], type, false);
                std::vector<Made> made = make(op, data, model, call, 2);
                Results got = run.onDevice();
                expectSame("quantize_delayed", made[0], call, got, 2, kSlot,
                           {{0, 0}, {1, 1}, {2, 2}, {3, 3}});
                expectSame("quantize_delayed", made[1], call, got, 2, kYSlot,
                           {{0, 4}, {1, 5}, {2, 2}}, true);
              });
      forEach(op + ".quantize", By::Known, 2,
              [&](DeviceRun &run, DType data, const bench::Model &model) {
                Call &call = run.call();
                call.attrs.tanh_approx = tanhApprox;
                run.retype(call.out[0], type, false);
                run.retype(call.out[2], type, false);
                std::vector<Made> made = make(op, data, model, call, 2);
                Results got = run.onDevice();
                expectSame("quantize", made[0], call, got, 2, kSlot, {{0, 0}, {1, 1}, {2, 2}});
                expectSame("quantize", made[1], call, got, 2, kYSlot, {{0, 3}, {1, 4}}, true);
              });
    }
  });
}

TEST(CudaQuantizeFused, AmaxesOfActivations) {
  SKIP_WITHOUT_GPU();
  auto expectOne = [](const std::string &op, int operands, bool tanhApprox) {
    forEach(op + ".amax", By::Itself, operands,
            [&](DeviceRun &run, DType data, const bench::Model &model) {
              run.call().attrs.tanh_approx = tanhApprox;
              Made y = make(op, data, model, run.call(), operands)[0];
              expectSame("amax", y, run.call(), run.onDevice(), 0, 0, {{0, 0}});
            });
  };
  forEachActivation([&](const char *op, bool tanhApprox) { expectOne(op, 1, tanhApprox); });
  expectOne("squared_relu_bwd", 2, false);
  forEachGated([](const std::string &op, bool tanhApprox) {
    forEach(op + ".amax", By::Itself, 2,
            [&](DeviceRun &run, DType data, const bench::Model &model) {
              run.call().attrs.tanh_approx = tanhApprox;
              std::vector<Made> made = make(op, data, model, run.call(), 2);
              Results got = run.onDevice();
              for (size_t i = 0; i < 2; ++i) {
                DeviceRun amax("amax", data, bench::kTinyModel);
                reshape(amax, amax.call().in[0], made[i].type);
                copy(amax.call().in[0], made[i].bytes.data());
                EXPECT_EQ(std::memcmp(got[0].data() + i * 4, amax.onDevice()[0].data(), 4), 0) << i;
              }
            });
  });
}

/// Calls test(call, results, y, operands of the norm). The norm's other results, one fewer than its
/// operands, are the sum and the statistics, from result `first` on.
template <typename Test> void forEachNorm(const char *suffix, By by, int first, Test test) {
  for (int form = 0; form < 4; ++form) {
    int adds = form % 2, centered = form / 2, operands = 2 + adds + centered;
    std::string norm = std::string(adds ? "add_" : "") + (centered ? "layernorm" : "rmsnorm");
    forEach(norm + suffix, by, operands,
            [&](DeviceRun &run, DType data, const bench::Model &model) {
              Call &call = run.call();
              call.attrs.zero_centered = adds;
              std::vector<Made> made = make(norm, data, model, call, operands);
              Results got = run.onDevice();
              Made y = made[static_cast<size_t>(adds)];
              made.erase(made.begin() + adds);
              for (int r = 0; r < operands - 1; ++r)
                expectSameBytes(got, first + r, made[static_cast<size_t>(r)]);
              test(call, got, y, operands);
            });
  }
}

TEST(CudaQuantizeFused, Norms) {
  SKIP_WITHOUT_GPU();
  forEachNorm(
      ".quantize_delayed", By::Delayed, 3,
      [](const Call &call, const Results &got, const Made &y, int operands) {
        expectSame("quantize_delayed", y, call, got, operands, kSlot, {{0, 0}, {1, 1}, {2, 2}});
      });
  forEachNorm(".amax", By::Itself, 0,
              [](const Call &call, const Results &got, const Made &y, int operands) {
                expectSame("amax", y, call, got, 0, 0, {{0, operands - 1}});
              });
  forEachNorm(".quantize_blocks", By::Itself, 2,
              [](const Call &call, const Results &got, const Made &y, int) {
                expectSame("quantize_blocks", y, call, got, 0, 0, {{0, 0}, {1, 1}});
              });
}

TEST(CudaQuantizeFused, RmsNormAgain) {
  SKIP_WITHOUT_GPU();
  forEach("rmsnorm_again.quantize_delayed", By::Delayed, 3,
          [](DeviceRun &run, DType data, const bench::Model &model) {
            Call &call = run.call();
            Made y = make("rmsnorm_bwd", data, model, call, 3, 1)[2];
            expectSame("quantize_delayed", y, call, run.onDevice(), 3, kSlot,
                       {{0, 0}, {1, 1}, {2, 2}, {3, 3}});
          });
  forEach("rmsnorm_again.quantize", By::Known, 3,
          [](DeviceRun &run, DType data, const bench::Model &model) {
            Call &call = run.call();
            Made y = make("rmsnorm_bwd", data, model, call, 3, 1)[2];
            expectSame("quantize", y, call, run.onDevice(), 3, kSlot, {{0, 0}, {1, 1}, {2, 2}});
          });
}

/// Norms that are computed again from the forward pass's statistics equal the forward pass's norms.
TEST(CudaQuantizeFused, NormsAgainAreTheNorms) {
  SKIP_WITHOUT_GPU();
  for (int centered = 0; centered < 2; ++centered) {
    std::string name = centered ? "layernorm" : "rmsnorm";
    int vectors = 1 + centered, amax = 1 + 2 * vectors;
    forEach(name + "_again.quantize", By::Known, amax,
            [&](DeviceRun &run, DType data, const bench::Model &model) {
              Call &call = run.call();
              std::vector<Made> made = make(name, data, model, call, 1 + vectors);
              for (int i = 0; i < vectors; ++i)
                copy(call.in[1 + vectors + i], made[static_cast<size_t>(i) + 1].bytes.data());
              expectSame("quantize", made[0], call, run.onDevice(), amax, kSlot,
                         {{0, 0}, {1, 1}, {2, 2}});
            });
  }
}

TEST(CudaQuantizeFused, TransposedBlocksOfNorms) {
  SKIP_WITHOUT_GPU();
  for (bool zeroCentered : {false, true})
    forEach("rmsnorm_again.quantize_blocks", By::Itself, 3,
            [&](DeviceRun &run, DType data, const bench::Model &model) {
              Call &call = run.call();
              call.attrs.zero_centered = zeroCentered;
              Made y = make("rmsnorm_bwd", data, model, call, 3, 1)[2];
              expectSame("quantize_blocks", y, call, run.onDevice(), 0, 0, {{0, 0}, {1, 1}}, true);
            });
}

TEST(CudaQuantizeFused, BlocksOfGatedBwd) {
  SKIP_WITHOUT_GPU();
  forEachGated([](const std::string &op, bool tanhApprox) {
    for (DType type : {DType::F8E4M3, DType::F8E5M2})
      forEach(op + ".quantize_blocks", By::Itself, 2,
              [&](DeviceRun &run, DType data, const bench::Model &model) {
                Call &call = run.call();
                call.attrs.tanh_approx = tanhApprox;
                run.retype(call.out[0], type, false);
                run.retype(call.out[2], type, false);
                bench::Model whole = model; // rows of whole blocks
                whole.ffn = call.in[0].cols();
                std::vector<Made> made = make(op, data, whole, call, 2);
                Results got = run.onDevice();
                expectSame("quantize_blocks", made[0], call, got, 0, 0, {{0, 0}, {1, 1}});
                expectSame("quantize_blocks", made[0], call, got, 0, 0, {{0, 2}, {1, 3}}, true);
                expectSame("quantize_blocks", made[1], call, got, 0, 0, {{0, 4}, {1, 5}}, true);
              });
  });
}

TEST(CudaQuantizeFused, BlocksOfActivations) {
  SKIP_WITHOUT_GPU();
  forEachActivation([](const std::string &op, bool tanhApprox) {
    forEach(op + ".quantize_blocks", By::Itself, 1,
            [&](DeviceRun &run, DType data, const bench::Model &model) {
              run.call().attrs.tanh_approx = tanhApprox;
              Made y = make(op, data, model, run.call(), 1)[0];
              expectSame("quantize_blocks", y, run.call(), run.onDevice(), 0, 0, {{0, 0}, {1, 1}});
            });
  });
}

} // namespace
} // namespace shardc::kernels::test
