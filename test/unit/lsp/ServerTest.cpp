// A client types at random, sends requests at any place, and sends invalid messages.
#include <random>

#include <gtest/gtest.h>

#include "compiler/lsp/Server.h"
#include "runtime/base/Json.h"

namespace shardc::lsp {
namespace {

using Json = nlohmann::json;

constexpr const char *kUri = "file:///nowhere/a.recipe";

class Client {
public:
  Client() : out_(std::tmpfile()), transport_(stdin, out_), server_(transport_, {}) {
    request("initialize", Json::object());
  }
  ~Client() { std::fclose(out_); }

  bool send(const Json &message) { return server_.handle(message.dump()); }
  bool sendText(const std::string &text) { return server_.handle(text); }
  bool notify(const std::string &method, const Json &params) {
    return send({{"jsonrpc", "2.0"}, {"method", method}, {"params", params}});
  }
  bool request(const std::string &method, const Json &params) {
    return send({{"jsonrpc", "2.0"}, {"id", ++id_}, {"method", method}, {"params", params}});
  }
  /// Number of bytes that the server has sent.
  long sent() const { return std::ftell(out_); }

private:
  std::FILE *out_;
  Transport transport_;
  Server server_;
  int id_ = 0;
};

const std::string kText =
    "recipe r extends \"base.recipe\" {\n  let n = 4\n  model llama { num_layers = n  hidden_size "
    "= "
    "64 }\n  dist { use_megatron_fsdp = true }\n  checkpoint.ckpt_format = zarr // comment\n}\n";

TEST(Server, SurvivesAClientThatTypesAtRandom) {
  Client client;
  client.notify("textDocument/didOpen",
                {{"textDocument", {{"uri", kUri}, {"version", 1}, {"text", kText}}}});
  std::mt19937 random(1);
  const char *typed[] = {"{", "}", "=", "\"", "ddp.", "[1,", "recipe", "\n", "//", "\u00e9", " "};
  const char *asked[] = {"completion",     "hover",       "definition",    "codeAction",
                         "formatting",     "references",  "prepareRename", "rename",
                         "documentSymbol", "documentLink"};
  for (int i = 0; i < 1500; ++i) {
    auto place = [&] { return Json{{"line", random() % 8}, {"character", random() % 60}}; };
    Json where = {{"textDocument", {{"uri", kUri}}}, {"position", place()}};
    where["range"] = {{"start", place()}, {"end", place()}};
    where["newName"] = typed[random() % 11];
    ASSERT_TRUE(client.request(std::string("textDocument/") + asked[random() % 10], where));
    Json edit = {{"text", typed[random() % 11]}};
    if (i % 50 == 49)
      edit["text"] = kText;
    else
      edit["range"] = where["range"];
    ASSERT_TRUE(
        client.notify("textDocument/didChange", {{"textDocument", {{"uri", kUri}, {"version", i}}},
                                                 {"contentChanges", Json::array({edit})}}));
  }
}

TEST(Server, SurvivesMessagesThatAreNone) {
  Client client;
  for (const char *text : {"", "7", "null", "[]", "{}", "{\"method\":7}", "{\"id\":{}}",
                           "{\"id\":1", "{\"id\":1,\"method\":\"textDocument/hover\"}", "\xff\xfe"})
    EXPECT_TRUE(client.sendText(text)) << text;
  for (int depth : {1000, 100'000})
    EXPECT_TRUE(client.sendText("{\"method\":\"shutdown\",\"id\":" + std::string(depth, '[') +
                                std::string(depth, ']') + "}"));
  for (const Json &params : {Json(), Json(7), Json::array(), Json{{"textDocument", 7}}})
    for (const char *method : {"textDocument/didOpen", "textDocument/didChange",
                               "textDocument/didClose", "textDocument/didSave", "$/cancelRequest"})
      EXPECT_TRUE(client.notify(method, params));
  long before = client.sent();
  EXPECT_TRUE(client.request("textDocument/hover", {{"textDocument", {{"uri", kUri}}}}));
  EXPECT_GT(client.sent(), before); // the server still answers
}

TEST(Server, EndsWithExitOnly) {
  Client client;
  EXPECT_TRUE(client.request("shutdown", Json()));
  EXPECT_FALSE(client.notify("exit", Json()));
}

} // namespace
} // namespace shardc::lsp
