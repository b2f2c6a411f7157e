// The files with the recipe that a checkpoint contains.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::save {

struct RecipeFile {
  std::string name; ///< path in the checkpoint's folder
  std::string text;
};

/// The plan's sources as files in the folder `recipe`, and `recipe/command.txt` with the command
/// that compiles them there. Empty for a plan without sources, such as one written by hand.
std::vector<RecipeFile> recipeFiles(const plan::Plan &plan);

} // namespace shardc::save
