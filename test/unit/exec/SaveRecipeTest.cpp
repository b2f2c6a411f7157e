// Tests the recipe's files in a checkpoint: no name of a source leads out of the checkpoint's
// folder, and a shell can execute the command in `command.txt`.
#include <gtest/gtest.h>

#include "runtime/save/RecipeFiles.h"

namespace shardc::save {
namespace {

using plan::Source;

std::vector<std::string> namesOf(const std::vector<RecipeFile> &files) {
  std::vector<std::string> names;
  for (const RecipeFile &file : files)
    names.push_back(file.name);
  return names;
}

plan::Plan planOf(std::vector<Source> sources) {
  plan::Plan plan;
  plan.sources = std::move(sources);
  return plan;
}

TEST(SaveRecipe, KeepsTextsAndTheCommand) {
  std::vector<RecipeFile> files =
      recipeFiles(planOf({{Source::Base, "base/a.recipe", "recipe a {}\n"},
                          {Source::Recipe, "runs/b c.recipe", "recipe b {}\n"},
                          {Source::Overlay, "o.recipe", ""},
                          {Source::Setting, "", "train.train_iters=3"},
                          {Source::Setting, "", "dataset.data_path=\"it's\""}}));
  EXPECT_EQ(namesOf(files),
            (std::vector<std::string>{"recipe/base/a.recipe", "recipe/runs/b c.recipe",
                                      "recipe/o.recipe", "recipe/command.txt"}));
  EXPECT_EQ(files[0].text, "recipe a {}\n");
  EXPECT_EQ(files[3].text, "shardc run 'runs/b c.recipe' --overlay o.recipe "
                           "--set train.train_iters=3 "
                           "--set 'dataset.data_path=\"it'\\''s\"'\n");
}

TEST(SaveRecipe, LeadsNowhereElse) {
  for (const char *name : {"../x.recipe", "/etc/x", "a//b", "a/../b", "", ".", "command.txt"})
    EXPECT_EQ(namesOf(recipeFiles(planOf({{Source::Recipe, name, "recipe x {}"}}))),
              (std::vector<std::string>{"recipe/source_0.recipe", "recipe/command.txt"}))
        << name;
}

TEST(SaveRecipe, GivesEachTextItsOwnFile) {
  EXPECT_EQ(namesOf(recipeFiles(planOf({{Source::Base, "a", "1"},
                                        {Source::Base, "a", "2"},
                                        {Source::Base, "a/b", "3"},
                                        {Source::Recipe, "c", "4"}}))),
            (std::vector<std::string>{"recipe/a", "recipe/source_1.recipe",
                                      "recipe/source_2.recipe", "recipe/c", "recipe/command.txt"}));
}

TEST(SaveRecipe, IsNothingWithoutSources) { EXPECT_TRUE(recipeFiles(planOf({})).empty()); }

} // namespace
} // namespace shardc::save
