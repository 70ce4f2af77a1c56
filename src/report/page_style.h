// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace nibble {

/// The page's style sheet. All colours are variables, set once for light and once for dark; paper is light.
inline constexpr const char* kPageStyle = R"css(
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1b1f24;--ink2:#59636e;--ink3:#68717b;--rule:#e3e6ea;
--grid:#eceef1;--phase:#f4f6f8;--window:#e6eef8;--base:#6b7280;--cand:#0b62c4;--aa:#e08a1e;--aat:#955800;--limit:#c0362c;--warn:#9a6700;
--pass:#1a7f37;--passbg:#e9f6ec;--fail:#c0362c;--failbg:#fdecea;--open:#8f5f00;--openbg:#fdf4dc;--band1:#0b62c41f;--band2:#0b62c412;
--q0:#f3f4f2;--q1:#fdf0d5;--q2:#fbdfae;--q3:#f7c77f;--q4:#f0a955;--q5:#e38737;--q6:#cc6423;--q7:#a8441a;--q8:#7c2a12;
--d0:#1b4f9c;--d1:#4a7cc0;--d2:#8fb1de;--d3:#cfdef1;--d4:#f3f4f2;--d5:#f6d9c4;--d6:#eca57c;--d7:#d46a3c;--d8:#a63b14}
@media (prefers-color-scheme:dark){:root{--bg:#0f1317;--card:#161b21;--ink:#e6e9ed;--ink2:#a3acb7;--ink3:#87929e;
--rule:#2a313a;--grid:#222931;--phase:#1a2027;--window:#1b2a3f;--base:#a3acb7;--cand:#5aa2f5;--aa:#f0b35c;--aat:#f0b35c;--limit:#f4776c;
--warn:#e3b341;--pass:#4cc267;--passbg:#12261a;--fail:#f4776c;--failbg:#2d1715;--open:#e3b341;--openbg:#2a2210;
--band1:#5aa2f52b;--band2:#5aa2f517;
--q0:#1d232a;--q1:#3a2f1e;--q2:#553f20;--q3:#775324;--q4:#9c6a29;--q5:#c38333;--q6:#e09d4a;--q7:#f2bb72;--q8:#fddca6;
--d0:#9cc4ff;--d1:#6a9fe6;--d2:#4270ad;--d3:#2b4466;--d4:#1d232a;--d5:#54361f;--d6:#8a5226;--d7:#c9752f;--d8:#ffae6b}}
@media print{:root{color-scheme:light}body{background:#fff!important;font-size:11px}main{max-width:none;padding:0}
section,.verdict{break-inside:avoid}details>*{display:block}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);
font:14px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
main{max-width:1120px;margin:0 auto;padding:36px 32px 64px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px;letter-spacing:-.015em;font-weight:650}
h2{font-size:17px;margin:0 0 4px;letter-spacing:-.005em;font-weight:650}h3{font-size:13px;margin:18px 0 6px;font-weight:650}
p{margin:4px 0 10px;max-width:78ch}.sub{color:var(--ink2);margin:0 0 22px;max-width:none}.note{color:var(--ink2);font-size:13px;max-width:112ch}
section{margin-top:38px;border-top:1px solid var(--rule);padding-top:20px}
code,.mono{font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.verdict{background:var(--card);border:1px solid var(--rule);border-left:6px solid var(--vc);border-radius:8px;padding:22px 26px 20px}
.pass{--vc:var(--pass);--vb:var(--passbg)}.fail,.aborted{--vc:var(--fail);--vb:var(--failbg)}.inconclusive{--vc:var(--open);--vb:var(--openbg)}
.word{display:inline-block;font-size:22px;font-weight:750;letter-spacing:.04em;color:var(--vc);background:var(--vb);border-radius:6px;padding:3px 14px}
.word+.label{margin-left:12px;color:var(--ink2)}.verdict .reason{font-size:15px;margin:14px 0 4px;max-width:88ch}
.figures{display:flex;flex-wrap:wrap;gap:14px 24px;margin:18px 0 6px}
.figures div{flex:1 0 auto;border-top:1px solid var(--rule);padding-top:8px}.figures b{display:block;white-space:nowrap;font-size:17.5px;font-weight:600;letter-spacing:-.01em}
.figures span{color:var(--ink2);font-size:12px}
.meta{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:16px 0 0;font-size:13px}.meta dt{color:var(--ink2)}
.meta dd{margin:0;overflow-wrap:anywhere}
.alarm{border-left:3px solid var(--warn);padding:4px 12px;margin:10px 0;font-size:13px}.alarm.fault{border-color:var(--fail);background:var(--failbg)}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:8px 0 0;font-size:12px;color:var(--ink2)}
.legend i{display:inline-block;width:20px;height:0;border-top:2.5px solid;vertical-align:middle;margin-right:7px}
.legend i.box{height:10px;border:0;border-radius:2px}.legend i.dash{border-top-style:dashed}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:10px 34px}@media(max-width:900px){.pair{grid-template-columns:1fr}}
svg.plot{display:block;width:100%;height:auto;margin:4px 0}
svg text{font-size:11px;fill:var(--ink2)}svg .t-tick{fill:var(--ink3)}svg .t-title{fill:var(--ink2)}svg .t-dim{fill:var(--ink3)}
svg .t-label{font-weight:550}svg .t-head{font-weight:650;fill:var(--ink)}svg path,svg line{fill:none}
.axis{stroke:var(--ink3);stroke-width:1}.grid{stroke:var(--grid);stroke-width:1}.zero{stroke:var(--ink3);stroke-width:1}
.base{stroke:var(--base);stroke-width:1.8}.cand{stroke:var(--cand);stroke-width:2}.aa{stroke:var(--aa);stroke-width:1.6}
svg path.thin{stroke-width:1;opacity:.38}circle.base,circle.cand,circle.aa{stroke:var(--card);stroke-width:1}
svg circle:hover{stroke:var(--ink);stroke-width:2}
circle.base{fill:var(--base)}circle.cand{fill:var(--cand)}circle.aa{fill:var(--aa)}
.limit{stroke:var(--limit);stroke-width:1.5}.abort{stroke:var(--limit);stroke-width:1.2;stroke-dasharray:2 3}
.bigram{stroke:var(--ink3);stroke-width:1.2;stroke-dasharray:5 4}.fired{stroke:var(--limit);stroke-width:1.5}
.switch{stroke:var(--ink3);stroke-width:1.2;stroke-dasharray:2 3}
.k-base{fill:var(--base)!important}.k-cand{fill:var(--cand)!important}.k-aa{fill:var(--aat)!important}
.k-limit,.k-abort,.k-fired{fill:var(--limit)!important}
.p-a{fill:var(--phase)}.p-b{fill:transparent}.p-w{fill:var(--window)}.band1{fill:var(--band1)}.band2{fill:var(--band2)}
svg path.range{fill:var(--cand);opacity:.16;stroke:none}
.q0{fill:var(--q0);stroke:var(--q0);background:var(--q0)}.q1{fill:var(--q1);stroke:var(--q1);background:var(--q1)}.q2{fill:var(--q2);stroke:var(--q2);background:var(--q2)}.q3{fill:var(--q3);stroke:var(--q3);background:var(--q3)}.q4{fill:var(--q4);stroke:var(--q4);background:var(--q4)}.q5{fill:var(--q5);stroke:var(--q5);background:var(--q5)}.q6{fill:var(--q6);stroke:var(--q6);background:var(--q6)}.q7{fill:var(--q7);stroke:var(--q7);background:var(--q7)}.q8{fill:var(--q8);stroke:var(--q8);background:var(--q8)}
.d0{fill:var(--d0);stroke:var(--d0);background:var(--d0)}.d1{fill:var(--d1);stroke:var(--d1);background:var(--d1)}.d2{fill:var(--d2);stroke:var(--d2);background:var(--d2)}.d3{fill:var(--d3);stroke:var(--d3);background:var(--d3)}.d4{fill:var(--d4);stroke:var(--d4);background:var(--d4)}.d5{fill:var(--d5);stroke:var(--d5);background:var(--d5)}.d6{fill:var(--d6);stroke:var(--d6);background:var(--d6)}.d7{fill:var(--d7);stroke:var(--d7);background:var(--d7)}.d8{fill:var(--d8);stroke:var(--d8);background:var(--d8)}
.maps{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr));gap:14px 26px;margin:6px 0 18px}
figure{margin:0;min-width:0}figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 12px;font-size:12px}figcaption b{font-weight:600}
.ramp{color:var(--ink3);white-space:nowrap;font-size:11px}.ramp i{display:inline-block;width:8px;height:9px;vertical-align:-1px}
.ramp i:first-of-type{margin-left:5px}.ramp i:last-of-type{margin-right:5px}
.cells path{fill:none!important;stroke-width:1.02}.gaps path{stroke-width:.9}.map{shape-rendering:crispEdges}
.chart{overflow-x:auto}.pair>div{min-width:0}
@media(max-width:700px){main{padding:22px 16px 40px}.verdict{padding:16px 16px 14px}.figures{gap:10px 18px}.figures div{flex:1 1 38%}.figures b{white-space:normal}
.meta{grid-template-columns:1fr;gap:0}.meta dt{margin-top:7px}.chart svg.plot{min-width:680px}.pair .chart svg.plot{min-width:420px}.scroll table{min-width:520px}.word+.label{margin-left:0;display:block}}
@media(min-width:1900px){main{max-width:1720px}.maps{grid-template-columns:repeat(auto-fill,minmax(320px,1fr))}.chart svg.plot{max-width:1300px}.pair .chart svg.plot{max-width:none}}
.bar{fill:var(--cand)}.bar0{fill:var(--base);opacity:.4}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:12.5px;margin:8px 0}
th{font-weight:600;color:var(--ink2);text-align:left;border-bottom:1px solid var(--rule);padding:5px 12px 5px 0;white-space:nowrap}
td{border-bottom:1px solid var(--grid);padding:4px 12px 4px 0;vertical-align:middle}td.n,th.n{text-align:right;white-space:nowrap}td svg{display:block}
.tag{display:inline-block;border-radius:4px;padding:0 7px;font-size:11.5px;background:var(--phase);color:var(--ink2)}.tag.four{background:var(--window);color:var(--cand)}
details summary{cursor:pointer;color:var(--ink2);font-size:13px;margin:8px 0}ul{padding-left:20px;max-width:84ch}li{margin:4px 0}
footer{margin-top:44px;color:var(--ink3);font-size:12px}
)css";

}  // namespace nibble
