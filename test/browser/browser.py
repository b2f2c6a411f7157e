"""Controls a headless Chromium through a pair of pipes, by the DevTools protocol."""

import base64
import fcntl
import json
import os
import shutil
import struct
import subprocess
import zlib

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find():
    """The browser's program, or nothing. CHROMIUM names one that is not on the path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. Requests and errors of the page are collected."""

    def __init__(self, program, folder):
        self.requests, self.errors, self._number = [], [], 0
        for_child, self._out = os.pipe()
        self._in, of_child = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (for_child, of_child)]

        def as_devtools():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        command = [program, "--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                   "--force-device-scale-factor=1", "--disable-dev-shm-usage", f"--user-data-dir={folder}", "about:blank"]
        if os.geteuid() == 0:  # Chromium's sandbox refuses root
            command.insert(1, "--no-sandbox")
        self._process = subprocess.Popen(command, preexec_fn=as_devtools, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (for_child, of_child, *high):
            os.close(fd)
        self._buffer, self._session = b"", None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def close(self):
        self._process.terminate()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _read(self):
        while b"\0" not in self._buffer:
            part = os.read(self._in, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    def call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            event = self._read()
            if event.get("id") == self._number:
                if "error" in event:
                    raise RuntimeError(f"{method}: {event['error']['message']}")
                return event["result"]
            self._note(event)

    def open(self, path, width=1280, height=900, is_dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}])
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not self.value("document.readyState === 'complete' && !location.href.startsWith('about:')"):
            pass
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key, code=0, text=None):
        event = {"key": key, "windowsVirtualKeyCode": code or (ord(key.upper()) if len(key) == 1 else 0)}
        if text or len(key) == 1:
            event["text"] = text or key
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def move_to(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, is_whole=False, clip=None):
        """A screenshot of the window, of the whole page, or of a part (left, top, width, height), as bytes of a PNG file."""
        if is_whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = (0, 0, size["width"], size["height"])
        part = {"clip": {**dict(zip(("x", "y", "width", "height"), clip)), "scale": 1}, "captureBeyondViewport": True} if clip else {}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", **part)["data"])

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


def _unfiltered(kind, line, above, step):
    for i in range(len(line)):
        left = line[i - step] if i >= step else 0
        corner = above[i - step] if i >= step else 0
        if kind == 1:
            line[i] = (line[i] + left) & 255
        elif kind == 2:
            line[i] = (line[i] + above[i]) & 255
        elif kind == 3:
            line[i] = (line[i] + (left + above[i]) // 2) & 255
        elif kind == 4:
            guess = left + above[i] - corner
            near = min((abs(guess - left), 0, left), (abs(guess - above[i]), 1, above[i]), (abs(guess - corner), 2, corner))
            line[i] = (line[i] + near[2]) & 255


def pixels(png):
    """Rows of a PNG with 8 bits a channel, as Chromium writes it, each a list of (red, green, blue)."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n", "no PNG"
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colours = struct.unpack(">IIBB", body[:10])
        elif kind == b"IDAT":
            data += body
        at += 12 + length
    assert depth == 8 and colours in (2, 6), f"depth {depth}, colour type {colours}"
    step, raw = {2: 3, 6: 4}[colours], zlib.decompress(data)
    above, rows = bytearray(width * step), []
    for row in range(height):
        begin = row * (width * step + 1)
        line = bytearray(raw[begin + 1:begin + 1 + width * step])
        _unfiltered(raw[begin], line, above, step)
        rows.append([tuple(line[x:x + 3]) for x in range(0, len(line), step)])
        above = line
    return rows
