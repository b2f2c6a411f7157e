#include "runtime/base/Launcher.h"

#include <charconv>

#include "runtime/base/Reports.h"

namespace shardc {
namespace {

constexpr LauncherVariables kLaunchers[] = {
#define LAUNCHER(Name, text, rank, size, local, localSize, node, ...)                              \
  {Launcher::Name, text, rank, size, local, localSize, node, {__VA_ARGS__}},
#include "runtime/base/Launchers.def"
};
constexpr NodeVariables kNodeLaunchers[] = {
#define NODE_LAUNCHER(text, nodes, node, ranks, address, port)                                     \
  {text, nodes, node, ranks, address, port},
#include "runtime/base/Launchers.def"
};
constexpr int64_t kPortMax = 65535;

/// Divides HOST[:PORT], where an IPv6 address with a port is in brackets. Ranks meet at the port
/// after torchrun's.
Status readEndpoint(const std::string &text, NodePlace &place) {
  size_t colon = text.rfind(':');
  bool isBracketed = text.starts_with('[') && text.find(']') != text.npos;
  bool hasPort =
      colon != text.npos && (isBracketed ? text.find(']') + 1 == colon : text.find(':') == colon);
  place.address = text.substr(isBracketed ? 1 : 0, isBracketed ? text.find(']') - 1
                                                   : hasPort   ? colon
                                                               : text.npos);
  if (place.address.empty())
    return makeStatus(report::LauncherEnvironment, "--master is '{}'; it must be HOST[:PORT]",
                      text);
  if (!hasPort)
    return Status::ok();
  std::string port = text.substr(colon + 1);
  Environment given([&port](const char *) { return port.c_str(); });
  ASSIGN_OR_RETURN(int64_t number, given.number("the port of --master", 2, kPortMax));
  place.masterPort = static_cast<int>(number) - 1;
  return Status::ok();
}

/// Whether the process is itself a rank. RANK and WORLD_SIZE count pods where LOCAL_RANK is unset.
bool isRank(const Environment &environment) {
  const LauncherVariables *launcher = findLauncher(environment);
  return launcher &&
         (launcher->launcher != Launcher::Torchrun || environment.has(launcher->localRank));
}

/// Reads the number of this node and the address of node 0.
Status readNode(const Environment &environment, const NodeVariables &names,
                const NodeOptions &options, NodePlace &place) {
  place.node = options.node;
  if (place.node < 0 && *names.node == '\0')
    return makeStatus(report::LauncherEnvironment,
                      "nothing says which of the {} nodes this is; give --node-rank", place.nodes);
  if (place.node < 0) {
    ASSIGN_OR_RETURN(place.node, environment.number(names.node, 0, place.nodes - 1));
  }
  if (place.node >= place.nodes)
    return makeStatus(report::LauncherEnvironment,
                      "--node-rank is {}; it must be a number from 0 to {}", place.node,
                      place.nodes - 1);
  if (!options.master.empty())
    return readEndpoint(options.master, place);
  place.address = environment.text(names.address);
  if (place.address.empty())
    return makeStatus(report::LauncherEnvironment,
                      "nothing has the address of node 0; give --master, or set {}", names.address);
  if (!environment.has(names.port))
    return Status::ok();
  ASSIGN_OR_RETURN(int64_t port, environment.number(names.port, 1, kPortMax));
  place.masterPort = static_cast<int>(port);
  return Status::ok();
}

} // namespace

std::span<const LauncherVariables> launchers() { return kLaunchers; }
std::span<const NodeVariables> nodeLaunchers() { return kNodeLaunchers; }

std::string_view toString(Launcher launcher) {
  for (const LauncherVariables &each : kLaunchers)
    if (each.launcher == launcher)
      return each.text;
  return "plain";
}

Result<int64_t> Environment::number(const char *name, int64_t least, int64_t most) const {
  if (!has(name))
    return makeStatus(report::LauncherEnvironment, "the environment has no {}", name);
  std::string value = text(name);
  int64_t number = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || *end != '\0' || number < least || number > most)
    return makeStatus(report::LauncherEnvironment, "{} is '{}'; it must be a number from {} to {}",
                      name, value, least, most);
  return number;
}

const LauncherVariables *findLauncher(const Environment &environment) {
  for (const LauncherVariables &each : kLaunchers) {
    // A shell in an allocation is not a rank. Nor is a program without others, if it could
    // communicate.
    bool mayBeAlone = each.launcher != Launcher::Torchrun && each.launcher != Launcher::OpenMpi;
    bool isThere = environment.has(each.worldSize) ||
                   (each.launcher == Launcher::Torchrun && environment.has(each.rank));
    if (isThere && !(mayBeAlone && environment.text(each.worldSize) == "1"))
      return &each;
  }
  return nullptr;
}

Result<std::optional<NodePlace>> findNode(const Environment &environment,
                                          const NodeOptions &options) {
  std::optional<NodePlace> place;
  if (isRank(environment)) {
    if (options.nodes > 0)
      return makeStatus(report::LauncherEnvironment,
                        "--nodes starts ranks, but {} has started this process as a rank already",
                        findLauncher(environment)->text);
    return place;
  }
  NodeVariables names = {"", "", "", "", "MASTER_ADDR", "MASTER_PORT"};
  for (const NodeVariables &each : kNodeLaunchers)
    if (environment.has(each.nodes) || environment.has(each.node)) {
      names = each;
      break;
    }
  if (options.nodes == 0 && *names.text == '\0')
    return place;
  place.emplace();
  place->nodes = options.nodes;
  if (place->nodes == 0 && *names.nodes == '\0')
    return makeStatus(report::LauncherEnvironment,
                      "{} says that this is a pod of several ({}), but not of how many; give "
                      "--nodes, and --nodes=1 if each trains alone",
                      names.node, names.text);
  if (place->nodes == 0) {
    ASSIGN_OR_RETURN(place->nodes, environment.number(names.nodes, 1, kLaunchedRanksMax));
  }
  place->ranks = options.ranks;
  if (std::string text = environment.text(names.ranks);
      place->ranks == 0 && !text.empty() && text != "auto" && text != "gpu" && text != "cpu") {
    ASSIGN_OR_RETURN(place->ranks, environment.number(names.ranks, 1, kLaunchedRanksMax));
  }
  if (place->nodes > 1)
    RETURN_IF_ERROR(readNode(environment, names, options, *place));
  return place;
}

} // namespace shardc
