#!/usr/bin/env python3
"""status.py STATUS COMMAND...: runs the command and checks its exit status; its output passes through."""

import subprocess
import sys

expected, command = int(sys.argv[1]), sys.argv[2:]
status = subprocess.run(command).returncode
if status != expected:
    sys.exit(f"{' '.join(command)}: status {status}, expected {expected}")
