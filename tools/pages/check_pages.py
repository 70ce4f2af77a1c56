#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do `nibble watch` and report.html do in a browser what they should?

    tools/pages/check_pages.py --binary build/release/nibble [--out build/pages]

Trains a small comparison of three arms, opens its report and, while its log grows, the live page of its arms and of
one more run, in headless Chromium. Both pages must load without a console message or an exception and ask nothing of
another place, draw every curve, show values under the pointer, be readable in light and dark, and fit 320 to 2560
pixels; on the live page a drag zooms, new steps leave the zoom alone, and a double click returns. Screenshots of what
was seen lie in OUT. Standard library and Chromium (CHROMIUM names another).
"""

import argparse
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from browser import Browser

ROOT = Path(__file__).resolve().parent.parent.parent
WIDTHS = (320, 768, 1280, 2560)
LEAST_CONTRAST = 4.5  # WCAG 2.1, level AA, of text

# Text whose contrast to what lies behind it is below LEAST_CONTRAST.
UNREADABLE = """(() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, under) => {
    const a = top.length > 3 ? top[3] : 1;
    return under.map((v, i) => a * top[i] + (1 - a) * v);
  };
  const behind = (e) => {
    const stack = [];
    for (; e; e = e.parentElement) stack.push(parse(getComputedStyle(e).backgroundColor));
    return stack.reverse().reduce((under, c) => over(c, under), [255, 255, 255]);
  };
  const found = new Map();
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || ["SCRIPT", "STYLE", "title"].includes(e.tagName)) continue;
    const style = getComputedStyle(e), back = behind(e);
    const ink = over(parse(e instanceof SVGElement ? style.fill : style.color), back);
    const [a, b] = [light(ink), light(back)], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < LEAST) found.set(e.tagName + "." + (e.getAttribute("class") || "") + " " + ratio.toFixed(1),
      e.textContent.trim().slice(0, 30));
  }
  return [...found].map(([k, v]) => k + ": " + v);
})()""".replace("LEAST", str(LEAST_CONTRAST))

# Of every chart that is shown, how many pixels have each run's colour (its swatch's in the table).
DRAWN = """(() => {
  const colours = [...document.querySelectorAll("i.key")].map((k) =>
    getComputedStyle(k).backgroundColor.match(/\\d+/g).map(Number));
  return [...document.querySelectorAll("#charts figure")].filter((f) => !f.hidden).map((f) => {
    const c = f.querySelector("canvas"), copy = new OffscreenCanvas(c.width, c.height);
    const pencil = copy.getContext("2d", {willReadFrequently: true});
    pencil.drawImage(c, 0, 0);
    const d = pencil.getImageData(0, 0, c.width, c.height).data;
    const count = colours.map(() => 0);
    for (let i = 0; i < d.length; i += 4)
      colours.forEach((k, r) => { if (d[i + 3] > 200 && Math.abs(d[i] - k[0]) + Math.abs(d[i + 1] - k[1])
        + Math.abs(d[i + 2] - k[2]) < 24) ++count[r]; });
    return {title: f.querySelector("figcaption").textContent, count};
  });
})()"""

# Words of the legend under the pointer: of the first chart, step and then each run's value.
LEGEND = "[...document.querySelectorAll('#charts figure:first-child .u-value')].map((v) => v.textContent)"
OVER = """(() => { const b = document.querySelector("#charts .u-over").getBoundingClientRect();
  return [b.left, b.top, b.width, b.height]; })()"""

# Curves of the report's plots: class, and the share of its chart that it spans.
CURVES = """[...document.querySelectorAll("svg.plot")].flatMap((s) =>
  [...s.querySelectorAll("path.base,path.cand,path.aa")].map((p) => ({kind: p.classList[0],
    share: p.getBBox().width / s.viewBox.baseVal.width, ink: getComputedStyle(p).stroke})))"""


class Checks:
    def __init__(self, out):
        self.out, self.failed = out, []

    def __call__(self, good, what, detail=""):
        print(f"  {'ok    ' if good else 'FAILED'} {what}{'' if good else f': {detail}'}", flush=True)
        if not good:
            self.failed.append(what)

    def looks(self, page, name, settle):
        """Light and dark, and every width: what both pages must hold. Leaves screenshots."""
        grounds = []
        for scheme in ("light", "dark"):
            page.size(1280)
            page.scheme(scheme)
            settle()
            grounds.append(page.js("getComputedStyle(document.body).backgroundColor"))
            unreadable = page.js(UNREADABLE)
            self(not unreadable, f"{name}: text is readable in {scheme}", unreadable[:12])
            page.screenshot(self.out / f"{name}-1280-{scheme}.png")
        self(grounds[0] != grounds[1], f"{name}: light and dark differ", grounds)
        page.scheme("light")
        for width in WIDTHS:
            page.size(width)
            settle()
            content = page.js("document.documentElement.scrollWidth")
            self(content <= width, f"{name}: fits {width} pixels", f"it is {content} wide")
            if width != 1280:
                page.screenshot(self.out / f"{name}-{width}-light.png")
        page.size(1280)
        settle()

    def quiet(self, page, name, allowed):
        self(not page.problems, f"{name}: no message in the console, no exception", page.problems[:5])
        foreign = [u for u in page.requests if not u.startswith((allowed, "data:"))]
        self(page.requests and not foreign, f"{name}: asks nothing of another place", foreign[:5])


def train(binary, out):
    """A comparison of three arms with telemetry, in a minute of two cores."""
    settings = {"training.name": "pages", "training.runs": out / "runs", "training.steps": 60, "training.batch": 2,
                "training.sequence": 64, "schedule.warmup_steps": 5, "checkpoint.every": 60, "eval.sequences": 4,
                "telemetry.every": 10, "protocol.noise_floor": "", "data.cache": out / "data"}
    command = [binary, "validate", ROOT / "configs" / "quickstart.toml", "--backend", "cpu", "--quiet"]
    command += [w for key, value in settings.items() for w in ("--set", f"{key}={value}")]
    code = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode
    if code not in (0, 3, 4):
        sys.exit(f"nibble validate ended with {code}; the run lies in {out / 'runs' / 'pages'}")
    return out / "runs" / "pages"


def check_report(check, browser, report):
    page = browser.page()
    page.size(1280)
    page.goto(report.as_uri())
    page.rest(0.5)
    curves = page.js(CURVES)
    kinds = {c["kind"] for c in curves if c["share"] > 0.4 and c["ink"] != "none"}
    check(kinds == {"base", "cand", "aa"}, "report: a curve of every arm is drawn", curves)
    spot = page.js("""(() => { const dots = document.querySelectorAll("svg.plot circle.cand");
      const dot = dots[dots.length >> 1];
      dot.scrollIntoView({block: "center"});
      const b = dot.getBoundingClientRect();
      return [b.left + b.width / 2, b.top + b.height / 2]; })()""")
    page.mouse("mouseMoved", *spot)
    words = page.js(f"document.elementFromPoint({spot[0]}, {spot[1]}).querySelector('title')?.textContent")
    check(words and "tokens: " in words and "%" in words, "report: the pointer on an evaluation shows its value", words)
    page.js("scrollTo(0, 0)")
    check.looks(page, "report", lambda: page.rest(0.3))
    check.quiet(page, "report", report.as_uri())


def start_watch(binary, folders):
    process = subprocess.Popen([binary, "watch", *folders, "--port", "0"], stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return process, line.split()[0] if line.split() else sys.exit("nibble watch said nothing")


def steps_under_pointer(page, shares):
    left, top, width, height = page.js(OVER)
    out = []
    for share in shares:
        page.mouse("mouseMoved", left + 1 + share * (width - 2), top + height / 2)
        page.rest(0.2)
        out.append(page.js(LEGEND))
    return out


def last_step(log):
    return max(json.loads(line).get("step", 0) for line in log.read_text().splitlines())


def higher(log):
    """The same log with losses a tenth higher: a curve of its own."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return "".join(json.dumps(r | {"loss": 1.1 * r["loss"]} if "loss" in r else r) + "\n" for r in rows)


def log_lines(log, until):
    return "".join(line for line in log.read_text().splitlines(True) if json.loads(line).get("step", 0) <= until)


def check_watch(check, browser, binary, run, out):
    # The page first sees half of each arm's log, then the rest.
    live, other = out / "live", out / "another"
    arms = ("baseline", "candidate", "candidate_aa")
    end = last_step(run / "baseline" / "metrics.jsonl")
    for arm in arms:
        (live / arm).mkdir(parents=True)
        (live / arm / "metrics.jsonl").write_text(log_lines(run / arm / "metrics.jsonl", end // 2))
    other.mkdir()
    (other / "metrics.jsonl").write_text(higher(run / "baseline" / "metrics.jsonl"))
    process, url = start_watch(binary, [live, other])
    page = browser.page()
    try:
        page.size(1280)
        page.goto(url)
        drawn = page.wait("document.querySelectorAll('#charts canvas').length >= 6")
        page.rest(0.5)
        check(url.startswith("http://127.0.0.1:") and drawn, "watch: the page at 127.0.0.1 draws its charts", url)
        names = page.js("[...document.querySelectorAll('#runs tr td:nth-child(2)')].map((t) => t.textContent)")
        check(len(names) == 4 and "another" in names, "watch: three arms and another run in one page", names)
        check(page.js("document.getElementById('state').textContent") == "live", "watch: says that it is live")
        first, last = steps_under_pointer(page, (0, 1))
        check(first[0] == "1" and last[0] == str(end) and all(first[1:]) and last[-1] and not last[1],
              "watch: the pointer shows step and values, of the runs that have them", (first, last))
        # Zoom, then the log grows.
        left, top, width, height = page.js(OVER)
        page.drag(left + 0.3 * width, left + 0.6 * width, top + height / 2)
        page.rest(0.5)
        zoomed = steps_under_pointer(page, (0, 1))
        near = [abs(int(z[0]) / end - share) < 0.1 for z, share in zip(zoomed, (0.3, 0.6))]
        check(all(near), "watch: a drag zooms", zoomed)
        for arm in arms:
            (live / arm / "metrics.jsonl").write_text((run / arm / "metrics.jsonl").read_text())
        grown = page.wait("[...document.querySelectorAll('#runs tr')].every((r) => r.textContent.includes('END / END'))"
                          .replace("END", str(end)))
        check(grown, "watch: the table follows a log that grows")
        page.rest(1)
        again = steps_under_pointer(page, (0, 1))
        check([a[0] for a in again] == [z[0] for z in zoomed], "watch: new steps leave the zoom alone", again)
        page.double_click(left + width / 2, top + height / 2)
        page.rest(0.5)
        first, last = steps_under_pointer(page, (0, 1))
        check(first[0] == "1" and last[0] == str(end) and all(last), "watch: a double click returns", (first, last))
        page.mouse("mouseMoved", 2, 2)
        page.rest(0.5)
        returned = page.js(DRAWN)[0]["count"]
        page.js("document.getElementById('log').click()")  # and back: the charts are made anew
        page.rest(0.6)
        page.js("document.getElementById('log').click()")
        page.rest(0.6)
        check(page.js(DRAWN)[0]["count"] == returned, "watch: the loss axis returns too", returned)
        check_curves(check, page)

        def settle():
            page.rest(1)  # charts are made anew a quarter of a second after a change
            fits = page.js("[...document.querySelectorAll('#charts canvas')].every((c) => "
                           "c.getBoundingClientRect().right <= c.closest('figure').getBoundingClientRect().right + 1)")
            if not fits:
                check(False, "watch: charts stay in their frames", page.js("innerWidth"))
        check.looks(page, "watch", settle)
        check_curves(check, page)
        check.quiet(page, "watch", url)
    finally:
        process.terminate()
        process.wait(10)


def check_curves(check, page):
    drawn = page.js(DRAWN)
    # Curves may hide each other, where the arms share a learning rate or nearly a loss.
    empty = [d["title"] for d in drawn if sum(d["count"]) < 100]
    best = [max(counts) for counts in zip(*(d["count"] for d in drawn))]
    check(len(drawn) == 6 and not empty and min(best) >= 50, "watch: every chart has curves and every run is seen", drawn)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", type=Path, default=ROOT / "build" / "release" / "nibble")
    p.add_argument("--out", type=Path, default=ROOT / "build" / "pages", help="folder of runs and screenshots")
    p.add_argument("--run", type=Path, help="the folder of a comparison instead of a new one")
    options = p.parse_args()
    binary, out = options.binary.resolve(), options.out.resolve()
    for old in ("runs", "live", "another"):
        shutil.rmtree(out / old, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    run = options.run.resolve() if options.run else train(binary, out)
    check = Checks(out)
    with Browser() as browser:
        print("report.html")
        check_report(check, browser, run / "report.html")
        print("nibble watch")
        check_watch(check, browser, binary, run, out)
    print(f"{len(check.failed)} checks failed; screenshots in {out}")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
