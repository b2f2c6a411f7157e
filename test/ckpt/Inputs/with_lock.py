#!/usr/bin/env python3
"""with_lock.py [--beside] FOLDER COMMAND...: runs the command while the folder's lock says that another process saves
there.

The lock lies in the folder, or beside one that is made in one go.
"""

import fcntl
import pathlib
import subprocess
import sys

is_beside = sys.argv[1] == "--beside"
folder, *command = sys.argv[2 if is_beside else 1:]
folder = pathlib.Path(folder)
path = folder.parent / f".{folder.name}.shardc_lock" if is_beside else folder / ".shardc_lock"
path.parent.mkdir(parents=True, exist_ok=True)
with open(path, "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.write("process 17 on 'elsewhere'")
    lock.flush()
    status = subprocess.run(command).returncode
path.unlink()
sys.exit(status)
