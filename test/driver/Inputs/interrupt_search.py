#!/usr/bin/env python3
"""interrupt_search.py COMMAND...: sends SIGINT as soon as the progress of a search shows a best step, and prints what the search says."""

import os
import pty
import signal
import subprocess
import sys

terminal, of_child = pty.openpty()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=of_child, text=True)
os.close(of_child)
shown, sent = b"", False
while True:
    try:
        more = os.read(terminal, 4096)
    except OSError:  # the other end is closed
        break
    if not more:
        break
    shown += more
    if not sent and b"best step" in shown:
        process.send_signal(signal.SIGINT)
        sent = True
sys.stdout.write(process.stdout.read())
sys.exit(process.wait() if sent else f"no best step was shown: {shown[-300:]}")
