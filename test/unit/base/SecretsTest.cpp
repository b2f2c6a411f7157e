// Values of names of secrets are not shown.
#include <gtest/gtest.h>

#include "runtime/base/RecipeVariables.h"

namespace shardc {
namespace {

TEST(Secrets, ValuesOfTheirNamesAreAsterisks) {
  const std::pair<const char *, const char *> kShown[] = {
      {"env { HF_TOKEN = \"hf_ab\"  NCCL_ALGO = \"Ring\" }",
       "env { HF_TOKEN = \"*****\"  NCCL_ALGO = \"Ring\" }"},
      {"export WANDB_API_KEY='x y' A=b", "export WANDB_API_KEY='***' A=b"},
      {"MY_PASSWORD=abc torchrun --wandb-key k1 --lr 1",
       "MY_PASSWORD=*** torchrun --wandb-key ** --lr 1"},
      {"  api_key: abc, b: c", "  api_key: ***, b: c"},
      {R"({"AWS_SECRET_ACCESS_KEY": "a\"b", "c": 1})",
       R"({"AWS_SECRET_ACCESS_KEY": "****", "c": 1})"},
      {"HF_TOKEN=", "HF_TOKEN="},
      {"HF_TOKEN2=ab", "HF_TOKEN2=**"},
      {"token: hf_ab", "token: *****"},
      {"A_SECRET = \"ends", "A_SECRET = \"****"},
      {"--key $KEY --foo x", "--key $KEY --foo x"},
      {"A_KEY =\n  \"ab\"\nx", "A_KEY =\n  \"**\"\nx"},
      {"A_KEY \"ab\"", "A_KEY \"**\""},
      {"A_KEY = [1, \"ab\"]", "A_KEY = *******\"]"},
      {"A_KEY = [1,\n\"ab\"]", "A_KEY = *******\"]"},
      {"A_KEY == \"ab\"", "A_KEY == \"**\""},
      {"X_AUTH=ab", "X_AUTH=**"},
      {"A_KEY = \"a\" + \"bc\" }", "A_KEY = \"********\" }"},
      {"A_KEY = \"\"\"ab\"\"\" }", "A_KEY = \"******\" }"},
      {"os.environ[\"A_KEY\"] = \"ab\"", "os.environ[\"A_KEY\"] = \"**\""},
      {"(\"A_KEY\", \"ab\")", "(\"A_KEY\", \"**\")"},
      {"{name: A_KEY, value: ab}", "{name: A_KEY, value: **}"},
      {"- name: A_KEY\n  value: ab\n", "- name: A_KEY\n  value: **\n"},
      {"api_key:\n  ab\nb: c", "api_key:\n  **\nb: c"},
      {"a_token: >-\n  ab\nb: c", "a_token: >-\n  **\nb: c"},
      {"A_KEY: {v: ab}", "A_KEY: ******}"},
      {"a_token: &x ab", "a_token: &x **"},
      {"A_KEY = \"\"\"\nab\"\"\"", "A_KEY = \"*******\""},
      {"A_KEY = \"\".join([\"ab\"])", "A_KEY = \"***********\"])"},
      {"A_KEY = get(\"ab\")", "A_KEY = *******\")"},
  };
  for (auto [text, shown] : kShown)
    EXPECT_EQ(withoutSecrets(text), shown);
  for (const char *kept : {"moe_token_dispatcher_type = alltoall", "tokens = 5", "the key of it",
                           "3B per token: adapters on", "--prompt-key=input", "tokenizer = \"x\"",
                           "calculate_per_token_loss = true", "NCCL_ALGO = \"Ring\"", "key",
                           "token2 = 5", "eod_token = \"</s>\"", "KEY", "KEY\n= x",
                           "--disable-vision-class-token --distributed-timeout-minutes 60", ""})
    EXPECT_EQ(withoutSecrets(kept), kept);
}

TEST(Secrets, AreHiddenWhereverTheyOccur) {
  const std::string text = "HF_TOKEN=hf_Ab12\nA_KEYS=123456\nb_key=\"words\"\nrun --x hf_Ab12";
  EXPECT_EQ(secretsIn(text), std::vector<std::string>{"hf_Ab12"});
  EXPECT_EQ(withoutValues("--x=hf_Ab12/hf_Ab12", secretsIn(text)), "--x=*******/*******");
  EXPECT_EQ(useOfVariable("hf_token"), VariableUse::Secret);
}

} // namespace
} // namespace shardc
