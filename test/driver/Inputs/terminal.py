#!/usr/bin/env python3
"""terminal.py ROWS[xCOLUMNS] [NAME=VALUE...] COMMAND...: runs the command on a terminal of this size and prints its
output.

Variables of colours and pagers are removed first; NAME=VALUE sets variables.
"""

import fcntl
import os
import pathlib
import pty
import re
import struct
import sys
import termios

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from pseudoterminal import parts_shown  # noqa: E402


def main():
    (rows, columns), words = map(int, (sys.argv[1] + "x200").split("x")[:2]), sys.argv[2:]
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "PAGER", "SHARDC_PAGER", "LESS")}
    environment["TERM"] = "xterm"
    while re.match(r"[A-Z_]+=", words[0]):
        name, value = words.pop(0).split("=", 1)
        environment[name] = value
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execvpe(words[0], words, environment)
    shown = b"".join(parts_shown(terminal))
    _, status = os.waitpid(child, 0)
    sys.stdout.write(shown.decode(errors="replace").replace("\r\n", "\n"))
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
