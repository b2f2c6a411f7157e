#include "runtime/launch/mpi/Module.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>

// MPI's C++ bindings were removed from the standard.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace shardc::launch {
namespace {

constexpr int kTag = 1;

MPI_Request request = MPI_REQUEST_NULL; ///< of the message under way

/// MPI_Init installs handlers for the signals of errors, and starts threads, which must not receive
/// signals. This keeps the process' own handling of signals.
class SignalsKept {
public:
  SignalsKept() {
    for (int number = 1; number < kSignals; ++number)
      ::sigaction(number, nullptr, &actions_[static_cast<size_t>(number)]);
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &mask_);
  }
  ~SignalsKept() {
    for (int number = 1; number < kSignals; ++number)
      ::sigaction(number, &actions_[static_cast<size_t>(number)], nullptr);
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  SignalsKept(const SignalsKept &) = delete;
  SignalsKept &operator=(const SignalsKept &) = delete;

private:
  static constexpr int kSignals = NSIG;
  std::array<struct sigaction, kSignals> actions_ = {};
  sigset_t mask_ = {};
};

/// A few hundred bytes need no network cards, whose libraries hook the allocation of memory and pin
/// some; what the user has set is kept.
void askForLittle() {
#ifdef OPEN_MPI
  ::setenv("OMPI_MCA_pml", "ob1", 0);
  ::setenv("OMPI_MCA_btl", "^openib,uct,ofi,usnic,smcuda", 0);
  ::setenv("OMPI_MCA_osc", "^ucx", 0);
  ::setenv("OMPI_MCA_coll", "^hcoll,ucc", 0);
#endif
}

const char *library() {
  static std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text = {};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  text[std::strcspn(text.data(), ",\n")] = '\0'; // packager and date follow
  return text.data();
}

int begin(int *rank, int *size) {
  SignalsKept signals;
  askForLittle();
  int provided = 0;
  if (int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided))
    return error;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); // instead of ending the process
  if (int error = MPI_Comm_rank(MPI_COMM_WORLD, rank))
    return error;
  return MPI_Comm_size(MPI_COMM_WORLD, size);
}

/// Synchronous: one that counts as sent because it was copied may wait for this rank's next call of
/// MPI, while this rank waits in NCCL for the one that it is for.
int send(int to, const void *bytes, int count) {
  return MPI_Issend(bytes, count, MPI_BYTE, to, kTag, MPI_COMM_WORLD, &request);
}

int isSent(bool *sent) {
  int done = 0;
  int error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  *sent = done != 0;
  return error;
}

int arrived(int from, int *count) {
  int found = 0;
  MPI_Status status = {};
  *count = -1;
  int error = MPI_Iprobe(from, kTag, MPI_COMM_WORLD, &found, &status);
  return error == MPI_SUCCESS && found ? MPI_Get_count(&status, MPI_BYTE, count) : error;
}

int receive(int from, void *bytes, int count) {
  return MPI_Recv(bytes, count, MPI_BYTE, from, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int end() {
  SignalsKept signals;
  return MPI_Finalize();
}

const char *explain(int error) {
  static std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  return MPI_Error_string(error, text.data(), &length) == MPI_SUCCESS ? text.data() : "MPI error";
}

} // namespace
} // namespace shardc::launch

extern "C" __attribute__((visibility("default"))) const shardc::launch::MpiModule *
shardcMpiModule() {
  using namespace shardc::launch;
  static constexpr MpiModule kModule = {kMpiModuleVersion, library, begin, send,   isSent,
                                        arrived,           receive, end,   explain};
  return &kModule;
}
