// Starts `shardc lsp` for recipes; everything else is the server's. Highlighting needs no code.
const vscode = require("vscode");

let client;

/// The protocol's client; undefined where nobody ran `npm install` in this folder.
function clientClass() {
  try {
    return require("vscode-languageclient/node").LanguageClient;
  } catch (error) {
    if (error.code !== "MODULE_NOT_FOUND") throw error;
    return undefined;
  }
}

function activate() {
  const LanguageClient = clientClass();
  if (!LanguageClient) {
    vscode.window.showWarningMessage(
      `Recipes are only highlighted: run 'npm install' in ${__dirname}, which fetches the client of 'shardc lsp'.`,
    );
    return undefined;
  }
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
