#include "runtime/checkpoint/HfFile.h"

#include <algorithm>

#include "runtime/base/EditDistance.h"
#include "runtime/base/Reports.h"

namespace shardc::checkpoint {
namespace {

using nlohmann::json;

constexpr const char *kType = "model_type", *kClasses = "architectures", *kText = "text_config",
                     *kTied = "tie_word_embeddings", *kScaling = "rope_scaling.";

const std::string *textOf(const json &object, const char *key) {
  auto found = object.find(key);
  return found != object.end() ? found->get_ptr<const std::string *>() : nullptr;
}

/// The architecture for a model type or a class, possibly as part of an outer model.
struct Kind {
  const HfArchitecture *known = nullptr;
  const HfText *text = nullptr; ///< set if it has defaults of its own
  const HfOuter *outer = nullptr;
};

template <typename Row, typename Field>
const Row *rowOf(std::span<const Row> rows, Field field, std::string_view name) {
  auto found = std::ranges::find(rows, name, field);
  return found != rows.end() ? &*found : nullptr;
}

/// A type may be of an outer model, which has a text model, or of the text model itself.
Kind kindOfType(std::string_view type) {
  Kind kind;
  kind.outer = rowOf(hfOuters(), &HfOuter::modelType, type);
  kind.text = rowOf(hfTexts(), &HfText::modelType, kind.outer ? kind.outer->textType : type);
  if (kind.text != nullptr)
    kind.known = &infoOf(kind.text->arch);
  else
    kind.known = rowOf(hfArchitectures(), &HfArchitecture::modelType,
                       kind.outer ? kind.outer->textType : type);
  return kind;
}

/// The architecture of the first known class in `architectures`.
Kind kindOfClasses(const json &root) {
  auto classes = root.find(kClasses);
  if (classes == root.end() || !classes->is_array())
    return {};
  for (const json &one : *classes) {
    const auto *name = one.get_ptr<const std::string *>();
    if (name == nullptr)
      continue;
    if (const HfArchitecture *known = rowOf(hfArchitectures(), &HfArchitecture::className, *name))
      return kindOfType(known->modelType);
    if (const HfOuter *outer = rowOf(hfOuters(), &HfOuter::className, *name))
      return kindOfType(outer->modelType);
  }
  return {};
}

/// A hint at the architecture that computes what a file of this type does, if it has all fields.
std::string hintOfType(const json &fields, std::string_view type) {
  std::optional<HfArch> alike = hfAlike(type);
  auto isKnown = [&](const std::string &key) {
    return fields[key].is_null() ||
           findHfField(*alike, key == "rope_parameters" ? "rope_scaling" : key) != nullptr;
  };
  if (!alike)
    return "";
  for (const auto &[key, value] : fields.items())
    if (!isKnown(key))
      return "";
  return fmt::format("; its class computes what '{}' does from the same fields",
                     infoOf(*alike).modelType);
}

/// Reads one file.
class Reader {
public:
  Reader(const HfReading &reading, const std::string &path) : reading_(reading) {
    file_.path = path;
  }

  void read(json root) {
    Kind kind = kindOf(root);
    if (kind.known == nullptr)
      return refuseType(root, "");
    if (!takeText(root, kind))
      return;
    file_.arch = kind.known->arch;
    if (kind.text != nullptr)
      takeDefaults(*kind.text);
    file_.fields[kType] = kind.known->modelType;
    leaveOutAccepted(root);
    file_.said = file_.fields;
    check(file_.fields, "", file_.prefix);
    refuseUnknown();
  }
  const HfFaults &faults() const { return faults_; }
  HfFile &file() { return file_; }

private:
  bool isAccepted(const std::string &name) const {
    return std::ranges::find(reading_.accepted, name) != reading_.accepted.end();
  }
  void refuse(std::string field, Status status) {
    faults_.push_back({std::move(field), std::move(status)});
  }

  void refuseType(const json &object, const std::string &prefix) {
    std::string list;
    for (const HfArchitecture &one : hfArchitectures())
      list += (list.empty() ? "" : ", ") + std::string(one.modelType);
    for (const HfOuter &one : hfOuters())
      list += ", " + std::string(one.modelType);
    auto type = object.find(kType);
    refuse(prefix + kType,
           makeStatus(
               report::HfArchitectureUnknown, file_.path,
               shownHfValue(type != object.end() ? *type : json()), list,
               hintOfType(object, textOf(object, kType) != nullptr ? *textOf(object, kType) : "")));
  }

  /// The model type determines the architecture. If it is unknown, the class does.
  Kind kindOf(const json &root) {
    const std::string *type = textOf(root, kType);
    Kind byType = type != nullptr ? kindOfType(*type) : Kind();
    Kind byClass = isAccepted(kClasses) ? Kind() : kindOfClasses(root);
    if (byType.known == nullptr)
      return byClass;
    auto classes = root.find(kClasses);
    if (byClass.known != byType.known && classes != root.end() && classes->is_array() &&
        !classes->empty() && !isAccepted(kClasses))
      file_.otherClass = shownHfValue(*classes);
    return byType;
  }

  /// Reads the fields of the text model, which are in a separate object or mixed with those of
  /// other parts. False if the type of the text model is unknown.
  bool takeText(const json &root, Kind &kind) {
    file_.fields = root;
    if (kind.outer == nullptr)
      return true;
    const HfOuter &outer = *kind.outer;
    file_.outerType = outer.modelType;
    auto nested = root.find(kText);
    bool isNested = nested != root.end() && nested->is_object();
    if (isNested) {
      file_.prefix = std::string(kText) + ".";
      file_.fields = *nested;
      if (const std::string *type = textOf(*nested, kType); type != nullptr)
        kind = kindOfType(*type);
      if (kind.known == nullptr) {
        refuseType(*nested, file_.prefix);
        return false;
      }
      // Some files have fields of the whole model only outside of the text model.
      for (const char *ofAll : {"dtype", "torch_dtype", "quantization_config"})
        if (root.contains(ofAll) && !nested->contains(ofAll))
          file_.fields[ofAll] = root[ofAll];
    }
    takeTied(root, outer);
    HfArch arch = kind.known->arch;
    // Fields outside of the text model belong to other parts, unless all architectures have them.
    for (const auto &[key, value] : root.items()) {
      const HfField *row = findHfField(arch, key == "rope_parameters" ? "rope_scaling" : key);
      bool isOfFile = row != nullptr && row->archs == kAllHfArchs;
      bool isOfText = isNested ? file_.fields.contains(key) || key == kText
                               : row != nullptr || libraryReadsHfField(arch, key);
      if (isOfFile || isOfText)
        continue;
      file_.outside.push_back(key);
      if (!isNested)
        file_.fields.erase(key);
    }
    return true;
  }

  /// Determines whether embeddings are tied. The outer model's field takes precedence over that of
  /// the text model; without both, the default of the outer model applies.
  void takeTied(const json &root, const HfOuter &outer) {
    auto said = root.find(kTied);
    bool isSaid = said != root.end() && !said->is_null();
    auto ofText = file_.fields.find(kTied);
    bool isOfText = ofText != file_.fields.end() && !ofText->is_null();
    file_.saysTied = isSaid || isOfText;
    json tied = isSaid ? *said : isOfText ? *ofText : parseJson(outer.tied);
    file_.fields[kTied] = std::move(tied);
  }

  /// Fills in the library's defaults for fields that a file of this type lacks.
  void takeDefaults(const HfText &text) {
    const json defaults = parseJson(text.defaults);
    for (const auto &[key, value] : defaults.items())
      if (!file_.fields.contains(key))
        file_.fields[key] = value;
    file_.fields.update(parseJson(text.constants));
  }

  /// Removes the fields that the user declared to be irrelevant. A field that corresponds to an
  /// option is refused, since without it the model would be another one.
  void leaveOutAccepted(const json &root) {
    for (const std::string &name : reading_.accepted) {
      bool isOwn = !file_.prefix.empty() && name.starts_with(file_.prefix);
      std::string plain = isOwn ? name.substr(file_.prefix.size()) : name;
      json *object = &file_.fields;
      size_t dot = plain.find('.');
      if (dot != std::string::npos) {
        auto found = object->find(plain.substr(0, dot));
        object = found != object->end() && found->is_object() ? &*found : nullptr;
      }
      std::string key = dot != std::string::npos ? plain.substr(dot + 1) : plain;
      std::string table = plain.starts_with("rope_parameters.") ? "rope_scaling." + key : plain;
      const HfField *row = findHfField(file_.arch, table);
      bool isThere = root.contains(name) || (object != nullptr && object->contains(key));
      bool isNeeded = row != nullptr && row->use != HfUse::Needs && row->use != HfUse::Idle &&
                      row->use != HfUse::Agrees;
      if (!isThere || isNeeded || plain == "rope_parameters")
        refuse(isThere ? name : "",
               makeStatus(report::HfAcceptRefused, name, file_.path,
                          isThere ? "has this field for the recipe" : "has no such field"));
      else if (object != nullptr)
        object->erase(key);
    }
  }

  /// Checks all fields of an object, and removes those that change nothing, so that no code can
  /// read them. `prefix` and `own` are the object's name in the table and in the file.
  void check(json &object, const std::string &prefix, const std::string &own) {
    for (auto field = object.begin(); field != object.end();)
      if (checkField(prefix + field.key(), own + field.key(), *field))
        ++field;
      else
        field = object.erase(field);
  }

  /// Whether the field may change something.
  bool checkField(const std::string &name, const std::string &own, json &value) {
    const HfField *row = findHfField(file_.arch, name == "rope_parameters" ? "rope_scaling" : name);
    if (row == nullptr && !value.is_null())
      checkUnknown(name, own, name.starts_with(kScaling));
    if (row == nullptr || row->use == HfUse::Idle)
      return false;
    if (value.is_null())
      return true;
    value = hfMeaning(file_.arch, name, value);
    if (row->use == HfUse::Needs && value != parseJson(row->text) && !reading_.wasImported)
      refuse(own, makeStatus(report::HfSettingRefused, file_.path, own, shownHfValue(value),
                             fmt::format("{} ({})", row->text, row->what)));
    // An object for one kind of layer is checked, too.
    bool isRope = name == "rope_parameters" || name.starts_with("rope_scaling");
    if (value.is_object() && isRope)
      check(value, kScaling, own + ".");
    return true;
  }

  /// Reports a field without a row. It is harmless unless the library reads it (as it does fields
  /// of nested objects), it is a misspelling of another field, or the model's own code may read it.
  /// A name that another architecture has is not misspelt.
  void checkUnknown(const std::string &name, const std::string &own, bool isPart) {
    std::string_view near;
    bool isName = std::ranges::find(hfFields(), name, &HfField::name) != hfFields().end();
    unsigned least = 1 + (name.size() <= 128 && !isName ? misspeltDistanceMax(name.size()) : 0);
    for (const HfField &row : hfFields())
      if (unsigned distance = row.isOf(file_.arch) ? editDistance(name, row.name, least) : least;
          distance < least) {
        least = distance;
        near = row.name;
      }
    std::string reason;
    if (libraryReadsHfField(file_.arch, name) || isPart)
      reason = "which transformers reads";
    else if (!near.empty() && !file_.said.contains(near))
      reason = fmt::format("did you mean '{}'?", near);
    else if (file_.said.contains("auto_map"))
      reason = "which the model's own code may read";
    if (reading_.wasImported)
      return;
    std::string quoted = shownHfValue(json(own));
    if (reason.empty()) {
      file_.unread.push_back(own);
      return;
    }
    unknown_.push_back(own);
    reasons_.push_back(fmt::format("'{}' ({})", quoted.substr(1, quoted.size() - 2), reason));
  }

  /// Reports all unknown fields in one error, with the flags that accept them. Their names are
  /// escaped as in JSON.
  void refuseUnknown() {
    if (unknown_.empty())
      return;
    std::string list, flags;
    for (size_t i = 0; i < unknown_.size(); ++i) {
      list += (i > 0 ? ", " : "") + reasons_[i];
      flags += fmt::format("{}--accept-field={}", i > 0 ? " " : "", unknown_[i]);
    }
    std::string quoted = toText(json(flags), /*indent=*/-1, /*isAscii=*/true);
    faults_.insert(
        faults_.begin(),
        {unknown_[0], makeStatus(report::HfFieldUnknown, file_.path, infoOf(file_.arch).modelType,
                                 list, unknown_.size() > 1 ? "they change" : "it changes",
                                 quoted.substr(1, quoted.size() - 2))});
  }

  const HfReading &reading_;
  HfFile file_;
  HfFaults faults_;
  std::vector<std::string> unknown_, reasons_; ///< fields, and the message about each
};

} // namespace

Status statusOf(const HfFaults &faults) {
  if (faults.empty())
    return Status::ok();
  std::string text;
  for (const HfFault &fault : faults)
    text += (text.empty() ? "" : "\n  ") + fault.status.message();
  return Status(faults[0].status).withMessage(std::move(text));
}

std::optional<int64_t> HfFile::padding() const {
  const HfField *row = findHfField(arch, "pad_token_id");
  if (row == nullptr || row->use != HfUse::Sets)
    return std::nullopt;
  json value = fields.value(row->name, hfFallback(arch, row->name));
  if (!value.is_number_integer())
    return std::nullopt;
  const int64_t token = value.get<int64_t>(); // torch counts negative ones from the end
  return token < 0 ? token + fields.value("vocab_size", int64_t{0}) : token;
}

Result<HfFile> readHfFile(std::string_view text, const std::string &path, const HfReading &reading,
                          HfFaults *faults) {
  json root = parsePythonJson(text);
  if (!root.is_object())
    return makeStatus(report::CannotConvert, "'{}' is not a JSON object", path);
  Reader reader(reading, path);
  reader.read(std::move(root));
  if (!reader.faults().empty()) {
    if (faults != nullptr)
      *faults = reader.faults();
    return statusOf(reader.faults());
  }
  return std::move(reader.file());
}

std::vector<Report> hfRemarks(const HfFile &file) {
  std::vector<Report> remarks;
  if (!file.outerType.empty())
    remarks.push_back(makeReport(report::HfPartsLeftOut, file.path, file.outerType,
                                 file.outside.empty() ? "" : ": " + shownHfNames(file.outside)));
  if (!file.unread.empty())
    remarks.push_back(makeReport(report::HfFieldsUnread, file.path, shownHfNames(file.unread),
                                 fmt::format("{} of transformers", infoOf(file.arch).className)));
  if (!file.otherClass.empty())
    remarks.push_back(makeReport(report::HfClassOther, file.path, file.otherClass,
                                 infoOf(file.arch).modelType, infoOf(file.arch).className));
  if (std::optional<int64_t> token = file.padding())
    remarks.push_back(makeReport(report::HfPaddingTrained, file.path, *token));
  return remarks;
}

std::string shownHfValue(const json &value) {
  constexpr size_t kShownMax = 60;
  std::string text = toText(value, /*indent=*/-1, /*isAscii=*/true);
  return text.size() > kShownMax ? text.substr(0, kShownMax) + "..." : text;
}

std::string shownHfNames(const std::vector<std::string> &names) {
  constexpr size_t kNamed = 20;
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) {
    std::string quoted = shownHfValue(json(names[i]));
    list += fmt::format("{}'{}'", i > 0 ? ", " : "", quoted.substr(1, quoted.size() - 2));
  }
  if (names.size() > kNamed)
    list += fmt::format(" and {} more", names.size() - kNamed);
  return list;
}

} // namespace shardc::checkpoint
