#!/usr/bin/env python3
"""with_lock.py FOLDER COMMAND...: runs the command while another process saves in the folder, as its lock says."""

import fcntl
import pathlib
import subprocess
import sys

folder, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
folder.mkdir(parents=True, exist_ok=True)
with open(folder / ".shardc_lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.write("process 17 on 'elsewhere'")
    lock.flush()
    status = subprocess.run(command).returncode
(folder / ".shardc_lock").unlink()
sys.exit(status)
