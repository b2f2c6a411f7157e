#include "runtime/base/RecipeVariables.h"

#include <algorithm>
#include <cctype>
#include <unistd.h>

namespace shardc {
namespace {

// What a recipe's section `env` may set: names between blanks, where one that ends in an asterisk
// stands for all names that begin so. The first list that fits decides; a name on none needs
// --allow-env.

/// The place of a process in its job: only the launcher sets it.
constexpr std::string_view kPositions =
    "SHARDC_* MASTER_* NCCL_COMM_ID RANK NODE_RANK WORLD_SIZE LOCAL_* GROUP_* ROLE_* SLURM_* "
    "PMI* OMPI_* PRTE_* PET_* FLUX_* MPI_LOCAL* JOB_COMPLETION_INDEX VC_TASK_INDEX "
    "NPROC_PER_NODE TORCHELASTIC_*";
/// Parts of names, between underscores, whose values are secrets.
constexpr std::string_view kSecretParts =
    "KEY KEYS APIKEY TOKEN TOKENS SECRET SECRETS PASSWORD PASSWD PASSPHRASE CREDENTIAL "
    "CREDENTIALS AUTH";
/// Such parts, whose values are files to load or to write, or addresses.
constexpr std::string_view kLoadingParts =
    "PLUGIN FILE PATH DIR DIRECTORY HOME ROOT LIB LIBRARY LIBRARIES MODULES TOOL INJECTION32 "
    "INJECTION64 DUMP LOG LOGDEST OUTPUT COREDUMP PIPE MPS ADDR BOOTSTRAP TRANSPORT COMMAND "
    "EXECUTABLE SERVER";
constexpr std::string_view kSettable =
    "NCCL_* CUDA_* CUDNN_* CUBLAS_* CUBLASLT_* NVTE_* NVSHMEM_DISABLE_* NVSHMEM_HCA_* "
    "NVSHMEM_IB_* NVSHMEM_QP_* NVSHMEM_SYMMETRIC_SIZE FI_EFA_* FI_PROVIDER UCX_IB_* "
    "UCX_NET_DEVICES UCX_TLS OMP_* MKL_* BLIS_* OPENBLAS_* PYTORCH_ALLOC_CONF PYTORCH_CUDA_* "
    "TORCH_NCCL_* TORCH_CUDA_* TORCH_CUDNN_* TORCH_DISTRIBUTED_DEBUG "
    "TORCH_SHOW_CPP_STACKTRACES TOKENIZERS_PARALLELISM GLOO_SOCKET_IFNAME";

bool fits(std::string_view name, std::string_view row) {
  return row.ends_with('*') ? name.starts_with(row.substr(0, row.size() - 1)) : name == row;
}

/// Whether the part is between underscores of the name, also with digits after it.
bool hasPart(std::string_view name, std::string_view part) {
  for (size_t at = 0; at <= name.size();) {
    size_t end = std::min(name.find('_', at), name.size());
    std::string_view word = name.substr(at, end - at);
    if (word.starts_with(part) && word.find_first_not_of("0123456789", part.size()) == word.npos)
      return true;
    at = end + 1;
  }
  return false;
}

/// Whether `accepts` the name with one of the rows, which blanks separate.
bool isAmong(std::string_view rows, bool (*accepts)(std::string_view name, std::string_view row),
             std::string_view name) {
  while (!rows.empty()) {
    std::string_view row = rows.substr(0, rows.find(' '));
    rows.remove_prefix(std::min(row.size() + 1, rows.size()));
    if (accepts(name, row))
      return true;
  }
  return false;
}

/// A copy of the environment for as long as the program runs. glibc sets `__environ`; `environ` is
/// another variable in the wheel's programs (old_glibc.py).
char **copyOfEnvironment() {
  auto *copy = new std::vector<char *>;
  for (char **variable = __environ; variable && *variable; ++variable)
    copy->push_back(::strdup(*variable));
  copy->push_back(nullptr);
  return copy->data();
}

/// Whether the value of a word is a secret: of a variable by any part, and of an option or a field
/// of another program by the last one, as in `--wandb-key`. Plurals are then numbers, as in
/// `tokens`.
bool isSecretWord(std::string_view word) {
  std::string name(word);
  for (char &c : name)
    c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (name == word)
    return useOfVariable(name) == VariableUse::Secret;
  if (std::isdigit(static_cast<unsigned char>(name.back())) != 0 || name == "KEY" ||
      name.ends_with("KEYS") || name.ends_with("TOKENS"))
    return false;
  for (std::string_view column : {"PROMPT", "COMPLETION", "TEXT", "INPUT", "OUTPUT", "LABEL"})
    if (name.ends_with("_KEY") && name.substr(0, name.size() - 4).ends_with(column))
      return false; // a key of rows of data
  for (std::string_view token : {"BOS_TOKEN", "EOD_TOKEN", "EOS_TOKEN", "PAD_TOKEN"})
    if (name.ends_with(token))
      return false; // of a vocabulary
  return useOfVariable(name.substr(name.rfind('_') + 1)) == VariableUse::Secret;
}

/// Whether a text is a word of prose: no token of a service has letters of one case alone.
bool isWord(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return std::islower(c) != 0; }) ||
         std::ranges::all_of(text, [](unsigned char c) { return std::isupper(c) != 0; });
}

/// Whether a value occurs nowhere else by chance, as short ones, numbers, paths and words do.
bool isDistinct(std::string_view value) {
  constexpr size_t kBytesMin = 6;
  return value.size() >= kBytesMin && !isWord(value) && value.find_first_of("$`") == value.npos &&
         value.find_first_not_of("0123456789_.,eE+-") != value.npos && !value.starts_with('/') &&
         !value.starts_with('.') && !value.starts_with('~');
}

/// Where the value that begins at `at` ends: words, texts in quotes, and lists without blanks
/// between them, and what is added to it.
size_t endOfValue(std::string_view text, size_t at) {
  constexpr std::string_view kEndsOrQuotes = " \t\r\n,;}])\"'";
  constexpr std::string_view kEnds = kEndsOrQuotes.substr(0, kEndsOrQuotes.size() - 2);
  while (true) {
    const char quote = text[at];
    size_t end = at + 1;
    if (std::string_view all = text.substr(at); all.starts_with("\"\"\"") || all.starts_with("'''"))
      end = text.find(all.substr(0, 3), at + 3), end += end == text.npos ? 0 : 3;
    else if (quote != '"' && quote != '\'')
      end = text.find_first_of(quote == '[' || quote == '{' ? "]}" : kEndsOrQuotes, at);
    else {
      while (end < text.size() && text[end] != quote && text[end] != '\n')
        end += text[end] == '\\' ? 2 : 1;
      end += end < text.size() && text[end] == quote ? 1 : 0;
    }
    at = end = std::min(end, text.size());
    if (end < text.size() && kEnds.find(text[end]) == kEnds.npos)
      continue; // as in `get("a")`
    at = text.find_first_not_of(" \t", end);
    at = at < text.size() && text[at] == '+' ? text.find_first_not_of(" \t", at + 1) : text.npos;
    if (at >= text.size())
      return end;
  }
}

/// Where the value after the colon at `at` begins: in YAML perhaps after an anchor, or indented on
/// the next line.
size_t valueAfterColon(std::string_view text, size_t at) {
  at = text.find_first_not_of(" \t", at + 1);
  if (at < text.size() && text[at] == '&')
    at = text.find_first_not_of(" \t", text.find_first_of(" \t\n", at));
  if (at < text.size() && (text[at] == '>' || text[at] == '|'))
    at = text.find('\n', at);
  bool isBelow = at < text.size() && (text[at] == '\n' || text[at] == '\r');
  size_t next = isBelow ? text.find_first_not_of(" \t\r\n", at) : text.npos;
  return isBelow && next != text.npos && text[next - 1] != '\n' ? next : at;
}

/// The value of a name as in `("HF_TOKEN", "...")`, or `{name: HF_TOKEN, value: ...}` as Kubernetes
/// has it; npos if there is none.
size_t valueOfPair(std::string_view text, size_t end) {
  size_t at = text.find_first_not_of(" \t\r\n\"',-", end);
  if (at < text.size() && text.substr(at).starts_with("value"))
    if (at = text.find_first_not_of(" \t\"'", at + 5); at < text.size() && text[at] == ':')
      return valueAfterColon(text, at);
  at = end < text.size() && (text[end] == '"' || text[end] == '\'') ? end + 1 : text.npos;
  at = at < text.size() && text[at] == ',' ? text.find_first_not_of(" \t", at + 1) : text.npos;
  bool isText = at < text.size() && text[at] == text[end];
  return isText && !isSecretWord(text.substr(at + 1, endOfValue(text, at) - at - 2)) ? at
                                                                                     : text.npos;
}

} // namespace

std::string withoutSecrets(std::string_view text) {
  constexpr std::string_view kWord =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  std::string out(text);
  for (size_t begin = 0, end = 0; (begin = text.find_first_of(kWord, end)) != text.npos;) {
    end = std::min(text.find_first_not_of(kWord, begin), text.size());
    std::string_view word = text.substr(begin, end - begin);
    if (!isSecretWord(word))
      continue;
    size_t at = std::min(text.find_first_not_of(" \t\"')]", end), text.size());
    bool isAssigned = at < text.size() && (text[at] == '=' || text[at] == ':');
    if (isAssigned) // in a recipe, a value may be on the next line
      at = text[at] == ':' ? valueAfterColon(text, at)
                           : text.find_first_not_of(at > end ? "= \t\r\n" : "= \t", at + 1);
    else if (size_t pair = valueOfPair(text, end); pair != text.npos)
      at = pair;
    else if (size_t quote = text.find_first_not_of(" \t", end); quote > end && quote < at)
      at = quote; // a recipe that lacks the sign
    else if (!word.starts_with("--"))
      continue;
    if (at >= text.size() || text[at] == '$' || text[at] == '\n')
      continue; // a reference to a variable
    if (!isAssigned && text.substr(at).starts_with("--"))
      continue; // the option has no value, as `--disable-class-token --lr 1`
    end = endOfValue(text, at);
    if (word == "token" && isWord(text.substr(at, end - at)))
      continue; // prose, as in `3 billion per token: adapters on ...`
    for (size_t i = at; i < end; ++i)
      if ((i > at && i + 1 < end) || (text[i] != '"' && text[i] != '\''))
        out[i] = '*';
  }
  return out;
}

bool isSecret(std::string_view name, std::string_view value) {
  return isDistinct(value) && useOfVariable(name) == VariableUse::Secret;
}

std::vector<std::string> secretsIn(std::string_view text) {
  constexpr size_t kMost = 100;
  const std::string shown = withoutSecrets(text);
  std::vector<std::string> values;
  for (size_t at = 0, end = 0; at < text.size() && values.size() < kMost; at = end + 1) {
    for (end = at; end < text.size() && text[end] != shown[end];)
      ++end;
    if (isDistinct(text.substr(at, end - at)))
      values.emplace_back(text.substr(at, end - at));
  }
  return values;
}

std::string withoutValues(std::string text, const std::vector<std::string> &values) {
  for (const std::string &value : values)
    for (size_t at = 0; (at = text.find(value, at)) != text.npos;)
      text.replace(at, value.size(), value.size(), '*');
  return text;
}

VariableUse useOfVariable(std::string_view name) {
  std::string upper(name);
  for (char &c : upper)
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (isAmong(kPositions, fits, name))
    return VariableUse::Position;
  if (isAmong(kSecretParts, hasPart, upper))
    return VariableUse::Secret;
  if (!isAmong(kLoadingParts, hasPart, name) && isAmong(kSettable, fits, name))
    return VariableUse::Settable;
  return VariableUse::Other;
}

char **helperEnvironment() {
  static char **const kept = copyOfEnvironment();
  return kept;
}

} // namespace shardc
