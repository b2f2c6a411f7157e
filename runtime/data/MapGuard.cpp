#include "runtime/data/MapGuard.h"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstring>

namespace shardc::data {
namespace {

/// Where a copy of this thread goes on after a fault; null while none is under way.
thread_local sigjmp_buf *landing = nullptr;
struct sigaction previous = {};

void onFault(int signal, siginfo_t *info, void *context) {
  if (landing != nullptr)
    siglongjmp(*landing, 1);
  // Not ours: whoever was here before decides, or the default, which ends the process.
  if ((previous.sa_flags & SA_SIGINFO) != 0)
    return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
    return previous.sa_handler(signal);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

bool install() {
  struct sigaction action = {};
  action.sa_sigaction = onFault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER; // left by a jump, so the signal must not stay blocked
  return ::sigaction(SIGBUS, &action, &previous) == 0;
}

} // namespace

bool copyFromMap(void *to, const void *from, size_t bytes) {
  static const bool installed = install();
  sigjmp_buf here;
  // The mask is not saved: with SA_NODEFER there is nothing to restore, and this runs for every
  // sample.
  if (!installed || sigsetjmp(here, 0) != 0) {
    landing = nullptr;
    return false;
  }
  landing = &here;
  std::atomic_signal_fence(std::memory_order_seq_cst); // the handler may look at any time
  std::memcpy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  landing = nullptr;
  return true;
}

} // namespace shardc::data
