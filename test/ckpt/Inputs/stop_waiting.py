#!/usr/bin/env python3
"""stop_waiting.py SIGNAL PLACE COMMAND...: sends the signal once something is called as the pattern PLACE; passes the exit status on."""

import glob
import signal
import subprocess
import sys
import time

name, place, command = sys.argv[1], sys.argv[2], sys.argv[3:]
process = subprocess.Popen(command)
while not glob.glob(place):
    if process.poll() is not None:
        sys.exit(f"{' '.join(command)}: ended with status {process.returncode} before it made '{place}'")
    time.sleep(0.01)
process.send_signal(getattr(signal, name))
try:
    sys.exit(process.wait(timeout=120))
finally:
    process.kill()
