#include "runtime/tools/Job.h"

#include <cstdlib>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/ProgressMap.h"
#include "runtime/launch/Supervisor.h"
#include "runtime/tools/Backends.h"

namespace shardc::tools {
namespace {

/// What a launched process needs to take part.
struct Meeting {
  launch::Place place;
  int port = 0;
  launch::Secret secret;
};

/// For a plain start, only the place. Aborted where another rank tells what is wrong.
Result<Meeting> findMeeting(const RunToolOptions &options, int64_t optionPort) {
  auto get = [](const char *name) -> const char * { return ::getenv(name); };
  Meeting meeting;
  ASSIGN_OR_RETURN(meeting.place, launch::findPlace(get));
  if (meeting.place.launcher == Launcher::Plain)
    return meeting;
  ASSIGN_OR_RETURN(meeting.port, launch::rendezvousPort(meeting.place, optionPort));
  const std::string &path = options.recipe.empty() ? options.planPath : options.recipe;
  Result<launch::Secret> secret = launch::findSecret(meeting.place, get, path);
  if (!secret.isOk() && meeting.place.localRank > 0)
    return Status(StatusCode::Aborted, "the machine's first rank tells why there is no secret");
  ASSIGN_OR_RETURN(meeting.secret, std::move(secret));
  return meeting;
}

int joinAndWork(const launch::WorkerPlace &place, int64_t worldSize, uint64_t planHash,
                const Console &console, const std::function<int(Crew &)> &work) {
  launch::MemberOptions options;
  options.address = place.address;
  options.port = place.port;
  options.rank = place.rank;
  options.localRank = place.localRank;
  options.worldSize = worldSize;
  options.planHash = planHash;
  options.secret = place.secret.key;
  options.secretSource = place.secret.source;
  options.job = place.job;
  options.problem = place.problem;
  options.joinSeconds = place.joinSeconds;
  options.timeoutSeconds = place.timeoutSeconds;
  options.tell = console.sink();
  auto member = launch::Member::join(options);
  if (!member.isOk())
    return kInputStatus; // what there is to tell was told
  Crew crew;
  crew.console = console;
  crew.member = member->get();
  return work(crew);
}

} // namespace

int Crew::fail(const Status &status, int exitStatus) {
  if (member)
    return member->fail(status, exitStatus);
  console.tell(status.report());
  return exitStatus;
}

int Crew::fail(const std::vector<Report> &errors, int exitStatus) {
  if (member)
    return member->fail(errors, exitStatus);
  for (const Report &error : errors)
    console.tell(error);
  return exitStatus;
}

bool isLaunched() {
  Result<launch::Place> place = launch::findPlace(::getenv);
  return place.isOk() && place->launcher != Launcher::Plain;
}

/// Without a plan its options are unknown: the port is the usual one, and the patience short.
int refuseJob(const RunToolOptions &options) {
  constexpr double kSeconds = 30;
  Report problem = makeReport(report::RecipeRefusedHere, options.refuse);
  Result<Meeting> meeting = findMeeting(options, 0);
  if (!meeting.isOk() || meeting->place.launcher == Launcher::Plain) {
    options.console.tell(problem);
    return kInputStatus;
  }
  launch::WorkerPlace worker;
  worker.rank = meeting->place.rank;
  worker.localRank = meeting->place.localRank;
  worker.address = meeting->place.masterAddress;
  worker.port = meeting->port;
  worker.secret = meeting->secret;
  worker.job = launch::launchName(meeting->place);
  worker.joinSeconds = kSeconds;
  worker.problem = problem;
  return joinAndWork(worker, meeting->place.worldSize, 0, options.console,
                     [](Crew &) { return kInputStatus; });
}

double timeoutSeconds(const plan::Plan &plan) {
  return plan.job.dist.distributedTimeoutMinutes * 60;
}

int runJob(const plan::Plan &plan, uint64_t planHash, const RunToolOptions &options,
           const std::function<int(Crew &)> &work) {
  Result<Meeting> meeting = findMeeting(options, plan.job.dist.rendezvousPort);
  if (!meeting.isOk()) {
    if (meeting.status().code() != StatusCode::Aborted)
      options.console.tell(meeting.status().report());
    return kInputStatus;
  }
  const launch::Place &place = meeting->place;
  bool isLaunched = place.launcher != Launcher::Plain;
  // Ranks on the host are threads unless processes are asked for; a GPU has a process of its own.
  bool isOneEach =
      options.processes || (findBackend(options.backend)->traits.isOnGpus && plan.worldSize() > 1);
  if (!isLaunched && !isOneEach) {
    Crew crew;
    crew.console = options.console;
    return work(crew);
  }
  exec::ProgressMap map(plan);
  launch::SupervisorOptions supervisor;
  supervisor.place = place;
  supervisor.secret = meeting->secret;
  supervisor.worldSize = plan.worldSize();
  supervisor.rendezvousPort = meeting->port;
  supervisor.planHash = planHash;
  supervisor.tell = options.console.sink();
  supervisor.timeoutSeconds = timeoutSeconds(plan);
  if (isLaunched && place.worldSize != plan.worldSize())
    supervisor.problem = makeReport(report::OtherNumberOfRanks, toString(place.launcher),
                                    place.worldSize, plan.worldSize());
  supervisor.explainStall = [&map](std::span<const launch::Snapshot> snapshots, int silent) {
    std::vector<std::vector<uint32_t>> words;
    for (const launch::Snapshot &snapshot : snapshots)
      words.push_back(snapshot.words);
    return map.explainStall(words, silent);
  };
  supervisor.describe = [&map](const launch::Snapshot &snapshot) {
    return map.place(snapshot.words);
  };
  int64_t worldSize = isLaunched ? place.worldSize : plan.worldSize();
  return launch::supervise(supervisor, [&](const launch::WorkerPlace &worker) {
    return joinAndWork(worker, worldSize, planHash, options.console, work);
  });
}

} // namespace shardc::tools
