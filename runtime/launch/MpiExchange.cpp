#include "runtime/launch/MpiExchange.h"

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include <dlfcn.h>

#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/launch/RankReports.h"
#include "runtime/launch/Wire.h"

namespace shardc::launch {
namespace {

constexpr const char *kModuleName = "libshardc_mpi.so";
constexpr auto kPause = std::chrono::microseconds(50); ///< between two looks for a message

/// Ends the job if the rank is in a call of MPI's for too long: it cannot be called back.
class TimeLimit {
public:
  TimeLimit(hal::Peers &peers, const char *call, double seconds) {
    // Without a thread MPI's calls have no limit but their own.
    static_cast<void>(startThread(thread_, [this, &peers, call, seconds] {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                             [this] { return isOver_; }))
        peers.reportFailure(makeStatus(
            StatusCode::Unavailable,
            "{} has not returned; the timeout of {:.4g} min (dist.distributed_timeout_minutes) has "
            "expired",
            call, seconds / 60));
    }));
  }
  ~TimeLimit() {
    {
      std::lock_guard lock(mutex_);
      isOver_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable())
      thread_.join();
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool isOver_ = false;
  std::thread thread_;
};

/// What goes from a member to the one that collects, with one part, and from there to all members.
struct Frame {
  std::string key;
  Status problem; ///< not ok: there are no parts
  std::vector<std::string> parts;

  std::string pack() const {
    Packer packer;
    std::vector<Report> problems;
    if (!problem.isOk())
      problems.push_back(problem.report());
    packer.text(key).reports(problems).number(parts.size());
    for (const std::string &part : parts)
      packer.text(part);
    return packer.take();
  }

  static Result<Frame> unpack(std::string_view bytes, int from, size_t partsMax) {
    Unpacker in(bytes);
    Frame frame;
    frame.key = in.text();
    if (std::vector<Report> problems = in.reports(); !problems.empty())
      frame.problem = Status(problems.front());
    frame.parts.resize(in.bounded(partsMax));
    for (std::string &part : frame.parts)
      part = in.text();
    if (!in.isComplete())
      return makeStatus(StatusCode::Internal,
                        "creating communicators: rank {} sent {} bytes that are not an exchange",
                        from, bytes.size());
    return frame;
  }
};

/// Beside this program, as in a build, or where it is installed.
std::string modulePath() {
  std::error_code error;
  std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::filesystem::path installed = folder.parent_path() / "lib/shardc" / kModuleName;
  return (std::filesystem::exists(installed, error) ? installed : folder / kModuleName).string();
}

/// Why a rank cannot use MPI, until all ranks know it: the text alone.
Report reason(std::string text) {
  Report why = makeReport(report::IdsByTcp, "");
  why.text = std::move(text);
  return why;
}

/// Stays loaded: an MPI cannot be taken out of a process again. Null with a reason.
const MpiModule *load(const std::string &path, std::vector<Report> &reasons) {
  void *library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  auto *entry =
      library ? reinterpret_cast<MpiModuleEntry *>(::dlsym(library, kMpiModuleEntry)) : nullptr;
  if (!entry) {
    const char *error = ::dlerror();
    reasons.push_back(reason(error ? error : path + " is not a module of shardc"));
    return nullptr;
  }
  const MpiModule *module = entry();
  if (module->version == kMpiModuleVersion)
    return module;
  reasons.push_back(reason(
      fmt::format("{} has version {}; {} is needed", path, module->version, kMpiModuleVersion)));
  return nullptr;
}

} // namespace

Result<std::unique_ptr<MpiExchange>>
MpiExchange::begin(hal::Peers &peers, const MpiOptions &options, const ReportSink &tell) {
  // MPI waits for all ranks at its begin, so all begin or none does.
  std::vector<Report> reasons;
  auto allCan = [&](std::string_view what) -> Result<bool> {
    ASSIGN_OR_RETURN(auto byRank, gatherReports(peers, what, reasons));
    reasons = mergeReports(byRank);
    if (!reasons.empty())
      tell(makeReport(report::IdsByTcp, reasons.front().text));
    return reasons.empty();
  };
  const MpiModule *module = load(options.module.empty() ? modulePath() : options.module, reasons);
  ASSIGN_OR_RETURN(bool haveModules, allCan("loading MPI"));
  if (!haveModules)
    return std::unique_ptr<MpiExchange>();
  std::unique_ptr<MpiExchange> exchange(new MpiExchange(peers, module, options.timeoutSeconds));
  int rank = -1, size = -1;
  {
    TimeLimit limit(peers, "MPI_Init", options.timeoutSeconds);
    RETURN_IF_ERROR(exchange->explained(module->begin(&rank, &size), "MPI_Init"));
  }
  if (rank != peers.rank() || size != peers.worldSize())
    reasons = {reason(fmt::format("mpirun has it as rank {} of {}, {} as rank {} of {}",
                                  peers.rank(), peers.worldSize(), module->library(), rank, size))};
  ASSIGN_OR_RETURN(bool isOneWorld, allCan("starting MPI"));
  if (isOneWorld)
    return exchange;
  RETURN_IF_ERROR(exchange->end());
  return std::unique_ptr<MpiExchange>();
}

/// The first member collects the parts and sends them to all.
Result<std::vector<std::string>> MpiExchange::gather(const std::string &key,
                                                     const std::vector<int> &members,
                                                     const std::string &mine) {
  if (mine.size() > kBlobBytesMax)
    return makeStatus(StatusCode::Internal, "'{}': {} bytes exceed the limit of {} for an exchange",
                      key, mine.size(), kBlobBytesMax);
  int self = peers_.rank(), first = members.front();
  auto differs = [](int rank, const std::string &its, int other, const std::string &others) {
    return makeStatus(report::ExchangesDiffer,
                      "creating communicators: rank {} is at '{}', rank {} at '{}'", rank, its,
                      other, others);
  };
  Frame all = {.key = key};
  if (self != first) {
    RETURN_IF_ERROR(send(first, Frame{.key = key, .parts = {mine}}.pack()));
    ASSIGN_OR_RETURN(std::string bytes, receive(first));
    ASSIGN_OR_RETURN(all, Frame::unpack(bytes, first, members.size()));
    if (all.problem.isOk() && all.key != key)
      all.problem = differs(first, all.key, self, key);
  } else {
    for (int member : members) {
      Frame part = {.key = key, .parts = {mine}};
      if (member != self) {
        ASSIGN_OR_RETURN(std::string bytes, receive(member));
        ASSIGN_OR_RETURN(part, Frame::unpack(bytes, member, 1));
      }
      if (part.key != key && all.problem.isOk())
        all.problem = differs(member, part.key, self, key);
      all.parts.insert(all.parts.end(), part.parts.begin(), part.parts.end());
    }
    if (!all.problem.isOk())
      all.parts.clear();
    std::string bytes = all.pack();
    for (int member : members)
      if (member != self)
        RETURN_IF_ERROR(send(member, bytes));
  }
  RETURN_IF_ERROR(all.problem);
  if (all.parts.size() != members.size())
    return makeStatus(StatusCode::Internal,
                      "creating communicators: {} parts of '{}' instead of {}", all.parts.size(),
                      key, members.size());
  return std::move(all.parts);
}

Status MpiExchange::end() {
  TimeLimit limit(peers_, "MPI_Finalize", timeoutSeconds_);
  return explained(module_->end(), "MPI_Finalize");
}

/// Waits with pauses: MPI's own waits keep a core busy, and a rank may be seconds behind. Once the
/// job has failed this process is ended where it waits.
Status MpiExchange::send(int to, const std::string &bytes) {
  RETURN_IF_ERROR(
      explained(module_->send(to, bytes.data(), static_cast<int>(bytes.size())), "MPI_Issend"));
  while (true) {
    bool isSent = false;
    RETURN_IF_ERROR(explained(module_->isSent(&isSent), "MPI_Test"));
    if (isSent)
      return Status::ok();
    std::this_thread::sleep_for(kPause);
  }
}

Result<std::string> MpiExchange::receive(int from) {
  int count = -1;
  while (true) {
    RETURN_IF_ERROR(explained(module_->arrived(from, &count), "MPI_Iprobe"));
    if (count >= 0)
      break;
    std::this_thread::sleep_for(kPause);
  }
  if (static_cast<size_t>(count) > kFrameBytesMax)
    return makeStatus(StatusCode::Internal,
                      "creating communicators: rank {} sends {} bytes; the limit is "
                      "{}",
                      from, count, kFrameBytesMax);
  std::string bytes(static_cast<size_t>(count), '\0');
  RETURN_IF_ERROR(explained(module_->receive(from, bytes.data(), count), "MPI_Recv"));
  return bytes;
}

Status MpiExchange::explained(int error, const char *call) const {
  if (error == 0)
    return Status::ok();
  return makeStatus(StatusCode::Unavailable, "{}: {}", call, module_->explain(error));
}

} // namespace shardc::launch
