#!/usr/bin/env python3
"""Tests the output of a check of launches that fails, and that it leaves no processes."""

import pathlib
import subprocess
import sys
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
CHECK = """
import sys
sys.path.insert(0, {folder!r})
import launch_runs as launch

def check(place):
    print("a line of the check")
    many = place.start("many", ["sh", "-c", "seq 1000; echo the last >&2"])
    few = place.start("few", ["sh", "-c", "echo one; exec sleep 1000"])
    launch.expect_status(0, many)
    few.await_text("one")
    print(few.popen.pid)
    launch.expect(False, "the reason", many, few)

launch.run_check({{"failing": check}})
"""


class FailureTest(unittest.TestCase):
    def test_the_reason_comes_last(self):
        command = [sys.executable, "-B", "-c", CHECK.format(folder=str(FOLDER)), "failing"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 1, done.stdout)
        said, pid, *shown = done.stdout.splitlines()
        self.assertEqual(said, "a line of the check")
        numbers = [str(number) for number in [*range(1, 6), *range(987, 1001)]]
        numbers.insert(5, "... 981 lines ...")
        self.assertEqual(shown, ["--- many", *numbers, "the last", "--- few", "one", "the reason"])
        command_line = pathlib.Path(f"/proc/{pid}/cmdline")
        self.assertFalse(command_line.exists() and command_line.read_bytes(), "a process is left")

    def test_ports_are_kept(self):
        """Only programs that listen with SO_REUSEADDR can use a check's ports."""
        script = f"import sys, socket\nsys.path.insert(0, {str(FOLDER)!r})\nimport launch_runs\nfirst = launch_runs.free_port()\n"
        script += """
for port in range(first - 1, first + 3):
    for may in (False, True):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, may)
            try:
                other.bind(("127.0.0.1", port))
                other.listen()
                print(may)
            except OSError:
                print("refused")
"""
        done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split(), ["refused", "True"] * 4)


if __name__ == "__main__":
    unittest.main()
