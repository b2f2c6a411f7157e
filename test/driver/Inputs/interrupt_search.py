#!/usr/bin/env python3
"""interrupt_search.py COMMAND...: sends SIGINT as soon as the progress of a search shows a best step, and prints what the search says."""

import os
import pathlib
import pty
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from pseudoterminal import parts_shown  # noqa: E402

terminal, of_child = pty.openpty()
signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells ignore it in background jobs, and so would the command
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=of_child, text=True)
os.close(of_child)
shown, sent = b"", False
for part in parts_shown(terminal):
    shown += part
    if not sent and b"best step" in shown:
        process.send_signal(signal.SIGINT)
        sent = True
sys.stdout.write(process.stdout.read())
sys.exit(process.wait() if sent else f"no best step was shown: {shown[-300:]}")
