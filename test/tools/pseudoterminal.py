"""Reads the output of programs on a pseudoterminal."""

import os


def parts_shown(terminal):
    """Yields what is written to the terminal, part by part, until its other end is closed."""
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # the end of the output on Linux
            return
        if not part:
            return
        yield part
