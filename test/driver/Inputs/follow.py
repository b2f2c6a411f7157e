"""Runs `COMMAND` until it has written FILE twice, then ends it: follow.py FILE COMMAND..."""
import pathlib
import subprocess
import sys
import time

file = pathlib.Path(sys.argv[1])
process = subprocess.Popen(sys.argv[2:])
seen = set()
while len(seen) < 2 and process.poll() is None:
    time.sleep(0.02)
    if file.exists():
        seen.add(file.stat().st_ino)  # each page is a new file under the name
process.terminate()
process.wait()
print(f"{len(seen)} pages")
