#!/usr/bin/env python3
"""Makes checkpoints that would execute code, or exhaust memory or time, if Python read them. shardc must refuse each.

    adversarial.py WORK

Each pickle is put in every place where a checkpoint has one: `.metadata`, the record of a tensor, an object,
`common.pt`. Needs no torch: modules of the same names replace it while the files are made.
"""

import enum
import io
import os
import pathlib
import pickle
import resource
import shutil
import struct
import subprocess
import sys
import types
import zipfile

MEMORY = 3 << 30  # address space of the program under test
SECONDS = 60


def module(name):
    made = types.ModuleType(name)
    sys.modules[name] = made
    return made


torch, meta, files, serialization = (module(name) for name in (
    "torch", "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem", "torch.serialization"))


def make_class(home, name):
    made = type(name, (), {"__module__": home.__name__})
    setattr(home, name, made)
    return made


def build(home, name, **state):
    cls = getattr(home, name, None) or make_class(home, name)
    value = cls.__new__(cls)
    value.__dict__.update(state)
    return value


class Size(tuple):
    __module__ = "torch"

    def __reduce__(self):
        return Size, (tuple(self),)


class DType:
    __module__ = "torch"

    def __reduce__(self):
        return "float32"


torch.Size, torch.float32 = Size, DType()


class Properties:
    __module__ = meta.__name__

    def __reduce__(self):
        encoding = getattr(meta, "_MEM_FORMAT_ENCODING")(0)
        return copy_new, (Properties,), (torch.float32, Layout(), False, encoding, False)


class Layout:
    def __reduce__(self):
        return serialization._get_layout, ("torch.strided",)


def copy_new(cls):
    return cls.__new__(cls)


def get_layout(name):
    return name


get_layout.__module__, get_layout.__qualname__ = "torch.serialization", "_get_layout"
serialization._get_layout = get_layout
Properties.__qualname__ = Properties.__name__ = "TensorProperties"
meta.TensorProperties = Properties
Encoding = enum.Enum("_MEM_FORMAT_ENCODING", {"TORCH_CONTIGUOUS_FORMAT": 0}, module=meta.__name__)
meta._MEM_FORMAT_ENCODING = Encoding


def metadata_bytes(record, is_tensor):
    """A `.metadata` with one item `x`, whose record is the whole file `__0_0.distcp`."""
    if is_tensor:
        chunk = build(meta, "ChunkStorageMetadata", offsets=Size((0,)), sizes=Size((2,)))
        item = build(meta, "TensorStorageMetadata", properties=Properties(), size=Size((2,)), chunks=[chunk])
        index = build(meta, "MetadataIndex", fqn="x", index=0, offset=Size((0,)))
    else:
        item, index = build(meta, "BytesStorageMetadata"), build(meta, "MetadataIndex", fqn="x", index=None)
    info = build(files, "_StorageInfo", relative_path="__0_0.distcp", offset=0, length=len(record))
    return Pickler.dumps(build(meta, "Metadata", state_dict_metadata={"x": item}, planner_data={"x": ("x",)},
                               storage_data={index: info}, storage_meta=None, version="1.0.0"))


class Pickler(pickle._Pickler):
    """Writes TensorProperties as torch does: NEWOBJ, then a tuple as state."""

    @staticmethod
    def dumps(value):
        out = io.BytesIO()
        Pickler(out, 4).dump(value)
        return out.getvalue()

    def save_reduce(self, func, args, state=None, *rest, obj=None, **named):
        if func is copy_new:
            self.save(args[0])
            self.save(())
            self.write(pickle.NEWOBJ)
            self.save(state)
            self.write(pickle.BUILD)
            return
        super().save_reduce(func, args, state, *rest, obj=obj, **named)


def archive(data_pkl, storage=b"\0" * 8):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, data in (("data.pkl", data_pkl), ("byteorder", b"little"), ("data/0", storage), ("version", b"3\n")):
            file.writestr(f"archive/{name}", data)
    return out.getvalue()


def call(name, argument, protocol=2):
    """A pickle that calls a function of a module with one text."""
    home, function = name.rsplit(".", 1)
    text = argument.encode()
    if protocol == 0:
        return f"c{home}\n{function}\n(S'{argument}'\ntR.".encode()
    push = b"X" + struct.pack("<I", len(text)) + text
    if protocol == 4:
        short = b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (home, function))
        return b"\x80\x04" + short + b"\x93" + push + b"\x85R."
    return b"\x80\x02" + f"c{home}\n{function}\n".encode() + push + b"\x85R."


def corpus(sentinel):
    """(name, pickle): pickles that would run a command, then pickles that would use up memory or time."""
    command = f"touch {sentinel}"
    python = f"open({sentinel!r}, 'w')"
    functions = {"os.system": command, "posix.system": command, "nt.system": command, "os.popen": command,
                 "subprocess.check_output": command, "subprocess.Popen": command, "commands.getoutput": command,
                 "pty.spawn": command, "builtins.eval": python, "builtins.exec": python, "__builtin__.eval": python,
                 "__builtin__.execfile": sentinel, "builtins.compile": python, "builtins.open": sentinel,
                 "builtins.__import__": "os", "builtins.getattr": "x", "importlib.import_module": "os",
                 "runpy.run_path": sentinel, "shutil.rmtree": sentinel, "webbrowser.open": "x", "socket.socket": "x",
                 "ctypes.CDLL": sentinel, "marshal.loads": "x", "code.interact": "x", "pickle.loads": "x",
                 "sys.exit": "x", "torch.storage._load_from_bytes": "x"}
    for name, argument in functions.items():
        for protocol in (0, 2, 4):
            yield f"{name}-{protocol}", call(name, argument, protocol)
    # Names put together from the memo, a call behind a harmless one, and old opcodes.
    yield "memo", b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94h\x00h\x01\x93\x8c\x01x\x85R."
    yield "nested-attribute", b"\x80\x04\x8c\x08builtins\x8c\x0ceval.__call__\x93\x8c\x01x\x85R."
    yield "in-a-dict", b"\x80\x02}X\x01\x00\x00\x00a" + call("os.system", command)[2:-1] + b"s."
    yield "as-state", b"\x80\x02ccollections\nOrderedDict\n)R}X\x01\x00\x00\x00a" + call("os.system", command)[2:-1] + b"sb."
    yield "new-object", b"\x80\x02csubprocess\nPopen\nX\x01\x00\x00\x00x\x85\x81."
    yield "inst", f"(S'{command}'\nios\nsystem\n.".encode()
    yield "obj", f"(cos\nsystem\nS'{command}'\no.".encode()
    yield "extension", b"\x80\x02\x82\x01."
    yield "persistent-text", b"Pevil\n."
    # getattr of a class that is not an enumeration, of an enumeration without the member, and the function itself.
    member = "cmegatron.core.transformer.enums\nAttnBackend\n"
    for name, of, what in (("module", "cposixpath\nos\n", "system"), ("unknown", "cmine\nEnum\n", "fused"),
                           ("dunder", member, "__class__")):
        text = b"X" + struct.pack("<I", len(what)) + what.encode()
        yield f"getattr-{name}", b"\x80\x02c__builtin__\ngetattr\n" + of.encode() + text + b"\x86R."
    yield "getattr-value", b"\x80\x02}X\x01\x00\x00\x00ac__builtin__\ngetattr\ns."
    # Sizes that are not there, and shapes that blow up.
    for opcode in (b"X", b"B", b"T"):
        yield f"length-{opcode.decode()}", b"\x80\x02" + opcode + b"\xff\xff\xff\x7f" + b"."
    for opcode in (b"\x8d", b"\x8e", b"\x96"):
        yield f"length-{opcode.hex()}", b"\x80\x05" + opcode + b"\xff" * 7 + b"\x7f" + b"."
    yield "long4", b"\x80\x02\x8b\xff\xff\xff\x7f."
    yield "frame", b"\x80\x04\x95" + b"\xff" * 8 + b"N."
    yield "memo-index", b"\x80\x02Nr\xff\xff\xff\xffj\xfe\xff\xff\xff."
    yield "deep-lists", b"\x80\x02" + b"]" * 100000 + b"a" * 99999 + b"."
    yield "deep-marks", b"\x80\x02" + b"(" * 100000 + b"t" * 100000 + b"."
    yield "underflow", b"\x80\x02R."
    yield "no-stop", b"\x80\x02N"
    yield "empty", b""
    yield "protocol", b"\x80\x09N."


def limits():
    if not os.environ.get("SHARDC_SANITIZE"):  # sanitizers reserve terabytes
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def expect(condition, text):
    if not condition:
        sys.exit(text)


def refused(name, words, file):
    done = subprocess.run(["shardc", "ckpt", *words], capture_output=True, text=True, preexec_fn=limits, timeout=SECONDS)
    said = done.stdout + done.stderr
    expect(done.returncode == 1, f"{name}: {words}: status {done.returncode}\n{said}")
    expect("shardc: error:" in said and file in said, f"{name}: {words} does not name '{file}'\n{said}")


def put(folder, metadata, record=b""):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / ".metadata").write_bytes(metadata)
    (folder / "__0_0.distcp").write_bytes(record)


def check_harmless(folder):
    """Checks that the files are valid apart from the pickle, so that the refusal is about the pickle."""
    tensor = (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
              b"X\x03\x00\x00\x00cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR.")
    for is_tensor, content in ((True, tensor), (False, b"\x80\x02K\x07.")):
        record = archive(content)
        put(folder, metadata_bytes(record, is_tensor), record)
        done = subprocess.run(["shardc", "ckpt", "verify", folder], capture_output=True, text=True, preexec_fn=limits)
        expect(done.returncode == 0, f"the harmless one: {done.stdout}{done.stderr}")


def main():
    work = pathlib.Path(sys.argv[1])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    sentinel, folder = work / "it-ran", work / "c"
    check_harmless(folder)
    count = 0
    for name, evil in corpus(str(sentinel)):
        put(folder, evil)
        refused(f"{name} as .metadata", ["inspect", folder], ".metadata")
        for is_tensor in (True, False):
            record = archive(evil)
            put(folder, metadata_bytes(record, is_tensor), record)
            refused(f"{name} as {'a tensor' if is_tensor else 'an object'}", ["verify", folder], "__0_0.distcp")
        put(folder, metadata_bytes(archive(b"\x80\x02K\x07."), False), archive(b"\x80\x02K\x07."))
        (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
        (folder / "common.pt").write_bytes(archive(evil))
        refused(f"{name} as common.pt", ["convert", "torch-dist-to-fsdp-dtensor", folder, work / "out"], "common.pt")
        expect(not sentinel.exists(), f"{name} was run")
        count += 1
    print(f"{count} pickles refused in 4 places each")


if __name__ == "__main__":
    main()
