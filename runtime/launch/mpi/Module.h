// The interface of libshardc_mpi.so: the few MPI calls of launch::MpiExchange, behind C functions,
// so that programs are not linked with MPI, and the module belongs to the MPI that it was built
// with. Module.cpp and this header build alone: `mpicxx -shared -fPIC`.
#pragma once

#include <cstdint>

namespace shardc::launch {

inline constexpr uint32_t kMpiModuleVersion = 1;
inline constexpr const char *kMpiModuleEntry = "shardcMpiModule";

/// All are called by one thread. Those that give an int give 0, or what `explain` makes words of.
struct MpiModule {
  uint32_t version; ///< kMpiModuleVersion of its build
  /// Which MPI this is, as in `Open MPI v4.1.4`.
  const char *(*library)();
  /// Joins the job's world; waits for its other ranks. Signals and their handlers stay as they are.
  int (*begin)(int *rank, int *size);
  /// Starts the one message that may be under way from here; the bytes stay until isSent has said
  /// so.
  int (*send)(int to, const void *bytes, int count);
  /// Whether the other rank has it. Does not wait.
  int (*isSent)(bool *sent);
  /// Bytes of the next message of a rank, -1 if none has come. Does not wait.
  int (*arrived)(int from, int *count);
  /// Takes that message.
  int (*receive)(int from, void *bytes, int count);
  /// Leaves MPI for good; waits for the job's other ranks.
  int (*end)();
  const char *(*explain)(int error);
};

/// The type of the symbol kMpiModuleEntry.
using MpiModuleEntry = const MpiModule *();

} // namespace shardc::launch
