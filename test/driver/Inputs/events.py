"""Prints the scalars and texts of a folder of TensorBoard's events, a line for each event: its step, then each tag with its value.

    events.py FOLDER
    events.py --full COMMAND...   runs a command that may write no more than 1,000 bytes into a file, as on a full disk

Reads the format by its description: records of TFRecord's form with Event messages of TensorFlow's event.proto.
"""

import pathlib
import resource
import signal
import struct
import subprocess
import sys


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of a message: integers, 8 and 4 bytes, and strings as bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            size = {1: 8, 5: 4}[kind]
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def events(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        yield list(fields(data[at + 12 : at + 12 + size]))
        at += 16 + size


def text_of(event):
    values = dict(event)
    words = [f"{values.get(2, 0)}:"]
    for _, summary in (field for field in event if field[0] == 5):
        for _, value in fields(summary):
            value = dict(value for value in fields(value))
            is_text = 8 in value  # a tensor of one string
            shown = repr(dict(fields(value[8]))[8].decode()) if is_text else f"{struct.unpack('<f', value[2])[0]:.6g}"
            words.append(f"{value[1].decode()}={shown}")
    return " ".join(words)


def limit():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))


if sys.argv[1] == "--full":
    sys.exit(subprocess.run(sys.argv[2:], preexec_fn=limit, restore_signals=False).returncode)
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    for event in events(path):
        print(text_of(event))
