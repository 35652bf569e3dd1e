"use strict";
// The processes; those that do not answer or that drain are always shown.

const PROCESS_COLUMNS = [
  ["process", (row) => row.process],
  ["tier", (row) => row.tier],
  ["state", (row) => row.state],
  ["release", (row) => row.release || ""],
  ["CPU", (row) => (row.pid ? percent(row.cpu_share) : ""), true],
  ["MB", (row) => (row.pid ? megabytes(row.rss_bytes) : ""), true],
  ["streams", (row) => (row.pid ? count(row.open_streams) : ""), true],
  ["up", (row) => (row.pid ? duration(row.uptime_s) : ""), true],
];

function drawProcesses(frame) {
  const up = frame.processes.filter((row) => row.state === "up");
  const others = frame.processes.filter((row) => row.state !== "up");
  const draining = others.filter((row) => row.state === "draining").length;
  const silent = others.length - draining;
  const summary = `${count(up.length)} up, ${count(draining)} draining, ${count(silent)} not answering`;
  setText(query("#processes .summary"), summary);
  query("#processes .missing").replaceChildren(...(others.length ? [table(PROCESS_COLUMNS, others, "")] : []));
  query("#processes .all").replaceChildren(table(PROCESS_COLUMNS, frame.processes, ""));
}
