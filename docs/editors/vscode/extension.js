// Starts `shardc lsp` for recipes; everything else is the server's.
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function activate() {
  const command = vscode.workspace.getConfiguration("shardc").get("path");
  client = new LanguageClient(
    "shardc",
    "shardc",
    { command, args: ["lsp"] },
    { documentSelector: [{ language: "shardc" }] },
  );
  return client.start();
}

function deactivate() {
  return client ? client.stop() : undefined;
}

module.exports = { activate, deactivate };
