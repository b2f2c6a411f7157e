#!/usr/bin/env python3
"""Speaks a recorded conversation with a language server and prints what it answers.

    converse.py CONVERSATION SERVER ARG...

A conversation has one JSON message a line; blank lines and lines that begin with `//` are skipped. `$FOLDER`
becomes the folder of the conversation, as in a URI, `{"text": "@file"}` the text of a file of that folder. What the
server sends is printed one message after the other with sorted keys, then its exit status. `!header TEXT` sends bytes
as they are.
"""

import json
import os
import subprocess
import sys
import urllib.parse


def frame(text):
    data = text.encode()
    return b"Content-Length: %d\r\n\r\n" % len(data) + data


def with_files(value, folder):
    if isinstance(value, dict):
        return {key: with_files(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [with_files(item, folder) for item in value]
    if isinstance(value, str) and value.startswith("@"):
        with open(os.path.join(folder, value[1:]), encoding="utf-8") as file:
            return file.read()
    return value


def read_messages(data):
    while data:
        header, _, data = data.partition(b"\r\n\r\n")
        length = int(header.split(b":")[1])
        yield json.loads(data[:length])
        data = data[length:]


def main():
    path, command = sys.argv[1], sys.argv[2:]
    folder = os.path.dirname(os.path.abspath(path))
    quoted = urllib.parse.quote(folder)
    spoken = b""
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip().replace("$FOLDER", quoted)
            if line.startswith("!header "):
                spoken += line[len("!header "):].encode().decode("unicode_escape").encode()
            elif line and not line.startswith("//"):
                spoken += frame(json.dumps(with_files(json.loads(line), folder)))
    done = subprocess.run(command, input=spoken, capture_output=True, check=False)
    for message in read_messages(done.stdout):
        print(json.dumps(message, indent=1, sort_keys=True).replace(quoted, "$FOLDER").replace(folder, "$FOLDER"))
    sys.stderr.write(done.stderr.decode())
    print("exit status", done.returncode)


if __name__ == "__main__":
    main()
