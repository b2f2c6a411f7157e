#!/usr/bin/env python3
"""on_terminal.py COMMAND...: runs the command on a pseudoterminal and prints its output, with visible line ends."""

import os
import pathlib
import pty
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from pseudoterminal import parts_shown  # noqa: E402


def main():
    child, fd = pty.fork()
    if child == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
    shown = b"".join(parts_shown(fd))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(shown.decode().replace("\r\n", "\n").replace("\r", "\n<CR>").replace("\x1b[K", "<ERASE>"))
    sys.exit(status)


main()
