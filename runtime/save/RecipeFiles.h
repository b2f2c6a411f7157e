// The files about the recipe that a checkpoint keeps.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::save {

struct RecipeFile {
  std::string name; ///< in the checkpoint's folder
  std::string text;
};

/// The plan's sources as files in the folder `recipe`, and `recipe/command.txt`, the command that
/// compiles them there. Nothing for a plan without sources, such as one written by hand.
std::vector<RecipeFile> recipeFiles(const plan::Plan &plan);

} // namespace shardc::save
