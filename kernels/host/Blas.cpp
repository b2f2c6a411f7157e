// Calls BLIS with one thread and without its kernels for small products, whose choice depends on
// the number of rows. A kernel set that BLIS_ARCH_TYPE names is first tried in a child process,
// since a wrong one ends the process.
#include "kernels/host/Blas.h"

#include <cstdlib>
#include <cstring>

#include <blis.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/ParseNumber.h"

namespace shardc::kernels::host {
namespace {

/// The settings of BLIS for all calls.
rntm_t initialised() {
  bli_init();
  rntm_t runtime;
  bli_rntm_init(&runtime);
  // A multithreaded build would otherwise read the number of threads from the environment.
  bli_rntm_set_num_threads(1, &runtime);
  // Otherwise, small products would use other kernels, selected by the number of rows, and a row's
  // bits would depend on that number.
  bli_rntm_set_l3_sup(false, &runtime);
  return runtime;
}

const rntm_t &runtimeOfAll() {
  static const rntm_t runtime = initialised();
  return runtime;
}

/// Tries a product in this process, which must be a child process. With an unknown number, BLIS
/// aborts; kernels for another processor end with a signal. BLIS' message is discarded.
[[noreturn]] void tryProduct() {
  rlimit none = {};
  ::setrlimit(RLIMIT_CORE, &none);
  ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
  constexpr int64_t kExtent = 64;
  static float values[3][kExtent * kExtent];
  gemm(kExtent, kExtent, kExtent, 1, {values[0], kExtent}, {values[1], kExtent}, 0, values[2],
       kExtent);
  ::_exit(0);
}

/// Why BLIS cannot use the kernel set that BLIS_ARCH_TYPE names; empty if it can, or if none is
/// named. A child process tries a product, since an unsuitable set would end this process.
std::string refusalOf(const char *set) {
  if (!set)
    return "";
  int64_t number = 0;
  if (!parseNumber(set, number))
    return fmt::format("BLIS_ARCH_TYPE = '{}' is not a number", set);
  pid_t child = ::fork();
  if (child == 0)
    tryProduct();
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status == 0)
    return "";
  return fmt::format("BLIS_ARCH_TYPE = {} is not the number of kernels that this processor can run "
                     "(a product ended with '{}')",
                     set, WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "an error");
}

/// Strides of op(operand) in elements: from row to row, and from column to column.
struct Strides {
  inc_t row, column;

  explicit Strides(const Factor &operand)
      : row(operand.transposed ? 1 : operand.stride),
        column(operand.transposed ? operand.stride : 1) {}
};

} // namespace

const std::string &blasRefusal() {
  static const std::string refusal = refusalOf(std::getenv("BLIS_ARCH_TYPE"));
  return refusal;
}

void initBlas() {
  if (blasRefusal().empty())
    runtimeOfAll();
}

void gemm(int64_t m, int64_t n, int64_t k, float alpha, Factor a, Factor b, float beta, float *c,
          int64_t stride) {
  rntm_t runtime = runtimeOfAll(); // a copy, because the call writes into it
  Strides ofA(a), ofB(b);
  // BLIS 0.9 takes pointers without const to operands that it only reads.
  bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, m, n, k, &alpha, const_cast<float *>(a.data),
               ofA.row, ofA.column, const_cast<float *>(b.data), ofB.row, ofB.column, &beta, c,
               stride, 1, nullptr, &runtime);
}

std::string blasVersion() {
  initBlas(); // checks BLIS_ARCH_TYPE
  std::string kernels = blasRefusal();
  if (kernels.empty())
    kernels = bli_arch_string(bli_arch_query_id());
  return std::string("BLIS ") + bli_info_get_version_str() + " (" + kernels + ")";
}

} // namespace shardc::kernels::host
