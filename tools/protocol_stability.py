#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the quickstart's protocol with several seeds and with each planted fault, and prints a table of verdicts.

    tools/protocol_stability.py --binary build/release/nibble --jobs 8 --backend cpu

Succeeds when every sound run is PASS or INCONCLUSIVE without an alarm of severity fault, and no run with a fault
is a PASS. Works from any folder; needs Python 3.9 and the binary alone. Each run's folder is kept below --out, one
line a run is printed when it ends, and the table is written beside them as table.json.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What each case adds to the configuration.
FAULTS = {
    "sr_bits_stuck": ["faults.stuck_random_bits=true"],
    "rht_signs_differ": ["faults.wgrad_sign_mismatch=true"],
    "scale_binade_off": ["faults.scale_binade_layers={layer}"],
    "micro_batches_lost": ["training.micro_batch=2", "faults.lost_micro_batches=true"],
}
VERDICT_OF_CODE = {0: {"pass"}, 3: {"fail", "aborted"}, 4: {"inconclusive"}}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", required=True, type=Path, help="nibble")
    p.add_argument("--backend", default="cpu", choices=["ref", "cpu", "cuda"])
    p.add_argument("--jobs", type=int, default=1, help="runs at a time; the processor's cores are shared out")
    p.add_argument("--config", type=Path, default=ROOT / "configs" / "quickstart.toml")
    p.add_argument("--seeds", type=int, default=5, help="sound runs, seeds 1, 2, ...")
    p.add_argument("--fault-seeds", type=int, default=1, help="runs of each fault, seeds 1, 2, ...")
    p.add_argument("--faulty-layer", default="", help="layer whose scales are read one binade off; "
                                                      "default: the first that the recipe quantises")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="also, in every run")
    p.add_argument("--only", default="", help="only the cases whose name contains this")
    p.add_argument("--out", type=Path, default=Path("protocol_stability"), help="folder of the runs, must be new")
    return p.parse_args()


def quantised_layer(options):
    """The first linear in the plan of `nibble explain` without a reason, in brackets, to be kept in BF16."""
    command = [options.binary, "explain", options.config] + [w for s in options.set for w in ("--set", s)]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        words = line.split()
        if words and words[0].startswith("blocks.") and "(" not in line:
            return words[0]
    sys.exit("no line of `nibble explain` names a quantised linear; give --faulty-layer")


def cases(options, layer):
    found = [("sound", seed, []) for seed in range(1, options.seeds + 1)]
    for name, sets in FAULTS.items():
        found += [(name, seed, [s.format(layer=layer) for s in sets]) for seed in range(1, options.fault_seeds + 1)]
    return [c for c in found if options.only in c[0]]


def run_case(options, case):
    name, seed, sets = case
    run = f"{name}_{seed}"
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    settings = [f"training.runs={options.out}", f"training.name={run}", f"training.seed={seed}",
                f"precision.sr_seed={seed}", f"training.threads={threads}", f"data.cache={options.out}/cache_{run}"]
    command = [options.binary, "validate", options.config, "--backend", options.backend]
    command += [word for s in settings + sets + options.set for word in ("--set", s)]
    started = time.monotonic()
    with open(options.out / f"{run}.log", "w") as log:
        code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT).returncode
    row = {"case": name, "seed": seed, "code": code, "seconds": round(time.monotonic() - started, 1)}
    try:
        verdict = json.loads((options.out / run / "verdict.json").read_text())
    except (OSError, ValueError) as e:
        return row | {"verdict": "none", "problem": f"no verdict: {e}; see {run}.log"}
    faults = [a for a in verdict.get("alarms", []) if a["severity"] == "fault"]
    row |= {"verdict": verdict["verdict"], "gap": verdict["relative_gap"], "ci95": verdict["gap_ci95"],
            "limit": verdict["limit"], "noise": verdict["noise_floor"], "faults": len(faults),
            "fault": f"{faults[0]['rule']}: {faults[0]['text']}" if faults else ""}
    row["problem"] = problem_of(row)
    return row


def problem_of(row):
    if row["verdict"] not in VERDICT_OF_CODE.get(row["code"], {row["verdict"]} if row["code"] == 5 else set()):
        return f"exit code {row['code']} does not go with the verdict"
    if row["case"] != "sound":
        return "a planted fault passed" if row["verdict"] == "pass" else ""
    if row["faults"]:
        return "a sound run raised a fault"
    return "" if row["verdict"] in ("pass", "inconclusive") else "a sound run was not accepted"


def percent(value):
    return f"{100 * value:+.2f}" if isinstance(value, (int, float)) else str(value)


def print_row(row):
    interval = "/".join(percent(v) for v in row.get("ci95", []))
    print(f"{row['case']:<20}{row['seed']:>5}  {row['verdict']:<13}{row['code']:>4}{percent(row.get('gap', '')):>9}"
          f"{interval:>17}{percent(row.get('limit', '')):>8}{percent(row.get('noise', '')):>8}{row['seconds']:>9}  "
          f"{row.get('fault', '')[:90]}{'   PROBLEM: ' + row['problem'] if row['problem'] else ''}", flush=True)


def main():
    options = arguments()
    options.binary, options.config = options.binary.resolve(), options.config.resolve()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=False)
    todo = cases(options, options.faulty_layer or quantised_layer(options))
    print(f"{'case':<20}{'seed':>5}  {'verdict':<13}{'code':>4}{'gap %':>9}{'95 % interval':>17}{'limit':>8}{'noise':>8}"
          f"{'seconds':>9}  first fault")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        rows = []
        for future in concurrent.futures.as_completed([pool.submit(run_case, options, c) for c in todo]):
            rows.append(future.result())
            print_row(rows[-1])
    rows.sort(key=lambda r: (list(FAULTS).index(r["case"]) if r["case"] in FAULTS else -1, r["seed"]))
    (options.out / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    problems = [r for r in rows if r["problem"]]
    print(f"{len(rows)} runs, {len(problems)} problems; {options.out / 'table.json'}")
    return 1 if problems or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
