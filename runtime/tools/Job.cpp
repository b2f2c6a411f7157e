#include "runtime/tools/Job.h"

#include <algorithm>
#include <cstdlib>
#include <deque>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/ProgressMap.h"
#include "runtime/launch/Supervisor.h"
#include "runtime/tools/Backends.h"
#include "runtime/tools/Elastic.h"
#include "runtime/tools/MemoryRestarts.h"
#include "runtime/tools/Restarts.h"
#include "runtime/tools/Signals.h"

namespace shardc::tools {
namespace {

/// A rank that cannot reach rank 0 knows more than rank 0, so it may report first.
constexpr double kJoinMarginSeconds = 2;

/// Returns the reason why the run cannot begin in this environment or with these options.
std::optional<Report> refuseHere(const plan::Plan &plan, const RunToolOptions &options,
                                 Launcher launcher) {
  const BackendEntry &backend = *findBackend(options.backend);
  if (backend.refusal && !backend.refusal().empty())
    return makeReport(report::BlasKernelsRefused, backend.refusal());
  if (std::optional<Report> refusal = refuseRestarts(plan, options, launcher))
    return refusal;
  return refuseElastic(options, launcher);
}

/// The connection and position that a launched process needs.
struct Meeting {
  launch::JobPosition position;
  int port = 0;
  launch::Secret secret;
};

/// Determines the rendezvous; for a plain start, only the rank's position. Aborted if another rank
/// reports the error.
Result<Meeting> findMeeting(int64_t optionPort) {
  auto get = [](const char *name) -> const char * { return ::getenv(name); };
  Meeting meeting;
  ASSIGN_OR_RETURN(meeting.position, launch::findJobPosition(get));
  if (meeting.position.launcher == Launcher::Plain)
    return meeting;
  ASSIGN_OR_RETURN(meeting.port, launch::rendezvousPort(meeting.position, optionPort));
  Result<launch::Secret> secret = launch::findSecret(meeting.position, get);
  if (!secret.isOk() && meeting.position.localRank > 0)
    return Status(StatusCode::Aborted, "the machine's first rank reports why there is no secret");
  ASSIGN_OR_RETURN(meeting.secret, std::move(secret));
  return meeting;
}

/// Returns the GPU's number as system tools show it: its entry in CUDA_VISIBLE_DEVICES of this
/// process.
std::string gpuOf(int64_t localRank) {
  const char *visible = ::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> names;
  for (std::string_view left = visible ? visible : ""; !left.empty();) {
    size_t end = left.find(',');
    names.emplace_back(left.substr(0, end));
    left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
  }
  auto index = static_cast<size_t>(names.size() == 1 ? 0 : localRank);
  return "GPU " + (index < names.size() ? names[index] : std::to_string(localRank));
}

int joinAndWork(launch::RendezvousClientOptions &options, const Console &console,
                std::chrono::steady_clock::time_point begin,
                const std::function<int(ProcessContext &)> &work) {
  options.isAsked = [] { return stopRequests().load() > 0; };
  auto client = launch::RendezvousClient::join(options);
  if (!client.isOk())
    return options.isAsked()            ? 0 // everything has been reported
           : options.connectSeconds > 0 ? kFailureStatus
                                        : kInputStatus;
  ProcessContext process;
  process.console = console;
  process.client = client->get();
  process.heldOwn = options.heldOwn;
  process.heldGuest = options.heldGuest;
  process.planHash = options.planHash;
  process.begin = begin;
  process.meetingSeconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return work(process);
}

/// Describes progress words by the plan to which they belong.
class StallTexts {
public:
  explicit StallTexts(std::span<const plan::Plan> plans) : plans_(plans) {
    for (const plan::Plan &plan : plans)
      maps_.emplace_back(plan);
  }

  /// Explains a stall by the ranks that are furthest behind and for which the others wait.
  std::string explainStall(std::span<const launch::RankProgress> ranks, int silent) const {
    uint32_t phase = UINT32_MAX, first = firstFor(std::ssize(ranks)); // some have not reported
    for (const launch::RankProgress &rank : ranks)
      phase = std::min(phase, std::max(rank.phase, first));
    std::vector<std::vector<uint32_t>> words;
    for (const launch::RankProgress &rank : ranks)
      words.push_back(rank.phase == phase ? rank.words : std::vector<uint32_t>());
    return mapOf(phase).explainStall(words, silent);
  }
  std::string place(const launch::RankProgress &rank) const {
    return mapOf(rank.phase).place(rank.words);
  }
  std::string stageOf(int64_t rank, int64_t ranks) const {
    return mapOf(firstFor(ranks)).stageOf(rank);
  }

private:
  /// Returns the index of the first plan for this number of ranks.
  uint32_t firstFor(int64_t ranks) const {
    auto at = std::ranges::find(plans_, ranks, &plan::Plan::worldSize);
    return at == plans_.end() ? 0 : static_cast<uint32_t>(at - plans_.begin());
  }
  const exec::ProgressMap &mapOf(uint32_t phase) const {
    return maps_[std::min<size_t>(phase, maps_.size() - 1)];
  }

  std::span<const plan::Plan> plans_;
  std::deque<exec::ProgressMap> maps_;
};

/// Sets the supervisor's sizes of an elastic job, and reports a problem if the launcher has started
/// a number of processes other than that of ranks and spares.
void setSizes(const plan::Plan &plan, const RunToolOptions &options,
              launch::SupervisorOptions &supervisor) {
  const launch::JobPosition &position = supervisor.position;
  supervisor.elastic =
      elasticOptionsOf(options, plan.worldSize(), timeoutSeconds(plan) + kJoinMarginSeconds);
  supervisor.noteCrew = noteCrewsOf(plan, options);
  int64_t needed = supervisor.processes();
  if (position.launcher == Launcher::Plain || position.worldSize == needed)
    return;
  supervisor.problem =
      options.isElastic() ? makeReport(report::OtherNumberOfPlaces, toString(position.launcher),
                                       position.worldSize, plan.worldSize(), options.spares, needed)
                          : makeReport(report::OtherNumberOfRanks, toString(position.launcher),
                                       position.worldSize, needed);
}

} // namespace

int ProcessContext::fail(const Status &status, int exitStatus) {
  if (client)
    return client->fail(status, exitStatus);
  console.emit(status.report());
  return exitStatus;
}

int ProcessContext::fail(const std::vector<Report> &errors, int exitStatus) {
  if (client)
    return client->fail(errors, exitStatus);
  for (const Report &error : errors)
    console.emit(error);
  return exitStatus;
}

bool isLaunched() {
  Result<launch::JobPosition> position = launch::findJobPosition(::getenv);
  return position.isOk() && position->launcher != Launcher::Plain;
}

/// Without a plan its options are unknown, so this uses the default port and a short time limit.
int refuseJob(const RunToolOptions &options) {
  constexpr double kSeconds = 30;
  Report problem = makeReport(report::RecipeRefusedHere, options.refuse);
  Result<Meeting> meeting = findMeeting(0);
  if (!meeting.isOk() || meeting->position.launcher == Launcher::Plain) {
    options.console.emit(problem);
    return kInputStatus;
  }
  launch::RendezvousClientOptions worker;
  worker.rank = meeting->position.rank;
  worker.localRank = meeting->position.localRank;
  worker.address = meeting->position.masterAddress;
  worker.port = meeting->port;
  worker.secret = meeting->secret.key;
  worker.secretSource = meeting->secret.source;
  worker.worldSize = meeting->position.worldSize;
  worker.emit = options.console.sink();
  worker.job = launch::launchName(meeting->position);
  worker.joinSeconds = kSeconds;
  worker.problem = problem;
  return joinAndWork(worker, options.console, {}, [](ProcessContext &) { return kInputStatus; });
}

double timeoutSeconds(const plan::Plan &plan) {
  return plan.job.dist.distributedTimeoutMinutes * 60;
}

int runJob(std::span<const plan::Plan> plans, uint64_t planHash, const RunToolOptions &options,
           const RunWork &work) {
  const plan::Plan &plan = plans.front(); // the fields used here are equal in all plans
  Result<Meeting> meeting = findMeeting(plan.job.dist.rendezvousPort);
  if (!meeting.isOk()) {
    if (meeting.status().code() != StatusCode::Aborted)
      options.console.emit(meeting.status().report());
    return kInputStatus;
  }
  const launch::JobPosition &position = meeting->position;
  bool isLaunched = position.launcher != Launcher::Plain;
  // On the host, ranks are threads unless processes are requested. Each GPU has its own process.
  const BackendEntry &backend = *findBackend(options.backend);
  bool isOneEach = options.processes || options.restarts > 0 ||
                   (backend.traits.isOnGpus && plan.worldSize() > 1);
  std::optional<Report> refusal = refuseHere(plan, options, position.launcher);
  Result<launch::HeldMemory> held = heldMemoryOf(plans, options, isLaunched);
  if (!refusal && !held.isOk())
    refusal = held.status().report();
  if (refusal && !isLaunched) {
    options.console.emit(*refusal);
    return kInputStatus;
  }
  if (!isLaunched && !isOneEach) {
    ProcessContext process;
    process.console = options.console;
    return work(plans, process);
  }
  StallTexts texts(plans);
  launch::SupervisorOptions supervisor;
  supervisor.position = position;
  supervisor.secret = meeting->secret;
  supervisor.worldSize = plan.worldSize();
  supervisor.rendezvousPort = meeting->port;
  supervisor.planHash = planHash;
  supervisor.emit = options.console.sink();
  supervisor.timeoutSeconds = timeoutSeconds(plan);
  setSizes(plan, options, supervisor);
  if (refusal && !supervisor.problem)
    supervisor.problem = *refusal;
  if (!supervisor.problem && (!isLaunched || position.rank == 0))
    supervisor.restarts = leadRestarts(plan, options);
  else if (!supervisor.problem)
    supervisor.restarts.restartsMax = options.restarts;
  supervisor.whatIsLeft = [&plan] { return whatIsLeftOf(plan); };
  supervisor.held = held.isOk() ? *held : launch::HeldMemory();
  if (backend.traits.isOnGpus)
    supervisor.gpuOf = gpuOf;
  supervisor.explainStall = [&texts](std::span<const launch::RankProgress> ranks, int silent) {
    return texts.explainStall(ranks, silent);
  };
  supervisor.describe = [&texts](const launch::RankProgress &rank) { return texts.place(rank); };
  supervisor.stageOf = [&texts](int64_t rank, int64_t ranks) { return texts.stageOf(rank, ranks); };
  supervisor.noteLate = noteLateIn(options);
  holdSignals(
      /*isQuiet=*/true); // quiet in the ranks that start here: this process reports requests
  supervisor.isAsked = [] { return stopRequests().load() > 0; };
  auto workAsRank = [&](ProcessContext &process) {
    std::vector<std::span<const plan::Plan>> sizes = plansBySize(plans);
    auto own = std::ranges::find(sizes, process.client->worldSize(),
                                 [](const auto &size) { return size.front().worldSize(); });
    process.firstPlan = static_cast<size_t>(own->data() - plans.data());
    return work(*own, process);
  };
  auto begin = std::chrono::steady_clock::now();
  return launch::supervise(supervisor, [&](launch::RendezvousClientOptions &worker) {
    return joinAndWork(worker, options.console, begin, workAsRank);
  });
}

} // namespace shardc::tools
