# SPDX-License-Identifier: Apache-2.0
"""Drives a headless Chromium through its DevTools protocol over a pipe, with the standard library alone.

    with Browser() as browser:
        page = browser.page()
        page.goto(path.as_uri())
        page.js("document.title")

A page remembers every request, console error and exception since its last goto().
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Its own traffic (updates, safe browsing) would be none of the page's. No sandbox: only our own pages are opened,
# and as root or in a container it cannot start one.
FLAGS = ("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-extensions", "--hide-scrollbars", "--force-device-scale-factor=1", "--mute-audio")


def find_chromium():
    """The browser that CHROMIUM names, or the first on PATH; None where there is none."""
    return os.environ.get("CHROMIUM") or next((p for p in map(shutil.which, NAMES) if p), None)


class Browser:
    def __enter__(self):
        program = find_chromium()
        if program is None:
            raise SystemExit(f"no Chromium on PATH ({', '.join(NAMES)}); run tools/install_deps.sh pages, or name one "
                             "in CHROMIUM")
        self.profile = tempfile.TemporaryDirectory(prefix="nibble-pages-")
        theirs_in, self.ours_out = os.pipe()
        self.ours_in, theirs_out = os.pipe()
        # The protocol is spoken on descriptors 3 and 4.
        command = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", program, *FLAGS,
                   f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.next_id, self.pages = b"", 0, {}
        return self

    def __exit__(self, *unused):
        try:
            self.call("Browser.close", seconds=10)
            self.process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.ours_in)
        os.close(self.ours_out)
        try:
            self.profile.cleanup()
        except OSError:  # a process of the browser still writes there
            time.sleep(1)
            shutil.rmtree(self.profile.name, ignore_errors=True)

    def page(self):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self.pages[session] = Page(self, session)
        return self.pages[session]

    def call(self, method, params=None, session=None, seconds=60):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        os.write(self.ours_out, json.dumps(message).encode() + b"\0")
        end, wanted = time.monotonic() + seconds, self.next_id
        while time.monotonic() < end:
            for answer in self.receive(end - time.monotonic()):
                if answer.get("id") != wanted:
                    continue
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
        raise RuntimeError(f"{method}: no answer in {seconds} s")

    def receive(self, seconds):
        """Messages that have come, after at most so many seconds; events go to their page."""
        if not select.select([self.ours_in], [], [], max(0, seconds))[0]:
            return []
        data = os.read(self.ours_in, 1 << 20)
        if not data:
            raise RuntimeError("Chromium ended")
        *whole, self.buffer = (self.buffer + data).split(b"\0")
        messages = [json.loads(m) for m in whole]
        for m in messages:
            if "method" in m and m.get("sessionId") in self.pages:
                self.pages[m["sessionId"]].note(m["method"], m["params"])
        return messages


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.requests, self.problems, self.loaded = [], [], False
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def call(self, method, **params):
        return self.browser.call(method, params, self.session)

    def note(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())
        elif method == "Page.loadEventFired":
            self.loaded = True

    def rest(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.browser.receive(end - time.monotonic())

    def goto(self, url):
        self.requests, self.problems, self.loaded = [], [], False
        self.call("Page.navigate", url=url)
        end = time.monotonic() + 60
        while not self.loaded:
            if time.monotonic() > end:
                raise RuntimeError(f"{url} did not load")
            self.browser.receive(1)

    def js(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression[:80]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression, seconds=30):
        """Until the expression is true; whether it became so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.js(expression):
                return True
            self.rest(0.1)
        return False

    def size(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, x0, x1, y):
        self.mouse("mouseMoved", x0, y)
        self.mouse("mousePressed", x0, y, button="left", buttons=1, clickCount=1)
        for i in range(1, 9):
            self.mouse("mouseMoved", x0 + (x1 - x0) * i / 8, y, button="left", buttons=1)
        self.mouse("mouseReleased", x1, y, button="left", clickCount=1)

    def double_click(self, x, y):
        for count in (1, 2):
            self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=count)
            self.mouse("mouseReleased", x, y, button="left", clickCount=count)

    def screenshot(self, path):
        """The whole page, however long."""
        box = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": box["width"], "height": box["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        with open(path, "wb") as f:
            f.write(base64.b64decode(shot["data"]))
