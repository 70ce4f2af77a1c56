// SPDX-License-Identifier: Apache-2.0
// The live page: takes runs from the event stream, keeps them in plain arrays, draws them with uPlot.
"use strict";
(() => {
  // A row of the stream, in this order.
  const STEP = 0, LOSS = 1, NORM = 2, LR = 3, SPEED = 4, MS = 5;
  const REDRAW_MS = 250;
  const runs = [];
  const $ = (id) => document.getElementById(id);
  const colour = (i) => getComputedStyle(document.documentElement).getPropertyValue("--r" + (i % 6)).trim();
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const finite = (v) => typeof v === "number" && Number.isFinite(v);
  const fixed = (v, digits) => (finite(v) ? v.toFixed(digits) : "not finite");
  const short = (v) => !finite(v) ? "" : v >= 1e9 ? (v / 1e9).toFixed(2) + "B" : v >= 1e6 ? (v / 1e6).toFixed(2) + "M"
    : v >= 1e3 ? (v / 1e3).toFixed(1) + "k" : v.toFixed(0);
  const percent = (v) => finite(v) ? (v >= 0 ? "+" : "") + (100 * v).toFixed(2) + " %" : "";
  const left = (s) => !finite(s) ? "" : s < 90 ? s.toFixed(0) + " s" : s < 5400 ? (s / 60).toFixed(0) + " min"
    : (s / 3600).toFixed(1) + " h";

  // Exponential mean that starts at the first value.
  function smoothed(values, keep) {
    if (keep <= 0) return values;
    let mean = null;
    return values.map((v) => (!finite(v) ? null : (mean = mean === null ? v : keep * mean + (1 - keep) * v)));
  }
  const column = (run, index) => [run.rows.map((r) => r[STEP]), run.rows.map((r) => (finite(r[index]) ? r[index] : null))];

  // The relative gap of the validation loss to the first run at the same steps.
  function gaps(run) {
    const base = new Map((runs[0] ? runs[0].evaluations : []).map((e) => [e[0], e[1]]));
    const steps = [], values = [];
    for (const [step, loss] of run.evaluations) {
      if (!base.has(step) || !finite(loss) || !finite(base.get(step))) continue;
      steps.push(step);
      values.push(100 * (loss - base.get(step)) / base.get(step));
    }
    return [steps, values];
  }

  const charts = [
    {title: "Training loss, nats a token", data: (r) => column(r, LOSS), smooth: true, digits: 4, skip: 0.02},
    {title: "Validation loss", data: (r) => [r.evaluations.map((e) => e[0]), r.evaluations.map((e) => (finite(e[1]) ? e[1] : null))],
      points: true, digits: 4, skip: 0.02},
    {title: "Gap of the validation loss to the first run, %", data: gaps, points: true, digits: 3, from: 1},
    {title: "Gradient norm before clipping", data: (r) => column(r, NORM), smooth: true, digits: 3, skip: 0.02},
    {title: "Tokens a second", data: (r) => column(r, SPEED), smooth: true, digits: 0},
    {title: "Learning rate", data: (r) => column(r, LR), digits: 6},
  ];

  const compact = (v) => v === 0 ? "0" : Math.abs(v) >= 1e4 ? short(v) : Math.abs(v) < 1e-4 ? v.toExponential(0) : String(+v.toPrecision(4));

  function options(chart, width, logarithmic) {
    const axis = (more) => ({stroke: ink("--ink2"), grid: {stroke: ink("--grid"), width: 1}, ticks: {stroke: ink("--grid"), width: 1}, ...more});
    const y = chart.skip ? {range: (u) => rangeAfter(u, chart.skip)} : {};
    return {
      width, height: Math.max(220, Math.min(340, Math.round(width * 0.45))),
      scales: {x: {time: false, distr: logarithmic ? 3 : 1}, y},
      axes: [axis({}), axis({size: 72, values: (u, vs) => vs.map((v) => (v === null ? "" : compact(v)))})],
      // A run that has no value within so many pixels shows none: it ended before, or has not come so far.
      cursor: {drag: {x: true, y: false}, hover: {prox: 12}},
      series: [{label: "step"}].concat(runs.map((run, i) => ({
        label: run.name, stroke: colour(i), width: chart.points ? 1.8 : 1.2, spanGaps: true,
        show: !chart.from || i >= chart.from,
        points: {show: !!chart.points, size: 5, fill: colour(i)},
        value: (u, v) => (v === null || v === undefined ? "" : v.toFixed(chart.digits)),
      }))),
    };
  }

  // Losses fall from ln(vocabulary) at first, which would press everything else against the floor.
  function rangeAfter(u, share) {
    const xs = u.data[0];
    // While the range of steps changes u.scales.x still holds the last one; the indexes are of the new one.
    const [from, to] = u.series[0].idxs || [null, null];
    const begin = from || 0, end = finite(to) ? to : xs.length - 1;
    const first = begin === 0 ? xs[xs.length - 1] * share : xs[begin];
    let lo = Infinity, hi = -Infinity;
    for (let s = 1; s < u.data.length; ++s) {
      for (let i = begin; i <= end; ++i) {
        const v = u.data[s][i];
        if (xs[i] < first || !finite(v)) continue;
        lo = Math.min(lo, v);
        hi = Math.max(hi, v);
      }
    }
    if (lo > hi) return [0, 1];
    const pad = Math.max((hi - lo) * 0.05, 1e-9);
    return [lo - pad, hi + pad];
  }

  function aligned(chart) {
    const keep = chart.smooth ? Number($("smooth").value) : 0;
    const logarithmic = $("log").checked;
    const tables = runs.map((run) => {
      const [xs, ys] = chart.data(run);
      const values = smoothed(ys, keep);
      if (!logarithmic) return [xs, values];
      return [xs.filter((x) => x > 0), values.filter((v, i) => xs[i] > 0)];
    });
    return uPlot.join(tables);
  }

  // Charts are made anew when the runs, the width or the colours change, and fed otherwise.
  function draw(anew) {
    for (const chart of charts) {
      const wanted = runs.length > (chart.from || 0);
      if (chart.figure) chart.figure.hidden = !wanted;
      if (!wanted) continue;
      if (!chart.figure) {
        chart.figure = document.createElement("figure");
        if (chart.from) chart.figure.className = "gap";
        const caption = document.createElement("figcaption");
        caption.textContent = chart.title;
        chart.place = document.createElement("div");
        chart.figure.append(caption, chart.place);
        $("charts").append(chart.figure);
      }
      const width = Math.max(200, chart.place.clientWidth);
      if (anew || !chart.plot || chart.width !== width) {
        if (chart.plot) chart.plot.destroy();
        chart.width = width;
        chart.plot = new uPlot(options(chart, width, $("log").checked), aligned(chart), chart.place);
      } else {
        const xs = chart.plot.data[0], {min, max} = chart.plot.scales.x;
        const zoomed = min > xs[0] || max < xs[xs.length - 1];
        chart.plot.setData(aligned(chart), !zoomed);
        if (zoomed) chart.plot.redraw();
      }
    }
  }

  function cell(row, text) {
    const td = document.createElement("td");
    td.textContent = text;
    row.append(td);
    return td;
  }

  function table() {
    const body = $("runs");
    body.replaceChildren();
    runs.forEach((run, i) => {
      const row = document.createElement("tr");
      const key = document.createElement("i");
      key.className = "key";
      key.style.background = colour(i);
      cell(row, "").append(key);
      cell(row, run.name);
      cell(row, run.recipe + (run.backend ? ", " + run.backend : ""));
      const last = run.rows[run.rows.length - 1], evaluation = run.evaluations[run.evaluations.length - 1];
      cell(row, last ? last[STEP] + " / " + run.steps : "");
      cell(row, last ? fixed(last[LOSS], 4) : "");
      cell(row, evaluation ? fixed(evaluation[1], 4) : "");
      const gap = i > 0 ? gaps(run)[1] : [];
      cell(row, gap.length > 0 ? percent(gap[gap.length - 1] / 100) : "");
      cell(row, last ? fixed(last[NORM], 3) : "");
      cell(row, last ? short(last[SPEED]) : "");
      const remaining = last ? run.steps - last[STEP] : 0;
      cell(row, !last ? "" : remaining > 0 ? left(remaining * last[MS] / 1e3) : "done");
      body.append(row);
    });
    $("empty").hidden = runs.length > 0;
    const list = $("alarms");
    list.replaceChildren();
    for (const run of runs) {
      const faults = run.alarms.filter((a) => a.startsWith("fault"));
      const others = run.alarms.filter((a) => !a.startsWith("fault"));
      for (const alarm of [...faults.slice(0, 8), ...others.slice(-8)]) {  // the first faults, the newest of the rest
        const item = document.createElement("li");
        item.textContent = run.name + " · " + alarm;
        if (alarm.startsWith("fault")) item.className = "fault";
        list.append(item);
      }
    }
    const first = runs[0] && runs[0].rows[runs[0].rows.length - 1];
    document.title = first ? fixed(first[LOSS], 3) + " · nibble watch" : "nibble watch";
  }

  // Keeps rows ascending: a step that comes again replaces what followed it.
  function append(to, rows) {
    for (const row of rows) {
      while (to.length > 0 && to[to.length - 1][STEP] >= row[STEP]) to.pop();
      to.push(row);
    }
  }

  let pending = 0, remake = false;
  function later(anew) {
    remake = remake || anew;
    if (pending) return;
    pending = setTimeout(() => {
      const all = remake;
      pending = 0;
      remake = false;
      table();
      draw(all);
    }, REDRAW_MS);
  }

  function take(message) {
    let anew = false;
    for (const part of message) {
      let run = runs[part.run];
      if (!run) {
        run = runs[part.run] = {rows: [], evaluations: []};
        anew = true;
      }
      if (part.anew) {
        run.rows = [];
        run.evaluations = [];
      }
      anew = anew || run.name !== part.name;
      Object.assign(run, {name: part.name, recipe: part.recipe, backend: part.backend, steps: part.steps, alarms: part.alarms});
      append(run.rows, part.rows);
      append(run.evaluations, part.evaluations);
    }
    later(anew);
  }

  function state(name, text) {
    $("state").className = name;
    $("state").textContent = text;
  }

  const stream = new EventSource("events");
  stream.onopen = () => {
    runs.length = 0;  // a new connection is told everything
    state("live", "live");
  };
  stream.onmessage = (e) => take(JSON.parse(e.data));
  stream.onerror = () => state("lost", "connection lost, trying again");

  $("smooth").addEventListener("input", () => later(false));
  $("log").addEventListener("change", () => later(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => later(true));
  new ResizeObserver(() => later(false)).observe($("charts"));
})();
