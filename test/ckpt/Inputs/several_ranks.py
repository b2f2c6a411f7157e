#!/usr/bin/env python3
"""several_ranks.py COUNT STATUS COMMAND...: runs the command as that many ranks, whose `{rank}` is their number.

All have to end, with that status, within a minute: far less than they would wait for each other.
"""

import os
import subprocess
import sys

count, status, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
processes = []
for rank in range(count):
    words = [word.replace("{rank}", str(rank)) for word in command]
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count)}
    processes.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
try:
    texts = [process.communicate(timeout=60)[0] for process in processes]
finally:
    for process in processes:
        process.kill()
found = [process.returncode for process in processes]
print("".join(f"rank {rank}: {line}\n" for rank, text in enumerate(texts) for line in text.splitlines()), end="")
if found != [status] * count:
    sys.exit(f"the ranks ended with {found}, not with {status}")
