// How a report looks, beside its charts. Colours are page_colours()'s variables.
#pragma once

namespace computron {

inline constexpr const char* kPageStyle = R"(
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:36px 28px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:18px;margin:44px 0 14px;padding-top:14px;border-top:1px solid var(--grid)}
h3{font-size:14px;margin:0 0 8px}
p{margin:0 0 10px}
.facts,figcaption,.note,.card small{color:var(--soft)}
.facts{font-size:14px;overflow-wrap:anywhere}
figcaption,.note{font-size:12.5px;line-height:1.45}
.note{margin-top:10px}
.cards{display:grid;grid-template-columns:repeat(5,minmax(0,1fr));gap:12px;margin-top:24px}
.card{border:1px solid var(--grid);border-radius:8px;padding:12px 14px}
.card b{display:block;font-size:12.5px;font-weight:500;color:var(--soft)}
.card strong{display:block;font-size:23px;line-height:1.3;font-weight:600;font-variant-numeric:tabular-nums}
.card small{display:block;font-size:12.5px;font-variant-numeric:tabular-nums}
.note+.figures{margin-top:24px}
.card span{white-space:nowrap}
.figures{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:28px 24px}
figure{margin:0;min-width:0}
figure.wide{grid-column:1/-1}
figure svg{display:block;width:100%;height:auto}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:6px 7px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
th{color:var(--soft);font-weight:500;vertical-align:bottom;font-size:12.5px}
table.study{width:auto}
table.study th,table.study td{padding-left:10px}
table.study th:first-child,table.study td:first-child{padding-left:0;min-width:0;white-space:nowrap}
th.group{text-align:left;border-bottom:0;padding-bottom:0;color:var(--ink)}
thead tr.groups th{border-bottom:0}
td.g,th.g{padding-left:20px}
th:first-child,td:first-child{text-align:left;padding-left:0}
td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:8em;max-width:20em}
tr.all td{font-weight:600;border-bottom:2px solid var(--grid)}
td small{color:var(--soft)}
.bad{color:var(--mw);font-weight:600}
.settings{columns:2;column-gap:36px;font-size:13px;margin:0}
.settings div{display:flex;justify-content:space-between;gap:16px;border-bottom:1px solid var(--grid);padding:3px 0;break-inside:avoid}
.settings dt{color:var(--soft);white-space:nowrap}
.settings dd{margin:0;text-align:right;overflow-wrap:anywhere}
@media screen and (max-width:960px){.cards{grid-template-columns:repeat(auto-fit,minmax(150px,1fr))}}
@media screen and (max-width:760px){.figures{grid-template-columns:minmax(0,1fr)}.settings{columns:1}main{padding:20px 14px}}
@media print{@page{size:A4 landscape;margin:10mm}body{font-size:11px}main{padding:0;max-width:none;zoom:.86}
h1{font-size:20px}h2{font-size:15px;margin:22px 0 8px;break-after:avoid}h3{font-size:12px;break-after:avoid}
.cards{grid-template-columns:repeat(5,minmax(0,1fr));gap:6px;margin-top:12px}.card{padding:6px 9px}.card strong{font-size:16px}
.card b,.card small,figcaption,.note,th{font-size:9.5px}
table{font-size:9.5px}th,td{padding:3px 4px}td.g,th.g{padding-left:12px}td:first-child{min-width:5em}.scroll{overflow:visible}.settings{font-size:9.5px;columns:3}.settings div{padding:1px 0}
figure,.card,tr{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
)";

}  // namespace computron
