#!/usr/bin/env python3
"""on_terminal.py COMMAND...: runs it on a terminal of its own and prints what that shows, line ends made visible."""

import os
import pty
import sys


def main():
    child, fd = pty.fork()
    if child == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
    shown = b""
    try:
        while data := os.read(fd, 1 << 16):
            shown += data
    except OSError:  # the other side is closed
        pass
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(shown.decode().replace("\r\n", "\n").replace("\r", "\n<CR>").replace("\x1b[K", "<ERASE>"))
    sys.exit(status)


main()
