#!/usr/bin/env python3
"""damage.py flip FILE BYTE | cut FILE BYTES | value FOLDER | unchecked FOLDER | digests FOLDER

Damages files, takes the checksums of a checkpoint's records away, or lists the digests of its files.
"""

import hashlib
import json
import os
import sys

what, path = sys.argv[1], sys.argv[2]
if what == "flip":
    data = bytearray(open(path, "rb").read())
    data[int(sys.argv[3])] ^= 1
    open(path, "wb").write(data)
elif what == "cut":
    os.truncate(path, int(sys.argv[3]))
elif what == "value":  # the int64 tensor 0, 1, 2 of model.module.plain, wherever it lies
    wanted = b"".join(i.to_bytes(8, "little") for i in range(3))
    for name in os.listdir(path):
        data = bytearray(open(os.path.join(path, name), "rb").read())
        at = data.find(wanted)
        if at >= 0 and name.endswith(".distcp"):
            data[at + 8] ^= 4
            open(os.path.join(path, name), "wb").write(data)
elif what == "unchecked":  # as torch writes archives after set_crc32_options(False): each checksum is 0
    for name in os.listdir(path):
        if not name.endswith(".distcp"):
            continue
        data = bytearray(open(os.path.join(path, name), "rb").read())
        for mark, field in ((b"PK\3\4", 14), (b"PK\7\x08", 4), (b"PK\1\2", 16)):
            at = data.find(mark)
            while at >= 0:
                data[at + field : at + field + 4] = bytes(4)
                at = data.find(mark, at + 4)
        open(os.path.join(path, name), "wb").write(data)
elif what == "digests":
    files = {name: hashlib.sha256(open(os.path.join(path, name), "rb").read()).hexdigest() for name in os.listdir(path)}
    with open(os.path.join(path, "integrity.json"), "w") as file:
        json.dump({"algorithm": "sha256", "files": files}, file)
