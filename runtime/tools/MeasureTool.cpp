// shardc-run --measure and --doctor.
#include "runtime/tools/Commands.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Io.h"
#include "runtime/base/Reports.h"
#include "runtime/launch/Machine.h"
#include "runtime/launch/RankReports.h"
#include "runtime/measure/MemoryTest.h"
#include "runtime/measure/Verdict.h"
#include "runtime/tools/Backends.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/Signals.h"
#include "runtime/tools/Variables.h"

namespace shardc::tools {
namespace {

constexpr int64_t kRanksMax = 1 << 16;
constexpr double kTimeoutMinutes = 3;

/// A minimal plan with this number of ranks, which suffices to start, connect and watch ranks.
plan::Plan planOf(std::string_view backend, int64_t ranks) {
  plan::Plan plan;
  plan.name = "measure";
  plan.level = plan::Level::Placed;
  plan.needsBackend = backend;
  plan.mesh = {{"rank", ranks}};
  plan.roles.emplace_back().name = "all";
  plan.job.put(plan::JobField::dist_distributedTimeoutMinutes, kTimeoutMinutes);
  return plan;
}

/// Returns the number of ranks, according to the launcher, the options or the devices.
Result<int64_t> ranksOf(const RunToolOptions &options, int devices) {
  ASSIGN_OR_RETURN(launch::JobPosition position, launch::findJobPosition(::getenv));
  if (position.launcher == Launcher::Plain)
    return options.ranks > 0 ? options.ranks : std::max(devices, 1);
  if (options.ranks > 0 && options.ranks != position.worldSize)
    return makeStatus(report::MeasureRefused, "--ranks={}, but {} has started {} ranks",
                      options.ranks, toString(position.launcher), position.worldSize);
  return position.worldSize;
}

/// Returns the versions in one line.
std::string versionsText() {
  std::string text = versionLines();
  for (size_t at; (at = text.find('\n')) != std::string::npos;)
    text.replace(at, 1, "; ");
  constexpr size_t kMost = 390; // for the texts of a file
  return text.substr(0, kMost);
}

Result<RateFile> readRateFile(const std::string &path) {
  ASSIGN_OR_RETURN(std::string text, readFile(path, kRateFileBytesMax));
  RateFault fault;
  std::optional<RateFile> file = parseRates(text, fault);
  if (!file)
    return makeStatus(report::MeasureRefused, "{}:{}: {}", path, fault.line, fault.text);
  return std::move(*file);
}

/// The work of one process once the ranks are connected.
class MeasureJob {
public:
  MeasureJob(const plan::Plan &plan, const RunToolOptions &options, const BackendEntry &entry,
             const RateFile &expected, ProcessContext &process)
      : options_(options), expected_(expected), process_(process),
        session_(entry.beginSession(plan, options, warnings_.sink())) {
    bench_.findKernel = entry.findKernel;
    file_.machine.backend = entry.name;
    file_.machine.ranks = plan.worldSize();
  }

  Status run() {
    RETURN_IF_ERROR(session_->judgeDevices(process_.client));
    ASSIGN_OR_RETURN(backend_, session_->makeBackend(process_.client));
    if (process_.client)
      process_.client->onAbort([backend = backend_.get()] { backend->abort(); });
    bench_.choose = session_->chooser();
    bench_.isAsked = [] { return stopRequests().load() > 0; };
    ASSIGN_OR_RETURN(nodes_, measure::nodesOf(process_.client));
    file_.machine.nodes = static_cast<int64_t>(nodes_.size());
    RETURN_IF_ERROR(findPlaces());
    RETURN_IF_ERROR(options_.doctor ? examine() : measureToFile());
    return backend_->synchronize();
  }

  bool hasFound() const { return hasFound_; }

private:
  /// Determines the place of each rank. All devices must be of one kind, because a file describes
  /// one kind.
  Status findPlaces() {
    int local = process_.client ? process_.client->localRank() : 0;
    file_.machine.device = session_->deviceName(local);
    file_.machine.versions = versionsText();
    std::vector<std::string> hosts = {launch::hostName()}, names = {file_.machine.device},
                             locals = {std::to_string(local)};
    if (process_.client) {
      ASSIGN_OR_RETURN(hosts, process_.client->allGather("finding hosts", hosts.front()));
      ASSIGN_OR_RETURN(names, process_.client->allGather("finding devices", names.front()));
      ASSIGN_OR_RETURN(locals, process_.client->allGather("finding devices", locals.front()));
    }
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      bool isGpu = file_.machine.backend == "cuda";
      places_.push_back({hosts[rank], isGpu ? ", GPU " + locals[rank] : ""});
      if (names[rank] != names[0])
        return makeStatus(report::MeasureRefused,
                          "rank {} has a device '{}', but rank 0 has '{}': measure each kind by "
                          "itself",
                          rank, names[rank], names[0]);
    }
    return Status::ok();
  }

  void say(const std::string &line) const {
    if (!process_.isFirst())
      return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  Status measureRates() {
    say(fmt::format("{} ranks on {} node{}, {}", file_.machine.ranks, file_.machine.nodes,
                    file_.machine.nodes == 1 ? "" : "s", file_.machine.device));
    ASSIGN_OR_RETURN(auto bench, measure::Bench::create(*backend_, process_.client, bench_));
    measure::MeasureOptions options;
    options.isQuick = options_.isQuick || options_.doctor;
    options.measured = [this](const measure::Measured &measured) {
      measured_.push_back(measured);
      const Rate &rate = measured.rate;
      say(fmt::format("{:<48} {:>10.1f} us {:>10.4g} {}", rate.text(), rate.seconds * 1e6,
                      rate.rate(), infoOf(rate.kind).unit));
    };
    options.emit = [this](const Report &report) {
      if (process_.isFirst())
        process_.console.emit(report);
    };
    return measure::measureAll(*bench, nodes_, options);
  }

  /// Checks that rank 0 can write into the file's folder, before minutes are spent on measurements.
  Status checkFolder() const {
    Status status;
    std::filesystem::path folder = std::filesystem::path(options_.output).parent_path();
    if (folder.empty())
      folder = ".";
    if (process_.isFirst() && ::access(folder.c_str(), W_OK | X_OK) != 0)
      status = systemError("write into", folder, errno);
    return process_.client ? process_.client->agree("the folder of the rates", status) : status;
  }

  Status measureToFile() {
    RETURN_IF_ERROR(checkFolder());
    RETURN_IF_ERROR(measureRates());
    for (const measure::Measured &each : measured_)
      file_.rates.push_back(each.rate);
    Status written;
    if (process_.isFirst())
      written = writeFileAtomic(options_.output, printRates(file_));
    if (process_.client)
      written = process_.client->agree("writing the rates", written);
    if (written.isOk())
      say(fmt::format("wrote {} rates to '{}'", file_.rates.size(), options_.output));
    return written;
  }

  /// The doctor: tests memory, measures, gathers the findings of all ranks, and prints them on the
  /// first one. Every rank computes the same result, so all exit with the same status.
  Status examine() {
    std::vector<Report> found;
    RETURN_IF_ERROR(testMemory(found));
    RETURN_IF_ERROR(measureRates());
    printRanks();
    measure::VerdictOptions verdict;
    verdict.slower = 0.01 * static_cast<double>(options_.slowerPercent);
    verdict.below = 0.01 * static_cast<double>(options_.belowPercent);
    std::vector<std::vector<Report>> byRank = {std::move(found)};
    if (process_.client) {
      ASSIGN_OR_RETURN(byRank, launch::gatherReports(*process_.client, "findings", byRank.front()));
    }
    std::vector<Report> all;
    for (const std::vector<Report> &own : byRank)
      all.insert(all.end(), own.begin(), own.end());
    for (Report &report : measure::judge(measured_, expected_.rates, places_, verdict))
      all.push_back(std::move(report));
    hasFound_ = !all.empty();
    if (!process_.isFirst())
      return Status::ok();
    for (const Report &report : all)
      process_.console.emit(report);
    if (!hasFound_)
      process_.console.emit(makeReport(report::DoctorFine, file_.machine.ranks, measured_.size()));
    return Status::ok();
  }

  /// Tests as much of a device's memory as can be written and read in about twenty seconds, or a
  /// small part if ranks share the memory.
  Status testMemory(std::vector<Report> &found) {
    constexpr int64_t kGiB = int64_t{1} << 30, kDeviceBytes = 48 * kGiB, kHostBytes = kGiB / 4;
    constexpr double kShare = 0.9; // the rest is for libraries
    hal::Device &device = *backend_->devices().front();
    int64_t most =
        static_cast<int64_t>(kShare * static_cast<double>(device.bytesFree(hal::MemoryKind::Work)));
    int64_t bytes = std::min(most, backend_->devicesShareMemory() ? kHostBytes : kDeviceBytes);
    if (options_.memoryGiB > 0)
      bytes = std::min(most, options_.memoryGiB * kGiB);
    ASSIGN_OR_RETURN(measure::MemoryFindings onDevice,
                     measure::testDeviceMemory(device, *backend_, bytes));
    ASSIGN_OR_RETURN(measure::MemoryFindings onHost, measure::testHostMemory(device, kHostBytes));
    note(onDevice, "device", found);
    note(onHost, "host", found);
    say(fmt::format("memory: {:.1f} GiB of each device and {:.2f} GiB of host memory were written "
                    "and read back twice",
                    static_cast<double>(bytes) / kGiB, static_cast<double>(kHostBytes) / kGiB));
    return Status::ok();
  }

  void note(const measure::MemoryFindings &findings, std::string_view what,
            std::vector<Report> &found) const {
    int rank = process_.client ? process_.client->rank() : 0;
    if (std::optional<Report> report =
            measure::judgeMemory(findings, what, rank, places_[static_cast<size_t>(rank)]))
      found.push_back(std::move(*report));
  }

  /// Prints the best rate of each rank for each kind of work.
  void printRanks() const {
    std::map<std::pair<RateKind, std::string>, const measure::Measured *> best;
    for (const measure::Measured &each : measured_) {
      const measure::Measured *&kept = best[{each.rate.kind, each.rate.op}];
      if (!kept || each.rate.work() >= kept->rate.work())
        kept = &each;
    }
    for (const auto &[key, each] : best) {
      std::string line = fmt::format("{:<48} {:>8}", each->rate.text(), infoOf(key.first).unit);
      for (double seconds : each->seconds) {
        Rate own = each->rate;
        own.seconds = seconds;
        line += fmt::format(" {:.4g}", own.rate());
      }
      say("by rank: " + line);
    }
  }

  const RunToolOptions &options_;
  const RateFile &expected_;
  ProcessContext &process_;
  ReportList warnings_;
  std::unique_ptr<BackendSession> session_; ///< must outlive the backend
  std::unique_ptr<hal::Backend> backend_;
  measure::BenchOptions bench_;
  measure::Nodes nodes_;
  std::vector<measure::RankPlace> places_;
  std::vector<measure::Measured> measured_;
  RateFile file_;
  bool hasFound_ = false;
};

int measureRanks(const plan::Plan &plan, const RunToolOptions &options, const BackendEntry &entry,
                 const RateFile &expected, ProcessContext &process) {
  MeasureJob job(plan, options, entry, expected, process);
  if (Status status = job.run(); !status.isOk())
    return process.fail(status,
                        status.code() == StatusCode::InvalidInput ? kInputStatus : kFailureStatus);
  int exitStatus = job.hasFound() ? kInputStatus : 0;
  if (process.client)
    process.client->leave(exitStatus);
  return exitStatus;
}

Status checkOptions(const RunToolOptions &options) {
  if (options.measure && options.output.empty())
    return makeStatus(report::MeasureRefused, "--measure writes a file: name it with -o FILE");
  if (options.doctor && !options.output.empty())
    return makeStatus(report::MeasureRefused, "--doctor writes no file; -o is for --measure");
  if (!options.doctor && !options.against.empty())
    return makeStatus(report::MeasureRefused, "--against is what --doctor compares with");
  if (options.ranks > kRanksMax)
    return makeStatus(report::MeasureRefused, "--ranks={}; up to {} can be started", options.ranks,
                      kRanksMax);
  return Status::ok();
}

} // namespace

/// Runs the measurements as a job with a minimal plan, so that the ranks are started and connected
/// like those of a run. In place of the plan's hash, the ranks compare which kind of measurement
/// they make.
int measureMachine(RunToolOptions options) {
  auto refuse = [&options](const Status &status) {
    options.console.emit(status.report());
    return kInputStatus;
  };
  if (Status status = checkOptions(options); !status.isOk())
    return refuse(status);
  RateFile expected;
  if (!options.against.empty()) {
    Result<RateFile> read = readRateFile(options.against);
    if (!read.isOk())
      return refuse(read.status());
    expected = std::move(*read);
  }
  int devices = 0;
  const BackendEntry *entry = chooseBackend(options.backend, devices);
  Result<int64_t> ranks = ranksOf(options, devices);
  if (!ranks.isOk())
    return refuse(ranks.status());
  if (!entry->traits.computes)
    return refuse(makeStatus(report::MeasureRefused, "backend {} computes nothing", entry->name));
  if (options.doctor && options.backend.empty() && !entry->traits.isOnGpus)
    return refuse(makeStatus(report::DoctorWithoutGpu,
                             findBackend("cuda") ? "" : ": this program was built without CUDA"));
  options.backend = entry->name;
  options.processes = *ranks > 1;
  plan::Plan plan = planOf(entry->name, *ranks);
  if (Status status = setVariables(plan, entry, options); !status.isOk())
    return refuse(status);
  uint64_t kind = options.doctor ? 2 : options.isQuick ? 1 : 0; // in place of the plan's hash
  return runJob(std::span(&plan, 1), kind, options,
                [&](std::span<const plan::Plan>, ProcessContext &process) {
                  return measureRanks(plan, options, *entry, expected, process);
                });
}

} // namespace shardc::tools
