"""What programs show on a pseudoterminal."""

import os


def parts_shown(terminal):
    """What is written to the terminal, part by part, until its other end is closed."""
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # Linux' form of an end
            return
        if not part:
            return
        yield part
