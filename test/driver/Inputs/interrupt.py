#!/usr/bin/env python3
"""interrupt.py COMMAND...: sends SIGINT as soon as the command prints its first step, and prints all that it says."""

import re
import signal
import subprocess
import sys

process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
sent = False
for line in process.stdout:
    sys.stdout.write(line)
    if not sent and re.match(r"step \d", line):
        process.send_signal(signal.SIGINT)
        sent = True
sys.exit(process.wait())
