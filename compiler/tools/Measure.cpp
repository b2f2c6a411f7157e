// shardc measure and shardc doctor: measure the machines of a job, and look for a slow or faulty
// rank before a run. Both execute shardc-run from this program's folder: once in each process of a
// launcher, or under mpirun or srun for the given hosts.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "compiler/config/Steps.h"
#include "compiler/predict/Expected.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Nodes.h"
#include "compiler/tools/Runner.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Launcher.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

/// The largest group for which expected figures are computed.
constexpr int64_t kMembersMax = 4096;

struct MeasureCommand {
  std::string program;
  std::string output, backend, hosts, gpu, rates, recipe;
  int64_t ranks = 0, slower = 10, below = 25, memoryGiB = 0;
  bool isQuick = false;
  NodeOptions nodes;
};

ExitStatus refuse(const std::string &what) {
  llvm::errs() << "shardc: error: " << what << "\n";
  return kUsage;
}

/// Reads the cluster from the recipe: its measured rates, or its GPU.
ExitStatus readRecipe(MeasureCommand &options) {
  CommonOptions common;
  common.load.path = options.recipe;
  Session session(common);
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), common.load);
  if (ExitStatus status = session.finish(); status != kFine || !config)
    return status == kFine ? kInputErrors : status;
  if (config->has(config::Opt::ClusterRates))
    options.rates = config->getString(config::Opt::ClusterRates);
  else if (config->derived().gpu)
    options.gpu = config::spelling(*config->derived().gpu).str();
  return kFine;
}

/// Writes the device table's figures of the GPU as a rates file. If a machine has GPUs that cannot
/// be used, its rates are not compared with those of a host.
ExitStatus expect(const std::string &name, std::string &path, std::string &backend) {
  std::optional<predict::Gpu> gpu = predict::findDevice(name);
  if (!gpu)
    return refuse("'--gpu' takes one of " + llvm::join(predict::deviceNames(), ", ") + ", not '" +
                  name + "'");
  const predict::Device &device = predict::device(*gpu);
  if (device.isHost()) // the table has no figures for the host
    return kFine;
  if (backend.empty())
    backend = "cuda";
  RateFile file;
  file.machine = {"table", device.name.str(), 1, 1, "device table"};
  file.rates = predict::expectedRates(device, kMembersMax);
  std::optional<std::string> text = pathOfText(printRates(file));
  if (!text)
    return refuse("cannot pass the expected rates on: " + std::string(std::strerror(errno)));
  path = *text;
  return kFine;
}

/// The number of ranks on hosts `a:8,b:8`, here 16. A host without a number has one. Empty if the
/// text is malformed.
std::optional<int64_t> ranksOn(llvm::StringRef hosts) {
  int64_t sum = 0;
  llvm::SmallVector<llvm::StringRef, 16> each;
  hosts.split(each, ',');
  for (llvm::StringRef host : each) {
    auto [name, number] = host.split(':');
    int64_t ranks = 1;
    bool isNumber = number.empty() ? !host.contains(':') : !number.getAsInteger(10, ranks);
    if (name.empty() || !isNumber || ranks < 1)
      return std::nullopt;
    sum += ranks;
  }
  return sum;
}

/// The path of this program's own file.
std::string selfOf(const MeasureCommand &options) {
  std::error_code error;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? options.program : self.string();
}

/// Starts this command, without the option HOSTS, on the hosts: by srun inside an allocation,
/// otherwise by mpirun.
ExitStatus startOnHosts(const MeasureCommand &options, std::vector<std::string> command) {
  command.insert(command.begin(), {selfOf(options), "doctor"});
  std::vector<std::string> arguments;
  if (std::error_code error; std::filesystem::exists(options.hosts, error))
    return refuse("HOSTS are names of machines, and '" + options.hosts +
                  "' is a file: a recipe is given by '--recipe'");
  std::string program = "srun";
  if (std::getenv("SLURM_JOB_ID")) {
    arguments = {"--nodelist=" + options.hosts};
    passOn(arguments, "--ntasks-per-node", options.ranks);
  } else {
    std::optional<int64_t> ranks = ranksOn(options.hosts);
    if (!ranks)
      return refuse(
          "HOSTS are names with their numbers of ranks, as in 'node1:8,node2:8'; found '" +
          options.hosts + "'");
    if (options.ranks > 0)
      return refuse("HOSTS say how many ranks there are; '--ranks' is for this machine alone, and "
                    "for Slurm's nodes");
    std::string first = llvm::StringRef(options.hosts).split(',').first.split(':').first.str();
    program = "mpirun";
    arguments = {"-n", std::to_string(*ranks), "--host", options.hosts,
                 "-x", "MASTER_ADDR=" + first};
  }
  arguments.insert(arguments.end(), command.begin(), command.end());
  return become(program, std::move(arguments));
}

/// Starts the ranks of this node, if it is one of several. Returns the exit status in the process
/// that has started them.
std::optional<int> startNode(MeasureCommand &options) {
  ExitStatus status = kFine;
  options.nodes.ranks = options.ranks;
  std::optional<NodePlace> place = placeOfNode(options.nodes, status);
  if (!place)
    return status == kFine ? std::nullopt : std::optional<int>(status);
  options.ranks = place->ranks;
  if (place->nodes == 1)
    return std::nullopt;
  if (std::exchange(options.ranks, 0) == 0)
    return refuse("nothing says how many ranks a node has: give '--ranks'");
  return startRanks(*place, place->ranks);
}

int runMeasure(MeasureCommand &options) {
  if (std::optional<int> ended = startNode(options))
    return *ended;
  std::vector<std::string> arguments = {"--measure", "--output=" + options.output};
  passOn(arguments, "--backend", options.backend);
  passOn(arguments, "--ranks", options.ranks);
  passOnFlag(arguments, "--quick", options.isQuick);
  return become(findRunner(options.program), std::move(arguments));
}

/// Determines what the measurements are compared with: a file of rates, the table's rates for a
/// GPU, or nothing but the other ranks. Then it executes shardc-run, on this machine or on the
/// named hosts.
int runDoctor(MeasureCommand &options) {
  if (options.hosts.empty())
    if (std::optional<int> ended = startNode(options))
      return *ended;
  std::vector<std::string> arguments;
  passOn(arguments, "--slower", options.slower);
  passOn(arguments, "--below", options.below);
  passOn(arguments, "--memory-gib", options.memoryGiB);
  if (!options.hosts.empty()) {
    if (findLauncher(Environment(::getenv)))
      return refuse("HOSTS start ranks, but a launcher has started this process already: leave "
                    "them out");
    passOn(arguments, "--backend", options.backend);
    passOn(arguments, "--gpu", options.gpu);
    passOn(arguments, "--rates", options.rates);
    passOn(arguments, "--recipe", options.recipe);
    return startOnHosts(options, std::move(arguments));
  }
  if (!options.recipe.empty())
    if (ExitStatus status = readRecipe(options); status != kFine)
      return status;
  std::string against = options.rates;
  if (against.empty() && !options.gpu.empty())
    if (ExitStatus status = expect(options.gpu, against, options.backend); status != kFine)
      return status;
  passOn(arguments, "--backend", options.backend);
  passOn(arguments, "--against", against);
  passOn(arguments, "--ranks", options.ranks);
  arguments.insert(arguments.begin(), "--doctor");
  return become(findRunner(options.program), std::move(arguments));
}

/// `noGpu`: what the command does on a machine without a GPU.
void addShared(cli::Command &command, MeasureCommand &options, const char *noGpu) {
  command
      .option("--backend", options.backend,
              std::string("backend; default: cuda if there is a GPU, otherwise ") + noGpu)
      .oneOf({"host", "cuda"});
  command
      .option("--ranks", options.ranks,
              "ranks on this machine, or on each of Slurm's nodes; default: one for each GPU")
      .positive();
  addNodes(command, options.nodes);
}

} // namespace

void addMeasure(cli::Command &app, int &status, const char *program) {
  auto options = std::make_shared<MeasureCommand>();
  options->program = program;
  cli::Command &command = app.addCommand(
      "measure", "measure products, attention, copies and collectives, for 'cluster.rates'");
  command.option("-o,--output", options->output, "file of rates that is written").required();
  addShared(command, *options, "host");
  command.flag("--quick", options->isQuick, "one size of each series");
  command.onUse([options, &status] { status = runMeasure(*options); });
}

void addDoctor(cli::Command &app, int &status, const char *program) {
  auto options = std::make_shared<MeasureCommand>();
  options->program = program;
  cli::Command &command =
      app.addCommand("doctor", "test memory, and name ranks that are slower than the others");
  command.option("HOSTS", options->hosts,
                 "hosts to start ranks on, as mpirun or srun takes them; without it this machine, "
                 "or the ranks that a launcher has started");
  addShared(command, *options, "an error");
  cli::Option gpu =
      command.option("--gpu", options->gpu, "compare with the device table's rates of this GPU");
  cli::Option rates =
      command.option("--rates", options->rates, "compare with this file, which 'measure' wrote");
  cli::Option recipe = command.option("--recipe", options->recipe,
                                      "compare with the rates, or the GPU, of this recipe");
  gpu.excludes(rates);
  gpu.excludes(recipe);
  rates.excludes(recipe);
  command
      .option("--slower", options->slower, "name a rank that is this many percent below the median")
      .between(1, 99, "PERCENT")
      .showsDefault();
  command
      .option("--below", options->below,
              "name the machine if it is this many percent below what is expected")
      .between(1, 99, "PERCENT")
      .showsDefault();
  command
      .option("--memory-gib", options->memoryGiB,
              "GiB of each device that are tested; default: up to 48 of what is free")
      .positive();
  command.onUse([options, &status] { status = runDoctor(*options); });
}

} // namespace shardc::tools
