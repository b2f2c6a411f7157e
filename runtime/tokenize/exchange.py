"""How the scripts that shardc embeds and starts receive requests and send answers. Requests arrive on standard input and
answers are written to standard output. All numbers are little-endian:

    request   uint64 number of bytes that follow; uint32 n; uint32 bytes of each of n texts; the texts, in UTF-8
    answer    uint8 kind; uint64 number of bytes that follow, which are
        'H'   once, first: JSON with properties of what was opened
        'M'   a package is missing; the reason as text
        'E'   another error; its text. The process ends after 'M' and 'E'. A script says what other kinds it has
"""

import ctypes
import itertools
import json
import os
import pathlib
import resource
import signal
import struct
import sys

ROW_SECONDS = 60  # of processor time that a row or a request may take, and a second more for each 100 kB
MEMORY = 4 << 30  # bytes that a tokenizer and rows may take beside the packages
TEXT = 2000  # characters of an error that are shown


class Refused(Exception):
    """What was sent cannot be used; the text is for the user."""


class TooLong(Exception):
    """A row takes more time than one may. Unlike Refused, it does not lead to another attempt."""


def confine():
    """Limits what a tokenizer, a chat template or a file of rows can do: this process ends with the one that started it, has
    no environment, and limited memory. Called when packages are loaded, before anything of others is read."""
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.environ.clear()
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def allow(size):
    """Limits the processor time of the next row, or of a request. A row that takes longer is refused. If the refusal does
    not stop it, as in one operation of a library, the system ends the process."""
    seconds = ROW_SECONDS + size // 100000

    def refuse(*_):
        raise TooLong(f"it takes more than {seconds} s of processor time, the limit of a row")

    signal.signal(signal.SIGPROF, refuse)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds + 2, resource.RLIM_INFINITY))


def answer(out, kind, *parts):
    out.write(struct.pack("<cQ", kind, sum(len(part) for part in parts)))
    for part in parts:
        out.write(part)
    out.flush()


def answer_json(out, kind, value):
    answer(out, kind, json.dumps(value).encode())


def read_exactly(source, count):
    data = source.read(count)
    if len(data) != count:
        sys.exit(0)  # the requesting program has ended
    return data


def read_request(source):
    (size,) = struct.unpack("<Q", read_exactly(source, 8))
    allow(size)
    request = memoryview(read_exactly(source, size))
    (count,) = struct.unpack_from("<I", request)
    lengths = struct.unpack_from(f"<{count}I", request, 4)
    ends = list(itertools.accumulate(lengths, initial=4 + 4 * count))
    return [str(request[begin:end], "utf-8") for begin, end in zip(ends, ends[1:])]


def text_of_error(error):
    text = str(error) if isinstance(error, (Refused, TooLong)) else f"{type(error).__name__}: {error}"
    return text if len(text) <= TEXT else text[:TEXT] + "..."


def serve(run):
    """Calls run(out), and answers with the error that ends it."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    try:
        run(out)
    except SystemExit:
        raise
    except BrokenPipeError:
        os._exit(0)  # nobody reads any more; a normal exit would write the rest of the buffer and report an error
    except ImportError as error:
        answer(out, b"M", str(error).encode())
    except BaseException as error:  # includes panics of the library
        answer(out, b"E", text_of_error(error).encode("utf-8", "replace"))


def open_tokenizer(path):
    import tokenizers
    confine()
    allow(os.path.getsize(path))
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, f"tokenizers {tokenizers.__version__}"
