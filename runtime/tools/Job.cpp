#include "runtime/tools/Job.h"

#include <algorithm>
#include <cstdlib>
#include <deque>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/ProgressMap.h"
#include "runtime/launch/Supervisor.h"
#include "runtime/tools/Backends.h"
#include "runtime/tools/Restarts.h"
#include "runtime/tools/Signals.h"

namespace shardc::tools {
namespace {

/// What a launched process needs to take part.
struct Meeting {
  launch::JobPosition position;
  int port = 0;
  launch::Secret secret;
};

/// For a plain start, only the position. Aborted where another rank tells what is wrong.
Result<Meeting> findMeeting(const RunToolOptions &options, int64_t optionPort) {
  auto get = [](const char *name) -> const char * { return ::getenv(name); };
  Meeting meeting;
  ASSIGN_OR_RETURN(meeting.position, launch::findJobPosition(get));
  if (meeting.position.launcher == Launcher::Plain)
    return meeting;
  ASSIGN_OR_RETURN(meeting.port, launch::rendezvousPort(meeting.position, optionPort));
  const std::string &path = options.recipe.empty() ? options.planPath : options.recipe;
  Result<launch::Secret> secret = launch::findSecret(meeting.position, get, path);
  if (!secret.isOk() && meeting.position.localRank > 0)
    return Status(StatusCode::Aborted, "the machine's first rank reports why there is no secret");
  ASSIGN_OR_RETURN(meeting.secret, std::move(secret));
  return meeting;
}

/// As tools of the system call it: the number in what CUDA_VISIBLE_DEVICES shows to this process.
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

int joinAndWork(const launch::WorkerOptions &worker, int64_t worldSize, uint64_t planHash,
                const Console &console, std::chrono::steady_clock::time_point begin,
                const std::function<int(ProcessContext &)> &work) {
  launch::RendezvousClientOptions options;
  options.address = worker.address;
  options.port = worker.port;
  options.rank = worker.rank;
  options.localRank = worker.localRank;
  options.worldSize = worldSize;
  options.planHash = planHash;
  options.secret = worker.secret.key;
  options.secretSource = worker.secret.source;
  options.job = worker.job;
  options.problem = worker.problem;
  options.joinSeconds = worker.joinSeconds;
  options.timeoutSeconds = worker.timeoutSeconds;
  options.hasWitness = worker.hasWitness;
  options.connectSeconds = worker.connectSeconds;
  options.startsAgain = worker.startsAgain;
  options.heard = worker.heard;
  options.gpu = worker.gpu;
  options.tell = console.sink();
  options.isAsked = [] { return stopRequests().load() > 0; };
  auto client = launch::RendezvousClient::join(options);
  if (!client.isOk())
    return options.isAsked() ? 0 : kInputStatus; // what there is to tell was told
  ProcessContext process;
  process.console = console;
  process.client = client->get();
  process.begin = begin;
  return work(process);
}

/// What words of progress mean, by the plan that they are of.
class StallTexts {
public:
  explicit StallTexts(std::span<const plan::Plan> plans) {
    for (const plan::Plan &plan : plans)
      maps_.emplace_back(plan);
  }

  /// By the plan of those that are furthest behind, for whom the others wait.
  std::string explainStall(std::span<const launch::RankProgress> ranks, int silent) const {
    uint32_t phase = UINT32_MAX;
    for (const launch::RankProgress &rank : ranks)
      phase = std::min(phase, rank.phase);
    std::vector<std::vector<uint32_t>> words;
    for (const launch::RankProgress &rank : ranks)
      words.push_back(rank.phase == phase ? rank.words : std::vector<uint32_t>());
    return mapOf(phase).explainStall(words, silent);
  }
  std::string place(const launch::RankProgress &rank) const {
    return mapOf(rank.phase).place(rank.words);
  }
  std::string stageOf(int64_t rank) const { return maps_.front().stageOf(rank); }

private:
  const exec::ProgressMap &mapOf(uint32_t phase) const {
    return maps_[std::min<size_t>(phase, maps_.size() - 1)];
  }

  std::deque<exec::ProgressMap> maps_;
};

} // namespace

int ProcessContext::fail(const Status &status, int exitStatus) {
  if (client)
    return client->fail(status, exitStatus);
  console.tell(status.report());
  return exitStatus;
}

int ProcessContext::fail(const std::vector<Report> &errors, int exitStatus) {
  if (client)
    return client->fail(errors, exitStatus);
  for (const Report &error : errors)
    console.tell(error);
  return exitStatus;
}

bool isLaunched() {
  Result<launch::JobPosition> position = launch::findJobPosition(::getenv);
  return position.isOk() && position->launcher != Launcher::Plain;
}

/// Without a plan its options are unknown: the port is the usual one, and the patience short.
int refuseJob(const RunToolOptions &options) {
  constexpr double kSeconds = 30;
  Report problem = makeReport(report::RecipeRefusedHere, options.refuse);
  Result<Meeting> meeting = findMeeting(options, 0);
  if (!meeting.isOk() || meeting->position.launcher == Launcher::Plain) {
    options.console.tell(problem);
    return kInputStatus;
  }
  launch::WorkerOptions worker;
  worker.rank = meeting->position.rank;
  worker.localRank = meeting->position.localRank;
  worker.address = meeting->position.masterAddress;
  worker.port = meeting->port;
  worker.secret = meeting->secret;
  worker.job = launch::launchName(meeting->position);
  worker.joinSeconds = kSeconds;
  worker.problem = problem;
  return joinAndWork(worker, meeting->position.worldSize, 0, options.console, {},
                     [](ProcessContext &) { return kInputStatus; });
}

double timeoutSeconds(const plan::Plan &plan) {
  return plan.job.dist.distributedTimeoutMinutes * 60;
}

int runJob(std::span<const plan::Plan> plans, uint64_t planHash, const RunToolOptions &options,
           const std::function<int(ProcessContext &)> &work) {
  const plan::Plan &plan = plans.front(); // all have the same ranks
  Result<Meeting> meeting = findMeeting(options, plan.job.dist.rendezvousPort);
  if (!meeting.isOk()) {
    if (meeting.status().code() != StatusCode::Aborted)
      options.console.tell(meeting.status().report());
    return kInputStatus;
  }
  const launch::JobPosition &position = meeting->position;
  bool isLaunched = position.launcher != Launcher::Plain;
  // Ranks on the host are threads unless processes are asked for; a GPU has a process of its own.
  bool isOneEach = options.processes || options.restarts > 0 ||
                   (findBackend(options.backend)->traits.isOnGpus && plan.worldSize() > 1);
  std::optional<Report> refusal = refuseRestarts(plan, options, position.launcher);
  if (refusal && !isLaunched) {
    options.console.tell(*refusal);
    return kInputStatus;
  }
  if (!isLaunched && !isOneEach) {
    ProcessContext process;
    process.console = options.console;
    return work(process);
  }
  StallTexts texts(plans);
  launch::SupervisorOptions supervisor;
  supervisor.position = position;
  supervisor.secret = meeting->secret;
  supervisor.worldSize = plan.worldSize();
  supervisor.rendezvousPort = meeting->port;
  supervisor.planHash = planHash;
  supervisor.tell = options.console.sink();
  supervisor.timeoutSeconds = timeoutSeconds(plan);
  if (isLaunched && position.worldSize != plan.worldSize())
    supervisor.problem = makeReport(report::OtherNumberOfRanks, toString(position.launcher),
                                    position.worldSize, plan.worldSize());
  else if (refusal)
    supervisor.problem = *refusal;
  else if (!isLaunched || position.rank == 0)
    supervisor.restarts = leadRestarts(plan, options);
  else
    supervisor.restarts.restartsMax = options.restarts;
  if (findBackend(options.backend)->traits.isOnGpus)
    supervisor.gpuOf = gpuOf;
  supervisor.explainStall = [&texts](std::span<const launch::RankProgress> ranks, int silent) {
    return texts.explainStall(ranks, silent);
  };
  supervisor.describe = [&texts](const launch::RankProgress &rank) { return texts.place(rank); };
  supervisor.noteLate = noteLateIn(options);
  supervisor.stageOf = [&texts](int64_t rank) { return texts.stageOf(rank); };
  holdSignals(
      /*isQuiet=*/true); // in the ranks that start here; this process says what becomes of one
  supervisor.isAsked = [] { return stopRequests().load() > 0; };
  int64_t worldSize = isLaunched ? position.worldSize : plan.worldSize();
  auto begin = std::chrono::steady_clock::now();
  return launch::supervise(supervisor, [&](const launch::WorkerOptions &worker) {
    return joinAndWork(worker, worldSize, planHash, options.console, begin, work);
  });
}

} // namespace shardc::tools
