// A job without a plan, started by mpirun: its ranks rendezvous like a run's and exchange by MPI.
// `mpi_ranks CHECK` runs one of the checks below. mpi_runs.py starts it and checks the result.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include "runtime/base/ExitStatus.h"
#include "runtime/launch/MpiExchange.h"
#include "runtime/launch/RankReports.h"
#include "runtime/launch/RendezvousClient.h"
#include "runtime/launch/Supervisor.h"

namespace shardc::launch {
namespace {

constexpr double kLimitSeconds = 120; ///< a loaded machine is not stopped for it

using Members = std::vector<int>;

std::string besideThisProgram() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libshardc_mpi.so";
}

/// As long as asked for, and no other rank's.
std::string partOf(int rank, size_t bytes) {
  std::string part(bytes, static_cast<char>('a' + rank));
  if (bytes > 0)
    part.back() = '\0'; // any byte can be in an id
  return part;
}

Status expectParts(MpiExchange &mpi, int rank, const std::string &key, const Members &members,
                   size_t bytes) {
  if (std::ranges::find(members, rank) == members.end())
    return Status::ok();
  ASSIGN_OR_RETURN(auto parts, mpi.gather(key, members, partOf(rank, bytes)));
  for (size_t i = 0; i < members.size(); ++i)
    if (parts.size() != members.size() || parts[i] != partOf(members[i], bytes))
      return makeStatus(StatusCode::Internal, "'{}': part {} is not rank {}'s", key, i, members[i]);
  return Status::ok();
}

/// Groups that overlap and groups side by side, with parts of many lengths.
Status checkGather(MpiExchange &mpi, int rank) {
  const std::vector<Members> groups = {{0, 1, 2, 3}, {0, 1}, {2, 3},    {0, 2}, {1, 3},
                                       {3, 1, 0},    {2},    {1, 2, 3}, {0, 3}};
  for (size_t bytes : {0, 1, 128, 4 << 10, 64 << 10})
    for (int turn = 0; turn < 3; ++turn)
      for (const Members &members : groups)
        RETURN_IF_ERROR(expectParts(mpi, rank,
                                    fmt::format("id {} of {} of {}", turn, bytes, members.front()),
                                    members, bytes));
  if (mpi.gather("too long", {0, 1, 2, 3}, partOf(rank, (64 << 10) + 1)).isOk())
    return Status(StatusCode::Internal, "64 KiB and a byte were taken");
  return Status::ok();
}

/// Ranks 0 and 1 are at several votes, 2 and 3 at one; what follows is in step again.
Status checkKeys(MpiExchange &mpi, int rank) {
  Members members = rank < 2 ? Members{0, 1} : Members{2, 3};
  auto votes = mpi.gather(rank == 1 ? "buffers" : "windows", members, "yes");
  std::string said = votes.isOk() ? "" : votes.status().message();
  std::string wanted =
      rank < 2 ? "creating communicators: rank 1 is at 'buffers', rank 0 at 'windows'" : "";
  if (said != wanted)
    return makeStatus(StatusCode::Internal, "'{}' instead of '{}'", said, wanted);
  return expectParts(mpi, rank, "id", {0, 1, 2, 3}, 128);
}

/// Rank 2 collects from rank 3 what no exchange sends.
Status checkFrames(MpiExchange &mpi, int rank) {
  const std::string text = "what no exchange sends";
  if (rank == 3) {
    void *library = ::dlopen(besideThisProgram().c_str(), RTLD_NOW | RTLD_NOLOAD);
    const MpiModule *module =
        reinterpret_cast<MpiModuleEntry *>(::dlsym(library, kMpiModuleEntry))();
    module->send(2, text.data(), static_cast<int>(text.size()));
    for (bool isSent = false; !isSent;)
      module->isSent(&isSent);
  }
  if (rank != 2)
    return Status::ok();
  auto parts = mpi.gather("id", {2, 3}, "");
  std::string said = parts.isOk() ? "" : parts.status().message();
  if (said != "creating communicators: rank 3 sent 22 bytes that are not an exchange")
    return makeStatus(StatusCode::Internal, "frames: '{}'", said);
  return Status::ok();
}

void noteSignal(int) {}

/// What a signal does, and which are let through, stays as it was before MPI.
Status checkSignals(const std::function<Status()> &change) {
  struct sigaction own = {};
  own.sa_handler = noteSignal;
  ::sigaction(SIGTERM, &own, nullptr);
  auto now = [] {
    std::vector<std::pair<void (*)(int), int>> all;
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (int number = 1; number < NSIG; ++number) {
      struct sigaction action = {};
      if (::sigaction(number, nullptr, &action) == 0)
        all.emplace_back(action.sa_handler, ::sigismember(&mask, number));
    }
    return all;
  };
  auto before = now();
  RETURN_IF_ERROR(change());
  return now() == before ? Status::ok() : Status(StatusCode::Internal, "a signal has changed");
}

/// Ranks wait by MPI for one that is killed.
Status checkKilled(MpiExchange &mpi, int rank) {
  RETURN_IF_ERROR(expectParts(mpi, rank, "id", {0, 1, 2, 3}, 128));
  if (rank == 2)
    ::raise(SIGKILL);
  return expectParts(mpi, rank, "next id", {0, 1, 2, 3}, 128);
}

/// Ranks wait in MPI's end for one that is killed.
Status checkKilledAtEnd(MpiExchange &, int rank) {
  if (rank == 2)
    ::raise(SIGKILL);
  return Status::ok();
}

const std::map<std::string, Status (*)(MpiExchange &, int)> kChecks = {
    {"gather", checkGather},
    {"keys", checkKeys},
    {"frames", checkFrames},
    {"killed", checkKilled},
    {"killed-at-end", checkKilledAtEnd}};

Status runRank(const std::string &check, RendezvousClient &client) {
  MpiOptions options;
  options.timeoutSeconds = kLimitSeconds;
  if (check == "one-without" && client.rank() == 2)
    options.module = "/no/such/module.so";
  if (check == "killed-at-begin" && client.rank() == 2) {
    RETURN_IF_ERROR(gatherReports(client, "loading MPI", {}).status()); // so the others begin
    ::raise(SIGKILL);
  }
  std::string why;
  std::unique_ptr<MpiExchange> mpi;
  RETURN_IF_ERROR(checkSignals([&]() -> Status {
    ASSIGN_OR_RETURN(mpi, MpiExchange::begin(client, options, [&](const Report &report) {
                       why = report.text.substr(report.text.find("ranks: ") + 7);
                     }));
    return Status::ok();
  }));
  if (client.rank() == 0)
    fmt::print("{}\n", mpi ? "by " + mpi->library() : "by TCP: " + why);
  auto found = kChecks.find(check);
  if (!mpi || found == kChecks.end())
    return Status::ok();
  RETURN_IF_ERROR(found->second(*mpi, client.rank()));
  RETURN_IF_ERROR(checkSignals([&] { return mpi->end(); }));
  // MPI has no part in what follows.
  if (check == "gather" && client.rank() == 0)
    fmt::print("all parts are right\n");
  return Status::ok();
}

void printReport(const Report &report) { fmt::print(stderr, "shardc-run: {}\n", lineOf(report)); }

int runJob(const std::string &check) {
  Result<JobPosition> position = findJobPosition(::getenv);
  if (!position.isOk() || position->launcher != Launcher::OpenMpi)
    return fmt::print(stderr, "start it by mpirun\n"), 2;
  SupervisorOptions supervisor;
  supervisor.position = *position;
  supervisor.worldSize = position->worldSize;
  supervisor.rendezvousPort = *rendezvousPort(*position, 0);
  supervisor.tell = printReport;
  supervisor.timeoutSeconds = kLimitSeconds;
  return supervise(supervisor, [&](const WorkerOptions &worker) {
    RendezvousClientOptions options;
    options.address = worker.address;
    options.port = worker.port;
    options.rank = worker.rank;
    options.worldSize = position->worldSize;
    options.job = worker.job;
    options.tell = printReport;
    auto client = RendezvousClient::join(options);
    if (!client.isOk())
      return kFailureStatus;
    if (Status status = runRank(check, **client); !status.isOk())
      return (*client)->fail(status, kFailureStatus);
    (*client)->leave(0);
    return 0;
  });
}

} // namespace
} // namespace shardc::launch

int main(int argc, char **argv) { return shardc::launch::runJob(argc > 1 ? argv[1] : ""); }
