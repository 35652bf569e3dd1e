"use strict";
// Recent requests, and the waterfall of one: of the list, or of an answer that the user pastes.

const MAX_REQUESTS = 20;
const WATERFALL = { label: 150, numbers: 128, bar: 16, minBar: 2, narrow: 480 }; // px
const TIER_NAMES = ["edge", "auth", "queue", "scheduler", "worker", "network"];

let selectedRequest = null; // with its stages

// The timeline in an answer of the HTTP APIs, or in the output of `penstock generate --explain --json`.
function timelineOf(text) {
  const answer = JSON.parse(text);
  const found = answer.timeline || answer;
  if (!Array.isArray(found.stages) || !found.stages.length) throw new Error("it has no timeline; ask with explain");
  let end = 0;
  const stages = found.stages.map((stage) => {
    const length = Number(stage.length_s === undefined ? stage.seconds : stage.length_s);
    const start = Number(stage.start_s === undefined ? end : stage.start_s);
    if (!Number.isFinite(length) || !Number.isFinite(start)) throw new Error("a stage has no length in seconds");
    end = start + length;
    return { tier: String(stage.tier), name: String(stage.name), start_s: start, length_s: length };
  });
  const total = Number(found.total_s === undefined ? found.latency_s || end : found.total_s);
  const id = String(answer.request_id || answer.id || found.trace_id || "pasted answer");
  return { request_id: id, total_s: total, stages };
}

// The stages, and what is left between them and the total as a stage of the network.
function completeStages({ stages, total_s: total }) {
  const end = Math.max(0, ...stages.map((stage) => stage.start_s + stage.length_s));
  const rest = { tier: "network", name: "to client", start_s: end, length_s: total - end };
  return total - end > 1e-6 ? [...stages, rest] : stages;
}

// The places of the parts of one stage: in one line, or on a narrow page with its texts above the bar.
function waterfallLayout(width) {
  if (width < WATERFALL.narrow) return { row: 40, bar: 22, begin: 0, width };
  const begin = WATERFALL.label;
  return { row: 24, bar: 3, begin, width: width - begin - WATERFALL.numbers };
}

function stageShapes(stage, y, total, pageWidth) {
  const { bar, begin, width } = waterfallLayout(pageWidth);
  const length = Math.max(WATERFALL.minBar, (width * stage.length_s) / total);
  const x = begin + Math.min(width - length, (width * stage.start_s) / total);
  const tier = TIER_NAMES.includes(stage.tier) ? stage.tier : "network";
  const numbers = `${milliseconds(stage.length_s)} · ${percent(stage.length_s / total)}`;
  const height = WATERFALL.bar;
  return [
    shape("text", { x: 0, y: y + 16 }, `${stage.tier} ${stage.name}`),
    shape("rect", { class: "track", x: begin, y: y + bar, width, height }),
    shape("rect", { class: `stage ${tier}`, x, y: y + bar, width: length, height, rx: 2 }),
    shape("text", { class: "quiet", x: pageWidth, y: y + 16, "text-anchor": "end" }, numbers),
  ];
}

function drawWaterfall() {
  const place = query("#requests .waterfall");
  if (!selectedRequest) return;
  const stages = completeStages(selectedRequest);
  const total = Math.max(1e-9, ...stages.map((stage) => stage.start_s + stage.length_s));
  const width = Math.max(300, place.clientWidth);
  const { row } = waterfallLayout(width);
  const { request_id: id, cause } = selectedRequest;
  const size = { viewBox: `0 0 ${width} ${stages.length * row}`, role: "img", "aria-label": `waterfall of ${id}` };
  const picture = shape("svg", size, ...stages.flatMap((stage, at) => stageShapes(stage, at * row, total, width)));
  const texts = [`${id}: ${milliseconds(total)}`, cause].filter(Boolean);
  place.replaceChildren(...texts.map((text) => element("p", {}, text)), picture);
}

function drawRequests(frame) {
  const place = query("#requests .list");
  const rows = frame.requests.slice(0, MAX_REQUESTS);
  const none = "No edge lists recent requests. Paste an answer below.";
  if (!rows.length) {
    if (place.dataset.key !== "none") place.replaceChildren(element("p", { class: "empty" }, none));
    place.dataset.key = "none";
    return;
  }
  const key = rows.map((row) => row.request_id).join(" ") + (selectedRequest ? selectedRequest.request_id : "");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.replaceChildren(...rows.map((row) => requestButton(row, frame)));
}

function requestButton(row, frame) {
  const isSelected = selectedRequest && selectedRequest.request_id === row.request_id;
  const button = element(
    "button",
    { type: "button", class: isSelected ? "request selected" : "request" },
    element("span", { class: "id" }, row.request_id),
    element("span", {}, row.tenant_id || ""),
    element("span", {}, row.outcome || ""),
    element("span", {}, milliseconds(row.total_s)),
  );
  button.addEventListener("click", () => {
    selectedRequest = row;
    drawRequests(frame);
    drawWaterfall();
  });
  return button;
}

query("#answer").addEventListener("input", (event) => {
  const error = query("#answer-error");
  error.textContent = "";
  if (!event.target.value.trim()) return;
  try {
    selectedRequest = timelineOf(event.target.value);
    drawWaterfall();
  } catch (problem) {
    error.textContent = `This is not an answer with a timeline: ${problem.message}`;
  }
});
